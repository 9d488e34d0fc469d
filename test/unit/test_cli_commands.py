# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The subcommands that compile, run, explain and time a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import shapejit as package
from shapejit.cli import bench as bench_module
from shapejit.cli.run import run as run_command
from unit.cli_commands import document, error, output, shapejit, write_models
from unit.sample_program import reference, sample_inputs, sample_program, sample_weights


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_models(tmp_path)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved program: x is [batch, seq, 4], mask is [batch, seq], 8 is batch's usual size."""
    path = tmp_path_factory.mktemp("sample") / "sample.sjit"
    sample_program().save(path)
    return path


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A compiled model, and the summary that compiling printed."""
    folder = tmp_path_factory.mktemp("mlp")
    path = folder / "mlp.sjit"
    models = write_models(folder)
    summary = document(
        *("compile", f"{models}:mlp", "-o", path, "--dim", "batch=1:8:64"),
        *("--input", "x:float32:batchx8", "--opt-level", "1"),
    )
    return path, summary


# Compiling.


def test_the_summary_of_compiling(mlp: tuple[Path, Any]) -> None:
    path, summary = mlp
    assert summary["output"] == str(path)
    assert summary["bytes"] == path.stat().st_size
    assert [(s["name"], s["min"], s["max"]) for s in summary["symbols"]] == [("batch", 1, 64)]
    assert (summary["kernels"], summary["launches"]) == (2, 2)
    assert {"export", "codegen"} <= summary["seconds"].keys()


def test_what_is_compiled_computes_the_model(mlp: tuple[Path, Any]) -> None:
    program = package.load(mlp[0])
    sys.path.insert(0, str(mlp[0].parent))
    try:
        from models import mlp as build
    finally:
        sys.path.pop(0)
        del sys.modules["models"]
    x = torch.randn(5, 8)
    with torch.no_grad():
        expected = build().double()(x.double())
        assert (program(x) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_the_summary_in_words(models: Path, tmp_path: Path) -> None:
    printed = output(
        *("compile", f"{models}:tagger", "-o", tmp_path / "t.sjit", "--minShapes=ids:1x1,mask:1x1"),
        *("--optShapes=ids:4x8,mask:4x8", "--maxShapes=ids:8x32,mask:8x32", "--no-weights"),
    )
    assert "ids_0 = 1..8 (most often 4), ids_1 = 1..32 (most often 8)" in printed
    assert "kernels" in printed
    assert f"saved    {tmp_path / 't.sjit'}, " in printed
    assert error("run", tmp_path / "t.sjit").startswith("SJ-LOAD-006")


def test_an_example_call_by_keyword(models: Path) -> None:
    summary = document(
        *("compile", f"{models}:with_keywords", "--dim", "b=1:8", "--dim", "s=1:32"),
        *("--shapes", "ids:bxs,mask:bxs"),
    )
    assert [symbol["name"] for symbol in summary["symbols"]] == ["b", "s"]
    assert summary["output"] is None


def test_nested_inputs_constants_and_other_outputs(models: Path, tmp_path: Path) -> None:
    saved = tmp_path / "nested.sjit"
    inputs = ('batch["a"]', 'batch["parts"][0]')
    shapes = ",".join(f"{name}:nx3" for name in inputs)
    document("compile", f"{models}:nested", "-o", saved, "--dim", "n=1:9", "--shapes", shapes)
    arguments = ("run", saved, "--shapes", f"{inputs[0]}:5x3")
    result = document(*arguments)
    assert result["inputs"] == {name: [5, 3] for name in inputs}
    outputs = result["outputs"]
    assert (outputs["output[0]"]["shape"], outputs["output[1]"]) == ([5, 3], {"value": 5})
    assert outputs["output[2]"]["mean"] == "nan"
    assert "nan" in output(*arguments)


def test_an_exported_program(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=1, max=9)
    exported = torch.export.export(
        torch.nn.Softmax(1), (torch.randn(4, 6),), dynamic_shapes=({0: batch},)
    )
    torch.export.save(exported, tmp_path / "softmax.pt2")
    result = document(
        *("bench", tmp_path / "softmax.pt2", "--shapes", "input_0=7", "--compare", "eager"),
        *("--iterations", "5"),
    )
    (row,) = result["results"]
    assert list(row["inputs"].values()) == [[7, 6]]
    assert row["difference"] < 1e-5
    assert error("compile", tmp_path / "softmax.pt2", "--dim", "b=1:2").startswith(
        f'SJ-CLI-006 --dim does not apply to "{tmp_path}/softmax.pt2", an exported program. '
    )


def test_inputs_that_are_not_described_enough(models: Path) -> None:
    assert error("compile", f"{models}:mlp") == (
        'SJ-CLI-005 the dtype and shape of input "x" is not known: neither the model nor an '
        "option states it. Add --input x:float32:4x128."
    )
    assert "the dtype of input" in error("compile", f"{models}:mlp", "--shapes", "x:4x8")
    assert "the shape of input" in error("compile", f"{models}:mlp", "--input", "x:float32")


def test_inputs_that_the_model_lacks(models: Path) -> None:
    assert error(
        "compile", f"{models}:tagger", "--minShapes", "idz:1x1", "--maxShapes=idz:2x2"
    ) == (
        'SJ-CLI-004 --minShapes "idz:1x1" names "idz", but the model\'s inputs are "ids" and '
        '"mask". Use one of those names (did you mean "ids"?).'
    )
    assert "SJ-CLI-004" in error("compile", f"{models}:mlp", "--input", "y:float32:2x2")


def test_options_that_contradict_the_example(models: Path) -> None:
    text = error("compile", f"{models}:tagger", "--input", "ids:int32:2x3")
    assert 'the model\'s own example of "ids" is int64' in text
    text = error("compile", f"{models}:tagger", "--shapes", "ids:2x3x4")
    assert 'the model\'s own example of "ids" has 2 dims (2x3)' in text


def test_a_saved_program_is_not_compiled(sample: Path) -> None:
    assert "it is a saved program, which is compiled already" in error("compile", sample)


def test_options_are_checked(models: Path, sample: Path) -> None:
    text = error("compile", f"{models}:tagger", "--opt-level", "7")
    assert text.startswith('SJ-OPTION-002 option "opt_level" is 7: it must be from 0 to 3.')
    text = error("run", sample, "--opt-level", "1")
    assert text.startswith(f'SJ-CLI-006 --opt-level does not apply to "{sample}", a saved program.')
    assert "--weights does not apply" in error("run", f"{models}:mlp", "--weights", "w.safetensors")


# Running.


def test_shapes_by_input_by_dim_and_by_default(sample: Path) -> None:
    def shapes(*arguments: str) -> Any:
        return document("run", sample, *arguments)["inputs"]

    assert shapes("--shapes", "x:2x3x4,mask:2x3") == {"x": [2, 3, 4], "mask": [2, 3]}
    assert shapes("--shapes", "x:2x3x4") == {"x": [2, 3, 4], "mask": [2, 3]}
    assert shapes("--shapes", "batch=5,seq=0") == {"x": [5, 0, 4], "mask": [5, 0]}
    assert shapes("--shapes", "seq=6") == {"x": [8, 6, 4], "mask": [8, 6]}
    assert shapes() == {"x": [8, 1, 4], "mask": [8, 1]}


def test_sizes_that_do_not_fit_are_the_programs_own_errors(sample: Path) -> None:
    assert error("run", sample, "--shapes", "batch=65").startswith("SJ-SHAPE-003")
    assert error("run", sample, "--shapes", "x:2x3x4,mask:2x4").startswith("SJ-SHAPE-006")
    assert error("run", sample, "--shapes", "x:2x3").startswith("SJ-SHAPE-001")
    assert error("run", sample, "--shapes", "y:2x3") == (
        'SJ-CLI-004 --shapes "y:2x3" names "y", but the model\'s inputs are "x" and "mask". Use '
        "one of those names."
    )
    assert 'the model\'s dims are "batch" and "seq"' in error("run", sample, "--shapes", "bach=1")


def test_inputs_and_outputs_in_files(sample: Path, tmp_path: Path) -> None:
    x, mask = sample_inputs(3, 5)
    safetensors.torch.save_file({"x": x, "mask": mask}, tmp_path / "in.safetensors")
    result = document(
        *("run", sample, "--load-inputs", tmp_path / "in.safetensors"),
        *("--save-outputs", tmp_path / "out.safetensors"),
    )
    outputs = safetensors.torch.load_file(tmp_path / "out.safetensors")
    expected = reference(sample_weights(), x, mask)
    assert list(result["outputs"]) == ['output["y"]', 'output["total"]']
    for name, value in expected.items():
        entry = result["outputs"][f'output["{name}"]']
        assert (entry["dtype"], entry["shape"]) == ("float32", list(value.shape))
        assert entry["mean"] == pytest.approx(float(value.mean()), abs=1e-5)
        torch.testing.assert_close(
            outputs[f'output["{name}"]'].double(), value, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    ("names", "reason"), [(["x"], 'lacks "mask"'), (["x", "mask", "z"], 'holds "z" besides')]
)
def test_a_file_with_other_names(
    sample: Path, tmp_path: Path, names: list[str], reason: str
) -> None:
    path = tmp_path / "in.safetensors"
    safetensors.torch.save_file({name: torch.ones(2, 3) for name in names}, path)
    assert error("run", sample, "--load-inputs", path) == (
        f'SJ-CLI-007 "{path}" {reason}. Save one tensor for each input, under its name: "x" and '
        '"mask".'
    )


def test_files_that_cannot_be_used(sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.safetensors"
    path.write_bytes(b"nothing")
    assert "cannot be read" in error("run", sample, "--load-inputs", path)
    assert "cannot be read" in error("run", sample, "--load-inputs", tmp_path / "none")
    assert "cannot be written" in error("run", sample, "--save-outputs", tmp_path / "no" / "out")


def test_weights_of_another_file(sample: Path, tmp_path: Path) -> None:
    weight, bias = sample_weights()
    tensors = {"fc.weight": torch.zeros_like(weight), "fc.bias": torch.full_like(bias, 7)}
    safetensors.torch.save_file(tensors, tmp_path / "w.safetensors")
    result = document("run", sample, "--weights", tmp_path / "w.safetensors")
    assert result["outputs"]['output["y"]']["min"] == 7


def test_the_seed_decides(sample: Path) -> None:
    first, again, other = (
        document("run", sample, "--seed", seed)["outputs"] for seed in ("1", "1", "2")
    )
    assert first == again != other


def test_integers_come_from_the_example_or_the_option(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model looks ids up in a table of 50 rows."""
    from shapejit.cli import calls

    drawn: list[torch.Tensor] = []
    original = calls.random_tensor

    def spy(*args: Any) -> torch.Tensor:
        drawn.append(original(*args))
        return drawn[-1]

    monkeypatch.setattr(calls, "random_tensor", spy)
    source = f"{models}:with_keywords"
    dims = ("--dim", "b=1:64", "--dim", "s=1:64", "--input", "ids:int64:bxs")
    dims = (*dims, "--input", "mask:float32:bxs", "--shapes", "b=60,s=60")
    document("run", source, *dims)
    assert set(drawn[0].unique().tolist()) == {0}  # the example is all zeros
    drawn.clear()
    document("run", source, *dims, "--int-range", "3:9")
    assert set(drawn[0].unique().tolist()) == {*range(3, 10)}
    assert shapejit("run", source, "--int-range", "9:3").exit_code == 2


