# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reading the decisions of `shapejit-choose-buckets`, and the variants that were made of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlir.ir as ir

from shapejit import ir as sir
from shapejit.gpu.interface import KernelInterface
from shapejit.passes.nvgpu.lowering import INTERFACE
from shapejit.symbolic import Expr, map_exprs

# Printed strings have no quotes within: they are escaped as \22.
_BUCKET = re.compile(
    r'#shapejit\.bucket<\[(?P<lower>.*?)\], \[(?P<upper>.*?)\], "(?P<variant>.*?)", '
    r'"(?P<reason>.*)">'
)
_ESCAPE = re.compile(rb"\\([0-9A-F]{2})|\\(.)")


@dataclass(frozen=True)
class Bucket:
    """A box of sizes that one variant of a kernel serves.

    Attributes:
        lower, upper: its corners, both included; None is no bound.
        variant: the variant's name.
        reason: why it serves this box.
    """

    lower: tuple[int, ...]
    upper: tuple[int | None, ...]
    variant: str
    reason: str

    def holds(self, sizes: Sequence[int | None]) -> bool:
        """Whether sizes on the axes are in the box; None is in any."""
        return all(
            size is None or (low <= size and (high is None or size <= high))
            for size, low, high in zip(sizes, self.lower, self.upper, strict=True)
        )

    @staticmethod
    def of(attribute: Any) -> Bucket:
        """The contents of a ``#shapejit.bucket``.

        Raises:
            TypeError: the attribute is none.
        """
        match = _BUCKET.fullmatch(str(attribute))
        if match is None:
            raise TypeError(f"expected a #shapejit.bucket, got {attribute}")
        return Bucket(
            tuple(int(word) for word in _words(match["lower"])),
            tuple(None if word == "?" else int(word) for word in _words(match["upper"])),
            _unescape(match["variant"]),
            _unescape(match["reason"]),
        )


@dataclass(frozen=True)
class Dispatch:
    """Which variant of a kernel serves which sizes.

    Attributes:
        kernel: name of the kernel.
        axes: what the corners of buckets are about, over the kernel's symbols.
        buckets: which cover all sizes; the first one that holds them counts.
    """

    kernel: str
    axes: tuple[Expr, ...]
    buckets: tuple[Bucket, ...]

    @property
    def variants(self) -> tuple[str, ...]:
        """The distinct variants, in the order of the buckets."""
        return tuple(dict.fromkeys(bucket.variant for bucket in self.buckets))

    def number(self, sizes: Sequence[int | None]) -> int:
        """The number, in `variants`, of the one that serves sizes on the axes.

        Args:
            sizes: None for one that does not matter.
        """
        bucket = next((b for b in self.buckets if b.holds(sizes)), self.buckets[-1])
        return self.variants.index(bucket.variant)

    def module_name(self, variant: str) -> str:
        """Name of the ``gpu.module`` with a variant, as the lowering of kernels gives it."""
        return f"{self.kernel}__{variant}"


def dispatches(module: Any) -> dict[str, Dispatch]:
    """The dispatches of a module by the names of their kernels."""
    return {dispatch.kernel: dispatch for dispatch in map(_dispatch, _ops(module))}


def interfaces(module: Any) -> dict[str, KernelInterface]:
    """How the kernels of a module's ``gpu.module`` ops are called, by the names of these ops.

    Raises:
        ValueError: a text is no interface.
    """
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: KernelInterface.from_json(
            ir.StringAttr(op.attributes[INTERFACE]).value
        )
        for op in sir.operations(sir.module_block(module))
        if op.name == "gpu.module" and INTERFACE in op.attributes
    }


def variants_of(
    kernel: str, found: Mapping[str, Dispatch], known: Mapping[str, KernelInterface]
) -> tuple[Dispatch, list[KernelInterface]]:
    """The dispatch of a kernel, and the interfaces of its variants in their order.

    Args:
        kernel: its name.
        found: as `dispatches` gives them.
        known: as `interfaces` gives them.

    Raises:
        LookupError: the kernel has no dispatch, or a variant no module; says what makes it.
    """
    if kernel not in found:
        raise LookupError(
            f"kernel @{kernel} has no dispatch; run shapejit-choose-buckets before "
            "shapejit-lower-to-host"
        )
    dispatch = found[kernel]
    for variant in dispatch.variants:
        name = dispatch.module_name(variant)
        if name not in known:
            raise LookupError(
                f"variant {variant} of kernel @{kernel} has no gpu.module @{name} with an "
                "interface; run the pass that lowers such kernels before shapejit-lower-to-host"
            )
    return dispatch, [known[dispatch.module_name(variant)] for variant in dispatch.variants]


def _ops(module: Any) -> Iterator[Any]:
    block = sir.module_block(module)
    return (op for op in sir.operations(block) if op.name == "shapejit.dispatch")


def _dispatch(op: Any) -> Dispatch:
    return Dispatch(
        ir.FlatSymbolRefAttr(op.attributes["kernel"]).value,
        tuple(map_exprs(op.attributes["axes"].value)),
        tuple(map(Bucket.of, op.attributes["buckets"])),
    )


def _words(text: str) -> list[str]:
    return text.split(", ") if text else []


def _unescape(text: str) -> str:
    """The string that MLIR prints like this: bytes that are not printable as ``\\0A``."""

    def replace(match: re.Match[bytes]) -> bytes:
        return bytes.fromhex(match[1].decode()) if match[1] else match[2]

    return _ESCAPE.sub(replace, text.encode()).decode(errors="replace")
