# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""wgmma as inline assembly of the simulated GPU: sums in plain registers, a factor in registers.

What a product leaves in a register is a `PendingSum` until a wait that the register is tied to;
arithmetic on one fails, as reading it on the hardware would be a race.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.hopper.machine import Product, Warp
from reference.hopper.memory import SimulationError
from reference.hopper.scalars import widen_bf16
from reference.hopper.tensor_cores import Matrix, Operand

_LANES = np.arange(32)


@dataclass(frozen=True)
class PendingSum:
    """A register that the tensor cores may still be working on."""

    product: Product
    number: int


@dataclass(frozen=True)
class _Fixed:
    """A factor that a warp has in registers: its [16, 16] elements, of tf32 [16, 8]."""

    elements: Matrix

    def read(self, shared: Any, first: int, count: int) -> Matrix:
        return self.elements


def multiply(
    warp: Warp,
    parts: Sequence[str],
    sums: Sequence[Any],
    lhs: Any,
    rhs: int,
    fresh: bool,
    transposed: Sequence[int],
) -> list[PendingSum]:
    """``wgmma.mma_async``: the registers of its sums.

    Args:
        parts: of the instruction's name.
        sums: registers before it.
        lhs: a descriptor, or four registers of pairs.
        rhs: a descriptor.
        fresh: whether the sums start at 0.
        transposed: the immediates that say which factors are not K-major.
    """
    *_, size, total, element, other = parts
    shape = re.fullmatch(r"m64n(\d+)k(8|16)", size)
    assert shape is not None and total == "f32" and element == other, parts
    assert (shape[2] == "8") == (element == "tf32"), parts
    columns = int(shape[1])
    if len(sums) != columns // 2:
        raise SimulationError(f"{len(sums)} registers for the sums of {columns} columns")
    if isinstance(lhs, list):
        [rhs_transposed] = transposed or [0]  # of tf32 there is no choice
        rows: Any = _Fixed(_factor(lhs, element))
    else:
        lhs_transposed, rhs_transposed = transposed
        rows = Operand(lhs, not lhs_transposed, element)
    before = Product(None, None, columns) if fresh else _accumulator(sums, columns)
    other_rows = Operand(rhs, not rhs_transposed, element)
    product = warp.multiply(before, rows, other_rows, columns, fresh)
    return [PendingSum(product, number) for number in range(len(sums))]


def awaited(warp: Warp, register: Any) -> Any:
    """A register after a ``wgmma.wait_group``: its value, if its product was waited for."""
    if not isinstance(register, PendingSum):
        return register
    if any(register.product is each for group in warp.product_groups for each in group):
        return register
    return register.product.registers()[register.number]


def _accumulator(sums: Sequence[Any], columns: int) -> Product:
    if isinstance(sums[0], PendingSum):
        if any(each.product is not sums[0].product for each in sums):
            raise SimulationError("sums of different products in one accumulator")
        return sums[0].product
    total = np.zeros((16, columns), np.float32)
    for number, register in enumerate(sums):
        if isinstance(register, PendingSum):
            raise SimulationError("an accumulator of which some registers are still written")
        row = _LANES // 4 + 8 * (number >> 1 & 1)
        column = 8 * (number >> 2) + _LANES % 4 * 2 + (number & 1)
        total[row, column] = np.broadcast_to(register, 32)
    return Product.of(total)


def _factor(registers: Sequence[Any], element: str) -> Matrix:
    """The elements of A in registers (PTX ISA, "Register fragments")."""
    if element == "tf32":
        return _float_factor(registers)
    made = np.zeros((16, 16), np.float32)
    for number, register in enumerate(registers):
        word = np.ascontiguousarray(np.broadcast_to(register, 32)).astype(np.uint32)
        halves = np.ascontiguousarray(word).view(np.uint16).reshape(32, 2)
        for one in (0, 1):
            bits = np.ascontiguousarray(halves[:, one])
            values = widen_bf16(bits) if element == "bf16" else bits.view(np.float16)
            row = _LANES // 4 + 8 * (number & 1)
            made[row, _LANES % 4 * 2 + one + 8 * (number >> 1)] = values
    return made


def _float_factor(registers: Sequence[Any]) -> Matrix:
    """The same of tf32, of which the upper 19 bits of a word count."""
    made = np.zeros((16, 8), np.float32)
    for number, register in enumerate(registers):
        word = np.ascontiguousarray(np.broadcast_to(register, 32)).astype(np.uint32)
        row = _LANES // 4 + 8 * (number & 1)
        made[row, _LANES % 4 + 4 * (number >> 1)] = (word & np.uint32(0xFFFFE000)).view(np.float32)
    return made
