# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`compile` and `load`: what they accept, and the messages for what they refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import shapejit
from shapejit.errors import (
    ArgumentError,
    DeviceError,
    OptionError,
    ShapeJitError,
    ShapeJitWarning,
    TargetError,
)
from unit.sample_program import sample_inputs, sample_program


def refusal(error: type[ShapeJitError], *args: Any, **kwargs: Any) -> str:
    """The text of the error that compiling raises."""
    with pytest.raises(error) as raised:
        shapejit.compile(*args, **kwargs)
    return str(raised.value)


X = torch.zeros(2, 4)


def test_not_a_model() -> None:
    assert refusal(ArgumentError, lambda x: x, (X,)) == (
        "SJ-ARG-007 compile() was given a function. Pass a torch.nn.Module, a "
        "torch.export.ExportedProgram or the path of a saved program."
    )
    assert "was given a program that is compiled already" in refusal(
        ArgumentError, sample_program(), (X,)
    )


def test_a_module_needs_an_example() -> None:
    assert refusal(ArgumentError, nn.ReLU().eval()) == (
        "SJ-ARG-008 compile() of a module needs an example call. Pass args=(...) and, if the "
        "model takes keywords, kwargs={...}."
    )


def test_options_are_checked_first() -> None:
    assert refusal(OptionError, nn.ReLU(), (X,), opt_levle=3).startswith(
        'SJ-OPTION-001 "opt_levle" is not a compile option (did you mean "opt_level"?).'
    )
    assert refusal(OptionError, nn.ReLU(), (X,), opt_level=9).startswith("SJ-OPTION-002")


def test_unknown_target() -> None:
    assert refusal(TargetError, nn.ReLU(), (X,), target="tpu") == (
        'SJ-TARGET-002 "tpu" is not a target. Pass one of "auto", "cpu" or "cuda".'
    )


def test_a_target_that_is_not_there_yet() -> None:
    assert refusal(TargetError, nn.ReLU(), (X.to("meta"),)) == (
        'SJ-TARGET-001 target "meta" is not available in this version of shapejit: there is no '
        "back end for that kind of device. Move model and inputs to the CPU or to an NVIDIA GPU."
    )


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert refusal(TargetError, nn.ReLU(), (), target="cuda") == (
        'SJ-TARGET-006 target "cuda" needs an NVIDIA GPU of architecture sm_90a: this torch is a '
        "build without CUDA. Run on a machine with one, or move model and inputs to the CPU and "
        'use target="cpu".'
    )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "torch sees none" in refusal(TargetError, nn.ReLU(), (), target="cuda")


def test_a_target_that_is_not_where_the_tensors_are() -> None:
    assert refusal(TargetError, nn.ReLU(), (X.to("meta"),), target="cpu") == (
        'SJ-TARGET-003 target "cpu" does not match the weights and inputs, which are on meta. '
        'Move them first (shapejit never moves tensors), or pass target="auto".'
    )
    assert "SJ-TARGET-003" in refusal(TargetError, nn.Linear(4, 4), (X,), target="cuda")


def test_tensors_on_several_devices() -> None:
    assert refusal(DeviceError, nn.Linear(4, 4), ({"x": X.to("meta")},)) == (
        "SJ-DEVICE-002 the model's weights and example inputs are on several devices: cpu "
        '(weight "weight"), meta (example input 0). Move them all to one device; shapejit never '
        "moves tensors."
    )


def test_unknown_cpu() -> None:
    assert refusal(TargetError, nn.ReLU(), (X,), target_cpu="zen99") == (
        'SJ-TARGET-004 option target_cpu is "zen99", which is not a CPU that shapejit compiles '
        'for. Pass one of "host", "x86-64", "x86-64-v2", "x86-64-v3" or "x86-64-v4".'
    )


def test_a_path_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.sj"
    sample_program().save(path)
    program = shapejit.compile(path)
    with torch.no_grad():
        assert program(*sample_inputs())["y"].shape == (2, 3, 5)
    assert refusal(ArgumentError, str(path), (X,)) == (
        "SJ-ARG-008 compile() of a saved program takes no example call and no dynamic_shapes. "
        "Leave them out, or pass the model instead of the path."
    )


def test_unknown_environment_variables_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPEJIT_DUMPTO", "/tmp")
    with pytest.warns(ShapeJitWarning, match="SJ-KNOB-002"), pytest.raises(TargetError):
        shapejit.compile(nn.ReLU(), (X,), target="tpu")


