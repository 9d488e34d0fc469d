# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What depends on weights alone is computed once: the pass, and programs for the CPU."""

from __future__ import annotations

import copy
import functools
import math
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import shapejit
from reference.interpreter import Interpreter
from reference.random_programs import input_shapes, programs
from shapejit import ir as sir
from shapejit import passes, pipeline
from shapejit.artefacts import HoistedSpec, JoinSpec, PackSpec, WeightSpec
from shapejit.bind_program import BindProgram
from shapejit.cache import object_cache
from shapejit.errors import ShapeJitError
from shapejit.hoisting import take_bind_module, take_kept
from shapejit.pass_host import run_pipeline
from shapejit.passes.fusion.codec import Codec
from shapejit.passes.hoisting.plan import Limits, plan
from shapejit.program import Program
from shapejit.weights import Weights

# The pass -----------------------------------------------------------------------------------------

PASS = "shapejit-hoist-weights"


@pytest.fixture(scope="module", autouse=True)
def _registered_passes() -> None:
    passes.register_all()


def with_constant_sizes(program: str, batch: int, rows: int, weights: Sequence[int]) -> str:
    """A random program at one size, of whose arguments some are weights."""

    def typed(match: re.Match[str]) -> str:
        sizes = [eval(size, {}) for size in match[2].split(", ")] if match[2] else []
        shape = "".join(f"{size}x" for size in sizes)
        return f"tensor<{shape}{match[1]}, #shapejit.shape<{sizes}>>"

    text = (
        program.replace(")[s0, s1] ->", ") ->").replace("s0", str(batch)).replace("s1", str(rows))
    )
    text = re.sub(r"tensor<[0-9?x]*?(f32|i1), #shapejit.shape<\[(.*?)\]>>", typed, text)
    text = text.replace('"weight"', '"input"')
    for number in weights:
        text = re.sub(rf'(%x{number}: [^{{]*){{shapejit.kind = "input"}}', r"\1{KIND}", text)
    return text.replace("{KIND}", '{shapejit.kind = "weight"}')


def test_random_programs() -> None:
    """Both parts in turn compute what the program did, and nothing is left to hoist."""
    seen: Counter[str] = Counter()

    @settings(
        max_examples=80,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        program=programs(),
        sizes=st.tuples(st.integers(1, 3), st.integers(1, 4)),
        weights=st.sets(st.integers(0, 6), max_size=3).map({*range(7)}.difference),
        limits=st.sampled_from([(4, 1 << 20), (1, 0), (0, 64)]),
    )
    def check(
        program: str, sizes: tuple[int, int], weights: set[int], limits: tuple[int, int]
    ) -> None:
        generator = np.random.default_rng(0)
        inputs = [generator.standard_normal(shape) for shape in input_shapes(*sizes)]
        with ir.Context(), ir.Location.unknown():
            module = ir.Module.parse(with_constant_sizes(program, *sizes, sorted(weights)))
            expected = Interpreter(module).run(inputs)
            growth, slack = limits
            options = f"{{growth={growth} slack={slack}}}"
            run_pipeline(module, f"{PASS}{options},shapejit-verify-shapes", stage="test")
            seen["kept"] += len(take_kept(module))
            part = take_bind_module(module)
            hoisted: list[np.ndarray] = []
            if part is not None:
                seen["hoisted"] += len(part.hoisted)
                numbers = [sorted(weights)[number] for number in part.weights]
                run_pipeline(part.module, "shapejit-verify-shapes", stage="test")
                hoisted = Interpreter(part.module).run([inputs[number] for number in numbers])
                check_limits(part.hoisted, weights, sizes, Limits(*limits))
            for ours, theirs in zip(
                Interpreter(module).run([*inputs, *hoisted]), expected, strict=True
            ):
                np.testing.assert_array_equal(ours, theirs)
            [function] = sir.functions(module)
            if limits[1] == 1 << 20:
                assert not plan(function, Codec(module), Limits(*limits)).hoisted

    def check_limits(
        hoisted: Sequence[Any], weights: set[int], sizes: tuple[int, int], limits: Limits
    ) -> None:
        shapes = input_shapes(*sizes)
        numbers = sorted(weights)
        held = [math.prod(h.shape) * getattr(torch, h.dtype).itemsize for h in hoisted]
        used = set().union(*(each.weights for each in hoisted))
        rows = [(size, set(each.weights)) for size, each in zip(held, hoisted, strict=True)]
        for size, of in [*rows, (sum(held), used)]:
            assert limits.allow(size, sum(4 * math.prod(shapes[numbers[n]]) for n in of))

    check()
    assert seen["hoisted"] > 20
    assert seen["kept"] > 5