def test_options_that_exclude_each_other(sample: Path) -> None:
    result = shapejit("run", sample, "--shapes", "batch=1", "--load-inputs", "x")
    assert result.exit_code == 2
    assert "--shapes and --load-inputs exclude each other." in result.stderr


def test_run_in_words(sample: Path) -> None:
    printed = output("run", sample, "--shapes", "batch=2,seq=3")
    assert printed.startswith("x:2x3x4,mask:2x3: ")
    assert 'output["y"]' in printed
    assert "2 x 3 x 5" in printed


# Explaining and timing.


def test_explain(sample: Path) -> None:
    result = document("explain", sample, "--shapes", "batch=2,seq=3")
    assert result["inputs"] == {"x": [2, 3, 4], "mask": [2, 3]}
    assert result["launches"] == 3
    assert result["arena_bytes"] == 2 * 3 * 5 * 4
    printed = output("explain", sample, "--shapes", "batch=2,seq=3")
    assert printed.startswith("Inputs: x:2x3x4,mask:2x3\n")
    assert "gemm_mask" in printed


def test_bench(sample: Path) -> None:
    result = document(
        *("bench", sample, "--shapes", "batch=1,seq=2", "--shapes", "batch=3,seq=4"),
        *("--iterations", "7", "--warmup", "1"),
    )
    assert (result["unit"], result["iterations"]) == ("ms", 7)
    assert [row["inputs"]["mask"] for row in result["results"]] == [[1, 2], [3, 4]]
    for row in result["results"]:
        times = row["shapejit"]
        assert 0 < times["p10"] <= times["median"] <= times["p90"]
    assert "x:8x1x4" in output("bench", sample, "--iterations", "5")


