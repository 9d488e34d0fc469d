# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of scans and sorts as IR text, and rows for them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unit.cpu_kernels import tensor

_IDENTITY = "affine_map<(d0, d1) -> (d0, d1)>"


def _kernel(
    op: str, source: str, results: list[str], symbols: int = 2, *, backwards: bool = False
) -> str:
    names = [f"%y#{number}" for number in range(len(results))] if len(results) > 1 else ["%y"]
    made = f"%y:{len(results)}" if len(results) > 1 else "%y"
    order = list(range(len(results)))[:: -1 if backwards else 1]
    yielded = ", ".join(names[number] for number in order)
    return f"""
shapejit.kernel @k symbols {symbols} (%x: {source}) {{
  {made} = shapejit.{op} -> {", ".join(results)}
  shapejit.yield {yielded} : {", ".join(results[number] for number in order)}
}}
"""


def scan(kind: str, element: str, *, indexed: bool = False) -> str:
    """A scan of [s0, s1], with places if `indexed`."""
    source = tensor(element, "s0", "s1")
    results = [source, tensor("i64", "s0", "s1")] if indexed else [source]
    op = f"scan {kind} over [s0, s1] ins(%x at {_IDENTITY} : {source})"
    return _kernel(op, source, results)


def sort(
    element: str,
    *,
    descending: bool = False,
    head: str = "s1",
    symbols: int = 2,
    backwards: bool = False,
) -> str:
    """A sort of [s0, s1], or a head of it; `backwards` yields places before values."""
    source = tensor(element, "s0", "s1")
    size = int(head) if head.isdigit() else head
    results = [tensor(element, "s0", size), tensor("i64", "s0", size)]
    order = " {descending}" if descending else ""
    op = f"sort over [s0, s1] ins(%x at {_IDENTITY} : {source}){order}"
    return _kernel(op, source, results, symbols, backwards=backwards)


def top(element: str) -> str:
    """The s2 greatest of each row of [s0, s1]."""
    return sort(element, descending=True, head="s2", symbols=3)


def random_rows(dtype: torch.dtype, rows: int, length: int, *, nan: bool = False) -> Tensor:
    """Rows with many equal elements, zeros of both signs and, of floats, infinities and NaN."""
    x = (torch.randn(rows, length) * 4).round()
    if dtype == torch.bool:
        return x > 0
    if dtype.is_floating_point:
        x = torch.where(torch.rand_like(x) < 0.1, math.inf, x)
        x = torch.where(torch.rand_like(x) < 0.1, -0.0, x)
        if nan:
            x = torch.where(torch.rand_like(x) < 0.05, math.nan, x)
    return x.to(dtype)