# Programs -----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


class Scaled(nn.Module):
    """A convolution by filters with scaled rows, then a product with a product of two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(16, 8, 3, 3))
        self.scale = nn.Parameter(torch.rand(16) + 0.5)
        self.down = nn.Parameter(torch.randn(16, 5))
        self.up = nn.Parameter(torch.randn(5, 24))
        self.bias = nn.Parameter(torch.randn(24))

    def forward(self, x: Tensor) -> Tensor:
        filters = self.filters * self.scale[:, None, None, None]
        image = functional.conv2d(x, filters, padding=1).permute(0, 2, 3, 1)
        return image @ (self.down @ self.up) + self.bias


DIMS = ({0: Dim("batch", max=4), 2: Dim("rows", max=32), 3: Dim("columns", max=32)},)
IMAGES = [(1, 8, 1, 1), (2, 8, 9, 10), (3, 8, 17, 5), (4, 8, 32, 32), (0, 8, 3, 3)]


def compiled(model: nn.Module, **options: Any) -> Program:
    model.eval().requires_grad_(False)
    return shapejit.compile(model, (torch.randn(2, 8, 9, 10),), dynamic_shapes=DIMS, **options)


def check(program: Program, model: nn.Module, sizes: Sequence[Sequence[int]] = IMAGES) -> None:
    for size in sizes:
        x = torch.randn(*size)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)


def weights_of(program: Program) -> list[tuple[str, tuple[str, ...]]]:
    specs = program.artefacts.weights
    return [
        (spec.sources[0].partition(" ")[0], tuple(specs[number].name for number in spec.weights))
        for spec in program.artefacts.hoisted
    ]


@pytest.fixture(scope="module")
def model() -> Scaled:
    torch.manual_seed(0)
    return Scaled()


def test_computed_once(model: Scaled) -> None:
    program = compiled(model, verify_each=True)
    assert weights_of(program) == [
        ("aten.mul.Tensor", ("filters", "scale")),
        ("aten.matmul", ("down", "up")),
    ]
    stats = program.stats()
    assert (stats.bind_runs, stats.calls, stats.arena_bytes) == (1, 0, 0)
    check(program, model)
    assert program.stats().bind_runs == 1
    # Calls read packed copies, so that the tensors themselves are not kept.
    assert program.stats().hoisted_bytes == 0
    # Of the bind part nothing runs in calls.
    without = [k.kind for k in program.artefacts.kernels]
    assert without == ["loop", "conv", "gemm"]
    bind = program.artefacts.bind
    assert bind is not None
    assert [kernel.kind for kernel in bind.program.kernels] == ["loop", "gemm"]


def test_a_changed_weight(model: Scaled) -> None:
    model = copy.deepcopy(model)
    program = compiled(model)
    model.bias.add_(1)  # nothing is computed with it
    check(program, model)
    assert program.stats().bind_runs == 1
    for run, weight in enumerate((model.filters, model.scale, model.down, model.up), start=2):
        weight.mul_(1.5)
        check(program, model, IMAGES[:2])
        assert program.stats().bind_runs == run
    program.load_state_dict({name: w * 0.5 for name, w in model.state_dict().items()})
    check(program, model)
    assert program.stats().bind_runs == 6
    # One that moved, without a new version.
    model.scale.data = model.scale.data * 3
    check(program, model)
    assert program.stats().bind_runs == 7


def test_the_same_as_without(model: Scaled, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit: what is hoisted runs in the same kernels."""
    ours = compiled(model)
    with_all = tuple(s for s in pipeline.STAGES if s.name != "hoist-weights")
    monkeypatch.setattr(pipeline, "STAGES", with_all)
    theirs = compiled(model, verify_each=True)
    assert theirs.artefacts.bind is None
    assert theirs.stats().bind_runs == 0
    for size in IMAGES:
        x = torch.randn(*size)
        assert torch.equal(ours(x), theirs(x))


