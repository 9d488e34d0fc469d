# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The plan of working memory: slots are large enough, and no live values share one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

import shapejit
from shapejit.passes.plan_memory import Arena, sampled_values
from shapejit.report_memory import MemoryRow, total_bytes
from shapejit.symbolic import Expr, Ranges
from unit.fake_cuda import Fake
from unit.gpu_programs import deep, on_fake
from unit.gpu_programs import rows as rows_of

RANGES: dict[int, tuple[int, int | None]] = {0: (1, 64), 1: (0, 512), 2: (2, None)}


def sizes() -> st.SearchStrategy[Expr]:
    """Sizes over s0, s1 and s2 that often do not compare."""
    symbols = st.sampled_from([Expr.symbol(0), Expr.symbol(1), Expr.symbol(2)])
    term = st.builds(lambda s, f: s * f, symbols, st.sampled_from([4, 8, 64]))
    product = st.builds(lambda a, b: a * b, term, symbols)
    total = st.builds(lambda a, b: a + b, term, term)
    halved = st.builds(lambda a: (a // 2) * 8, symbols)
    return st.one_of(term, product, total, halved, st.builds(Expr.const, st.integers(0, 4096)))


values = st.lists(st.tuples(sizes(), st.integers(0, 5)), min_size=1, max_size=25)
points = st.tuples(st.integers(1, 64), st.integers(0, 512), st.integers(2, 5000))


def planned(program: Sequence[tuple[Expr, int]], samples: Any) -> tuple[Arena, list[int]]:
    arena = Arena(Ranges(RANGES), samples)
    slots = [arena.allocate(size, step, step + life) for step, (size, life) in enumerate(program)]
    return arena, slots


@settings(deadline=None, max_examples=80)
@given(values, st.lists(points, min_size=1, max_size=4))
def test_slots_hold_what_they_are_for(program: Any, at: Any) -> None:
    arena, slots = planned(program, sampled_values(RANGES))
    for symbols in at:
        bytes_ = [max(s.evaluate(symbols=symbols) for s in slot.sizes) for slot in arena.slots]
        for (size, _), slot in zip(program, slots, strict=True):
            assert size.evaluate(symbols=symbols) <= bytes_[slot]
    for first, (_, life) in enumerate(program):
        for second in range(first + 1, min(first + life, len(program) - 1) + 1):
            assert slots[first] != slots[second], "it is read when the other is written"


@settings(deadline=None, max_examples=40)
@given(values)
def test_slots_are_shared_rather_than_added(program: Any) -> None:
    """A slot is added only where all free ones are of quite another size."""
    arena, slots = planned(program, sampled_values(RANGES))
    assert len(arena.slots) <= len(planned(program, ())[0].slots)
    assert sorted(set(slots)) == list(range(len(arena.slots)))


class Crossed(nn.Module):
    """Values of the one size and then of the other, none of them an output."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        for _ in range(3):
            a = torch.softmax(a, -1) @ a.mT @ a
        b = b + a.sum()
        for _ in range(3):
            b = torch.softmax(b, -1) @ b.mT @ b
        return a.sum() + b


@pytest.fixture(scope="module")
def crossed() -> shapejit.Program:
    shapes = {"a": {0: Dim("rows", max=64)}, "b": {0: Dim("tokens", max=64)}}
    with torch.no_grad():
        example = (torch.zeros(3, 8), torch.zeros(5, 8))
        return shapejit.compile(Crossed().eval(), example, dynamic_shapes=shapes)


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("tokens", [1, 6, 64])
def test_programs_whose_sizes_do_not_compare(
    crossed: shapejit.Program, rows: int, tokens: int
) -> None:
    generator = torch.Generator().manual_seed(rows * 100 + tokens)
    a, b = (torch.rand(n, 8, generator=generator) * 0.1 for n in (rows, tokens))
    with torch.no_grad():
        torch.testing.assert_close(crossed(a, b), Crossed()(a, b), rtol=2e-5, atol=2e-5)


def test_explain_shows_every_slot_as_a_formula(crossed: shapejit.Program) -> None:
    found = crossed.explain(torch.zeros(7, 8), torch.zeros(40, 8))
    rows = {row.what: row for row in found.memory}
    slots = [row for row in found.memory if row.what.startswith("slot ")]
    assert len(slots) == len(crossed.artefacts.arena) > 1
    assert any(row.formula.startswith("max(") for row in slots)
    for row in slots:
        assert row.part
        assert row.bytes == eval(row.formula, {"rows": 7, "tokens": 40, "max": max})
    needed = rows["working memory"]
    aligned = sum(-(-row.bytes // 64) * 64 for row in slots)
    assert needed.bytes == found.arena_bytes == aligned + 64
    assert needed.formula == " + ".join([*(row.what for row in slots), "alignment"])
    assert rows["output 0"] == MemoryRow("output 0", "32*tokens", 40 * 32)
    text = str(found)
    assert "all of it" in text
    assert "32*tokens" in text


def test_explain_shows_what_a_program_under_graphs_holds(tmp_path: Path) -> None:
    one = on_fake(*deep(), Fake(tmp_path))
    found = one.program.explain(rows_of(100))
    stats = one.program.stats()
    assert stats.graphs is not None
    held = {row.what: row.bytes for row in found.memory if not row.part}
    assert held["weights"] == stats.weight_bytes
    assert held["machine code"] == stats.code_bytes
    assert held["blocks of parameters, all streams"] == stats.graphs.block_bytes
    assert held["tables of changes, all graphs"] == stats.graphs.table_bytes
    assert total_bytes(found.memory) == sum(held.values())
