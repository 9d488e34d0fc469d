# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reports: the data of stats() and explain(), and that they print."""

from __future__ import annotations

import json

import pytest
import torch

from shapejit.artefacts import Derivation, SymbolSpec
from shapejit.errors import ShapeError
from shapejit.knobs import knobs
from shapejit.progress import Progress
from shapejit.report import bytes_text
from shapejit.symbolic import Expr
from unit.sample_program import sample_artefacts, sample_inputs, sample_program


def test_explanation_as_data() -> None:
    data = sample_program().explain(*sample_inputs(2, 3)).to_dict()
    json.dumps(data)
    assert data["symbols"][0] == {
        "name": "batch",
        "value": 2,
        "min": 1,
        "max": 64,
        "opt": 8,
        "divisor": 1,
        "note": "most often 8",
    }
    (kernel,) = data["kernels"]
    assert (kernel["name"], kernel["kind"], kernel["launches"]) == ("gemm_mask", "gemm", 3)
    assert kernel["fuses"] == ("gemm", "mul", "add")
    assert [(at["sizes"], at["count"]) for at in kernel["at"]] == [((6, 5, 4), 2), ((2, 5, 4), 1)]
    assert kernel["at"][0]["sources"] == (
        "aten.linear model.py:7",
        "aten.mul model.py:8",
        "aten.linear model.py:9",
    )
    assert data["launches"] == 3
    assert data["arena_bytes"] == 2 * 3 * 5 * 4
    assert data["outputs"] == ((2, 3, 5), (2,))


def test_explanation_of_merged_derived_and_divisible_symbols() -> None:
    symbols = (
        *sample_artefacts().symbols,
        SymbolSpec("rows", equal_to=0),
        SymbolSpec("d3", derived=Derivation("max", Expr.symbol(1) - 4, Expr.const(0))),
    )
    notes = [
        row.note for row in sample_program(symbols=symbols).explain(*sample_inputs(2, 9)).symbols
    ]
    assert notes == ["most often 8", "", "always equal to batch", "max of other sizes"]
    row = sample_program(symbols=symbols).explain(*sample_inputs(2, 9)).symbols[3]
    assert row.value == 5


def test_explaining_does_not_run_but_checks() -> None:
    program = sample_program()
    program.explain(*sample_inputs())
    assert program.stats().calls == 0
    with pytest.raises(ShapeError, match="SJ-SHAPE-003"):
        program.explain(*sample_inputs(65, 1))


def test_explanation_prints() -> None:
    text = str(sample_program().explain(*sample_inputs(2, 3)))
    for piece in ("batch", "1..64", "gemm_mask", "6 x 5 x 4 x2", "1 kernels, 3 launches", "120 B"):
        assert piece in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_stats_print_and_are_data() -> None:
    program = sample_program()
    with torch.no_grad():
        program(*sample_inputs())
    stats = program.stats()
    data = stats.to_dict()
    json.dumps(data)
    assert data["compile_seconds"] == {"export": 1.25, "codegen": 0.5}
    text = str(stats)
    for piece in ("distinct shapes", "4.0 KiB", "export", "1.750"):
        assert piece in text
    assert "Compilation" not in str(sample_program(compile_seconds={}).stats())


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (90 << 20, "90.0 MiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes_in_words(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_progress_times_stages(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress(visible=False) as progress:
        with progress.stage("import"):
            pass
        for _ in range(2):
            with progress.stage("codegen", steps=3) as stage:
                stage.advance()
    assert list(progress.seconds) == ["import", "codegen"]
    assert all(seconds >= 0 for seconds in progress.seconds.values())
    assert capfd.readouterr().err == ""


def test_progress_shows_the_stage(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress(visible=True) as progress, progress.stage("codegen", steps=2) as stage:
        stage.advance(2)
        assert progress._bar is not None
        progress._bar.refresh()
    assert progress._bar is None


def test_progress_follows_the_knob() -> None:
    with knobs.scope(progress="on"):
        assert Progress().visible
    with knobs.scope(progress="off"):
        assert not Progress().visible
    with knobs.scope(progress="auto"):
        assert not Progress().visible, "standard error is no terminal in tests"


def test_a_failing_stage_is_timed_and_leaves_no_bar() -> None:
    with pytest.raises(ZeroDivisionError), Progress(visible=True) as progress, progress.stage("x"):
        raise ZeroDivisionError
    assert "x" in progress.seconds
    assert progress._bar is None
