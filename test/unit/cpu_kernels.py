# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels given as IR text, compiled for the CPU and called with torch tensors."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from typing import Any

import mlir.ir as ir
import torch
from hypothesis import settings
from torch import Tensor

import shapejit.passes.lower_to_cpu  # noqa: F401 - registers the pass
from shapejit import ir as sir
from shapejit import threads
from shapejit.codegen import HostTarget, JitLibrary, compile_object, to_llvm_dialect
from shapejit.pass_host import run_pipeline

Size = int | str

DTYPES: dict[str, torch.dtype] = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
}


_SHARE = float(os.environ.get("SHAPEJIT_TEST_EXAMPLES", "0.6"))


def examples(count: int) -> settings:
    """Hypothesis settings for ``count`` examples; the first one also compiles the kernel.

    Unless SHAPEJIT_TEST_EXAMPLES says another share, it is 0.6 of them: on the simulated GPU each
    takes about a second, and most faults show in the first ones.
    """
    return settings(max_examples=max(2, round(count * _SHARE)), deadline=None)


def tensor(element: str, *sizes: Size) -> str:
    """The text of a tensor type: ``tensor("f32", "s0", 8)``."""
    static = "".join(f"{size if isinstance(size, int) else '?'}x" for size in sizes)
    return f"tensor<{static}{element}, #shapejit.shape<[{', '.join(map(str, sizes))}]>>"


def access(rank: int, indices: str) -> str:
    """The text of a map over ``rank`` dims: ``access(2, "d1, d0")``."""
    dims = ", ".join(f"d{i}" for i in range(rank))
    used = [int(number) for number in re.findall(r"\bs(\d+)", indices)]
    symbols = ", ".join(f"s{i}" for i in range(max(used, default=-1) + 1))
    return f"affine_map<({dims}){f'[{symbols}]' if symbols else ''} -> ({indices})>"


class CpuKernel:
    """A compiled ``shapejit.kernel``.

    Args:
        text: a module with one kernel of that name.
        name: its symbol.
        vector_bytes: width of vectors to use; by default the host's.
    """

    def __init__(self, text: str, name: str = "k", vector_bytes: int | None = None) -> None:
        target = HostTarget.host()
        width = vector_bytes or target.vector_bytes
        with ir.Context(), ir.Location.unknown():
            module = ir.Module.parse(text)
            kernel = sir.kernels(module)[name]
            body = sir.body(kernel)
            self.input_types = [value.type for value in body.arguments]
            self.results = [
                (DTYPES[str(value.type.element_type)], sir.shape_of(value))
                for value in sir.operations(body)[-1].operands
            ]
            # The smallest problems are shared too.
            options = f"{{vector-bytes={width} chunk-cost=1}}"
            run_pipeline(module, f"shapejit-lower-to-cpu{options}", stage="test")
            [part] = sir.operations(sir.module_block(module))
            to_llvm_dialect(part)
            self._library = JitLibrary([compile_object(part, target)], threads.symbols())
        self._address = self._library.lookup(name)

    def __call__(self, inputs: Sequence[Tensor], *symbols: int) -> list[Tensor]:
        """Runs the kernel; results are new tensors, filled with garbage before.

        It runs on one thread and on three, which must give the same bits.
        """
        alone, shared = (self._call(inputs, symbols, count) for count in (1, 3))
        for one, other in zip(alone, shared, strict=True):
            assert torch.equal(_bits(one), _bits(other))
        return alone

    def _call(
        self, inputs: Sequence[Tensor], symbols: Sequence[int], thread_count: int
    ) -> list[Tensor]:
        outputs = [
            _garbage(dtype, [size.evaluate(symbols) for size in sizes])
            for dtype, sizes in self.results
        ]
        contiguous = [value.contiguous() for value in inputs]
        pointers = [ctypes.c_void_p(value.data_ptr()) for value in (*contiguous, *outputs)]
        numbers = [ctypes.c_int64(symbol) for symbol in symbols]
        arguments: list[Any] = [*pointers, *numbers]
        types = [type(argument) for argument in arguments]
        threads.set_threads(thread_count)
        try:
            ctypes.CFUNCTYPE(None, *types)(self._address)(*arguments)
        finally:
            threads.set_threads(1)
        return outputs


def _bits(value: Tensor) -> Tensor:
    return value.reshape(-1).view(torch.uint8)


def _garbage(dtype: torch.dtype, sizes: Sequence[int]) -> Tensor:
    if dtype.is_floating_point:
        return torch.full(sizes, float("nan"), dtype=dtype)
    return torch.full(sizes, 1 if dtype == torch.bool else 77, dtype=dtype)


def pack(weight: Tensor, panel: int) -> Tensor:
    """A [n, k] weight in panels: [ceil(n / panel), k, panel], zeros past the end."""
    n, k = weight.shape
    panels = -(-n // panel)
    padded = torch.zeros(panels * panel, k, dtype=weight.dtype)
    padded[:n] = weight
    return padded.view(panels, panel, k).transpose(1, 2).contiguous()


def assert_close(
    got: Tensor, reference: Tensor, own: Tensor | None = None, *, terms: float = 0.0
) -> None:
    """The numerics law: ``max|y - r64| / max|r64| <= max(1e-5, 2 * torch's own error)``.

    Args:
        got: the result.
        reference: computed in float64.
        own: torch's result in the dtype of ``got``; for half precision it is needed.
        terms: magnitude of what is summed. Where sums cancel, an error is relative to it.
    """
    assert got.shape == reference.shape
    if not got.numel():
        return
    scale = max(reference.abs().max().item(), terms, torch.finfo(torch.float32).tiny)

    def error(value: Tensor) -> float:
        return (value.double() - reference).abs().max().item() / scale

    allowed = max(1e-5, 2 * error(own) if own is not None else 0.0)
    assert error(got) <= allowed, f"error {error(got)} of {allowed}"
