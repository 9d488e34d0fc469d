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

from shapejit import native_calls
from shapejit.native_calls import Plan
from shapejit.ops.gemm_kernels import KindKernels
from shapejit.ops.gemm_layout import GemmLayout
from shapejit.ops.kernels import LoadedKernel
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import Monomial

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

    @functools.cached_property
    def native(self) -> native_calls.Prepared | None:
        """The same for native code; None once the kernel was evicted."""
        kernel = self.loaded.kernel
        if kernel is None:
            return None
        rows = [number for row in self.rows for number in row]
        return native_calls.Prepared(
            self.loaded, kernel.handle, kernel.launch_address, self.values, rows
        )

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
    """

    def __init__(self, layout: GemmLayout, kernels: KindKernels) -> None:
        self._layout, self._kernels = layout, kernels
        # By the schedule's identity: schedules live as long as the process.
        self._prepared: dict[int, Prepared] = {}

    def choose(self, plan: Plan) -> None:
        """Has native calls launch what is loaded for their number of rows, without this object.

        All of it is prepared now, so that no later call is slower for being the first with its
        kernel, or with its number of rows.
        """
        loaded = {id(each.schedule): each for each in self._kernels.loaded()}
        choices = self._kernels.by_rows(self._layout)
        plan.choose(
            [start for start, _ in choices],
            tuple(
                None if (found := loaded.get(id(schedule))) is None else self._of(found).native
                for _, schedule in choices
            ),
        )

    def launch(self, plan: Plan, addresses: list[int], rows: int, stream: int, final: bool) -> None:
        """Launches a product for which a plan has no kernel at hand, and lets the plan have it.

        Args:
            plan: that of the call.
            addresses: of the operands and the result.
            rows: m of the call, not 0.
            stream: the stream's handle.
            final: whether to wait for the kernel that is chosen.

        Raises:
            Exception: what the build of a kernel raised.
            CudaError: the device refuses the launch.
        """
        kernel = None
        while kernel is None:  # another thread may evict it at once
            loaded, is_chosen = self._kernels.get(self._layout, rows, final=final)
            kernel = loaded.kernel
        self._kernels.memory.tick(loaded)
        kernel.launch(addresses, self._of(loaded).at(rows), stream)
        if is_chosen:
            self.choose(plan)

    def _of(self, loaded: LoadedKernel[GemmSchedule]) -> Prepared:
        before = self._prepared.get(id(loaded.schedule))
        if before is not None and before.loaded is loaded:
            return before
        prepared = self._prepared[id(loaded.schedule)] = Prepared.of(loaded, self._layout)
        return prepared
