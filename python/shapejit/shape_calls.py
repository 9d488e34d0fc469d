# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a program works out once for each combination of sizes, for later calls of the same."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from shapejit.allocation import Allocate, contiguous, direct_allocator
from shapejit.execution import Execution

_MOST_CALLS = 4096

Output: TypeAlias = tuple[Allocate, tuple[int, ...], tuple[int, ...], torch.dtype]
"""What allocates a tensor of the result, with its arguments."""


class ShapeCall:
    """Calls of one combination of sizes.

    Attributes:
        symbols: the value of every symbol, 0 for derived ones.
        native: the same as native code reads it.
        address: of that.
        arena_bytes: the working memory that they need.
        outputs: the tensors of their result.
        counted: whether the combination is among those that `Program.stats` counts.
    """

    __slots__ = ("address", "arena_bytes", "counted", "native", "outputs", "symbols")

    def __init__(
        self, symbols: list[int], native: Any, arena_bytes: int, outputs: Sequence[Output]
    ) -> None:
        self.symbols, self.native = symbols, native
        self.address = ctypes.addressof(native)
        self.arena_bytes = arena_bytes
        self.outputs = tuple(outputs)
        self.counted = False


class ShapeCalls:
    """The combinations of sizes that were called last. Thread-safe.

    Args:
        execution: whose plans they are.

    Attributes:
        execution: as given.
        find: the calls of the sizes that `Signature.sizes_of` gives; None if they are not known.
    """

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self._calls: dict[tuple[int, ...], ShapeCall] = {}
        self._lock = threading.Lock()
        self.find: Callable[[tuple[int, ...]], ShapeCall | None] = self._calls.get

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, sizes: tuple[int, ...], call: ShapeCall) -> None:
        """Keeps the calls of some sizes, and gives up those that came first beyond a limit."""
        with self._lock:
            if len(self._calls) >= _MOST_CALLS:
                del self._calls[next(iter(self._calls))]
            self._calls[sizes] = call


class OutputSpec:
    """A tensor of a program's result.

    Args:
        dtype: of it.
        start, end: where its sizes lie in what ``shapejit_plan`` says.
        device: where it is.
    """

    def __init__(self, dtype: torch.dtype, start: int, end: int, device: torch.device) -> None:
        self.start, self.end = start, end
        self._dtype = dtype
        direct = direct_allocator(device)
        if direct is None:
            # Quicker than torch.empty, which reads dtype and device anew for every output.
            new_empty = torch.empty(0, dtype=dtype, device=device).new_empty

            def allocate(size: Sequence[int], _stride: object, _dtype: object) -> Tensor:
                return new_empty(size)

            direct = allocate
        self._allocate = direct

    def at(self, plan: Sequence[int]) -> Output:
        """The tensor of calls with a plan."""
        size = tuple(plan[self.start : self.end])
        return self._allocate, size, contiguous(size), self._dtype


__all__ = ["OutputSpec", "ShapeCall", "ShapeCalls"]
