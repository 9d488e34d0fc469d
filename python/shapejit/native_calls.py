# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What happens between a call from Python and its launch, in native code (``runtime/calls``).

Tensors are read through DLPack's C exchange interface, which torch has since version 2.10: a tensor
costs a twentieth of a microsecond there, and a whole one through its Python attributes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ExtensionFileLoader
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from shapejit.threads import library_path

_NAME = "shapejit._calls"

if TYPE_CHECKING:

    class Prepared:
        """A kernel with the values of its interface.

        Args:
            loaded: has the kernel as its attribute `kernel`, or None once that was evicted; when it
                is used, its attribute `used` is set.
            kernel: the kernel's handle.
            launch: address of the runtime's function ``shapejitRtCudaLaunch``.
            values: of the interface, right but for those that depend on the number of rows.
            rows: for each of these its position, and a constant and a factor of the number of rows.
        """

        def __init__(
            self, loaded: Any, kernel: int, launch: int, values: Sequence[int], rows: Sequence[int]
        ) -> None: ...

    class Plan:
        """How calls of one kind are launched, whose tensors differ in the number of rows at most.

        Args:
            owner: launches where there is no kernel at hand: called with the plan, the addresses of
                operands and result, the number of rows, the stream's handle, and whether to wait
                for the kernel that is chosen.
            clock: what the uses of kernels are noted by.
            allocate: makes the result of a size, strides and dtype.
            size: of the result; the first one stands for any, where rows differ.
            strides: of the result.
            dtype: of the result.
            device: its number.
            rows: of a call, where they do not differ.
        """

        def __init__(
            self,
            owner: Callable[[Plan, list[int], int, int, bool], None],
            clock: Iterator[int],
            allocate: Callable[[Sequence[int], Sequence[int], torch.dtype], Tensor],
            size: tuple[int, ...],
            strides: tuple[int, ...],
            dtype: torch.dtype,
            device: int,
            rows: int,
        ) -> None: ...

        def choose(self, starts: Sequence[int], prepared: tuple[Prepared | None, ...]) -> None:
            """What serves calls from which number of rows on: they ascend from 0; None where
            `owner` is to be asked."""

    class Calls:
        """The plans of an operator, by what the arguments of a call are. Thread-safe.

        Args:
            most: plans that are kept; those that came first go.
            stream_of: handle of a device's current stream, by its number.
            uses_tf32: whether products of float32 may be rounded, by the precision of the call.
            shared_memory_error: makes the error of a result that shares memory with an operand.
        """

        def __init__(
            self,
            most: int,
            stream_of: Callable[[int], int],
            uses_tf32: Callable[[str], bool],
            shared_memory_error: Callable[[], Exception],
        ) -> None: ...

        def __len__(self) -> int: ...

        def run(self, *arguments: Any) -> Tensor | None:
            """Launches a call in the current stream.

            Args:
                arguments: a, b, gate, bias, residual, out, activation, out_dtype,
                    float32_precision, deterministic of `shapejit.ops.gemm`.

            Returns:
                The result; None for a call without a plan, or with arguments that are not as
                kernels take them: no tensors of torch, ones without memory, negated ones, ones that
                need a gradient.
            """

        def add(self, plan: Plan, *arguments: Any) -> None:
            """Has a plan serve calls like one. If there is one already, that stays, with what the
            new one chooses.

            Raises:
                TypeError: a tensor cannot be read.
                ValueError: it serves other calls.
            """

        def clear(self) -> None:
            """Forgets all plans."""

    class Sizes:
        """Reads the sizes of a call's tensors.

        Args:
            expected: of each tensor its place among the leaves, a tensor with its element type, and
                its rank.
            device_type, device: of all tensors, as DLPack numbers types.

        Raises:
            BufferError: there is an element type that DLPack does not have.
        """

        def __init__(
            self, expected: list[tuple[int, Tensor, int]], device_type: int, device: int
        ) -> None: ...

        def read(self, leaves: Sequence[Any]) -> tuple[int, ...] | None:
            """Of a list or a tuple of leaves, the sizes of the tensors in a row; None if one is not
            as expected, or may not be, or has no memory."""

    class Inputs:
        """Runs a program with the addresses of tensors.

        Args:
            inputs: of each input its place among the leaves, and whether torch may negate its
                values when it reads them, as it does with floating-point numbers only.
            alignment: a power of two, of which addresses are multiples.
            for_empty: address for tensors without memory.
        """

        def __init__(
            self, inputs: list[tuple[int, bool]], alignment: int, for_empty: int
        ) -> None: ...

        def run(
            self,
            leaves: Sequence[Any],
            weights: bytes,
            outputs: Sequence[Tensor],
            function: int,
            handle: int,
            symbols: int,
            arena: int,
            stream: int,
        ) -> int | None:
            """Calls ``int32_t (handle, symbols, buffers, arena, stream)``, whose buffers are the
            addresses of the inputs, of the weights, of the outputs.

            Returns:
                Its status; None if an input cannot be read in place.
            """


class _Module(Protocol):
    Calls: type[Calls]
    Inputs: type[Inputs]
    Plan: type[Plan]
    Prepared: type[Prepared]
    Sizes: type[Sizes]

    def use(self, tensor: type, exchange: Any, is_grad_enabled: Callable[[], bool]) -> None: ...


def _load() -> Any:
    path = str(library_path("_calls.abi3.so"))
    loader = ExtensionFileLoader(_NAME, path)
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    assert spec is not None, "a loader was given"
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


_PLAIN = (Tensor, torch.nn.Parameter)
# No storage is so large that an address from here on could be a distance from its start.
_BEYOND_DISTANCES = 1 << 40


def has_memory(tensor: Tensor) -> bool:
    """Whether a dense tensor's elements, if it has any, are in memory. Fake and distributed tensors
    and those inside of `torch.func`'s transforms only stand for others, and a storage may have been
    emptied: they count addresses from 0, or have none."""
    try:
        # Asked for its address, a fake tensor gives a warning.
        if type(tensor) not in _PLAIN and tensor.untyped_storage().device.type == "meta":
            return not tensor.numel()
        address = tensor.data_ptr()
    except RuntimeError:
        return not tensor.numel()
    if address >= _BEYOND_DISTANCES or not tensor.numel():
        return True
    return address != tensor.storage_offset() * tensor.element_size()


_module: _Module = _load()
_module.use(Tensor, Tensor.__dlpack_c_exchange_api__, torch.is_grad_enabled)

if not TYPE_CHECKING:
    Calls, Plan, Prepared = _module.Calls, _module.Plan, _module.Prepared
    Inputs, Sizes = _module.Inputs, _module.Sizes

__all__ = ["Calls", "Inputs", "Plan", "Prepared", "Sizes", "has_memory"]
