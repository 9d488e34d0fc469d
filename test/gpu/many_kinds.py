# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Hundreds of kinds of products, and their kernels built by several processes.

Building in one process is bound by the interpreter's lock, in which IR is made. The command builds
one share of the kernels into the disk cache; it needs no GPU::

    python -m gpu.many_kinds COUNT SHARE SHARES              # with ``test`` on PYTHONPATH
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from shapejit.ops.gemm_kernels import CodeMemory, KindKernels
from shapejit.ops.gemm_layout import GemmLayout, gemm_layout
from shapejit.ops.gemm_operands import Operands, product, result_shape
from shapejit.ops.gemm_spec import ACTIVATIONS, GemmKind

_FUNCTIONS: dict[str | None, Any] = {
    None: lambda x: x,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
_SIZES = (8, 24, 64, 96, 136, 200, 264, 320)


@dataclass(frozen=True)
class Problem:
    """A product with all its operands.

    Attributes:
        shape: (m, n, k).
        dtype: of the factors.
        result: dtype of the result.
        layout: of the factors, ``n`` for rows in memory and ``t`` for columns: ``nt``.
        activation: its name.
        bias, residual: their dtypes; None for none.
        gated: whether there is a second weight.
    """

    shape: tuple[int, int, int]
    dtype: torch.dtype
    result: torch.dtype
    layout: str
    activation: str | None
    bias: torch.dtype | None
    residual: torch.dtype | None
    gated: bool

    def operands(self, device: str) -> Operands:
        """Operands with random values."""
        m, n, k = self.shape
        generator = torch.Generator(device).manual_seed(m * 31 + n * 7 + k)

        def noise(rows: int, columns: int, order: str = "n", dtype: Any = None) -> Tensor:
            sizes = (rows, columns) if order == "n" else (columns, rows)
            made = torch.randn(*sizes, generator=generator, device=device).to(dtype or self.dtype)
            return made if order == "n" else made.mT

        a, b = noise(m, k, self.layout[0]), noise(k, n, self.layout[1])
        gate = noise(k, n, self.layout[1]) if self.gated else None
        bias = None if self.bias is None else noise(1, n, dtype=self.bias)[0]
        residual = None if self.residual is None else noise(m, n, dtype=self.residual)
        return Operands(a, b, bias, gate, residual, self.activation, self.result)

    def kind(self) -> tuple[GemmKind, GemmLayout]:
        """The kind of the product and its numbers."""
        operands = self.operands("cpu")
        layout = gemm_layout(product(operands, result_shape(operands), 0))
        return layout.kind, layout


def reference(operands: Operands) -> Tensor:
    """The product in float64."""
    a = operands.a.double()
    result = a @ operands.b.double()
    if operands.bias is not None:
        result += operands.bias.double()
    result = _FUNCTIONS[operands.activation](result)
    if operands.gate is not None:
        result *= a @ operands.gate.double()
    return result if operands.residual is None else result + operands.residual.double()


def problems(count: int) -> list[Problem]:
    """So many problems of different kinds; the same ones each time."""
    rng = random.Random(1)
    halves = (torch.bfloat16, torch.float16)
    found: dict[GemmKind, Problem] = {}
    while len(found) < count:
        dtype = rng.choice(halves)
        problem = Problem(
            shape=(rng.choice((1, 7, 40, 100, 150, 300)), rng.choice(_SIZES), rng.choice(_SIZES)),
            dtype=dtype,
            result=rng.choice((dtype, torch.float32)),
            layout=rng.choice(("nn", "nt", "tn", "tt")),
            activation=rng.choice((None, *ACTIVATIONS)),
            bias=rng.choice((None, dtype, torch.float32)),
            residual=rng.choice((None, dtype)),
            gated=rng.random() < 0.25,
        )
        found.setdefault(problem.kind()[0], problem)
    return list(found.values())


def build_in_processes(count: int, folder: Path) -> None:
    """Builds all kernels into a folder of the disk cache, on all cores.

    Raises:
        CalledProcessError: a build failed; its words are on standard error.
    """
    shares = os.cpu_count() or 1
    test = str(Path(__file__).parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (test, os.environ.get("PYTHONPATH")))),
        "SHAPEJIT_CACHE_DIR": str(folder),
        "SHAPEJIT_COMPILE_WORKERS": "2",
        "OMP_NUM_THREADS": "1",
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "gpu.many_kinds", str(count), str(share), str(shares)],
            env=environment,
        )
        for share in range(shares)
    ]
    failed = [process for process in running if process.wait()]
    if failed:
        raise subprocess.CalledProcessError(failed[0].returncode, failed[0].args)


def _build(count: int, share: int, shares: int) -> None:
    from shapejit.codegen.builder import cubin_builder

    device: Any = SimpleNamespace(arch="sm_90a")
    futures = []
    for problem in problems(count)[share::shares]:
        kind, layout = problem.kind()
        kernels = KindKernels(
            kind,
            device,
            CodeMemory(),
            lambda unit, urgent: cubin_builder().build_async(unit, urgent=urgent),
        )
        futures += kernels.begin([kernels.choose_rows(layout, layout.m)])
    wait(futures)
    for future in futures:
        future.result()


if __name__ == "__main__":
    _build(*map(int, sys.argv[1:]))
