# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random kernels of several loops: which value is kept where must never change what is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unit.cpu_kernels import CpuKernel, access, assert_close, examples, tensor

COLUMNS = 12

# A value's layout, and the map that reads it from a loop over (rows, columns).
FULL, ROW, COLUMN = "full", "row", "column"
MAPS = {FULL: "d0, d1", ROW: "d0", COLUMN: "d1"}
MIRRORED = f"d0, {COLUMNS - 1} - d1"


@dataclass
class RandomKernel:
    """Text of a kernel and the same computation in torch, grown loop by loop.

    Attributes:
        rows: number of rows; a kernel that reads sums over rows and over columns needs it known,
            so that these fit the stack.
        layouts: of each value; value 0 is the input.
        loops: their text.
        steps: from all values so far, broadcast to (rows, columns), to the next one.
    """

    rows: int | str = "s0"
    layouts: list[str] = field(default_factory=lambda: [FULL])
    loops: list[str] = field(default_factory=list)
    steps: list[Callable[[list[Tensor]], Tensor]] = field(default_factory=list)

    def type_of(self, layout: str) -> str:
        sizes = {FULL: (self.rows, COLUMNS), ROW: (self.rows,), COLUMN: (COLUMNS,)}
        return tensor("f32", *sizes[layout])

    def add(self, kind: str, reads: list[int], mirrored: bool, costly: bool) -> None:
        """Appends ``tanh(sum of reads)``, or the plain sum halved, reduced as ``kind`` says."""
        number = len(self.layouts)
        layout = {"rows": ROW, "columns": COLUMN, "maximum": ROW}.get(kind, FULL)
        combine = {"rows": "add ", "columns": "add ", "maximum": "max "}.get(kind, "")
        types = [self.type_of(self.layouts[read]) for read in reads]
        maps = [MAPS[self.layouts[read]] for read in reads]
        mirrored = mirrored and self.layouts[reads[0]] == FULL
        if mirrored:
            maps[0] = MIRRORED
        ins = ", ".join(
            f"%v{read} at {access(2, at)} : {type_}"
            for read, at, type_ in zip(reads, maps, types, strict=True)
        )
        arguments = ", ".join(f"%a{i}: f32" for i in range(len(reads)))
        lines = ["%t0 = arith.addf %a0, %a0 : f32"]
        for i in range(1, len(reads)):
            lines.append(f"%t{i} = arith.addf %t{i - 1}, %a{i} : f32")
        total = f"%t{len(reads) - 1}"
        lines.append("%c = arith.constant 0.125 : f32")
        lines.append(f"%h = arith.mulf {total}, %c : f32")
        lines.append("%r = math.tanh %h : f32" if costly else "%r = arith.negf %h : f32")
        self.loops.append(
            f"""
          %v{number} = shapejit.loop over [{self.rows}, {COLUMNS}] ins({ins})
              outs({combine}{access(2, MAPS[layout])} : {self.type_of(layout)}) {{
          ^bb0({arguments}):
            {chr(10).join(lines)}
            shapejit.yield %r : f32
          }}"""
        )
        self.layouts.append(layout)

        def step(values: list[Tensor]) -> Tensor:
            first = values[reads[0]].flip(1) if mirrored else values[reads[0]]
            total = 2 * first
            for read in reads[1:]:
                total = total + values[read]
            value = torch.tanh(total / 8) if costly else -total / 8
            match kind:
                case "rows":
                    value = value.sum(1, keepdim=True)
                case "columns":
                    value = value.sum(0, keepdim=True)
                case "maximum":
                    value = value.amax(1, keepdim=True)
            return value.expand(values[0].shape)

        self.steps.append(step)

    def text(self, outputs: list[int]) -> str:
        types = ", ".join(self.type_of(self.layouts[number]) for number in outputs)
        values = ", ".join(f"%v{number}" for number in outputs)
        return f"""
        shapejit.kernel @k symbols 1 (%v0: {self.type_of(FULL)}) {{{"".join(self.loops)}
          shapejit.yield {values} : {types}
        }}"""

    def expected(self, x: Tensor, outputs: list[int]) -> list[Tensor]:
        values = [x]
        for step in self.steps:
            values.append(step(values))
        take = {FULL: (...,), ROW: (slice(None), 0), COLUMN: (0, slice(None))}
        return [values[number][take[self.layouts[number]]] for number in outputs]


@st.composite
def random_kernels(
    draw: st.DrawFn, rows: int | str, kinds: tuple[str, ...]
) -> tuple[RandomKernel, list[int]]:
    kernel = RandomKernel(rows)
    for _ in range(draw(st.integers(1, 6))):
        values = st.integers(0, len(kernel.layouts) - 1)
        reads = draw(st.lists(values, min_size=1, max_size=3, unique=True))
        mirrored = draw(st.integers(0, 4)) == 0
        kernel.add(draw(st.sampled_from(kinds)), reads, mirrored, draw(st.booleans()))
    made = st.integers(1, len(kernel.layouts) - 1)
    outputs = draw(st.lists(made, min_size=1, max_size=3, unique=True))
    return kernel, outputs


def check(kernel: RandomKernel, outputs: list[int]) -> None:
    compiled = CpuKernel(kernel.text(outputs))
    for rows in (0, 1, 5) if kernel.rows == "s0" else (5,):
        x = torch.randn(rows, COLUMNS)
        for got, want in zip(
            compiled([x], rows), kernel.expected(x.double(), outputs), strict=True
        ):
            assert_close(got, want, terms=1.0)


@examples(40)
@given(drawn=random_kernels("s0", ("pointwise", "rows", "maximum")))
def test_row_clusters(drawn: tuple[RandomKernel, list[int]]) -> None:
    check(*drawn)


@examples(25)
@given(drawn=random_kernels(5, ("pointwise", "rows", "columns")))
def test_loops_that_share_no_rows(drawn: tuple[RandomKernel, list[int]]) -> None:
    check(*drawn)


@pytest.mark.parametrize("costly", [False, True])
def test_a_value_shared_by_all_passes(costly: bool) -> None:
    kernel = RandomKernel()
    kernel.add("pointwise", [0], False, costly)
    kernel.add("maximum", [1], False, False)
    kernel.add("rows", [1, 2], False, True)
    kernel.add("pointwise", [1, 2, 3], False, True)
    kernel.add("pointwise", [4, 1], False, costly)
    for outputs in ([5], [5, 1], [4, 5], [1, 4, 5], [3, 5]):
        check(kernel, outputs)


def test_a_row_is_not_reused_before_its_last_read() -> None:
    """Value 1 is kept in the row of result 3 until result 4, made in the same pass, has read it."""
    kernel = RandomKernel()
    kernel.add("pointwise", [0], False, True)
    kernel.add("rows", [1], False, True)
    kernel.add("pointwise", [0], False, False)
    kernel.add("pointwise", [1], False, False)
    for outputs in ([2, 3, 4], [4, 3, 2]):
        check(kernel, outputs)
