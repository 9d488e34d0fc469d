# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A small program with native code written by hand in C, to test what surrounds native code.

It computes ``y[b, s, n] = mask[b, s] * sum_k x[b, s, k] * weight[n, k] + bias[n]`` and ``total[b] =
sum_s mask[b, s]`` from a panel-packed weight, with the products in the arena.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shapejit.artefacts import (
    Artefacts,
    ConstraintInfo,
    KernelInfo,
    LaunchInfo,
    PackSpec,
    Parameter,
    SymbolSpec,
    TensorInput,
    TensorOutput,
    WeightSpec,
)
from shapejit.codegen import HostTarget
from shapejit.cpu_features import target_info
from shapejit.program import Program
from shapejit.symbolic import Expr

BATCH, SEQ = Expr.symbol(0), Expr.symbol(1)
N, K, PANEL = 5, 4, 8
LIMIT = 4096

SOURCE = r"""
#include <stdint.h>
enum { N = 5, K = 4, PANEL = 8 };

void shapejit_plan(const int64_t *s, int64_t *out) {
  out[0] = s[0] * s[1] * N * 4;
  out[1] = s[0]; out[2] = s[1]; out[3] = N;
  out[4] = s[0];
  out[5] = s[0] * s[1] > 4096 ? 1 : s[0] == 13 ? 9 : 0;
}

void shapejit_run(const int64_t *s, void **buffers, void *arena) {
  const float *x = buffers[0], *mask = buffers[1], *bias = buffers[3], *packed = buffers[4];
  float *y = buffers[5], *total = buffers[6], *product = arena;
  for (int64_t row = 0; row < s[0] * s[1]; ++row)
    for (int64_t n = 0; n < N; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < K; ++k)
        sum += x[row * K + k] * packed[(n / PANEL * K + k) * PANEL + n % PANEL];
      product[row * N + n] = sum;
    }
  for (int64_t row = 0; row < s[0] * s[1]; ++row)
    for (int64_t n = 0; n < N; ++n)
      y[row * N + n] = mask[row] * product[row * N + n] + bias[n];
  for (int64_t b = 0; b < s[0]; ++b) {
    total[b] = 0;
    for (int64_t t = 0; t < s[1]; ++t)
      total[b] += mask[b * s[1] + t];
  }
}
"""


@functools.cache
def compile_c(source: str) -> bytes:
    """Object code of a C program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "native.c")
        path.write_text(source)
        compiler = os.environ.get("CC", "cc")
        out = path.with_suffix(".o")
        subprocess.run([compiler, "-O1", "-fPIC", "-c", str(path), "-o", str(out)], check=True)
        return out.read_bytes()


def structure_of(value: Any) -> Any:
    """torch's treespec of a value."""
    return pytree.tree_structure(value)


def sample_artefacts(**changes: Any) -> Artefacts:
    """The sample program, with some fields of its record replaced."""
    artefacts = Artefacts(
        objects=(compile_c(SOURCE),),
        target=target_info(HostTarget.host()),
        symbols=(
            SymbolSpec("batch", min=1, max=64, opt=8),
            SymbolSpec("seq", min=0, max=2048),
        ),
        parameters=(Parameter("x", False, None), Parameter("mask", False, None)),
        inputs=(
            TensorInput("x", "float32", (BATCH, SEQ, Expr.const(K))),
            TensorInput("mask", "float32", (BATCH, SEQ)),
        ),
        weights=(
            WeightSpec("fc.weight", "float32", (N, K), read_in_place=False),
            WeightSpec("fc.bias", "float32", (N,)),
        ),
        packs=(PackSpec(weight=0, dim=0, panel=PANEL),),
        outputs=(
            TensorOutput("float32", (BATCH, SEQ, Expr.const(N))),
            TensorOutput("float32", (BATCH,)),
        ),
        output_tree=structure_of({"y": 0, "total": 0}),
        kernels=(
            KernelInfo(
                "gemm_mask",
                "gemm",
                "mask and bias are its epilogue",
                ("gemm", "mul", "add"),
                (Expr.symbol(0), Expr.const(N), Expr.const(K)),
                (
                    LaunchInfo((BATCH * SEQ,), ("aten.linear model.py:7", "aten.mul model.py:8")),
                    LaunchInfo((BATCH * SEQ,), ("aten.linear model.py:9",)),
                    LaunchInfo((BATCH,), ("aten.linear model.py:11",)),
                ),
            ),
        ),
        constraints=(ConstraintInfo("4096 - s0*s1 >= 0", "model.py:3"),),
        compile_seconds={"export": 1.25, "codegen": 0.5},
    )
    return dataclasses.replace(artefacts, **changes)


def sample_weights(seed: int = 0) -> list[Tensor]:
    """Random weights of the sample program."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(N, K, generator=generator), torch.randn(N, generator=generator)]


def sample_program(**changes: Any) -> Program:
    """The sample program, ready to call."""
    return Program(sample_artefacts(**changes), sample_weights())


def sample_inputs(batch: int = 2, seq: int = 3, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Random inputs of the sample program."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(batch, seq, K, generator=generator),
        torch.rand(batch, seq, generator=generator),
    )


def reference(weights: list[Tensor], x: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """What the sample program computes, by torch in float64."""
    weight, bias = (tensor.detach().double() for tensor in weights)
    y = mask.double()[..., None] * (x.double() @ weight.T) + bias
    return {"y": y, "total": mask.double().sum(1)}
