# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The demo on a GPU: all-MiniLM-L6-v2 in bfloat16, right at every row, searching."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_mlir")
pytest.importorskip("transformers")

from shapejit.demo import __main__ as command
from shapejit.demo.encoder import WEIGHTS_PACKAGE
from shapejit.gpu.device import Device


@pytest.mark.skipif(find_spec(WEIGHTS_PACKAGE) is None, reason="needs MiniLM's weights")
def test_demo_is_right_at_every_row(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--device", "cuda", "--no-compare-compile", "--quick", "--out", str(tmp_path)]
    status = command.main([*arguments, "--query", "Which planet has the most mass?"])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert "Jupiter has more mass" in printed
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["compiles"] == 1
    assert summary["wrong_rows"] == 0
    assert summary["error_ratio"] <= 1.2
    assert summary["setting"].startswith("bf16, ")
