# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The demo: its corpus, shapes and verdict, and a short run from end to end."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import shapejit
from shapejit.demo import __main__ as command
from shapejit.demo.batches import (
    MAX_BATCH,
    MAX_TOKENS,
    MIN_BATCH,
    MIN_TOKENS,
    BatchMaker,
    Shape,
    draw_shapes,
)
from shapejit.demo.corpus import load_corpus
from shapejit.demo.encoder import load_tokenizer
from shapejit.demo.measure import MIN_COSINE, Result, Timing, row_cosines, summarize, time_calls

EXAMPLE = Path(__file__).parents[2] / "examples" / "embed.py"

shapes = st.builds(
    Shape, tokens=st.integers(MIN_TOKENS, MAX_TOKENS), batch=st.integers(MIN_BATCH, MAX_BATCH)
)


@pytest.fixture(scope="module")
def maker() -> BatchMaker:
    return BatchMaker(load_tokenizer(), load_corpus(), seed=0)


def test_corpus_is_large_varied_and_without_repeats() -> None:
    corpus = load_corpus()
    lengths = [len(encoding.ids) for encoding in load_tokenizer().encode_batch(corpus)]
    assert len(corpus) >= 320
    assert len(set(corpus)) == len(corpus)
    assert min(lengths) == MIN_TOKENS
    assert max(lengths) >= MAX_TOKENS
    assert len(set(lengths)) >= 90


@given(count=st.integers(4, 600), seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_shapes_are_distinct_in_range_and_hold_the_corners(count: int, seed: int) -> None:
    drawn = draw_shapes(count, seed)
    assert len(set(drawn)) == len(drawn) == count
    assert all(MIN_BATCH <= s.batch <= MAX_BATCH for s in drawn)
    assert all(MIN_TOKENS <= s.tokens <= MAX_TOKENS for s in drawn)
    assert {Shape(3, 1), Shape(3, 32), Shape(256, 1), Shape(256, 32)} <= set(drawn)
    assert drawn == draw_shapes(count, seed)


@given(shape=shapes)
@settings(max_examples=40, deadline=None)
def test_a_batch_of_real_text_has_just_the_shape(maker: BatchMaker, shape: Shape) -> None:
    batch = maker.make(shape)
    assert batch.ids.shape == batch.mask.shape == (shape.batch, shape.tokens)
    assert batch.ids.dtype == batch.mask.dtype == torch.int64
    assert batch.mask.sum(dim=1).max() == shape.tokens
    assert len(set(batch.texts)) == shape.batch
    assert bool((batch.ids[batch.mask == 0] == 0).all())


def test_cosines_are_by_row_and_a_nan_is_wrong() -> None:
    ours = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, float("nan")], [3.0, 4.0]])
    reference = torch.tensor([[1.0, 0.0], [0.0, -1.0], [1.0, 0.0], [1.0, 0.0]])
    assert row_cosines(ours, reference) == pytest.approx((1.0, -1.0, -1.0, 0.6))


@pytest.mark.parametrize(("budget_ms", "calls"), [(0.0, 1), (1e9, 10)])
def test_the_first_call_is_timed_apart(budget_ms: float, calls: int) -> None:
    counter = iter(range(100))
    result, timing = time_calls(lambda: torch.tensor(next(counter)), budget_ms)
    assert result.item() == 0
    assert next(counter) == calls
    assert timing.first > 0
    assert len(timing.later) == calls - 1


def test_a_long_call_is_timed_once_and_a_middling_one_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter((0.0, 0.4, 1.0, 1.2, 2.0, 2.1))
    monkeypatch.setattr("shapejit.demo.measure.time.perf_counter", lambda: next(clock))
    assert time_calls(lambda: torch.ones(1), budget_ms=60.0)[1] == Timing(pytest.approx(400.0))
    _, middling = time_calls(lambda: torch.ones(1), budget_ms=60.0)
    assert middling.first == pytest.approx(200.0)
    assert middling.later == pytest.approx((100.0,))


def result_with(cosines: tuple[float, ...], tokens: int = 7, ours: float = 1.0) -> Result:
    texts = tuple(range(len(cosines)))
    shape = Shape(tokens=tokens, batch=len(cosines))
    return Result(shape, texts, Timing(ours + 0.5, (ours,)), Timing(4.0), cosines)


def test_a_quick_run_measures_no_stall() -> None:
    result = Result(Shape(7, 1), (0,), Timing(3.0), Timing(6.0), (1.0,))
    assert result.speedup == pytest.approx(2.0)
    assert summarize([result], compiles=1, compile_seconds=1.0).longest_stall_ms is None


def test_summary_counts_rows_and_averages_ratios_geometrically() -> None:
    results = [result_with((1.0, 1.0)), result_with((1.0,), tokens=9, ours=4.0)]
    summary = summarize(results, compiles=1, compile_seconds=2.0)
    assert (summary.shapes, summary.rows, summary.wrong_rows) == (2, 3, 0)
    assert summary.geomean_speedup == pytest.approx(2.0)
    assert summary.longest_stall_ms == pytest.approx(0.5)
    assert summary.passed


@pytest.mark.parametrize(
    ("cosines", "compiles"), [((1.0, 0.99998), 1), ((-1.0,), 1), ((1.0,), 2), ((1.0,), 0)]
)
def test_a_wrong_row_or_a_second_compile_fails(cosines: tuple[float, ...], compiles: int) -> None:
    assert not summarize([result_with(cosines)], compiles, 1.0).passed


class WrongInOneRow:
    """A stand-in for a compiled program that spoils one row of batches above size 1."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        result: Tensor = self.model(ids, mask).clone()
        if len(result) > 1:
            result[-1] = -result[-1]
        return result

    def stats(self) -> SimpleNamespace:
        return SimpleNamespace(compiles=1)


def test_exit_status_is_1_if_any_row_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile_wrongly(model: nn.Module, *_: Any, **__: Any) -> WrongInOneRow:
        return WrongInOneRow(model)

    monkeypatch.setattr(shapejit, "compile", compile_wrongly)
    monkeypatch.setattr(command, "QUICK_SHAPES", 2)
    monkeypatch.setattr(command, "load_corpus", lambda: load_corpus()[:40])
    assert command.main(["--quick", "--out", str(tmp_path)]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert json.loads((tmp_path / "summary.json").read_text())["wrong_rows"] == 1


def test_demo_is_right_at_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "Which planet has the most mass?"
    assert command.main(["--quick", "--out", str(tmp_path), "--query", query]) == 0
    printed = capsys.readouterr().out
    assert "PASSED" in printed
    assert "Jupiter has more mass" in printed

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["compiles"] == 1
    assert summary["shapes"] == command.QUICK_SHAPES
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (tmp_path / "shapes.csv").open() as file:
        measured = {(int(r["batch"]), int(r["tokens"])) for r in csv.DictReader(file)}
    assert len(rows) == summary["rows"] == sum(batch for batch, _ in measured)
    assert all(float(row["cosine"]) >= MIN_COSINE for row in rows)


def test_example_finds_the_nearest_text() -> None:
    process = subprocess.run(
        [sys.executable, EXAMPLE, "where did I put my passport?"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    assert "Travel documents, including passports" in process.stdout
