# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-plan-memory: where every launch writes.

Why: what flows between launches lives in one arena that the caller provides, so a call
allocates nothing. Sizes are symbolic, so the plan is too: the arena is a list of slots,
each with its size in bytes as an expression of symbols, and a slot is reused once its
value is dead. A value goes to a free slot of its own size, else to the tightest one that
is provably large enough for every legal size, else to one that is provably smaller and
then grows, else to one that is about as large at sizes within the ranges: such a slot has
several sizes, of which the host program takes the largest in every call. Only then is a
slot added. The host program computes the offsets.

Before::

    %0 = shapejit.launch @a #n (%x) : (tensor<..[s0, 8]..>) -> tensor<..[s0, 8]..>
    %1 = shapejit.launch @b #n (%0) : (tensor<..[s0, 8]..>) -> tensor<..[s0, 8]..>
    return %1

After::

    func.func @main(..) attributes {shapejit.arena = #shapejit.shape<[s0 * 32]>} {
      %0 = shapejit.launch @a ... {buffers = [#shapejit.buffer<arena 0>]} ...
      %1 = shapejit.launch @b ... {buffers = [#shapejit.buffer<output 0>]} ...

With slots of several sizes, ``shapejit.arena`` is a list with a shape for each slot.

Launches that `shapejit-plan-branches` lets run side by side do not share slots: one is free for a
value if all launches that touch what it held before have ended when that value is written.

Every result of the function must be written by one launch, directly or through views that
regroup contiguous dimensions; ``shapejit-form-kernels`` sees to it.

A result that a launch writes in place (``in_place``) has the memory of that operand, whatever it
is: a slot, an output, or an input that the function changes (``shapejit.updates``). A launch that
would read what was there before is an error.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlir.ir as ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, register_pass
from shapejit.symbolic import Expr, Ranges

#: Sizes that cannot be compared share a slot if at sampled sizes neither is more than so many times
#: the other: a small value in a large slot would keep the next large one out.
_ALIKE = 2

# What stands for the upper end of a range without one.
_LARGE = 1024


@dataclass
class Slot:
    """A piece of the arena.

    Attributes:
        sizes: in bytes, of which the largest counts.
        users: the steps that touch its value, or the last of them.
    """

    sizes: tuple[Expr, ...]
    users: tuple[int, ...]


@dataclass
class Arena:
    """Slots, handed out step by step.

    Attributes:
        ranges: ranges of the symbols, by which sizes are compared.
        samples: values of the symbols, for sizes that cannot be compared.
        precedes: whether a step has ended when another one begins.
    """

    ranges: Ranges
    samples: Sequence[Mapping[int, int]] = ()
    precedes: Callable[[int, int], bool] = operator.lt
    slots: list[Slot] = field(default_factory=list)

    def allocate(self, size: Expr, step: int, *users: int) -> int:
        """The slot for a value.

        Args:
            size: in bytes.
            step: at which it is written.
            users: the steps that touch it, or the last of them.
        """
        index = self._choose(size, step)
        if index is None:
            self.slots.append(Slot((size,), users))
            return len(self.slots) - 1
        slot = self.slots[index]
        slot.users = users
        if not self._fits(size, slot):
            kept = (each for each in slot.sizes if not self.ranges.provably_le(each, size))
            slot.sizes = (*kept, size)
        return index

    def _fits(self, size: Expr, slot: Slot) -> bool:
        return any(self.ranges.provably_le(size, each) for each in slot.sizes)

    def _choose(self, size: Expr, step: int) -> int | None:
        free = [i for i, slot in enumerate(self.slots) if self._is_free(slot, step)]
        for i in free:
            if self.slots[i].sizes == (size,):
                return i
        larger = [i for i in free if self._fits(size, self.slots[i])]
        if larger:
            return self._tightest(larger)
        smaller = [i for i in free if self._all_fit(self.slots[i], size)]
        if smaller:
            return smaller[0]
        alike = {i: excess for i in free if (excess := self._excess(self.slots[i], size)) <= _ALIKE}
        return min(alike, key=alike.__getitem__, default=None)

    def _is_free(self, slot: Slot, step: int) -> bool:
        return all(self.precedes(user, step) for user in slot.users)

    def _all_fit(self, slot: Slot, size: Expr) -> bool:
        return all(self.ranges.provably_le(each, size) for each in slot.sizes)

    def _tightest(self, candidates: list[int]) -> int:
        best = candidates[0]
        for i in candidates[1:]:
            if all(self._fits(each, self.slots[best]) for each in self.slots[i].sizes):
                best = i
        return best

    def _excess(self, slot: Slot, size: Expr) -> float:
        """How many times the larger of the two is the other, at the sample where it is most."""
        worst = 1.0
        for values in self.samples:
            held = max(each.evaluate(symbols=values) for each in slot.sizes)
            needed = size.evaluate(symbols=values)
            worst = max(worst, (max(held, needed) + 1) / (min(held, needed) + 1))
        return worst if self.samples else math.inf


def sampled_values(ranges: Mapping[int, tuple[int, int | None]]) -> list[dict[int, int]]:
    """Values of symbols at which sizes are compared that nothing else tells apart.

    Args:
        ranges: of the symbols; no upper end is None.
    """
    high = {s: max(low, _LARGE) if top is None else top for s, (low, top) in ranges.items()}
    middle = {s: max(low, math.isqrt(max(low, 1) * high[s])) for s, (low, _) in ranges.items()}
    return [middle, high]


def arena_slots(function: Any) -> list[tuple[Expr, ...]]:
    """The slots of a planned function's arena: the sizes of each, of which the largest counts."""
    attribute = function.attributes["shapejit.arena"]
    if isinstance(attribute, ir.ArrayAttr):
        return [sir.attr_sizes(each) for each in attribute]
    return [(size,) for size in sir.attr_sizes(attribute)]


def source_of(value: Any) -> Any:
    """The value whose memory `value` is: views left in the function only regroup dims."""
    op = sir.defining_op(value)
    while op is not None and op.name == "shapejit.view":
        value = op.operands[0]
        op = sir.defining_op(value)
    return value


def memory_owners(ops: Sequence[Any]) -> dict[Any, Any]:
    """For each result that is written in place, the value that had the memory first."""
    owners: dict[Any, Any] = {}
    for op in ops:
        if "in_place" not in op.attributes:
            continue
        operands = ir.DenseI64ArrayAttr(op.attributes["in_place"])
        for result, operand in zip(op.results, operands, strict=True):
            if operand >= 0:
                source = source_of(op.operands[operand])
                owners[result] = owners.get(source, source)
    return owners


def _precedence(module: Any, function: Any, ops: Sequence[Any]) -> Callable[[int, int], bool]:
    """Whether a step of a function, a launch, has ended when another one begins."""
    # Else launches run one after the other, and the CPU needs nothing of a GPU's launches.
    if "shapejit.branches" not in function.attributes:
        return operator.lt
    from shapejit.passes.branches.launches import order_of

    order = order_of(module, function)
    steps = [step for step, op in enumerate(ops) if op.name == "shapejit.launch"]
    numbers = {step: number for number, step in enumerate(steps)}
    return lambda first, second: order.precedes(numbers[first], numbers[second])


def _input_numbers(function: Any) -> dict[Any, int]:
    """The arguments that are inputs, by their place among them."""
    arguments = list(sir.body(function).arguments)
    inputs = [a for i, a in enumerate(arguments) if sir.argument_kind(function, i) == "input"]
    return {argument: number for number, argument in enumerate(inputs)}


class _FunctionPlan:
    """The plan of one function."""

    def __init__(
        self, module: Any, function: Any, ranges: Ranges, samples: Sequence[Mapping[int, int]]
    ) -> None:
        self.function = function
        self.ops = sir.operations(sir.body(function))
        self.arena = Arena(ranges, samples, _precedence(module, function, self.ops))
        self.users: dict[Any, list[int]] = {}
        self.outputs: dict[Any, int] = {}
        self.updates = sir.updated_arguments(function)
        self.inputs = _input_numbers(function)
        self.memory = memory_owners(self.ops)
        self.buffers: dict[Any, Any] = {}  # of the values that own memory

    def run(self) -> None:
        self._check_versions()
        self._collect_uses()
        for step, op in enumerate(self.ops):
            if op.name == "shapejit.launch":
                buffers = [self._place(op, result, step) for result in op.results]
                op.attributes["buffers"] = ir.ArrayAttr.get(buffers)
        slots = [slot.sizes for slot in self.arena.slots]
        if all(len(sizes) == 1 for sizes in slots):
            arena = sir.shape_attr([size for (size,) in slots])
        else:
            arena = ir.ArrayAttr.get([sir.shape_attr(sizes) for sizes in slots])
        self.function.attributes["shapejit.arena"] = arena

    def _collect_uses(self) -> None:
        for step, op in enumerate(self.ops):
            if op.name == "func.return":
                self._collect_outputs(op)
                continue
            if op.name != "shapejit.launch":
                continue
            for value in (*op.operands, *op.results):
                self.users.setdefault(self._owner(value), []).append(step)

    def _collect_outputs(self, op: Any) -> None:
        for i, operand in enumerate(op.operands):
            source = self._owner(operand)
            if i in self.updates:
                self._check_update(op, i, source)
                continue
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

    def _check_update(self, end: Any, number: int, owner: Any) -> None:
        argument = sir.body(self.function).arguments[self.updates[number]]
        if owner != argument:
            raise PassFailure(
                end,
                f"result {number} is the new value of argument {self.updates[number]}, but is not "
                "written there; shapejit-form-kernels sees to it that launches update in place",
            )

    def _check_versions(self) -> None:
        """No launch, and no result, may need what was in memory that was updated before it."""
        latest: dict[Any, Any] = {}
        for op in self.ops:
            if op.name == "shapejit.view":
                continue
            for number, operand in enumerate(op.operands):
                source, owner = source_of(operand), self._owner(operand)
                if latest.get(owner, source) != source:
                    raise PassFailure(
                        op,
                        f"operand {number} is the value from before an update in place; "
                        "shapejit-form-kernels lets such readers come first, or copies",
                    )
            for result in op.results:
                if self.memory.get(result, result) != result:
                    latest[self.memory[result]] = result

    def _owner(self, value: Any) -> Any:
        source = source_of(value)
        return self.memory.get(source, source)

    def _place(self, launch: Any, result: Any, step: int) -> Any:
        owner = self._owner(result)
        if owner not in self.buffers:
            self.buffers[owner] = ir.Attribute.parse(self._buffer(launch, owner, step))
        return self.buffers[owner]

    def _buffer(self, launch: Any, owner: Any, step: int) -> str:
        """The memory of a value that owns it, at the first launch that writes there."""
        if owner in self.outputs:
            return f"#shapejit.buffer<output {self.outputs[owner]}>"
        if sir.defining_op(owner) is None:
            return self._input(launch, owner)
        slot = self.arena.allocate(sir.bytes_of(owner.type), step, *self.users[owner])
        return f"#shapejit.buffer<arena {slot}>"

    def _input(self, launch: Any, owner: Any) -> str:
        argument = ir.BlockArgument(owner).arg_number
        if argument not in self.updates.values() or owner not in self.inputs:
            raise PassFailure(
                launch,
                f"writes into argument {argument}, which is not an input that the function changes",
            )
        return f"#shapejit.buffer<input {self.inputs[owner]}>"


@register_pass("shapejit-plan-memory")
@dataclass(frozen=True)
class PlanMemory(Pass):
    """Assign every launch result to a slot of the arena or to a program output."""

    def run(self, module: Any) -> None:
        limits = sir.symbol_ranges(module)
        ranges, samples = Ranges(limits), sampled_values(limits)
        for function in sir.functions(module):
            _FunctionPlan(module, function, ranges, samples).run()
