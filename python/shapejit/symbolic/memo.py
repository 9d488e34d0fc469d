# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Conversions between MLIR's sizes and maps and ours, remembered while a pass runs.

Passes read the same shapes and maps again and again, and MLIR has one object of each in a context.
What is remembered keeps its context alive, so none of it outlives the pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Remembered(threading.local):
    """What this thread remembers; None where no pass runs."""

    def __init__(self) -> None:
        self.table: dict[Hashable, Any] | None = None


_remembered = _Remembered()


@contextmanager
def remembering() -> Iterator[None]:
    """Remember conversions of this thread within the body. A pass in a pass has its own."""
    before, _remembered.table = _remembered.table, {}
    try:
        yield
    finally:
        _remembered.table = before


def remembered(key: Hashable, make: Callable[[], _T]) -> _T:
    """What `make` gives for this key.

    Args:
        key: determines the result, and holds the MLIR objects that it stands for.
        make: makes it; what it gives is shared, and is not to be changed.
    """
    table = _remembered.table
    if table is None:
        return make()
    try:
        found: _T = table[key]
    except KeyError:
        found = table[key] = make()
    return found


__all__ = ["remembered", "remembering"]
