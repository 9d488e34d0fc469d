# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How calls that differ in nothing but their number of rows are launched.

Such calls have one plan: the kind of the product, its kernels, and for each kernel the values of
its interface, of which few depend on the rows. A number of rows that was never seen costs what the
next call with it costs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TypeAlias

from shapejit.gpu.launch import Kernel
from shapejit.ops.gemm_kernels import KindKernels
from shapejit.ops.gemm_layout import GemmLayout
from shapejit.ops.kernels import LoadedKernel
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import Monomial

_MAX_LAUNCHED = 8192

Row: TypeAlias = tuple[int, int, int]
"""``values[position] = constant + factor * rows``"""


class UnevenValueError(ValueError):
    """A value depends on the rows in another way than a straight line."""


@dataclass(frozen=True)
class Prepared:
    """A loaded kernel with the values of its interface.

    Attributes:
        loaded: the kernel.
        values: the values, right but for those in `rows`.
        rows: what depends on the number of rows.
    """

    loaded: LoadedKernel[GemmSchedule]
    values: tuple[int, ...]
    rows: tuple[Row, ...]

    @staticmethod
    def of(loaded: LoadedKernel[GemmSchedule], layout: GemmLayout) -> Prepared:
        """The values for calls like `layout`.

        Raises:
            UnevenValueError: one depends on the rows in a way that is not known.
        """
        positions = _row_positions(tuple(loaded.values), layout.row_symbol, layout.row_symbols)
        values = tuple(value.evaluate(layout.symbols) for value in loaded.values)
        symbols = list(layout.symbols)
        rows = []
        for position in positions:
            value = loaded.values[position]
            symbols[layout.row_symbol] = 0
            constant = value.evaluate(symbols)
            symbols[layout.row_symbol] = 1
            rows.append((position, constant, value.evaluate(symbols) - constant))
        return Prepared(loaded, values, tuple(rows))

    def at(self, rows: int) -> list[int]:
        """The values at a number of rows."""
        values = list(self.values)
        for position, constant, factor in self.rows:
            values[position] = constant + factor * rows
        return values


@functools.lru_cache(maxsize=8192)
def _row_positions(
    values: tuple[Expr, ...], row_symbol: int, row_symbols: frozenset[int]
) -> tuple[int, ...]:
    """The values that depend on the rows, all of them straight lines."""
    found = []
    for position, value in enumerate(values):
        on_rows = value.symbols() & row_symbols
        if not on_rows:
            continue
        if on_rows != {row_symbol}:
            raise UnevenValueError(f"{value} depends on how far an operand reaches")
        if not all(_is_line(monomial, row_symbol) for monomial, _ in value.terms):
            raise UnevenValueError(f"{value} is no straight line in the number of rows")
        found.append(position)
    return tuple(found)


def _is_line(monomial: Monomial, row_symbol: int) -> bool:
    """Whether a product has the rows as a factor at most once, and in no other way."""
    on_rows = [each for each in map(Expr.from_atom, monomial) if row_symbol in each.symbols()]
    return not on_rows or (len(on_rows) == 1 and on_rows[0].symbol_index == row_symbol)


class RowPlan:
    """The kernels of calls like one, at any number of rows. Thread-safe.

    Args:
        layout: of one of the calls.
        kernels: of its kind.

    Attributes:
        memory: of the kernels.
        launched: what was launched, the kernel and its packed values, by what the caller calls the
            number of rows. The kernel may have been evicted since.
    """

    def __init__(self, layout: GemmLayout, kernels: KindKernels) -> None:
        self._layout, self._kernels = layout, kernels
        self.memory = kernels.memory
        self.launched: dict[int, tuple[LoadedKernel[GemmSchedule], bytes]] = {}
        # By the schedule's identity: schedules live as long as the process. What is loaded is
        # prepared now, so that no later call is slower for being the first with its kernel.
        self._prepared = {
            id(loaded.schedule): Prepared.of(loaded, layout) for loaded in kernels.loaded()
        }

    def launch(
        self, addresses: list[int], name: int, rows: int, stream: int, *, final: bool
    ) -> None:
        """Launches the product of that many rows, and keeps what serves it in `launched`.

        Args:
            addresses: of the operands and the result.
            name: where it is kept.
            rows: m of this call, not 0.
            stream: the stream's handle.
            final: whether to wait for the kernel that is chosen.

        Raises:
            Exception: what the build of a kernel raised.
            CudaError: the device refuses the launch.
        """
        loaded, kernel, values = self._find(addresses, name, rows, final)
        self.memory.tick(loaded)
        kernel.launch_packed(addresses, values, stream)

    def _find(
        self, addresses: list[int], name: int, rows: int, final: bool
    ) -> tuple[LoadedKernel[GemmSchedule], Kernel, bytes]:
        """The kernel for a number of rows and its values; kept if it is the chosen one."""
        chosen = self._kernels.choose_rows(self._layout, rows)
        prepared = self._prepared.get(id(chosen))
        kernel = None if prepared is None else prepared.loaded.kernel
        while prepared is None or kernel is None:
            prepared = self._fetch(rows, final)
            kernel = prepared.loaded.kernel
        loaded = prepared.loaded
        values = kernel.pack_values(addresses, prepared.at(rows))
        if loaded.schedule is chosen:
            if len(self.launched) >= _MAX_LAUNCHED:
                self.launched.clear()
            self.launched[name] = loaded, values
        return loaded, kernel, values

    def _fetch(self, rows: int, final: bool) -> Prepared:
        loaded, is_chosen = self._kernels.get(self._layout, rows, final=final)
        before = self._prepared.get(id(loaded.schedule))
        if before is not None and before.loaded is loaded:
            return before
        prepared = Prepared.of(loaded, self._layout)
        if is_chosen:
            self._prepared[id(loaded.schedule)] = prepared
        return prepared
