# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Scatters that write in place: who has to run before, and what has to be copied.

A scatter replaces some elements of a tensor and leaves the others where they are: its result has
the memory of `dest`. In terms of values both exist, so what reads the old one has to come first.

* Of the scatters into one value one is in place; the others get copies. It is the one that leads to
  the new value of an input that the function changes, if there is one, else the last.
* An argument that the function does not change is copied.
* What reads the old value runs before the scatter, if it can. If it cannot, because it depends on
  the new one or is returned, it reads a copy of the old value, which is made before.

A new value of an input is a result of the function with the attribute ``shapejit.updates``, the
number of the argument; scatters lead from the argument to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shapejit import ir as sir
from shapejit.pass_host import PassFailure
from shapejit.passes.fusion.clusters import KERNEL_OPS
from shapejit.passes.fusion.codec import Codec
from shapejit.passes.fusion.copies import memory_of, whole_copy
from shapejit.passes.fusion.readers import enclosing_op

SCATTER = "shapejit.scatter"


@dataclass(frozen=True)
class Use:
    """An operation of the function that reads a value's memory, and its own or a body's operand."""

    op: Any
    user: Any
    operand: int


def dest_of(scatter: Any) -> Any:
    """The tensor that a scatter writes into."""
    return scatter.operands[len(scatter.operands) - 1]


def settle(function: Any, codec: Codec) -> dict[int, list[Any]]:
    """Makes every scatter of a function one that can write in place; puts the operations in order.

    Returns:
        For the key of each scatter the operations that have to run before it.

    Raises:
        PassFailure: a new value of an input is not made by scatters into it.
    """
    if not any(op.name == SCATTER for op in sir.operations(sir.body(function))):
        return {}
    settling = _Settling(function, codec)
    settling.run()
    return settling.before


@dataclass
class _Settling:
    function: Any
    codec: Codec
    before: dict[int, list[Any]] = field(default_factory=dict)

    def run(self) -> None:
        self._block = sir.body(self.function)
        self._chain = self._update_chain()
        groups: dict[Any, list[Any]] = {}
        for op in self._operations():
            if op.name == SCATTER:
                groups.setdefault(memory_of(dest_of(op)), []).append(op)
        for value, scatters in groups.items():
            self._settle(value, scatters)
        self._sort()

    def _operations(self) -> list[Any]:
        return sir.operations(self._block)

    def _update_chain(self) -> set[int]:
        """The keys of the scatters that lead to new values of inputs."""
        found: set[int] = set()
        end = self._operations()[-1]
        for number, argument in sir.updated_arguments(self.function).items():
            value = memory_of(end.operands[number])
            while value != self._block.arguments[argument]:
                scatter = sir.defining_op(value)
                if scatter is None or scatter.name != SCATTER:
                    raise PassFailure(
                        end,
                        f"result {number} is to be the new value of argument {argument}, but is "
                        "not made by scatters into it",
                    )
                found.add(sir.key(scatter))
                value = memory_of(dest_of(scatter))
        return found

    def _settle(self, value: Any, scatters: list[Any]) -> None:
        """Lets one of the scatters into a value write in place."""
        chosen = [op for op in scatters if sir.key(op) in self._chain]
        maker = sir.defining_op(value)
        if not chosen and maker is not None and maker.name in KERNEL_OPS:
            chosen = scatters[-1:]
        for scatter in scatters:
            if scatter not in chosen:
                dest = dest_of(scatter)
                copied = whole_copy(dest, self.codec, scatter)
                scatter.operands[len(scatter.operands) - 1] = copied
        for scatter in chosen:
            self._read_before(value, scatter)

    def _read_before(self, value: Any, scatter: Any) -> None:
        """Lets everything that reads the memory of `value` do so before it is written."""
        own, last = sir.key(scatter), len(scatter.operands) - 1
        needs = self.before.setdefault(own, [])
        late = self._depending(scatter)
        for use in list(self._uses(value)):
            key = sir.key(use.op)
            if key == own and use.operand == last:
                continue
            if key == own or key in late or use.op.name == "func.return":
                old = use.user.operands[use.operand]
                copied = whole_copy(old, self.codec, self._first_point(old))
                use.user.operands[use.operand] = copied
                needs.append(sir.defining_op(copied))
            else:
                needs.append(use.op)

    def _first_point(self, value: Any) -> Any:
        """An operation in front of which a value is there."""
        maker = sir.defining_op(value)
        operations = self._operations()
        if maker is None:
            return operations[0]
        position = [sir.key(op) for op in operations].index(sir.key(maker))
        return operations[position + 1]

    def _uses(self, value: Any) -> Iterator[Use]:
        """All reads of a value's memory, those through views included."""
        for user, operand in sir.users(value):
            op = enclosing_op(user)
            if op.name == "shapejit.view":
                yield from self._uses(op.results[0])
            else:
                yield Use(op, user, operand)

    def _depending(self, scatter: Any) -> set[int]:
        """The keys of operations that can only run after a scatter."""
        after: dict[int, list[Any]] = {}
        for op in self._operations():
            for needed in self.before.get(sir.key(op), []):
                after.setdefault(sir.key(needed), []).append(op)
        found: set[int] = set()
        pending = [scatter]
        while pending:
            op = pending.pop()
            following = [enclosing_op(user) for r in op.results for user, _ in sir.users(r)]
            for next_op in (*following, *after.get(sir.key(op), [])):
                if sir.key(next_op) not in found:
                    found.add(sir.key(next_op))
                    pending.append(next_op)
        return found

    def _sort(self) -> None:
        """Puts operations after those that they need, otherwise in the order that they have."""
        *operations, end = self._operations()
        placed: set[int] = set()

        def place(op: Any) -> None:
            if sir.key(op) in placed:
                return
            placed.add(sir.key(op))
            values = [*op.operands, *(sir.captured_values(op) if len(op.regions) else [])]
            makers = [sir.defining_op(value) for value in values]
            for needed in (*makers, *self.before.get(sir.key(op), [])):
                if needed is not None:
                    place(needed)
            op.move_before(end)

        for op in operations:
            place(op)
