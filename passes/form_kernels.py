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
is an argument, or that is returned twice: every result is written by one launch. A scatter writes
in the memory of what it updates, as `in_place` of its launch says; what reads the old value comes
before it, or reads a copy (`updates`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shapejit import ir as sir
from shapejit.pass_host import Pass, register_pass
from shapejit.passes.analysis.target import is_for_gpu
from shapejit.passes.fusion.clusters import KERNEL_OPS, Grouping, graph
from shapejit.passes.fusion.codec import Codec
from shapejit.passes.fusion.copies import copy, memory_of, whole_copy
from shapejit.passes.fusion.flatten import flatten_row_loops
from shapejit.passes.fusion.outline import Outliner
from shapejit.passes.fusion.readers import erase_dead
from shapejit.passes.fusion.updates import settle
from shapejit.passes.fusion.views import is_contiguous


def _copy_views(function: Any, codec: Codec) -> None:
    """Makes loops of the views that change the order of elements."""
    for view in sir.operations(sir.body(function)):
        if view.name != "shapejit.view" or is_contiguous(view, codec):
            continue
        indices = codec.indices(view.attributes["map"])
        result = view.results[0]
        copied = copy(view.operands[0], indices, result.type, codec, view)
        result.replace_all_uses_with(copied)
        view.erase()


def _copy_results(function: Any, codec: Codec) -> None:
    """Copies results of the function that no kernel of their own writes."""
    end = sir.operations(sir.body(function))[-1]
    written: set[Any] = set()
    updates = sir.updated_arguments(function)
    # New values of arguments first: what is returned besides is a copy of them.
    for number in sorted(range(len(end.operands)), key=lambda number: number not in updates):
        value = end.operands[number]
        source = memory_of(value)
        maker = sir.defining_op(source)
        if maker is None or maker.name not in KERNEL_OPS or source in written:
            source = whole_copy(value, codec, end)
            end.operands[number] = source
        written.add(source)


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
            before = settle(function, codec)
            end = sir.operations(sir.body(function))[-1]
            for group in Grouping(graph(function, before), codec, merge=for_gpu).groups():
                if group.is_kernel:
                    outliner.outline(group.nodes, end)
                else:
                    group.nodes[0].op.move_before(end)
            erase_dead(sir.body(function))