def test_bench_beside_eager(models: Path) -> None:
    arguments = ("bench", f"{models}:mlp", "--dim", "batch=1:64", "--input", "x:float32:batchx8")
    arguments = (*arguments, "--shapes", "x:5x8", "--iterations", "5", "--compare", "eager")
    threads = torch.get_num_threads()
    try:
        (row,) = document(*arguments, "--threads", "1")["results"]
    finally:
        torch.set_num_threads(threads)
    assert row["difference"] < 1e-5
    assert row["eager"].keys() == row["shapejit"].keys() == {"median", "p10", "p90", "host"}


def test_a_saved_program_has_no_eager_model(sample: Path) -> None:
    assert error("bench", sample, "--compare", "eager") == (
        f'SJ-CLI-006 --compare does not apply to "{sample}", a saved program. It holds no PyTorch '
        "model; pass the model itself, as file.py:function."
    )


def test_the_difference_of_results() -> None:
    inf, nan = float("inf"), float("nan")

    def difference(ours: list[float], theirs: list[float]) -> float | None:
        return bench_module._difference({"y": torch.tensor(ours)}, {"y": torch.tensor(theirs)})

    assert difference([], []) == 0
    assert difference([1.0, 4.0], [1.0, 5.0]) == pytest.approx(0.2)
    assert difference([0.0], [0.0]) == 0
    assert difference([inf, nan, 1.0], [inf, nan, 2.0]) == pytest.approx(0.5)
    assert difference([nan], [1.0]) is None
    assert difference([1.0], [nan]) is None
    assert difference([inf], [-inf]) is None


