# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What `shapejit-hoist-weights` leaves in a module, as records: parts of `shapejit.pipeline`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlir.ir as ir
from torch.utils import _pytree as pytree

from shapejit import ir as sir
from shapejit.artefacts import Artefacts, BindPart, HoistedSpec, TensorInput, TensorOutput
from shapejit.describe import operators
from shapejit.passes.hoist_weights import KEPT
from shapejit.passes.hoisting.split import WEIGHT, is_bind_part
from shapejit.symbolic import Expr

if TYPE_CHECKING:
    from shapejit.importer import ImportedModel

_DTYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "i1": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
}
"""torch's names of dtypes by element types; what tells signed from unsigned ones is the body."""


@dataclass(frozen=True)
class Hoisting:
    """What is computed from weights alone.

    Attributes:
        bind: once, when a program is bound to them; None if nothing is.
        kept: in every call, with the reasons.
    """

    bind: BindPart | None
    kept: tuple[str, ...]

    def with_reads(self, in_place: Sequence[bool]) -> Hoisting:
        """The same, with note of the tensors of which only copies are read.

        Args:
            in_place: whether the weights, and after them the hoisted tensors, are read themselves.
        """
        if self.bind is None:
            return self
        own = in_place[len(in_place) - len(self.bind.hoisted) :]
        hoisted = tuple(
            dataclasses.replace(spec, read_in_place=each)
            for spec, each in zip(self.bind.hoisted, own, strict=True)
        )
        return Hoisting(dataclasses.replace(self.bind, hoisted=hoisted), self.kept)


NOTHING_HOISTED = Hoisting(None, ())


@dataclass(frozen=True)
class BindModule:
    """The module of a bind part.

    Attributes:
        module: with one function.
        weights: numbers of the weights that its arguments are.
        hoisted: its results.
    """

    module: Any
    weights: tuple[int, ...]
    hoisted: tuple[HoistedSpec, ...]

    def imported(self, model: ImportedModel) -> ImportedModel:
        """The module as a model, whose inputs are weights of `model`."""
        specs = [model.weights[number] for number in self.weights]
        inputs = tuple(TensorInput(each.name, each.dtype, _sizes(each.shape)) for each in specs)
        outputs = tuple(TensorOutput(each.dtype, _sizes(each.shape)) for each in self.hoisted)
        return dataclasses.replace(
            model,
            module=self.module,
            symbols=(),
            parameters=(),
            inputs=inputs,
            weights=(),
            weight_tensors=(),
            outputs=outputs,
            output_tree=pytree.tree_structure((0,) * len(outputs)),
            constraints=(),
            states=(),
            state_tensors=(),
            updates=(),
        )

    def bind_part(self, program: Artefacts) -> BindPart:
        """The part, given what the module was compiled to."""
        return BindPart(program, self.weights, self.hoisted)


def take_bind_module(module: Any) -> BindModule | None:
    """Takes the bind part out of a module; None if it has none."""
    for op in sir.operations(sir.module_block(module)):
        if op.name == "builtin.module" and is_bind_part(op):
            [function] = sir.functions(op)
            with module.context, op.location:
                own = ir.Module.create()
                for name in op.attributes:
                    own.operation.attributes[name] = op.attributes[name]
            own.body.append(function)
            op.erase()
            return _described(own)
    return None


def take_kept(module: Any) -> tuple[str, ...]:
    """Takes note of what stays in calls, and why, out of a module."""
    found: list[str] = []
    for function in sir.functions(module):
        if KEPT in function.attributes:
            found += (ir.StringAttr(text).value for text in function.attributes[KEPT])
            del function.attributes[KEPT]
    return tuple(found)


def _described(module: Any) -> BindModule:
    [function] = sir.functions(module)
    body = sir.body(function)
    attributes = map(ir.DictAttr, ir.ArrayAttr(function.attributes["arg_attrs"]))
    weights = [ir.IntegerAttr(each[WEIGHT]).value for each in attributes]
    numbers = dict(zip(body.arguments, weights, strict=True))
    names = [
        ir.StringAttr(ir.DictAttr(each)["shapejit.name"]).value
        for each in ir.ArrayAttr(function.attributes["res_attrs"])
    ]
    results = sir.operations(body)[-1].operands
    hoisted = (_spec(name, value, numbers) for name, value in zip(names, results, strict=True))
    return BindModule(module, tuple(weights), tuple(hoisted))


def _spec(name: str, value: Any, numbers: dict[Any, int]) -> HoistedSpec:
    """What a result of the bind part is, and what it is computed from and by."""
    needed: dict[Any, None] = {value: None}
    sources: dict[str, None] = {}
    queue = [value]
    while queue:
        op = sir.defining_op(queue.pop())
        if op is None:
            continue
        for operator, line in operators(op.location):
            sources[f"{operator} {line}" if line else operator] = None
        read = [*op.operands, *(sir.captured_values(op) if len(op.regions) else ())]
        queue += [each for each in read if each not in needed]
        needed.update(dict.fromkeys(read))
    weights = sorted(number for argument, number in numbers.items() if argument in needed)
    shape = [size.constant for size in sir.shape_of(value)]
    dtype = _DTYPES[str(value.type.element_type)]
    known = tuple(size for size in shape if size is not None)
    return HoistedSpec(name, dtype, known, tuple(weights), tuple(sources))


def _sizes(shape: Sequence[int]) -> tuple[Expr, ...]:
    return tuple(map(Expr.const, shape))


__all__ = ["NOTHING_HOISTED", "BindModule", "Hoisting", "take_bind_module", "take_kept"]
