# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products fused with what follows them, compiled by `torch.compile` for each shape.

Autotuning takes most of the time of a run, and most of that goes into compilers. So processes side
by side fill the disk cache first; whichever times a kernel has the GPU to itself. The process that
measures then finds all in the cache.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Shape = tuple[int, int, int]

MODES: dict[str, str | None] = {
    "torch.compile": None,
    "max-autotune": "max-autotune-no-cudagraphs",
}
"""The peers, and their modes of `torch.compile`."""

_WARMERS = 5
_COMPILE_THREADS = 4  # of each


def layer(x: Tensor, w: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """A linear layer with gelu and a residual."""
    return functional.gelu(functional.linear(x, w, bias)) + residual


def compiled(mode: str | None) -> Callable[..., Tensor]:
    """The layer, compiled for the shapes of its first call."""
    torch._dynamo.reset()
    function: Callable[..., Tensor] = torch.compile(layer, mode=mode, dynamic=False)
    return function


def warm(shapes: Sequence[Shape], dtype: str, seconds: float) -> list[Shape]:
    """Compiles all peers of shapes into the disk cache, in so many seconds at most.

    Returns:
        The shapes that are in the cache.
    """
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        lock = Path(folder, "lock")
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(_COMPILE_THREADS)}
        running = [
            subprocess.Popen(
                [sys.executable, __file__, "--dtype", dtype, "--lock", str(lock),
                 "--shapes", json.dumps(shapes[number::_WARMERS])],
                stdout=stack.enter_context(Path(folder, f"{number}.txt").open("w")),
                stderr=stack.enter_context(Path(folder, f"{number}.err").open("w")),
                env=environment,
            )
            for number in range(_WARMERS)
        ]  # fmt: skip
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        for process in running:
            process.kill()
            process.wait()
        done = set()
        for number, process in enumerate(running):
            done |= {
                tuple(json.loads(line))
                for line in Path(folder, f"{number}.txt").read_text().splitlines()
                if line.startswith("[")
            }
            if process.returncode > 0:
                print(Path(folder, f"{number}.err").read_text()[-600:], flush=True)
    return [shape for shape in shapes if shape in done]


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _time_alone(lock: Path) -> None:
    """Has torch's autotuner time kernels while no other process does."""
    from torch._inductor.runtime import benchmarking

    for name in ("TritonBenchmarker", "InductorBenchmarker"):
        class_ = getattr(benchmarking, name, None)
        if class_ is None or "benchmark_gpu" not in vars(class_):
            continue
        inner = class_.benchmark_gpu

        @functools.wraps(inner)
        def benchmark(self: Any, *given: Any, inner: Any = inner, **named: Any) -> Any:
            if getattr(_time_alone, "held", False):  # one calls the other
                return inner(self, *given, **named)
            with _alone(lock):
                _time_alone.held = True  # type: ignore[attr-defined]
                try:
                    return inner(self, *given, **named)
                finally:
                    _time_alone.held = False  # type: ignore[attr-defined]

        class_.benchmark_gpu = benchmark


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile peers of shapes into the disk cache.")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--shapes", type=json.loads, required=True)
    parser.add_argument("--lock", type=Path, required=True)
    arguments = parser.parse_args()
    _time_alone(arguments.lock)
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[arguments.dtype]
    for m, n, k in arguments.shapes:
        x, w = (torch.randn(rows, k, device="cuda").to(dtype) for rows in (m, n))
        bias, residual = (torch.randn(*sizes, device="cuda").to(dtype) for sizes in ((n,), (m, n)))
        for mode in MODES.values():
            compiled(mode)(x, w, bias, residual)
        torch.cuda.synchronize()
        print(json.dumps([m, n, k]), flush=True)
        del x, w, bias, residual
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
