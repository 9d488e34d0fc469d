# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-form-kernels: what runs as one kernel, each kernel once.

Why: this is where a function over tensors becomes a list of launches. Loops over the same rows run
as one kernel, everything else as a kernel of its own (`clusters`). A kernel numbers its symbols
itself and knows only sizes that its problem depends on (`model`, `symbols`), so the layers of a
model, and models of equal layers, share kernels. For a GPU (``shapejit.target = "cuda:.."``)
launches are saved where small kernels need not be apart.

Before::

    %sum = shapejit.loop over [s0, s1, 384] ins(%x at #id) outs(add #rows) ..
    %y = shapejit.loop over [s0, s1, 384] ins(%x at #id, %sum at #rows) outs(#id) ..

After::

    shapejit.kernel @rows0 symbols 1 (%x: tensor<?x384xf32, #shapejit.shape<[s0, 384]>>) {
      %sum = shapejit.loop over [s0, 384] ins(%x at #id) outs(add #rows) ..
      %y = shapejit.loop over [s0, 384] ins(%x at #id, %sum at #rows) outs(#id) ..
      shapejit.yield %y
    }
    %y = shapejit.launch @rows0 affine_map<()[s0, s1] -> (s0 * s1)> (%x)

A view that keeps the row-major order stays in the function: the host passes the same memory on. Any
other view that no pass could fold becomes a loop that copies. So does a result of the function that
is an argument, or that is returned twice: every result is written by one launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, register_pass
from shapejit.passes.analysis.target import is_for_gpu
from shapejit.passes.fusion.clusters import KERNEL_OPS, Grouping, graph
from shapejit.passes.fusion.codec import Codec, Indices, dims
from shapejit.passes.fusion.flatten import flatten_row_loops
from shapejit.passes.fusion.outline import Outliner
from shapejit.passes.fusion.readers import erase_dead
from shapejit.passes.fusion.views import is_contiguous


def _copy(value: Any, indices: Indices, result_type: Any, codec: Codec, before: Any) -> Any:
    """A tensor of `result_type` with the elements of `value` at `indices`."""
    sizes = codec.sizes(result_type.encoding)
    loop = ir.Operation.create(
        "shapejit.loop",
        results=[result_type],
        operands=[value],
        attributes={
            "space": codec.shape_attr(sizes),
            "maps": ir.ArrayAttr.get(
                [codec.map_attr(len(sizes), indices), codec.map_attr(len(sizes), dims(len(sizes)))]
            ),
            "kinds": ir.ArrayAttr.get([ir.StringAttr.get("none")]),
        },
        regions=1,
        loc=before.location,
        ip=ir.InsertionPoint(before),
    )
    with before.location:
        block = loop.regions[0].blocks.append(value.type.element_type)
        ir.Operation.create(
            "shapejit.yield", operands=[block.arguments[0]], ip=ir.InsertionPoint(block)
        )
    return loop.results[0]


def _copy_views(function: Any, codec: Codec) -> None:
    """Makes loops of the views that change the order of elements."""
    for view in sir.operations(sir.body(function)):
        if view.name != "shapejit.view" or is_contiguous(view, codec):
            continue
        indices = codec.indices(view.attributes["map"])
        result = view.results[0]
        copy = _copy(view.operands[0], indices, result.type, codec, view)
        result.replace_all_uses_with(copy)
        view.erase()


def _copy_results(function: Any, codec: Codec) -> None:
    """Copies results of the function that no kernel of their own writes."""
    end = sir.operations(sir.body(function))[-1]
    written: set[Any] = set()
    for number, value in enumerate(end.operands):
        source = _memory_of(value)
        maker = sir.defining_op(source)
        if maker is None or maker.name not in KERNEL_OPS or source in written:
            indices = dims(len(codec.shape(value)))
            source = _copy(value, indices, value.type, codec, end)
            end.operands[number] = source
        written.add(source)


def _memory_of(value: Any) -> Any:
    """The value whose memory `value` is: views that are left only regroup dims."""
    op = sir.defining_op(value)
    while op is not None and op.name == "shapejit.view":
        value = op.operands[0]
        op = sir.defining_op(value)
    return value


@register_pass("shapejit-form-kernels", dialects=("arith", "tensor"))
@dataclass(frozen=True)
class FormKernels(Pass):
    """Group operations into kernels and outline them, equal ones once."""

    def run(self, module: Any) -> None:
        functions = sir.functions(module)
        if not functions:
            return
        codec, for_gpu = Codec(module), is_for_gpu(module)
        outliner = Outliner(codec, functions[0])
        for function in functions:
            _copy_views(function, codec)
            _copy_results(function, codec)
            if for_gpu:
                flatten_row_loops(function, codec)
            end = sir.operations(sir.body(function))[-1]
            for group in Grouping(graph(function), codec, merge=for_gpu).groups():
                if group.is_kernel:
                    outliner.outline(group.nodes, end)
                else:
                    group.nodes[0].op.move_before(end)
            erase_dead(sir.body(function))
