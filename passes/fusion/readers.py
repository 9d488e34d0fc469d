# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Who reads a value of a function, seen from the function's own block."""

from __future__ import annotations

from typing import Any, NamedTuple

from shapejit import ir as sir


class Reader(NamedTuple):
    """An operation of the function that reads a value.

    Attributes:
        op: the operation.
        operand: which of its operands it is; None if its body captures the value.
    """

    op: Any
    operand: int | None


def is_live(op: Any) -> bool:
    """Whether an operation of a function has an effect: all but the return are pure."""
    return op.name == "func.return" or any(is_read(result) for result in op.results)


def erase_dead(block: Any) -> None:
    """Erases the operations of a function that have no effect."""
    for op in reversed(sir.operations(block)):
        if not is_live(op):
            op.erase()


def is_read(value: Any) -> bool:
    """Whether a value has a use."""
    return next(iter(value.uses), None) is not None


def enclosing_op(op: Any) -> Any:
    """The operation of the function's block that is or contains `op`."""
    parent = op.parent.operation
    while parent.name != "func.func":
        op, parent = parent, parent.parent.operation
    return op


def readers(value: Any) -> list[Reader]:
    """The live readers of a value, one for each use."""
    found = []
    for user, number in sir.users(value):
        top = enclosing_op(user)
        if is_live(top):
            found.append(Reader(top, number if sir.key(top) == sir.key(user) else None))
    return found


def read_only_by(value: Any, op: Any) -> bool:
    """Whether every live use of a value is an operand of `op`."""
    own = sir.key(op)
    return all(r.operand is not None and sir.key(r.op) == own for r in readers(value))
