# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Batched products in which several heads share a factor: its batch index is a division."""

from __future__ import annotations

import mlir.ir as ir
import pytest
import torch

from reference.hopper.launch import kernel_function, simulate
from shapejit import ir as sir
from shapejit.passes.nvgpu.lowering import lower_variant
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.target import HOPPER
from unit.cpu_kernels import DTYPES


def text_of(element: str) -> str:
    """Six heads, of which each two have one rhs."""
    lhs = f"tensor<6x?x?x{element}, #shapejit.shape<[6, s0, s2]>>"
    rhs = f"tensor<3x?x?x{element}, #shapejit.shape<[3, s1, s2]>>"
    out = f"tensor<6x?x?x{element}, #shapejit.shape<[6, s0, s1]>>"
    return f"""
      shapejit.kernel @k symbols 3 (%a: {lhs}, %b: {rhs}) {{
        %y = shapejit.gemm over [6, s0, s1, s2]
          lhs(%a at affine_map<(b, m, n, k) -> (b, m, k)> : {lhs})
          rhs(%b at affine_map<(b, m, n, k) -> (b floordiv 2, n, k)> : {rhs}) -> {out}
        shapejit.yield %y : {out}
      }}"""


@pytest.mark.parametrize(
    ("element", "schedule"),
    [("f32", "simt_64x64x16_s3_w1"), ("bf16", "unaligned_64x64x64_s3_w1")],
)
def test_products(element: str, schedule: str) -> None:
    torch.manual_seed(0)
    m, n, k = 5, 9, 21
    a, b = (torch.randn(6, m, k).to(DTYPES[element]), torch.randn(3, n, k).to(DTYPES[element]))
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text_of(element))
        kernel = sir.kernels(module)["k"]
        interface = lower_variant(kernel, GemmSchedule.parse(schedule), HOPPER)
        [code] = [op for op in sir.operations(module.body) if op.name == "gpu.module"]
        result = torch.empty(6, m, n, dtype=DTYPES[element])
        got = simulate(kernel_function(code), interface, [a, b], result, [m, n, k]).double()
    expected = a.double() @ b.double().repeat_interleave(2, 0).mT
    unit = torch.finfo(result.dtype).eps
    assert (got - expected).abs().max() <= 2 * unit * expected.abs().max()
