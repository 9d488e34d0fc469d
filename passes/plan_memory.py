# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-plan-memory: where every launch writes.

Why: what flows between launches lives in one arena that the caller provides, so a call
allocates nothing. Sizes are symbolic, so the plan is too: the arena is a list of slots,
each with its size in bytes as an expression of symbols, and a slot is reused once its
value is dead. A value goes to a free slot of its own size, else to the tightest one that
is provably large enough for every legal size, else to one that is provably smaller and
then grows; only then is a slot added. The host program computes the offsets.

Before::

    %0 = shapejit.launch @a #n (%x) : (tensor<..[s0, 8]..>) -> tensor<..[s0, 8]..>
    %1 = shapejit.launch @b #n (%0) : (tensor<..[s0, 8]..>) -> tensor<..[s0, 8]..>
    return %1

After::

    func.func @main(..) attributes {shapejit.arena = #shapejit.shape<[s0 * 32]>} {
      %0 = shapejit.launch @a ... {buffers = [#shapejit.buffer<arena 0>]} ...
      %1 = shapejit.launch @b ... {buffers = [#shapejit.buffer<output 0>]} ...

Every result of the function must be written by one launch, directly or through views that
regroup contiguous dimensions; ``shapejit-form-kernels`` sees to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlir.ir as ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, register_pass
from shapejit.symbolic import Expr, Ranges


@dataclass
class Slot:
    """A piece of the arena: its size in bytes, and the step at which its value dies."""

    size: Expr
    busy_until: int


@dataclass
class Arena:
    """Slots, handed out step by step.

    Attributes:
        ranges: ranges of the symbols, by which sizes are compared.
    """

    ranges: Ranges
    slots: list[Slot] = field(default_factory=list)

    def allocate(self, size: Expr, step: int, last_use: int) -> int:
        """The slot for a value of `size` bytes that is written at `step`."""
        index = self._choose(size, step)
        if index is None:
            self.slots.append(Slot(size, last_use))
            return len(self.slots) - 1
        slot = self.slots[index]
        slot.busy_until = last_use
        if not self.ranges.provably_le(size, slot.size):
            slot.size = size
        return index

    def _choose(self, size: Expr, step: int) -> int | None:
        free = [i for i, slot in enumerate(self.slots) if slot.busy_until < step]
        for i in free:
            if self.slots[i].size == size:
                return i
        larger = [i for i in free if self.ranges.provably_le(size, self.slots[i].size)]
        if larger:
            return self._tightest(larger)
        smaller = [i for i in free if self.ranges.provably_le(self.slots[i].size, size)]
        return smaller[0] if smaller else None

    def _tightest(self, candidates: list[int]) -> int:
        best = candidates[0]
        for i in candidates[1:]:
            if self.ranges.provably_le(self.slots[i].size, self.slots[best].size):
                best = i
        return best


def source_of(value: Any) -> Any:
    """The value whose memory `value` is: views left in the function only regroup dims."""
    op = sir.defining_op(value)
    while op is not None and op.name == "shapejit.view":
        value = op.operands[0]
        op = sir.defining_op(value)
    return value


class _FunctionPlan:
    """The plan of one function."""

    def __init__(self, function: Any, ranges: Ranges) -> None:
        self.function = function
        self.ops = sir.operations(sir.body(function))
        self.arena = Arena(ranges)
        self.last_use: dict[Any, int] = {}
        self.outputs: dict[Any, int] = {}

    def run(self) -> None:
        self._collect_uses()
        for step, op in enumerate(self.ops):
            if op.name == "shapejit.launch":
                buffers = [self._place(result, step) for result in op.results]
                op.attributes["buffers"] = ir.ArrayAttr.get(buffers)
        sizes = [slot.size for slot in self.arena.slots]
        self.function.attributes["shapejit.arena"] = sir.shape_attr(sizes)

    def _collect_uses(self) -> None:
        for step, op in enumerate(self.ops):
            if op.name == "func.return":
                self._collect_outputs(op)
                continue
            for operand in op.operands:
                self.last_use[source_of(operand)] = step

    def _collect_outputs(self, op: Any) -> None:
        for i, operand in enumerate(op.operands):
            source = source_of(operand)
            producer = sir.defining_op(source)
            if producer is None or producer.name != "shapejit.launch":
                raise PassFailure(
                    op,
                    f"result {i} is not written by a launch; "
                    "run shapejit-form-kernels before shapejit-plan-memory",
                )
            if source in self.outputs:
                raise PassFailure(
                    op,
                    f"results {self.outputs[source]} and {i} are the same memory; "
                    "shapejit-form-kernels gives each result a launch of its own",
                )
            self.outputs[source] = i

    def _place(self, result: Any, step: int) -> Any:
        if result in self.outputs:
            return ir.Attribute.parse(f"#shapejit.buffer<output {self.outputs[result]}>")
        # A result that nobody reads still has to be written somewhere, at its own step.
        last_use = max(self.last_use.get(result, step), step)
        slot = self.arena.allocate(sir.bytes_of(result.type), step, last_use)
        return ir.Attribute.parse(f"#shapejit.buffer<arena {slot}>")


@register_pass("shapejit-plan-memory")
@dataclass(frozen=True)
class PlanMemory(Pass):
    """Assign every launch result to a slot of the arena or to a program output."""

    def run(self, module: Any) -> None:
        ranges = Ranges(sir.symbol_ranges(module))
        for function in sir.functions(module):
            _FunctionPlan(function, ranges).run()