def test_files_and_caches(model: Scaled, tmp_path: Path) -> None:
    program = compiled(model)
    again = compiled(model)
    assert again.stats().origin == "memory"
    bind = again.artefacts.bind
    assert bind is not None
    assert {kernel.origin for kernel in bind.program.kernels} == {"memory"}
    object_cache().clear_memory()
    assert compiled(model).stats().origin == "disk"
    path = tmp_path / "scaled.sj"
    program.save(path)
    other = Scaled()
    x = torch.randn(2, 8, 9, 10)
    for loaded, source in [
        (shapejit.load(path), model),
        (shapejit.load(path, weights=other), other),
        (again, model),
    ]:
        assert loaded.stats().bind_runs == 1
        torch.testing.assert_close(loaded(x), source(x), rtol=1e-4, atol=1e-4)
    # The original module's tensors are shared.
    loaded = shapejit.load(path, weights=other)
    other.scale.add_(1)
    torch.testing.assert_close(loaded(x), other(x), rtol=1e-4, atol=1e-4)
    assert loaded.stats().bind_runs == 2
    # What is hoisted is no weight of the model's.
    assert program.state_dict().keys() == model.state_dict().keys()


def test_freed_weights(model: Scaled) -> None:
    """Those that something is computed from stay, as they are needed again."""
    mine = copy.deepcopy(model)
    program = compiled(mine, free_original=True)
    check(program, model)
    for name, value in program.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    mine.down.mul_(2)
    model = copy.deepcopy(model)
    model.down.mul_(2)
    check(program, model)


def test_results_of_the_caller(model: Scaled) -> None:
    program = compiled(model)
    x = torch.randn(2, 8, 4, 4)
    out = torch.empty(2, 4, 4, 24)
    assert program(x, out=out) is out
    torch.testing.assert_close(out, model(x), rtol=1e-4, atol=1e-4)


