# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiling modules for a GPU, without one: variants, their choice, what is refused."""

from __future__ import annotations

import dataclasses
import json
import logging
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from shapejit.cache.cubins import CachedCubin, CubinUnit
from shapejit.codegen.builder import CubinBuilder
from shapejit.codegen.ptxas import AssemblyError
from shapejit.errors import InternalError, TargetError
from shapejit.gpu import program_build
from shapejit.gpu.program_code import GpuBucket, GpuCode, GpuKernel, GpuVariant
from shapejit.knobs import knobs
from shapejit.passes.nvgpu import head
from shapejit.passes.nvgpu.schedule import GENERIC
from shapejit.symbolic import Expr
from unit.gpu_programs import Deep, Gated, Residual, build, deep, residual, rows, tokens

# What is compiled -------------------------------------------------------------------------------


def test_the_parts_of_a_program() -> None:
    artefacts, weights = residual()
    code = artefacts.gpu
    assert code is not None
    assert (artefacts.target.kind, artefacts.target.arch, code.arch) == ("cuda", "sm_90a", "sm_90a")
    assert len(artefacts.objects) == 1, "the host program"
    assert artefacts.packs == ()
    assert [spec.name for spec in artefacts.weights] == [
        "up.weight", "up.bias", "down.weight", "down.bias",
    ]  # fmt: skip
    assert len(weights) == 4
    assert [kernel.name for kernel in code.kernels] == ["gemm0", "gemm1"]
    for kernel in code.kernels:
        assert kernel.axes == (Expr.symbol(0),)
        for number in kernel.variants:
            variant = code.variants[number]
            assert variant.name == f"{kernel.name}__{variant.schedule}"
            assert variant.entry.cubin.startswith(b"\x7fELF")
            assert variant.entry.resources.spill_store_bytes == 0
    used = {number for kernel in code.kernels for number in kernel.variants}
    assert used == set(range(len(code.variants)))


def test_buckets_hold_every_size_once() -> None:
    code = residual()[0].gpu
    assert code is not None
    for kernel in code.kernels:
        assert kernel.buckets[0].lower == (1,)
        assert kernel.buckets[-1].upper == (8192,)
        for one, following in zip(kernel.buckets, kernel.buckets[1:], strict=False):
            assert following.lower[0] == (one.upper[0] or 0) + 1


def test_all_of_a_feed_forward_block_is_two_kernels() -> None:
    """Gate, silu and product are one gemm with two weights."""
    artefacts, _ = build(Gated(), (rows(7),), tokens())
    assert [kernel.fuses for kernel in artefacts.kernels] == [
        ("linear", "silu", "mul"),
        ("linear",),
    ]


def test_a_second_compilation_finds_everything_in_the_cache() -> None:
    residual()
    artefacts, _ = build(Residual(), (rows(7),), tokens())
    assert artefacts.gpu is not None
    assert {variant.origin for variant in artefacts.gpu.variants} == {"memory"}
    assert {kernel.origin for kernel in artefacts.kernels} == {"memory"}
    assert artefacts.gpu.variants[0].data == residual()[0].gpu.variants[0].data  # type: ignore[union-attr]


def test_without_free_sizes() -> None:
    artefacts, _ = build(Residual(), (rows(7),), None)
    assert artefacts.gpu is not None
    for kernel in artefacts.gpu.kernels:
        assert kernel.axes == ()
        assert [(b.lower, b.upper) for b in kernel.buckets] == [((), ())]


def test_shapes_are_verified_after_each_stage() -> None:
    artefacts, _ = build(Residual(), (rows(7),), tokens(), verify_each=True)
    assert len(artefacts.kernels) == 2


def test_max_regions() -> None:
    artefacts, _ = build(Residual(), (rows(7),), tokens(), max_regions=1)
    assert artefacts.gpu is not None
    assert [len(kernel.buckets) for kernel in artefacts.gpu.kernels] == [1, 1]


def test_dumps(tmp_path: Path) -> None:
    build(Residual(), (rows(7),), tokens(64), dump_to=str(tmp_path), max_regions=1)
    files = {path.suffix for path in tmp_path.rglob("*")}
    assert {".mlir", ".ptx", ".cubin"} <= files
    names = [path.name for path in tmp_path.rglob("*.mlir")]
    for stage in ("import", "form-kernels", "choose-buckets", "plan-memory", "lower-to-host"):
        assert any(name.endswith(f"-{stage}.mlir") for name in names), names
    [host] = tmp_path.rglob("*lower-to-host.mlir")
    assert "shapejit.interface" in host.read_text()
    [index] = tmp_path.rglob("index.json")
    kernels = json.loads(index.read_text())["kernels"]
    assert [len(kernel["variants"]) for kernel in kernels] == [1, 1]