def test_the_worst_of_several_differences() -> None:
    assert bench_module._worst([0.1, 0.3, 0.2]) == 0.3
    assert bench_module._worst([0.1, None]) is None


def test_results_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that only queues: its host time ends when it returns, its time with the result."""
    now = [0.0]
    monkeypatch.setattr(bench_module.time, "perf_counter", lambda: now[0])

    def spend(seconds: float) -> None:
        now[0] += seconds

    (timing,) = bench_module._measure([lambda: spend(0.25)], 10, 0, lambda: spend(1.0))
    assert (timing.median, timing.host) == (1250.0, 250.0)


def test_systems_take_turns_and_every_call_is_timed() -> None:
    order: list[str] = []
    calls = [lambda: order.append("a"), lambda: order.append("b")]
    timings = bench_module._measure(calls, iterations=12, warmup=0)
    assert len(timings) == 2
    assert "".join(order) == "aaabbb" * 2 + "aabb" * 3


# Errors.


def test_a_fault_of_ours_asks_for_a_report(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a surprise")

    monkeypatch.setattr("shapejit.cli.calls.random_call", fail)
    text = error("run", sample, status=1)
    assert text.splitlines() == [
        "RuntimeError: a surprise",
        "This may be a fault of shapejit. Run the command with --traceback, and report what it "
        "prints.",
    ]
    result = shapejit("run", sample, "--traceback")
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert 'in fail\n    raise RuntimeError("a surprise")' in result.stderr


def test_a_traceback_of_a_users_error(tmp_path: Path) -> None:
    result = shapejit("run", tmp_path / "none.sjit", "--traceback")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.rstrip().splitlines()[-1].startswith("shapejit: error: SJ-CLI-002")


def test_warnings_are_one_line_each(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    from shapejit.errors import ShapeJitWarning

    callback = run_command.callback
    assert callback is not None

    def warn(**values: Any) -> Any:
        warnings.warn("take care", ShapeJitWarning, stacklevel=1)
        return callback(**values)

    monkeypatch.setattr(run_command, "callback", warn)
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = shapejit("run", sample, "--json")
    assert result.stderr == "shapejit: warning: take care\n"
    assert warnings.showwarning is before
    json.loads(result.stdout)


def test_a_bad_variable_is_one_message(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPEJIT_LOGS", "everything")
    assert error("run", sample).startswith('SJ-KNOB-001 SHAPEJIT_LOGS is "everything"')
