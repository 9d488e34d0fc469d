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
from rich.console import Console
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
from shapejit.demo.encoder import load_encoder, load_tokenizer
from shapejit.demo.measure import (
    COMPILED,
    EAGER,
    MIN_COSINE,
    OURS,
    Contest,
    Result,
    Timing,
    row_cosines,
    summarize,
    time_calls,
)
from shapejit.demo.plot import plot_latency
from shapejit.demo.report import print_summary, write_results
from shapejit.errors import TargetError

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


def test_later_calls_are_made_as_long_as_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def timing(*seconds: float) -> Timing:
        """Of calls that take so long, with 60 ms for the later ones."""
        clock = iter([time for each in seconds for time in (0.0, each)])
        monkeypatch.setattr("shapejit.demo.measure.time.perf_counter", lambda: next(clock))
        return time_calls(lambda: torch.ones(1), budget_ms=60.0)[1]

    # A first call that compiled says nothing of later ones, which are made all the same.
    assert timing(20.0, 0.1) == Timing(20000.0, (pytest.approx(100.0),))
    assert timing(0.025, 0.025, 0.025) == Timing(25.0, (25.0, 25.0))
    assert len(timing(*[0.001] * 10).later) == 9


def test_a_stall_is_what_the_first_call_took_longer() -> None:
    assert Timing(7.0, (1.0, 3.0, 2.0)).stall == 5.0
    assert Timing(7.0).stall is None


def result_with(
    cosines: tuple[float, ...], tokens: int = 7, ours: float = 1.0, **more: Any
) -> Result:
    shape = Shape(tokens=tokens, batch=len(cosines))
    timings = {OURS: Timing(ours + 0.5, (ours,)), EAGER: Timing(4.0)}
    return Result(shape, tuple(range(len(cosines))), timings, cosines, **more)


READY = {OURS: 2.0, EAGER: 0.5}


def test_a_quick_run_measures_no_stall() -> None:
    timings = {OURS: Timing(3.0), EAGER: Timing(6.0)}
    result = Result(Shape(7, 1), (0,), timings, (1.0,))
    assert result.speedup() == pytest.approx(2.0)
    assert summarize([result], 1, READY).longest_stall_ms == {}


def test_summary_counts_rows_and_averages_ratios_geometrically() -> None:
    results = [result_with((1.0, 1.0)), result_with((1.0,), tokens=9, ours=4.0)]
    summary = summarize(results, 1, READY)
    assert (summary.shapes, summary.rows, summary.wrong_rows) == (2, 3, 0)
    assert summary.speedups == {EAGER: pytest.approx(2.0)}
    assert summary.longest_stall_ms == {OURS: pytest.approx(0.5)}
    assert summary.passed


@pytest.mark.parametrize(
    ("cosines", "compiles"), [((1.0, 0.99998), 1), ((-1.0,), 1), ((1.0,), 2), ((1.0,), 0)]
)
def test_a_wrong_row_or_a_second_compile_fails(cosines: tuple[float, ...], compiles: int) -> None:
    assert not summarize([result_with(cosines)], compiles, READY).passed


@pytest.mark.parametrize(
    ("ours", "ratio", "passed"),
    [
        ((0.9999, 0.9998), 1.0, True),
        ((0.99985, 0.99985), 1.0, True),
        ((0.9998, 0.9995), (7 / 3) ** 0.5, False),
        ((1.0, 0.9985), 5**0.5, False),
    ],
)
def test_in_bfloat16_the_error_is_held_to_pytorchs(
    ours: tuple[float, ...], ratio: float, passed: bool
) -> None:
    result = result_with(ours, eager_cosines=(0.9998, 0.9999))
    summary = summarize([result], 1, READY, MIN_COSINE[torch.bfloat16])
    assert summary.error_ratio == pytest.approx(ratio)
    assert summary.wrong_rows == sum(cosine < 0.999 for cosine in ours)
    assert summary.passed is passed


def contest(**systems: nn.Module) -> Contest:
    """A contest in bfloat16 on the CPU; PyTorch in float32 is the reference."""
    encoder = load_encoder(torch.bfloat16)
    named = {OURS: systems.get("ours", encoder), EAGER: encoder, COMPILED: encoder}
    reference = load_encoder(torch.bfloat16).float()
    return Contest(torch.device("cpu"), torch.bfloat16, named, reference, {OURS: 1.0})


def test_all_systems_run_every_batch_beside_a_wider_reference(
    maker: BatchMaker, tmp_path: Path
) -> None:
    three = contest()
    with torch.inference_mode():
        three.get_ready(maker.make(Shape(3, 2)))
        results = [three.measure(maker.make(Shape(5, 2)), budget_ms=1.0) for _ in range(2)]
    assert set(three.ready_seconds) == {OURS, EAGER, COMPILED}
    for result in results:
        assert list(result.timings) == [OURS, EAGER, COMPILED]
        assert result.cosines == result.eager_cosines
        assert 0.999 < result.worst_cosine < 1
    summary = summarize(results, 1, three.ready_seconds, MIN_COSINE[torch.bfloat16])
    assert summary.error_ratio == pytest.approx(1.0)
    assert set(summary.speedups) == {EAGER, COMPILED}

    console = Console(record=True, width=100)
    print_summary(console, summary, "somewhere")
    printed = console.export_text()
    assert "torch.compile / ours" in printed
    assert "1.000 of PyTorch's (must be <= 1.2)" in printed
    assert "PASSED" in printed
    write_results(results, summary, "somewhere", tmp_path)
    with (tmp_path / "shapes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["compiled_ms"]) > 0
    plot_latency(results, summary, "somewhere", tmp_path / "latency.png")
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")


def test_a_result_of_another_shape_ends_the_demo(maker: BatchMaker) -> None:
    class Narrow(nn.Module):
        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return torch.ones(len(ids), 5)

    with torch.inference_mode(), pytest.raises(SystemExit, match=r"the result is \(2, 5\)"):
        contest(ours=Narrow()).measure(maker.make(Shape(5, 2)), 0.0)


def test_without_a_gpu_the_demo_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.choose_device("auto") == command.choose_device("cpu") == torch.device("cpu")
    with pytest.raises(TargetError, match="SJ-TARGET-006"):
        command.choose_device("cuda")


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
    assert command.main(["--device", "cpu", "--quick", "--out", str(tmp_path)]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert json.loads((tmp_path / "summary.json").read_text())["wrong_rows"] == 1


def test_demo_is_right_at_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "Which planet has the most mass?"
    arguments = ["--device", "cpu", "--quick", "--out", str(tmp_path), "--query", query]
    assert command.main(arguments) == 0
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
    assert all(float(row["cosine"]) >= MIN_COSINE[torch.float32] for row in rows)


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