def test_threads_that_find_a_changed_weight(model: Scaled) -> None:
    """One of them computes anew, and none of them reads what is half done."""
    model = copy.deepcopy(model)
    programs = [compiled(model), compiled(model)]
    x = torch.randn(2, 8, 9, 10)
    for turn in range(2, 8):
        model.scale.add_(0.25)
        expected = model(x)
        results: list[Tensor] = []

        def call(program: Program, results: list[Tensor] = results) -> None:
            with torch.no_grad():
                results.append(program(x))

        threads = [threading.Thread(target=call, args=(programs[i % 2],)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 6
        for result in results:
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        assert [program.stats().bind_runs for program in programs] == [turn, turn]


class Several(nn.Module):
    """What is read in place, joined with a weight, expanded, returned, scattered into."""

    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.randn(12, 6))
        self.g = nn.Parameter(torch.rand(12, 1))
        self.table = nn.Parameter(torch.randn(1, 24))
        self.register_buffer("count", torch.zeros(6))
        self.register_buffer("mean", torch.randn(6))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        normalised = self.v * (self.g / self.v.norm(dim=1, keepdim=True))
        self.count.add_(x.sum(0))  # it changes, so nothing of it is hoisted
        sums = (self.count * self.mean).cumsum(0)
        large = torch.softmax(self.table.expand(20000, 24) * 2, -1)
        rows = torch.sort(self.v, dim=0)[0]
        return x @ normalised.t(), sums, x @ rows.t(), large[x.shape[0] :], self.v.t() @ self.v


def test_what_is_hoisted_and_what_stays() -> None:
    torch.manual_seed(0)
    model = Several().eval().requires_grad_(False)
    expected_model = copy.deepcopy(model)
    program = shapejit.compile(
        model, (torch.randn(4, 6),), dynamic_shapes=({0: Dim("rows", max=64)},), verify_each=True
    )
    for rows in (1, 7, 64):
        x = torch.randn(rows, 6)
        for ours, theirs in zip(program(x), expected_model(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert program.stats().bind_runs == 1
    names = {name for _, weights in weights_of(program) for name in weights}
    assert names == {"v", "g", "table"}
    report = program.explain(torch.randn(5, 6))
    text = str(report)
    assert "Computed once, when weights are bound" in text
    assert any("bytes, of weights of 96" in reason for reason in report.kept)
    assert "Of weights alone, and yet in every call" in text
    in_place = [row for row in report.hoisted if row.bytes]
    held = {row.what: row.bytes for row in report.memory}
    assert held["computed from weights"] == sum(row.bytes for row in in_place)
    assert held["computed from weights"] == program.stats().hoisted_bytes > 0
    assert report.to_dict()["hoisted"][0]["weights"]


class Rotary(nn.Module):
    """Rows turned by angles that depend on their positions."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        frequencies = 1 / 10000 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device).float()
        angles = torch.outer(positions, self.frequencies).repeat(1, 2)
        first, second = x.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
        return x * angles.cos() + turned * angles.sin()


@settings(deadline=None, max_examples=20)
@given(batch=st.integers(1, 4), tokens=st.one_of(st.sampled_from([1, 40]), st.integers(1, 40)))
def test_tables_of_positions(batch: int, tokens: int) -> None:
    """Computed up to the greatest length, once; calls of any length read the first rows."""
    program = _rotary_program()
    x = torch.randn(batch, tokens, 16, generator=torch.Generator().manual_seed(tokens))
    torch.testing.assert_close(program(x), Rotary()(x), rtol=1e-5, atol=1e-5)
    stats = program.stats()
    assert stats.hoisted_bytes == 2 * 40 * 16 * 4
    assert stats.bind_runs == 1
    assert program.explain(x).launches == 1


@functools.cache
def _rotary_program() -> Program:
    shapes = {0: Dim("batch", min=1, max=4), 1: Dim("tokens", min=1, max=40)}
    example = torch.randn(2, 5, 16)
    return shapejit.compile(Rotary().eval(), (example,), dynamic_shapes=(shapes,), target="cpu")


def test_a_table_without_a_greatest_length_stays() -> None:
    shapes = {1: Dim("tokens", min=1)}
    example = torch.randn(2, 5, 16)
    program = shapejit.compile(Rotary().eval(), (example,), dynamic_shapes=(shapes,), target="cpu")
    assert program.stats().hoisted_bytes == 0
    x = torch.randn(2, 77, 16)
    torch.testing.assert_close(program(x), Rotary()(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norms(affine: bool) -> None:
    """Two vectors a layer are left of four; they follow the statistics."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16, affine=affine),
        nn.ReLU(),
        nn.Conv2d(16, 4, 1),
    )
    norm = model[1]
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 4)
    program = compiled(model)
    check(program, model, [(1, 8, 3, 3), (2, 8, 9, 12)])
    names = ["running_mean", "running_var", "weight", "bias"][: 4 if affine else 2]
    known = {f"1.{name}" for name in names}
    assert [(h.shape, h.dtype) for h in program.artefacts.hoisted] == [((16,), "float32")] * 2
    used = {name for _, weights in weights_of(program) for name in weights}
    assert used == known
    # Two of them change the order of dims.
    kinds = Counter(kernel.kind for kernel in program.artefacts.kernels)
    assert kinds == {"loop": 2, "conv": 1, "gemm": 1}
    norm.running_var.mul_(3)
    norm.running_mean.add_(1)
    check(program, model, [(2, 8, 9, 12)])
    assert program.stats().bind_runs == 2


def test_weights_made_in_inference_mode(model: Scaled) -> None:
    """They have no versions: only a new address is noticed."""
    with torch.inference_mode():
        mine = Scaled()
        mine.load_state_dict(model.state_dict())
        program = compiled(mine)
        check(program, model, IMAGES[:3])
        mine.scale = nn.Parameter(mine.scale * 2, requires_grad=False)
        check(program, model, IMAGES[:1])  # another tensor than the program's
        assert program.stats().bind_runs == 1
        other = Scaled()
        program.load_state_dict(other.state_dict())  # which the program itself writes
    for _ in range(2):
        check(program, other, IMAGES[:2])
    assert program.stats().bind_runs == 2


class Doubled(BindProgram):
    """Twice the weight 1, and that plus one."""

    def __init__(self, in_place: tuple[bool, bool]) -> None:
        self.weights = (1,)
        self.hoisted = tuple(
            HoistedSpec(f"h{i}", "float32", (3, 6), (1,), read_in_place=each)
            for i, each in enumerate(in_place)
        )
        self.runs = 0

    def run(self, readable: Sequence[Tensor], old: Sequence[Tensor | None]) -> list[Tensor]:
        self.runs += 1
        made = [readable[0] * 2, readable[0] * 2 + 1]
        return [
            new if tensor is None else tensor.copy_(new)
            for new, tensor in zip(made, old, strict=True)
        ]


@pytest.mark.parametrize("stay", [False, True], ids=["new", "where they were"])
def test_copies_of_hoisted_tensors(monkeypatch: pytest.MonkeyPatch, stay: bool) -> None:
    """One is joined with a weight, and is not kept besides; one is read itself, and packed."""
    monkeypatch.setattr(
        Weights, "_copies_stay", property(lambda _: stay, lambda *_: None), raising=False
    )
    tensors = [torch.randn(2, 6), torch.randn(3, 6)]
    specs = [WeightSpec(f"w{i}", "float32", tuple(t.shape)) for i, t in enumerate(tensors)]
    bind = Doubled((False, True))
    packs = [JoinSpec((0, 2), 0), PackSpec(3, 0, 4)]
    weights = Weights(specs, packs, tensors, torch.device("cpu"), bind=bind)

    def check_copies(runs: int) -> None:
        found = weights.current()
        assert weights.bind_runs == bind.runs == runs
        doubled = tensors[1] * 2
        assert torch.equal(found.packed[0], torch.cat((tensors[0], doubled)))
        assert found.hoisted[0] is None
        assert found.hoisted[1] is not None
        assert torch.equal(found.hoisted[1], doubled + 1)
        assert torch.equal(found.packed[1][0, :, :3], (doubled + 1).t())
        assert found.pointers[2:] == (
            0, *(t.data_ptr() for t in (found.hoisted[1], *found.packed))
        )  # fmt: skip
        assert weights.hoisted_bytes == 4 * 3 * 6

    check_copies(1)
    before = weights.current()
    check_copies(1)
    tensors[1].add_(1)
    check_copies(2)
    assert weights.current() is not before
    assert (weights.current().pointers == before.pointers) == stay
    # The join is made again, for which what is not kept is needed.
    tensors[0].add_(1)
    check_copies(3)
    assert any(tensor is weights.current().hoisted[1] for tensor in weights.copies())


def test_a_gpu_is_waited_for_before_calls_get_new_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call in another stream must not take what is not written yet for what is."""
    waited: list[bool] = []

    class Stream:
        def synchronize(self) -> None:
            waited.append(weights.last is before)

    tensor = torch.randn(3, 6)
    bind = Doubled((True, True))
    bind.weights = (0,)
    weights = Weights(
        [WeightSpec("w", "float32", (3, 6))], [], [tensor], torch.device("cpu"), bind=bind
    )
    before = weights.last
    monkeypatch.setattr(weights, "_device", torch.device("cuda", 0))
    monkeypatch.setattr(Weights, "_check", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: Stream())
    assert weights.current() is before
    tensor.add_(1)
    assert weights.current() is not before
    assert waited == [True]


def test_another_process(model: Scaled, tmp_path: Path) -> None:
    """A saved program computes its hoisted tensors where it is loaded."""
    path, values = tmp_path / "scaled.sj", tmp_path / "values.pt"
    compiled(model).save(path)
    x = torch.randn(2, 8, 5, 7)
    torch.save((x, model(x)), values)
    script = f"""
import sys, torch, shapejit
x, expected = torch.load({str(values)!r})
program = shapejit.load({str(path)!r})
torch.testing.assert_close(program(x), expected, rtol=1e-4, atol=1e-4)
assert program.stats().bind_runs == 1
assert "torch_mlir" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_too_little_memory(model: Scaled, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said when the program is made, and nothing is left half done."""
    program = compiled(model)
    x = torch.randn(1, 8, 4, 4)
    expected = program(x)
    model = copy.deepcopy(model)

    def fail(*_: Any) -> Any:
        raise RuntimeError("not enough memory")

    with monkeypatch.context() as patch:
        patch.setattr(BindProgram, "run", fail)
        with pytest.raises((RuntimeError, ShapeJitError), match="not enough memory"):
            compiled(model)
    assert torch.equal(program(x), expected)
