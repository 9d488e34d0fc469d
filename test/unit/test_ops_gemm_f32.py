# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`shapejit.ops.gemm` of float32: what it computes, on a simulated GPU, and in which arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from shapejit.errors import ShapeJitError
from shapejit.ops import gemm_kernels
from shapejit.ops.gemm_operands import Operands, uses_tf32
from shapejit.passes.nvgpu.schedule import SIMT_CANDIDATES
from unit import test_ops_gemm as ops

SIMT = "simt_32x32x32_s3_w1_p4"


@pytest.fixture(autouse=True)
def simt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels of the family simt, whatever the alignment."""
    monkeypatch.setattr(ops, "ALIGNED", SIMT)
    monkeypatch.setattr(ops, "UNALIGNED", SIMT)
    ops.lowered.cache_clear()
    yield
    ops.lowered.cache_clear()


def some(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


@pytest.mark.parametrize(
    "operands",
    [
        Operands(some(7, 33), some(40, 33).mT, some(40), None, some(7, 40), "gelu", None),
        Operands(some(33, 7).mT, some(33, 37), None, some(33, 37), None, "silu", None),
        Operands(some(2, 5, 16), some(2, 16, 36), None, None, None, None, torch.bfloat16),
        Operands(some(5, 40)[:, 1:34], some(33, 37), some(37).bfloat16(), None, None, None, None),
        Operands(some(1, 1), some(1, 3), None, None, None, None, None),
        Operands(some(4, 0), some(0, 3), some(3), None, None, None, None),
    ],
    ids=["linear", "gated", "batched", "unaligned", "ones", "no k"],
)
def test_products(operands: Operands) -> None:
    ops.assert_right(operands, ops.run(operands))


def test_errors_are_those_of_float32() -> None:
    """2^-20, where the 11 bits of tf32 would leave 2^-12."""
    operands = Operands(some(20, 60), some(60, 36), None, None, None, None, None)
    expected = ops.reference(operands)
    error = (ops.run(operands).double() - expected).abs().max()
    assert error <= 2.0**-20 * expected.abs().max()


def test_kernels_to_choose_from() -> None:
    for aligned in (64, 33):
        operands = Operands(some(9, aligned), some(aligned, 36), None, None, None, None, None)
        layout = ops.layout_of(operands)
        traits = gemm_kernels._traits(layout.kind)
        assert traits.element_bytes == 4
        kernels = gemm_kernels.KindKernels(layout.kind, None, None, None)  # type: ignore[arg-type]
        codes = [replace(each, early=False) for each in kernels.schedules(layout, (1, 5000))]
        assert all(each in SIMT_CANDIDATES for each in codes)


# Precision ----------------------------------------------------------------------------------------


@pytest.fixture
def restored() -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    yield
    torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.usefixtures("restored")
def test_auto_is_what_torch_is_set_to() -> None:
    assert not uses_tf32("auto")
    torch.set_float32_matmul_precision("high")
    assert uses_tf32("auto")
    assert not uses_tf32("ieee")
    torch.set_float32_matmul_precision("highest")
    assert not uses_tf32("auto")
    torch.backends.cuda.matmul.allow_tf32 = True
    assert uses_tf32("auto")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert uses_tf32("auto")
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert not uses_tf32("auto")
    assert uses_tf32("tf32")


def test_an_unknown_precision() -> None:
    with pytest.raises(ShapeJitError, match=r"SJ-ARG-009.*float32_precision.*auto, ieee, tf32"):
        uses_tf32("tf16")
