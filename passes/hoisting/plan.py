# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which values of a function are computed once, when weights are bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.describe import operators
from shapejit.passes.analysis.accesses import accesses
from shapejit.passes.fusion.clusters import KERNEL_OPS
from shapejit.passes.fusion.codec import Codec
from shapejit.passes.fusion.readers import readers
from shapejit.passes.fusion.updates import SCATTER
from shapejit.passes.fusion.views import is_contiguous
from shapejit.symbolic import Expr, map_exprs

# What can be computed apart from the rest: what becomes a kernel, and what leads to one.
_MOVABLE: Final = KERNEL_OPS | {"shapejit.view", "arith.constant"}

Weights = frozenset[int]
"""Numbers of the arguments that are weights."""


@dataclass(frozen=True)
class Limits:
    """How much memory results of weights may take: so many times the weights', and some bytes."""

    growth: int
    slack: int

    def allow(self, results: int, weights: int) -> bool:
        """Whether results may take so many bytes, given those of what they are computed from."""
        return results <= self.growth * weights + self.slack


@dataclass(frozen=True)
class Hoisted:
    """A value to compute when weights are bound.

    Attributes:
        value: the result of an operation.
        weights: arguments that it depends on.
    """

    value: Any
    weights: Weights


@dataclass(frozen=True)
class Plan:
    """What is hoisted out of a function.

    Attributes:
        hoisted: in program order.
        kept: operations on weights alone that stay, each with the reason.
    """

    hoisted: tuple[Hoisted, ...]
    kept: tuple[str, ...]


def plan(function: Any, codec: Codec, limits: Limits, tables: Sequence[Any] = ()) -> Plan:
    """What to hoist out of a function.

    Args:
        function: of a model.
        codec: of its module.
        limits: of results of weights.
        tables: operations for whose results there is room besides.
    """
    return _Planner(function, codec, limits, tables).run()


class _Planner:
    """Looks at one function from its end: what is needed in calls, and what only its results are.

    What stays in calls needs its operands there, of which some may still be hoisted.
    """

    def __init__(self, function: Any, codec: Codec, limits: Limits, tables: Sequence[Any]) -> None:
        self._codec, self._limits = codec, limits
        self._tables = set(map(sir.key, tables))
        self._ops = sir.operations(sir.body(function))
        self._arguments = list(sir.body(function).arguments)
        self._known: dict[Any, Weights] = {
            argument: frozenset((number,))
            for number, argument in enumerate(self._arguments)
            if sir.argument_kind(function, number) == "weight"
        }
        self._bytes = 0  # of what is hoisted
        self._weights: Weights = frozenset()  # that it is computed from

    def run(self) -> Plan:
        constant = [op for op in self._ops if self._is_constant(op)]
        keys = set(map(sir.key, constant))
        needed = {
            value for op in self._ops if sir.key(op) not in keys for value in _read_values(op)
        }
        hoisted: list[Hoisted] = []
        kept: list[str] = []
        for op in reversed(constant):
            results = [result for result in op.results if result in needed]
            if not results:
                continue
            reason = self._why_not(op, results)
            if reason is None:
                hoisted += (Hoisted(result, self._known[result]) for result in reversed(results))
                continue
            needed.update(_read_values(op))
            if reason:
                kept.append(f"{named(op)}: {reason}")
        return Plan(tuple(reversed(hoisted)), tuple(reversed(kept)))

    def _is_constant(self, op: Any) -> bool:
        """Whether an operation depends on weights alone; its results are known from then on."""
        values = _read_values(op)
        if op.name not in _MOVABLE or not all(value in self._known for value in values):
            return False
        if any(expr.symbols() for expr in _expressions(op)):
            return False
        found = frozenset(number for value in values for number in self._known[value])
        self._known.update(dict.fromkeys(op.results, found))
        return True

    def _why_not(self, op: Any, results: Sequence[Any]) -> str | None:
        """Why results stay in calls: "" where there is nothing to gain, None if they do not."""
        if not self._pays(op, results):
            return ""
        if sir.key(op) in self._tables:
            return None
        own = self._known[results[0]]
        size = sum(_bytes(result) for result in results)
        from_bytes = self._weight_bytes(own)
        if not self._limits.allow(size, from_bytes):
            return f"{size} bytes, of weights of {from_bytes}"
        total, weights = self._bytes + size, self._weights | own
        if not self._limits.allow(total, self._weight_bytes(weights)):
            return f"{size} bytes, beside {self._bytes} that are computed from the same weights"
        self._bytes, self._weights = total, weights
        return None

    def _pays(self, op: Any, results: Sequence[Any]) -> bool:
        """Whether calls have less to do without an operation."""
        if not all(isinstance(result.type, ir.RankedTensorType) for result in results):
            return False
        if not any(_bytes(result) for result in results):
            return False
        is_view = op.name == "shapejit.view"
        if is_view and is_contiguous(op, self._codec):
            return False
        if not is_view and not sir.is_pointwise(op):
            return True
        # It would be copied instead of computed.
        ends = all(r.op.name == "func.return" for result in results for r in readers(result))
        return not ends and not any(map(_is_written, results))

    def _weight_bytes(self, weights: Weights) -> int:
        return sum(_bytes(self._arguments[number]) for number in weights)


def _read_values(op: Any) -> list[Any]:
    """The values from outside that an operation or its body reads."""
    return [*op.operands, *(sir.captured_values(op) if len(op.regions) else ())]


def _is_written(value: Any) -> bool:
    """Whether calls write into a value's memory, so that each needs it anew."""
    for reader in readers(value):
        if reader.op.name == SCATTER and reader.operand == len(reader.op.operands) - 1:
            return True
        if reader.op.name == "shapejit.view" and _is_written(reader.op.results[0]):
            return True
    return False


def _expressions(op: Any) -> Iterator[Expr]:
    """All sizes and indices of an operation."""
    for result in op.results:
        if isinstance(result.type, ir.RankedTensorType):
            yield from sir.shape_of(result)
    for access in accesses(op):
        yield from (*access.exprs, *access.space)
    if "image" in op.attributes:
        yield from sir.attr_sizes(op.attributes["image"])
    if "causal" in op.attributes:
        yield from map_exprs(op.attributes["causal"].value)
    for child in sir.walk(op):
        if child.name == "shapejit.size":
            yield from map_exprs(child.attributes["expr"].value)


def _bytes(value: Any) -> int:
    size = sir.bytes_of(value.type).constant
    assert size is not None, "what depends on weights alone has constant sizes"
    return size


def named(op: Any) -> str:
    """The torch operators that an operation computes, with source lines."""
    names = dict.fromkeys(
        f"{name} {line}" if line else name for name, line in operators(op.location)
    )
    return ", ".join(names) or op.name


__all__ = ["Hoisted", "Limits", "Plan", "named", "plan"]
