# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Conversions that are remembered while a pass runs, and no longer."""

from __future__ import annotations

import threading
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.symbolic import Expr, map_exprs
from shapejit.symbolic.memo import remembered, remembering


def test_nothing_is_remembered_outside_of_passes() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return len(made)

    assert [remembered("key", make) for _ in range(2)] == [1, 2]
    with remembering():
        assert [remembered("key", make) for _ in range(2)] == [3, 3]
        with remembering():
            assert remembered("key", make) == 4
        assert remembered("key", make) == 3
    assert remembered("key", make) == 5


def test_an_error_is_not_remembered() -> None:
    def fail() -> int:
        raise ValueError("no")

    with remembering():
        for _ in range(2):
            try:
                remembered("key", fail)
            except ValueError:
                continue
            raise AssertionError("it was remembered")
        assert remembered("key", lambda: 7) == 7


def test_threads_remember_apart() -> None:
    found: list[int] = []
    with remembering():
        remembered("key", lambda: 1)
        thread = threading.Thread(target=lambda: found.append(remembered("key", lambda: 2)))
        thread.start()
        thread.join()
    assert found == [2]


def converted(context: Any, sizes: tuple[Expr, ...]) -> tuple[Any, ...]:
    """Sizes and a map of them, to MLIR and back, twice."""
    with context:
        found = [
            (sir.attr_sizes(sir.shape_attr(sizes)), map_exprs(sir.make_map(1, sizes)))
            for _ in range(2)
        ]
    assert found[0] == found[1]
    return found[0]


def test_contexts_are_told_apart_and_let_go() -> None:
    s0, s1 = Expr.symbol(0), Expr.symbol(1)
    before = ir.Context._get_live_count()
    with remembering():
        for sizes in ((s0, s1 * 3), (s1 // 2, Expr.const(7)), (s0, s1 * 3)):
            for context in (ir.Context(), ir.Context()):
                assert converted(context, sizes) == (sizes, sizes)
    del context
    assert ir.Context._get_live_count() == before
