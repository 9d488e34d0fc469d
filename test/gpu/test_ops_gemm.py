# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`shapejit.ops.gemm` on a GPU: every schedule at every kind of size, repeatable, capturable."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from torch.nn import functional  # noqa: E402

from gpu.products import launch, noise, poisoned, relative_error  # noqa: E402
from shapejit import ops  # noqa: E402
from shapejit.errors import ShapeJitError  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from shapejit.ops.gemm import code_memory  # noqa: E402
from shapejit.ops.gemm_operands import Operands  # noqa: E402
from shapejit.ops.gemm_spec import ACTIVATIONS  # noqa: E402
from shapejit.passes.nvgpu.schedule import CANDIDATES, UNALIGNED, GemmSchedule  # noqa: E402

SHAPES = [
    (1, 8, 8), (1, 4096, 4096), (7, 264, 1000), (16, 128, 64), (77, 4104, 72), (128, 256, 64),
    (129, 1000, 4104), (256, 512, 256), (333, 4096, 520), (1000, 1032, 520), (4097, 2056, 1032),
    (64, 50257, 256), (5, 3, 16), (300, 70, 40), (2, 4096, 14336),
]  # fmt: skip


def linear(
    m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16, *, n_major: bool = False
) -> Operands:
    w = noise(k, n, dtype=dtype, seed=1) if n_major else noise(n, k, dtype=dtype, seed=1).mT
    return Operands(noise(m, k, dtype=dtype), w, None, None, None, None, None)


def aligned(shape: tuple[int, int, int]) -> bool:
    return shape[2] % 8 == 0


@pytest.mark.parametrize("schedule", CANDIDATES, ids=str)
def test_schedule_at_all_sizes(device: Device, schedule: GemmSchedule) -> None:
    wrong = []
    for shape in [*filter(aligned, SHAPES), (128, 256, 0)]:
        m, n, k = shape
        operands = linear(*shape)
        out, behind = poisoned(m, n)
        launch(schedule, operands, out)
        torch.cuda.synchronize()
        error = relative_error(out, operands.a.double() @ operands.b.double())
        if not (error < 5e-3 and behind.isnan().all()) and not (k == 0 and not out.any()):
            wrong.append((shape, error, bool(behind.isnan().all())))
    assert not wrong


@pytest.mark.parametrize("schedule", CANDIDATES, ids=str)
def test_schedule_gives_the_same_bits_again(device: Device, schedule: GemmSchedule) -> None:
    for shape in [(333, 4104, 4096), (77, 11008, 1032), (3, 4096, 4096)]:
        operands = linear(*shape)
        first = torch.empty(shape[:2], device="cuda", dtype=torch.bfloat16)
        launch(schedule, operands, first)
        out = torch.empty_like(first)
        different = torch.zeros((), device="cuda", dtype=torch.int64)
        for _ in range(100):
            out.fill_(float("nan"))
            launch(schedule, operands, out)
            different += (out != first).any()
        assert different.item() == 0, shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n_major", [False, True])
@pytest.mark.parametrize("m_major", [False, True])
def test_transposes(device: Device, dtype: Any, n_major: bool, m_major: bool) -> None:
    for m, n, k in [(40, 72, 64), (128, 512, 256), (1000, 264, 1032), (8, 8, 8)]:
        operands = linear(m, n, k, dtype, n_major=n_major)
        a = noise(k, m, dtype=dtype).mT if m_major else operands.a
        result = ops.gemm(a, operands.b, deterministic=True)
        assert relative_error(result, a.double() @ operands.b.double()) < 5e-3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dispatched(device: Device, shape: tuple[int, int, int]) -> None:
    """No worse than cuBLAS, against float64."""
    m, n, _ = shape
    for dtype in (torch.bfloat16, torch.float16):
        operands = linear(*shape, dtype)
        reference = operands.a.double() @ operands.b.double()
        out, behind = poisoned(m, n, dtype=dtype)
        ops.gemm(operands.a, operands.b, out=out, deterministic=True)
        theirs = relative_error(operands.a @ operands.b, reference)
        assert relative_error(out, reference) <= 1.1 * theirs + 1e-6
        assert behind.isnan().all()


def test_strides_and_addresses_of_any_kind(device: Device) -> None:
    rng = random.Random(0)
    for _ in range(60):
        m, n, k = rng.randint(1, 200), rng.randint(1, 300), rng.randint(0, 300)
        rows, columns = rng.choice([(m, k), (k, m)]), rng.choice([(k, n), (n, k)])
        a = noise(rows[0], rows[1] + rng.choice([0, 1, 8]))[:, : rows[1]]
        b = noise(columns[0], 2 * columns[1])[:, :: rng.choice([1, 2])][:, : columns[1]]
        a = a if rows == (m, k) else a.mT
        b = b if columns == (k, n) else b.mT
        result = ops.gemm(a, b, deterministic=True)
        reference = a.double() @ b.double()
        assert result.shape == (m, n)
        assert relative_error(result, reference) < 5e-3 or not reference.any()


