# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Thousands of calls of hundreds of kinds, with memory for half of their machine code.

``GPU_SOAK_CALLS`` and ``GPU_SOAK_KINDS`` change how many.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from gpu.many_kinds import build_in_processes, problems, reference  # noqa: E402
from shapejit import ops  # noqa: E402
from shapejit.codegen.builder import cubin_builder  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from shapejit.knobs import knobs  # noqa: E402
from shapejit.ops.gemm import code_memory  # noqa: E402

CALLS = int(os.environ.get("GPU_SOAK_CALLS", "20000"))
KINDS = int(os.environ.get("GPU_SOAK_KINDS", "300"))
#: Of memory after the first fifth of the calls and after the last call.
FLAT_BYTES = 32 << 20


@pytest.mark.alone
def test_kinds_beyond_the_bound(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kernels go and come back, results are the same to the bit, memory is flat."""
    start = time.perf_counter()
    build_in_processes(KINDS, tmp_path)
    built_after = time.perf_counter() - start
    with knobs.scope(cache_dir=str(tmp_path)):
        _soak(built_after, capsys)


def _soak(built_after: float, capsys: pytest.CaptureFixture[str]) -> None:
    memory = code_memory(0)
    bound, memory.max_bytes = memory.max_bytes, 1 << 40
    evictions, others = memory.evictions, memory.bytes
    try:
        kernels_before = cubin_builder().stats().built
        wrong, cases = [], []
        for problem in problems(KINDS):
            operands = problem.operands("cuda")
            a, b = operands.a, operands.b
            given = {
                "bias": operands.bias, "gate": operands.gate, "residual": operands.residual,
                "activation": operands.activation, "out_dtype": operands.out_dtype,
            }  # fmt: skip
            result = ops.gemm(a, b, **given, deterministic=True)
            expected = reference(operands)
            error = ((result.double() - expected).norm() / expected.norm()).item()
            if not error < 5e-3:
                wrong.append((problem, error))
            cases.append((a, b, given, result))
        assert not wrong
        assert cubin_builder().stats().built == kernels_before, "a kernel was not built before"
        memory.max_bytes = (memory.bytes - others) // 2
        different = torch.zeros((), dtype=torch.int64, device="cuda")
        rng = random.Random(0)
        kept = []
        start = time.perf_counter()
        for number in range(CALLS):
            if number in (CALLS // 5, CALLS - 1):
                torch.cuda.synchronize()
                free, _ = torch.cuda.mem_get_info()
                kept.append((_resident_bytes(), -free))
            a, b, given, result = rng.choice(cases)
            different += (ops.gemm(a, b, **given, deterministic=True) != result).any()
        assert different.item() == 0
        seconds = time.perf_counter() - start
        assert memory.evictions - evictions > CALLS // 20
        assert memory.bytes <= memory.max_bytes
        assert cubin_builder().stats().built == kernels_before
        (host, on_device), (host_after, on_device_after) = kept
        assert host_after - host < FLAT_BYTES
        assert on_device_after - on_device < FLAT_BYTES
        with capsys.disabled():
            print(
                f"\n{KINDS} kinds built in {built_after:.1f} s by processes; {CALLS} calls in "
                f"{seconds:.1f} s under a bound of {memory.max_bytes} bytes: "
                f"{memory.evictions - evictions} evictions, host memory "
                f"{(host_after - host) / 2**20:+.1f} MiB, device memory "
                f"{(on_device_after - on_device) / 2**20:+.1f} MiB"
            )
    finally:
        memory.max_bytes = bound


def _resident_bytes() -> int:
    """Host memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
