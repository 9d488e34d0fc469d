# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ops written as text, put in front of another op.

A pass that replaces one op by several says them best as IR reads: with values by name, types and
maps as they print. The parser and the verifiers then check what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.symbolic import Expr


def insert(anchor: Any, values: Mapping[str, Any], body: str, results: Sequence[str]) -> list[Any]:
    """Puts ops in front of an op.

    Args:
        anchor: the op.
        values: what the text names ``%name``, by name.
        body: the ops.
        results: names of values of the text.

    Returns:
        These values.
    """
    arguments = ", ".join(f"%{name}: {value.type}" for name, value in values.items())
    with anchor.context, anchor.location:
        module = ir.Module.parse(f"func.func @piece({arguments}) {{\n{body}\nreturn\n}}")
        function = module.body.operations[0]
        block = function.regions[0].blocks[0]
        for argument, value in zip(block.arguments, values.values(), strict=True):
            argument.replace_all_uses_with(value)
        named = _named(body, [op.operation for op in block.operations][:-1])
        for op in [op.operation for op in block.operations][:-1]:
            op.location = anchor.location  # reports name the operator that it is a part of
            op.move_before(anchor)
    return [named[name] for name in results]


def _named(body: str, ops: Sequence[Any]) -> dict[str, Any]:
    """The values of the outermost ops by the names that the text gives them."""
    depth, names = 0, []
    for line in body.splitlines():
        if depth == 0 and line.lstrip().startswith("%") and "=" in line:
            names.append(line.lstrip()[1:].partition("=")[0].strip())
        depth += line.count("{") - line.count("}")
    found = [op for op in ops if len(op.results)]
    return {name: op.results[0] for name, op in zip(names, found, strict=True)}


def map_text(rank: int, indices: Iterable[Expr | int]) -> str:
    """``affine_map<..>`` over so many dims."""
    return str(ir.AffineMapAttr.get(sir.make_map(rank, indices)))


def type_text(sizes: Sequence[Expr | int], element: str) -> str:
    """A tensor type with its sizes; the element type as it prints."""
    return str(sir.tensor_type(sizes, ir.Type.parse(element)))


def space_text(sizes: Iterable[Expr | int]) -> str:
    """``[s0, 4]``"""
    return str(sir.shape_attr(tuple(sizes))).removeprefix("#shapejit.shape<").removesuffix(">")


class BodyText:
    """Lines of a loop's body, one value each; also an `Algebra` of index expressions.

    Args:
        dims: names of the values that dims of expressions are; ``shapejit.index`` where missing.
    """

    def __init__(self, dims: Mapping[int, str] | None = None) -> None:
        self.lines: list[str] = []
        self._made: dict[str, str] = {}
        self._dims = dict(dims or {})

    def with_dims(self, dims: Mapping[int, str]) -> BodyText:
        """The same lines, for expressions over other dims."""
        other = BodyText(dims)
        other.lines, other._made = self.lines, self._made
        return other

    def value(self, text: str) -> str:
        """The name of a value; equal texts are one."""
        if text not in self._made:
            self._made[text] = f"%t{len(self._made)}"
            self.lines.append(f"{self._made[text]} = {text}")
        return self._made[text]

    def binary(self, name: str, lhs: str, rhs: str, type_: str) -> str:
        """``arith.name lhs, rhs : type``"""
        return self.value(f"arith.{name} {lhs}, {rhs} : {type_}")

    def number(self, number: float) -> str:
        """An f32 constant."""
        return self.value(f"arith.constant {float(number)!r} : f32")

    def zero(self, type_: str) -> str:
        """The zero of a type of numbers."""
        return self.value(f"arith.constant {'0' if type_.startswith('i') else '0.0'} : {type_}")

    def select(self, condition: str, then: str, otherwise: str, type_: str) -> str:
        return self.value(f"arith.select {condition}, {then}, {otherwise} : {type_}")

    def compare(self, predicate: str, lhs: str, rhs: str) -> str:
        """Of index values."""
        return self.binary(f"cmpi {predicate},", lhs, rhs, "index")

    def one_of(self, row: str, names: Sequence[str], type_: str) -> str:
        """The value whose number an index is."""
        found = names[-1]
        for number, name in reversed(list(enumerate(names[:-1]))):
            if name != found:
                here = self.compare("eq", row, self.constant(number))
                found = self.select(here, name, found, type_)
        return found

    # Index expressions ----------------------------------------------------------------------------

    def constant(self, number: int) -> str:
        return self.value(f"arith.constant {number} : index")

    def symbol(self, index: int) -> str:
        return self.size(Expr.symbol(index))

    def size(self, size: Expr) -> str:
        """A size of the program."""
        return self.value(f"shapejit.size {map_text(0, [size])}")

    def dim(self, index: int) -> str:
        return self._dims.get(index) or self.value(f"shapejit.index {index}")

    def add(self, lhs: str, rhs: str) -> str:
        return self.binary("addi", lhs, rhs, "index")

    def mul(self, lhs: str, rhs: str) -> str:
        return self.binary("muli", lhs, rhs, "index")

    def floordiv(self, lhs: str, rhs: str) -> str:
        return self.binary("divui", lhs, rhs, "index")

    def mod(self, lhs: str, rhs: str) -> str:
        return self.binary("remui", lhs, rhs, "index")