# Under constant graphs ----------------------------------------------------------------------------


def test_programs_of_more_than_two_launches_run_under_graphs() -> None:
    assert residual()[0].gpu.graph is None  # type: ignore[union-attr]
    code = deep()[0].gpu
    assert code is not None
    graph = code.graph
    assert graph is not None
    assert [launch.kernel for launch in graph.launches] == ["gemm0", "gemm1"] * 2
    for variant in code.variants:
        interface = variant.entry.interface
        assert (interface.block, interface.programmatic) == (True, True)
        assert interface.grid.ctas_per_sm > 0, "the grid does not depend on sizes"
    assert graph.head_entry.interface.entry.startswith("head_")
    assert set(graph.words[: graph.call_words]) == {
        "s0", "input 0", "arena 0", "arena 1", "output 0",
    }  # fmt: skip
    assert {word.split()[0] for word in graph.words[graph.call_words :]} == {"64", "128", "weight"}
    assert sorted(graph.order) == list(range(len(graph.regions)))


class Chain(nn.Module):
    """Products whose right sides are: a weight, an input, a result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        first = torch.relu(self.linear(x))
        second = torch.relu(torch.matmul(first, y.mT))
        return torch.matmul(torch.tanh(second), first)


def test_only_weights_that_no_launch_writes_are_loaded_ahead() -> None:
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        use(recorder, patch)
        build(Chain(), (rows(16), rows(16)), None, max_regions=1)
    found = [dict(unit.key.schedule)["constant_weights"] for unit in recorder.units[:3]]
    assert found == [True, True, False]


# What is refused ----------------------------------------------------------------------------------


class Strided(nn.Module):
    """A convolution between operators that have kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(64, 64, 3, padding=1, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return functional.softmax(self.conv((x + 1).mT[None]), -1)


def refusal(model: nn.Module, x: Tensor) -> str:
    with pytest.raises(TargetError) as raised:
        build(model, (x,), tokens())
    return str(raised.value)


def test_all_operators_without_kernels_are_named() -> None:
    text = refusal(Strided(), rows(7, dtype=torch.float64))
    assert text.startswith('SJ-TARGET-007 the model has 1 operator for which target "cuda" has no')
    assert "  aten.conv" in text
    assert "test_cuda_build.py:" in text
    assert "its convolution multiplies f64, f64" in text
    assert "softmax" not in text
    assert (
        "It compiles products, convolutions and attention of float16, bfloat16 or float32" in text
    )


def test_products_of_other_types_are_refused() -> None:
    text = refusal(Residual(dtype=torch.float64), torch.zeros(7, 64, dtype=torch.float64))
    assert "aten.linear" in text
    assert "its product multiplies f64, f64" in text


def test_more_words_than_a_head_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "CAPACITIES", (2, 4))
    with pytest.raises(TargetError) as raised:
        build(Deep(), (rows(7),), tokens())
    text = str(raised.value)
    assert text.startswith('SJ-TARGET-008 for target "cuda" a program has 5 words')
    assert "there can be 4. Export parts of the model" in text


def test_without_an_assembler() -> None:
    with (
        knobs.scope(ptxas="/nowhere/ptxas"),
        pytest.raises(TargetError, match=r"SJ-TARGET-005 .*ptxas.*/nowhere/ptxas"),
    ):
        build(Residual(), (rows(7),), tokens())


class Refusing(CubinBuilder):
    """A builder for which the assembler refuses some schedules."""

    def __init__(self, *schedules: str) -> None:
        super().__init__()
        self.schedules = schedules
        self.asked: list[str] = []

    def build_async(self, unit: CubinUnit, *, urgent: bool = False) -> Future[CachedCubin]:
        schedule = str(dict(unit.key.schedule)["name"])
        self.asked.append(schedule)
        if schedule not in self.schedules:
            return super().build_async(unit, urgent=urgent)
        future: Future[CachedCubin] = Future()
        future.set_exception(
            AssemblyError("ptxas failed", "out of luck", "", Path("a.ptx"), "ptxas a.ptx")
        )
        return future


