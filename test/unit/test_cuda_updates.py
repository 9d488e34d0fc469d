# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Updates in place on a GPU: scatter kernels and whole programs on a simulated one, and ptxas."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from unit.simulated_loops import GpuKernel
from unit.simulated_programs import simulated

POSITIONS = """
#id = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
!new = tensor<2x?x{columns}x{type}, #shapejit.shape<[2, s0, {columns}]>>
!cache = tensor<2x?x{columns}x{type}, #shapejit.shape<[2, s1, {columns}]>>
!rows = tensor<?x{index}, #shapejit.shape<[s0]>>
shapejit.kernel @k symbols 2 (%x: !new, %rows: !rows, %cache: !cache) {{
  %0 = shapejit.scatter over [2, s0, {columns}] from(%x at #id : !new)
      by(%rows at affine_map<(d0, d1, d2) -> (d1)> : !rows)
      into(%cache at affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)> : !cache)
  shapejit.yield %0 : !cache
}}
"""

COLUMNS = """
!new = tensor<?x3xf32, #shapejit.shape<[s0, 3]>>
!cache = tensor<?x5xf32, #shapejit.shape<[s0, 5]>>
!at = tensor<?x3xi64, #shapejit.shape<[s0, 3]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.kernel @k symbols 1 (%x: !new, %at: !at, %cache: !cache) {
  %n = shapejit.loop over [s0, 3] ins(%x at #id : !new) outs(#id : !new) {
  ^bb0(%v: f32):
    %w = arith.negf %v : f32
    shapejit.yield %w : f32
  }
  %0 = shapejit.scatter over [s0, 3] from(%n at #id : !new) by(%at at #id : !at)
      into(%cache at affine_map<(d0, d1, d2) -> (d0, d2)> : !cache)
  shapejit.yield %0 : !cache
}
"""


@functools.cache
def positions(columns: int, type_: str, index: str, block: bool) -> GpuKernel:
    text = POSITIONS.format(columns=columns, type=type_, index=index)
    return GpuKernel(text, block=block)


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize(
    ("columns", "type_", "index"), [(16, "bf16", "i64"), (5, "bf16", "i64"), (8, "f32", "i32")]
)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_rows_at_positions(columns: int, type_: str, index: str, block: bool, count: int) -> None:
    """Rows go where the positions say; those that lie outside are left out."""
    kernel = positions(columns, type_, index, block)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[type_]
    x = torch.randn(2, count, columns).to(dtype)
    rows = torch.tensor([6, 0, 9, -1, 3, 1 << 30, 8])[:count]
    if index == "i64":
        rows[-1:] += 1 << 40 if count == 7 else 0
    cache = torch.zeros(2, 9, columns, dtype=dtype)
    [got] = kernel([x, rows.to(torch.int32 if index == "i32" else torch.int64), cache], count, 9)
    written = [(n, int(row)) for n, row in enumerate(rows) if 0 <= row < 9]
    for n, row in written:
        assert torch.equal(got[:, row], x[:, n])
    rest = [row for row in range(9) if row not in [row for _, row in written]]
    assert bool(got[:, rest].isnan().all()), "no other row is written, nor the old value copied"


@pytest.mark.parametrize("rows", [1, 40])
def test_columns_at_positions(rows: int) -> None:
    """Positions of their own for every element: no vectors; what is written is computed."""
    x, at = torch.randn(rows, 3), torch.stack([torch.randperm(5)[:3] for _ in range(rows)])
    [got] = GpuKernel(COLUMNS)([x, at, torch.zeros(rows, 5)], rows)
    expected = torch.full((rows, 5), torch.nan).scatter(1, at, -x)
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("block", [False, True])
def test_ptxas_takes_scatters(block: bool) -> None:
    for kernel in (positions(16, "bf16", "i64", block), GpuKernel(COLUMNS, block=block)):
        cubin = kernel.assemble()
        [resources] = cubin.resources.values()
        assert not cubin.warnings
        assert resources.spill_store_bytes == resources.spill_load_bytes == 0


class Cache(nn.Module):
    """Keys that are kept, a count, and an input that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 2, 16, 16, dtype=torch.bfloat16))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, k: Tensor, at: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        before = self.keys.float().sum(2)
        self.keys.index_copy_(2, at, k * 2)
        self.calls.add_(1)
        x[:, 1:3] = 7.0
        return before + self.keys.float().sum(2), x


@torch.no_grad()
def test_a_program_updates_buffers_and_inputs() -> None:
    eager = Cache().eval()
    model = copy.deepcopy(eager)
    count = Dim("count", min=1, max=16)
    example = (torch.zeros(1, 2, 3, 16, dtype=torch.bfloat16), torch.arange(3), torch.zeros(2, 5))
    program, _ = simulated(model, example, ({2: count}, {0: count}, None))
    for n in (1, 4, 2):
        k, at = torch.randn(1, 2, n, 16).bfloat16(), torch.randperm(16)[:n]
        x = torch.randn(2, 5)
        theirs = x.clone()
        got, expected = program(k, at, x), eager(k, at, theirs)
        torch.testing.assert_close((x, model.keys), (theirs, eager.keys))
        torch.testing.assert_close(got, expected)
        assert got[1] is x
    assert int(model.calls) == 3
