# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Moves groups of operations into kernels; equal kernels are made once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.fusion.clusters import Node
from shapejit.passes.fusion.codec import Codec
from shapejit.passes.fusion.collapse import collapse
from shapejit.passes.fusion.model import Model, Part, build, signature
from shapejit.passes.fusion.symbols import LocalSymbols
from shapejit.passes.fusion.updates import SCATTER, dest_of
from shapejit.symbolic import Expr


class Outliner:
    """Makes the kernels of a module.

    Args:
        codec: of the module.
        before: kernels are put in front of this operation, the module's first function.
    """

    def __init__(self, codec: Codec, before: Any) -> None:
        self._codec = codec
        self._before = before
        self._names: dict[Any, str] = {}  # by signature
        self._counts: Counter[str] = Counter()
        self._symbols: dict[Any, LocalSymbols] = {}  # by the expressions; layers repeat them
        self._i64 = ir.IntegerType.get_signless(64)

    def outline(self, nodes: Sequence[Node], at: Any) -> None:
        """Replaces operations by a launch of their kernel in front of `at`.

        Raises:
            PassFailure: a body reads a scalar that cannot be copied into a kernel.
        """
        model = build(nodes, self._codec)
        ops = [node.op for node in nodes]
        if model.outputs:
            self._launch(model, ops, at)
        for op in reversed(ops):
            op.erase()

    def _launch(self, model: Model, ops: Sequence[Any], at: Any) -> None:
        collapse(model, self._codec)
        symbols = self._local_symbols(*model.expressions())
        model.replace(symbols.localize)
        with ir.Location.fused([op.location for op in ops]):
            launch = ir.Operation.create(
                "shapejit.launch",
                results=[output.type for output, _ in model.outputs],
                operands=model.inputs,
                attributes={
                    "kernel": ir.FlatSymbolRefAttr.get(self._kernel(model, len(symbols.values))),
                    "sizes": self._codec.map_attr(0, symbols.values),
                    **_in_place(model),
                },
                ip=ir.InsertionPoint(at),
            )
        for (_, uses), result in zip(model.outputs, launch.results, strict=True):
            for user, operand in uses:
                user.operands[operand] = result

    def _local_symbols(self, sizes: list[Expr], others: list[Expr]) -> LocalSymbols:
        key = (tuple(sizes), tuple(others))
        if key not in self._symbols:
            self._symbols[key] = LocalSymbols(sizes, others)
        return self._symbols[key]

    def _kernel(self, model: Model, symbols: int) -> str:
        """The name of the model's kernel, which is made if there is no equal one."""
        key = signature(model)
        if key not in self._names:
            kind = _kind([part.op for part in model.parts])
            self._names[key] = f"{kind}{self._counts[kind]}"
            self._counts[kind] += 1
            self._make_kernel(self._names[key], model, symbols)
        return self._names[key]

    def _make_kernel(self, name: str, model: Model, symbols: int) -> None:
        kernel = ir.Operation.create(
            "shapejit.kernel",
            attributes={
                "sym_name": ir.StringAttr.get(name),
                "symbols": ir.IntegerAttr.get(self._i64, symbols),
            },
            regions=1,
            ip=ir.InsertionPoint(self._before),
        )
        block = kernel.regions[0].blocks.append(*(self._type(v, model) for v in model.inputs))
        point = ir.InsertionPoint(block)
        values = dict(zip(model.inputs, block.arguments, strict=True))
        for part in model.parts:
            copy = self._copy(part, model, values, point)
            values.update(zip(part.op.results, copy.results, strict=True))
        yielded = [values[output] for output, _ in model.outputs]
        ir.Operation.create("shapejit.yield", operands=yielded, ip=point)

    def _type(self, value: Any, model: Model) -> Any:
        return self._codec.tensor_type(model.sizes[value], value.type.element_type)

    def _copy(self, part: Part, model: Model, values: dict[Any, Any], point: Any) -> Any:
        """An operation in terms of the kernel's values, dims and symbols."""
        codec, op = self._codec, part.op.clone(point).operation
        body = list(sir.walk(op))
        for number, dim in part.body_dims.items():
            body[number].attributes["dim"] = ir.IntegerAttr.get(self._i64, dim)
        for number, size in part.body_sizes.items():
            body[number].attributes["expr"] = codec.map_attr(0, [size])
        for user in [op, *body]:
            for number, value in enumerate(user.operands):
                if value in values:
                    user.operands[number] = values[value]
        op.attributes["space"] = codec.shape_attr(part.space)
        op.attributes["maps"] = ir.ArrayAttr.get(
            [
                codec.map_attr(rank, access.indices)
                for rank, access in zip(part.map_ranks, part.accesses, strict=False)
            ]
        )
        if part.image:
            op.attributes["image"] = codec.shape_attr(part.image)
        if part.causal is not None:
            op.attributes["causal"] = codec.map_attr(0, [part.causal])
        for old, result in zip(part.op.results, op.results, strict=True):
            result.set_type(self._type(old, model))
        return op


def _in_place(model: Model) -> dict[str, Any]:
    """The attribute that says which results are written where an operand is; none if no one is."""
    numbers = [-1] * len(model.outputs)
    for number, (output, _) in enumerate(model.outputs):
        maker = sir.defining_op(output)
        if maker is not None and maker.name == SCATTER:
            numbers[number] = model.inputs.index(dest_of(maker))
    return {"in_place": ir.DenseI64ArrayAttr.get(numbers)} if max(numbers) >= 0 else {}


def _kind(ops: Sequence[Any]) -> str:
    """What a kernel is called after: rows if it reduces, pointwise if it does not."""
    name: str = ops[-1 if ops[-1].name == SCATTER else 0].name.removeprefix("shapejit.")
    if name != "loop":
        return name
    return "pointwise" if all(map(sir.is_pointwise, ops)) else "rows"