class Recorder(CubinBuilder):
    """A builder that remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.units: list[CubinUnit] = []

    def build_async(self, unit: CubinUnit, *, urgent: bool = False) -> Future[CachedCubin]:
        self.units.append(unit)
        return super().build_async(unit, urgent=urgent)


def use(builder: CubinBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_build, "builder_for", lambda _dump: builder)


def test_a_schedule_that_cannot_be_built_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = residual()[0].gpu
    assert code is not None
    first = code.variants[0].schedule
    builder = Refusing(first)
    use(builder, monkeypatch)
    with caplog.at_level(logging.WARNING, "shapejit"):
        artefacts, _ = build(Residual(), (rows(7),), tokens())
    assert artefacts.gpu is not None
    assert first in builder.asked
    assert first not in {variant.schedule for variant in artefacts.gpu.variants}
    assert artefacts.gpu.kernels[0].buckets[0].lower == (1,)
    assert f"{first} cannot be built and is not used: out of luck" in caplog.text


def test_a_schedule_without_alternative_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    code = residual()[0].gpu
    assert code is not None
    builder = Refusing(*map(str, program_build.ALL_CANDIDATES))
    use(builder, monkeypatch)
    with pytest.raises(InternalError, match=r"(?s)SJ-INTERNAL-00[12]"):
        build(Residual(), (rows(7),), tokens())


def test_candidates() -> None:
    assert str(GENERIC) in program_build.candidates([])
    assert str(GENERIC) not in program_build.candidates([str(GENERIC)])


# The record -------------------------------------------------------------------------------------


def test_the_record_as_json() -> None:
    code = residual()[0].gpu
    assert code is not None
    text = json.dumps(code.to_json())
    data = [variant.data for variant in code.variants]
    assert GpuCode.from_json(text, data) == code
    with pytest.raises(ValueError, match="argument"):
        GpuCode.from_json(text, data[1:])
    with pytest.raises(KeyError):
        code.kernel("gemm9")


SMALL = GpuCode(
    "sm_90a",
    (GpuVariant("k__a", "a", b""), GpuVariant("k__b", "b", b"")),
    (
        GpuKernel(
            "k",
            (Expr.symbol(0) * Expr.symbol(1), Expr.symbol(1)),
            (
                GpuBucket((1, 1), (64, None), 0, "few rows"),
                GpuBucket((65, 1), (None, 32), 1, "short rows"),
                GpuBucket((65, 33), (None, None), 0, "the rest"),
            ),
        ),
    ),
)


@given(st.integers(1, 200), st.integers(1, 200))
def test_buckets_on_two_axes(s0: int, s1: int) -> None:
    number = 0 if s0 * s1 <= 64 else 1 if s1 <= 32 else 2
    [kernel] = SMALL.kernels
    assert kernel.bucket([s0, s1]) is kernel.buckets[number]
    assert kernel.variants == (0, 1)


@pytest.mark.parametrize(
    "damage",
    [
        {"arch": None, "kernels": 3},
        {"variants": [{"name": "k__a"}, {}]},
        {"kernels": [{"name": "k", "axes": [], "buckets": []}]},
        {"kernels": [{"name": "k", "axes": ["s0"], "buckets": [[[1], [2], 7, ""]]}]},
        {"kernels": [{"name": "k", "axes": ["s0"], "buckets": [[[1, 1], [2], 0, ""]]}]},
        {"kernels": [{"name": "k", "axes": ["s0 +"], "buckets": [[[1], [2], 0, ""]]}]},
    ],
)
def test_damaged_records(damage: dict[str, Any]) -> None:
    record = {**SMALL.to_json(), **damage}
    assert GpuCode.from_json(json.dumps(SMALL.to_json()), [b"", b""]) == SMALL
    with pytest.raises(ValueError, match=r"."):
        GpuCode.from_json(json.dumps(record), [b"", b""])


def test_the_dearest_origin_is_told() -> None:
    infos = residual()[0].kernels[:1]
    origins = ("memory", "disk")
    variants = tuple(
        dataclasses.replace(variant, origin=origin)
        for variant, origin in zip(SMALL.variants, origins, strict=True)
    )
    kernel = dataclasses.replace(SMALL.kernels[0], name=infos[0].name)
    code = dataclasses.replace(SMALL, variants=variants, kernels=(kernel,))
    [info] = program_build.with_origins(infos, code)
    assert info.origin == "disk"
