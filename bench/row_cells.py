# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scans and sorts as cells of ``loops.py``: what sampling, packing and detection are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from kernel_cells import Cell, Expected
from torch import Tensor

from unit import row_kernels

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64}

SUMS = ((32, 512), (64, 32000), (4, 128256), (1, 1 << 20), (1, 1 << 24), (8192, 1024))
COUNTS = ((32, 128), (32, 2048))
SORTS = (
    (8192, 64), (1024, 256), (256, 1000), (64, 4000), (8, 16384), (1, 32000), (32, 32000),
    (1, 128256), (16, 128256), (1, 1 << 20),
)  # fmt: skip
HEADS = ((1, 32000, 50), (32, 32000, 50), (1, 128256, 50), (64, 128256, 50), (16, 8400, 300))


@dataclass(frozen=True)
class RowCell(Cell):
    """A scan or a sort at one size.

    Attributes:
        kernel: its IR. Of several results the last one yielded is looked at.
        element: of rows and results.
        made: new random rows.
        function: the same in torch, from the rows.
        head: elements of a row of the results.
        places: whether places are yielded ahead of values.
        compiled: whether `torch.compile` is a peer.
    """

    kernel: str
    element: str
    made: Callable[[], Tensor]
    function: Callable[[Tensor], Tensor]
    head: int
    places: bool = False
    compiled: bool = False

    def text(self) -> str:
        return self.kernel

    def operands(self) -> list[Tensor]:
        shape, dtype = (self.sizes[0], self.head), DTYPES[self.element]
        places = [torch.empty(shape, dtype=torch.int64, device="cuda")] if self.places else []
        return [self.made(), *places, torch.empty(shape, dtype=dtype, device="cuda")]

    def expected(self, operands: Sequence[Tensor]) -> list[Expected]:
        value = self.function(operands[0].double())
        error = 0.0 if self.places else 2.0**-8 if self.element == "bf16" else 2.0**-20
        return [Expected(slice(None), value, error * value.abs().max().expand_as(value))]

    def moved(self, operands: Sequence[Tensor]) -> int | None:
        if self.group != "scans":
            return None
        return sum(each.numel() * each.element_size() for each in operands)

    def peers(self) -> dict[str, Callable[..., Tensor]]:
        def eager(x: Tensor, *_: Tensor) -> Tensor:
            return self.function(x)

        found: dict[str, Callable[..., Tensor]] = {"eager": eager}
        if self.compiled:
            torch._dynamo.reset()
            compiled = torch.compile(self.function, dynamic=False)
            found["torch.compile"] = lambda x, *_: compiled(x)
        return found


def _bounds(m: int, n: int) -> tuple[tuple[int, int], ...]:
    """Ranges that a program might have: up to the next power of two."""
    return tuple((1, 1 << (each - 1).bit_length()) for each in (m, n))


def _rows(element: str, m: int, n: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(m, n, device="cuda").to(DTYPES[element])


def _sum_cell(element: str, m: int, n: int) -> RowCell:
    text = row_kernels.scan("add", element)
    made = _rows(element, m, n)
    positive = (lambda: made().abs()) if element != "i64" else made
    kind = f"running sum of {element}"
    return RowCell(
        "scans", kind, (m, n), _bounds(m, n), text, element, positive, lambda x: x.cumsum(-1), n
    )


def _sort_cell(element: str, m: int, n: int) -> RowCell:
    text = row_kernels.sort(element, descending=True, backwards=True)
    return RowCell(
        "sorts", f"sort of {element}", (m, n), _bounds(m, n), text, element, _rows(element, m, n),
        lambda x: torch.sort(x, dim=-1, descending=True)[0], n, places=True,
    )  # fmt: skip


def _head_cell(element: str, m: int, n: int, k: int) -> RowCell:
    text = row_kernels.sort(element, descending=True, head=str(k), backwards=True)
    rows, (_, longest) = _bounds(m, n)
    return RowCell(
        "sorts", f"the {k} greatest of {element}", (m, n), (rows, (k, longest)),
        text, element, _rows(element, m, n), lambda x: x.topk(k)[0], k, places=True,
    )  # fmt: skip


def row_cells() -> list[RowCell]:
    """The cells of scans and sorts."""
    found = [_sum_cell("f32", m, n) for m, n in SUMS]
    found += [_sum_cell("i64", m, n) for m, n in COUNTS]
    found += [_sort_cell(element, m, n) for element in ("f32", "bf16") for m, n in SORTS]
    return found + [_head_cell("f32", m, n, k) for m, n, k in HEADS]