def test_batches(device: Device) -> None:
    for batch, m, n, k in [((3,), 77, 64, 128), ((2, 5), 9, 72, 40), ((4, 1, 3), 33, 8, 64)]:
        a, b = noise(*batch, m, k), noise(*batch, k, n)
        residual, bias = noise(*batch, m, n), noise(n, dtype=torch.float32)
        result = ops.gemm(a, b, bias=bias, residual=residual, deterministic=True)
        reference = a.double() @ b.double() + bias.double() + residual.double()
        assert relative_error(result, reference) < 5e-3
        shared = ops.gemm(a, b.flatten(0, -3)[0], deterministic=True)
        assert relative_error(shared, a.double() @ b.flatten(0, -3)[0].double()) < 5e-3
    heads = noise(2, 50, 4, 64).transpose(1, 2)
    scores = ops.gemm(heads, heads.mT, out_dtype=torch.float32, deterministic=True)
    assert relative_error(scores, heads.double() @ heads.double().mT) < 1e-5


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_epilogues(device: Device, activation: str | None) -> None:
    functions = {
        None: lambda x: x, "relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"), "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
    }  # fmt: skip
    for m, n, k in [(1, 64, 64), (100, 72, 128), (1000, 1024, 512), (333, 129, 64)]:
        x, w = noise(m, k), noise(n, k, seed=1) * k**-0.5
        bias, residual = noise(n, dtype=torch.float32), noise(m, n)
        result = ops.gemm(
            x, w.mT, bias=bias, activation=activation, residual=residual, deterministic=True
        )
        reference = functions[activation](x.double() @ w.double().mT + bias.double())
        assert relative_error(result, reference + residual.double()) < 5e-3
        gate = noise(k, n, seed=3) * k**-0.5
        result = ops.gemm(x, w.mT, activation=activation, gate=gate, deterministic=True)
        reference = functions[activation](x.double() @ w.double().mT) * (x.double() @ gate.double())
        assert relative_error(result, reference) < 5e-3


def test_operands_on_different_devices(device: Device) -> None:
    """Also after a call like it with all of them on the GPU."""
    x, w = noise(16, 64), noise(64, 64)
    for given in ({}, {"residual": noise(16, 64)}):
        ops.gemm(x, w, **given, deterministic=True)
        with pytest.raises(ShapeJitError, match="SJ-DEVICE-003"):
            ops.gemm(x, w.cpu(), **given, deterministic=True)
    with pytest.raises(ShapeJitError, match="SJ-DEVICE-003"):
        ops.gemm(x, w, residual=noise(16, 64).cpu(), deterministic=True)


def test_empty(device: Device) -> None:
    assert ops.gemm(noise(0, 8), noise(8, 16)).shape == (0, 16)
    assert ops.gemm(noise(3, 8), noise(8, 0)).shape == (3, 0)
    assert not ops.gemm(noise(3, 0), noise(0, 16)).any()


def test_unaligned_kernel_on_aligned_operands(device: Device) -> None:
    operands = linear(130, 264, 320)
    out, behind = poisoned(130, 264)
    a = operands.a
    shifted = torch.empty(a.numel() + 1, device="cuda", dtype=a.dtype)[1:].view(a.shape)
    shifted.copy_(a)
    launch(UNALIGNED, operands._replace(a=shifted), out)
    assert relative_error(out, a.double() @ operands.b.double()) < 5e-3
    assert behind.isnan().all()


def test_capture_into_a_graph(device: Device) -> None:
    x, w = noise(64, 512), noise(1024, 512, seed=1)
    out = torch.empty(64, 1024, device="cuda", dtype=torch.bfloat16)
    ops.gemm(x, w.mT, out=out, activation="gelu", deterministic=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.gemm(x, w.mT, out=out, activation="gelu", deterministic=True)
    x.copy_(noise(64, 512, seed=9))
    out.fill_(float("nan"))
    graph.replay()
    assert relative_error(out, functional.gelu(x.double() @ w.double().mT)) < 5e-3


def test_threads_and_streams(device: Device) -> None:
    w = noise(1024, 512, seed=1)
    failures: list[Any] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(50):
                x = noise(rng.randint(1, 600), 512, seed=seed)
                error = relative_error(ops.gemm(x, w.mT), x.double() @ w.double().mT)
                if not error < 5e-3:
                    failures.append((x.shape, error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_many_kinds_under_a_small_bound(device: Device) -> None:
    """Kernels that were evicted come back, and device memory stays within the bound."""
    memory = code_memory(0)
    before, memory.max_bytes = memory.max_bytes, 200_000
    try:
        x = noise(48, 64)
        for number in range(200):
            w = noise(64, 64 + 8 * (number % 5), seed=number)
            activation = (None, "relu", "silu", "tanh")[number % 4]
            out_dtype = (torch.bfloat16, torch.float32)[number // 4 % 2]
            b = w if number % 3 else noise(w.shape[1], 64, seed=number).mT
            result = ops.gemm(x, b, activation=activation, out_dtype=out_dtype, deterministic=True)
            reference = x.double() @ b.double()
            if activation is not None:
                reference = getattr(functional, activation)(reference)
            assert relative_error(result, reference) < 5e-3
        assert memory.evictions > 0
        assert memory.bytes <= 400_000
    finally:
        memory.max_bytes = before