def test_the_package_names_are_lazy() -> None:
    code = (
        "import sys, shapejit; assert 'torch' not in sys.modules; print(shapejit.load.__module__)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "shapejit.archive"


# From a model to results.


class Scores(nn.Module):
    """Nested inputs and outputs of every kind, small enough to compile in a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 5)

    def forward(self, batch: dict[str, torch.Tensor], flag: bool, rest: Any = None) -> Any:
        scores = self.fc(batch["x"]) * batch["mask"].unsqueeze(-1)
        return {"scores": scores, "same": batch["x"], "n": batch["x"].shape[1], "none": rest}, flag


@pytest.fixture(scope="module")
def scores() -> tuple[Scores, Any]:
    """A module and the program compiled from it."""
    torch.manual_seed(0)
    model = Scores().eval()
    rows, seq = Dim("rows", min=1, max=16), Dim("seq", min=1, max=32)
    shapes = {"x": {0: rows, 1: seq}, "mask": {0: rows, 1: seq}}
    example = {"x": torch.randn(3, 5, 4), "mask": torch.rand(3, 5)}
    program = shapejit.compile(
        model, (example, True), dynamic_shapes={"batch": shapes, "flag": None}, opt_level=1
    )
    return model, program


@pytest.mark.parametrize(("rows", "seq"), [(1, 1), (16, 32), (3, 5), (7, 1), (2, 17)])
def test_a_model_compiles_and_gives_its_results(
    scores: tuple[Scores, Any], rows: int, seq: int
) -> None:
    model, program = scores
    batch = {"x": torch.randn(rows, seq, 4), "mask": torch.rand(rows, seq)}
    with torch.no_grad():
        (result, flag), (expected, _) = program(batch, True), model(batch, True)
    exact = Scores().double().eval()
    exact.load_state_dict(model.state_dict())
    with torch.no_grad():
        r64 = exact({name: value.double() for name, value in batch.items()}, True)[0]["scores"]
    scale = r64.abs().max()
    own = (expected["scores"].double() - r64).abs().max() / scale
    assert (result["scores"].double() - r64).abs().max() / scale <= max(1e-5, 2 * own)
    assert (flag, result["n"], result["none"]) == (True, seq, None)
    assert result["same"] is batch["x"]


def test_a_compiled_model_reports(scores: tuple[Scores, Any]) -> None:
    _, program = scores
    stats = program.stats()
    assert stats.compiles == 1
    assert "import" not in stats.compile_seconds
    assert "export" in stats.compile_seconds
    batch = {"x": torch.randn(2, 3, 4), "mask": torch.rand(2, 3)}
    explanation = program.explain(batch, True)
    assert [(row.name, row.value) for row in explanation.symbols[:2]] == [("rows", 2), ("seq", 3)]
    assert explanation.launches >= 1
    assert all(kernel.why for kernel in explanation.kernels)


def test_a_compiled_model_names_what_is_wrong_with_a_call(scores: tuple[Scores, Any]) -> None:
    _, program = scores
    batch = {"x": torch.randn(2, 40, 4), "mask": torch.rand(2, 40)}
    with torch.no_grad(), pytest.raises(ShapeJitError) as raised:
        program(batch, True)
    assert str(raised.value) == (
        'SJ-SHAPE-003 dim "seq" = 40 of argument `batch["x"]` (dim 1) is above its range 1..32. '
        'Pass at most 32, or compile with Dim("seq", min=1, max=64).'
    )
    with torch.no_grad(), pytest.raises(ArgumentError, match="SJ-ARG-005"):
        program({name: value[:, :4] for name, value in batch.items()}, False)


def test_a_saved_model_gives_the_same_bits_in_another_process(
    scores: tuple[Scores, Any], tmp_path: Path
) -> None:
    _, program = scores
    path, result = tmp_path / "model.sj", tmp_path / "result.pt"
    program.save(path)
    code = f"""
import sys, torch, shapejit
program = shapejit.load({str(path)!r})
batch = {{"x": torch.arange(24.0).reshape(2, 3, 4), "mask": torch.ones(2, 3)}}
with torch.no_grad():
    torch.save(program(batch, True)[0]["scores"], {str(result)!r})
assert "torch_mlir" not in sys.modules and "shapejit.importer" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    batch = {"x": torch.arange(24.0).reshape(2, 3, 4), "mask": torch.ones(2, 3)}
    with torch.no_grad():
        expected = program(batch, True)[0]["scores"]
    assert torch.equal(torch.load(result), expected)
