# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How calls that differ in nothing but their number of rows are launched.

Such calls have one plan: the kind of the product, its kernels, and for each kernel the values of
its interface, of which few depend on the rows. A number of rows that was never seen costs what the
next call with it costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from shapejit.gpu.launch import Kernel
from shapejit.ops.gemm_kernels import KindKernels, LoadedKernel
from shapejit.ops.gemm_layout import GemmLayout
from shapejit.symbolic import Expr

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

    loaded: LoadedKernel
    values: tuple[int, ...]
    rows: tuple[Row, ...]

    @staticmethod
    def of(loaded: LoadedKernel, layout: GemmLayout) -> Prepared:
        """The values for calls like `layout`.

        Raises:
            UnevenValueError: one depends on the rows in a way that is not known.
        """
        values = tuple(value.evaluate(layout.symbols) for value in loaded.values)
        rows = [
            (position, *_line(value, layout))
            for position, value in enumerate(loaded.values)
            if value.symbols() & layout.row_symbols
        ]
        return Prepared(loaded, values, tuple(rows))

    def at(self, rows: int) -> list[int]:
        """The values at a number of rows."""
        values = list(self.values)
        for position, constant, factor in self.rows:
            values[position] = constant + factor * rows
        return values


def _line(value: Expr, layout: GemmLayout) -> tuple[int, int]:
    """Constant and factor of a value that is a straight line in the number of rows."""
    if value.symbols() & layout.row_symbols != {layout.row_symbol}:
        raise UnevenValueError(f"{value} depends on how far an operand reaches")
    for monomial, _ in value.terms:
        if any(layout.row_symbol in Expr.from_atom(atom).symbols() for atom in monomial) and (
            len(monomial) > 1 or Expr.from_atom(monomial[0]).symbol_index != layout.row_symbol
        ):
            raise UnevenValueError(f"{value} is no straight line in the number of rows")
    symbols = list(layout.symbols)
    symbols[layout.row_symbol] = 0
    constant = value.evaluate(symbols)
    symbols[layout.row_symbol] = 1
    return constant, value.evaluate(symbols) - constant


class RowPlan:
    """The kernels of calls like one, at any number of rows. Thread-safe.

    Args:
        layout: of one of the calls.
        kernels: of its kind.
    """

    def __init__(self, layout: GemmLayout, kernels: KindKernels) -> None:
        self._layout, self._kernels = layout, kernels
        self.memory = kernels.memory
        # By the schedule's identity: schedules live as long as the process.
        self._prepared: dict[int, Prepared] = {}
        # What was launched for numbers of rows: the kernel and its packed values.
        self._launched: dict[int, tuple[LoadedKernel, bytes]] = {}

    def launch(self, addresses: list[int], rows: int, stream: int, *, final: bool) -> None:
        """Launches the product of that many rows.

        Args:
            addresses: of the operands and the result.
            rows: m of this call, not 0.
            stream: the stream's handle.
            final: whether to wait for the kernel that is chosen.

        Raises:
            Exception: what the build of a kernel raised.
            CudaError: the device refuses the launch.
        """
        launched = self._launched.get(rows)
        kernel = None if launched is None else launched[0].kernel
        if launched is None or kernel is None:  # not seen yet, or evicted
            loaded, kernel, values = self._find(addresses, rows, final)
        else:
            loaded, values = launched
        self.memory.tick(loaded)
        kernel.launch_packed(addresses, values, stream)

    def _find(
        self, addresses: list[int], rows: int, final: bool
    ) -> tuple[LoadedKernel, Kernel, bytes]:
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
            if len(self._launched) >= _MAX_LAUNCHED:
                self._launched.clear()
            self._launched[rows] = loaded, values
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
