# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What CPU host code is made for."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from shapejit.codegen._libllvm import library, take_message

_LEVEL_BYTES = {"x86-64": 16, "x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64}


@dataclass(frozen=True)
class HostTarget:
    """A CPU to generate code for.

    Attributes:
        triple: LLVM target triple.
        cpu: LLVM CPU name (``znver4``) or an x86-64 level (``x86-64-v3``).
        features: LLVM feature string (``+avx2,-avx512f,..``); empty for what ``cpu`` implies.
        vector_bytes: bytes of the widest vector register to use: 16, 32 or 64.
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int

    def __post_init__(self) -> None:
        if self.vector_bytes not in (16, 32, 64):
            raise ValueError(
                f"HostTarget requires vector_bytes to be 16, 32 or 64, got {self.vector_bytes}"
            )

    @staticmethod
    def host() -> HostTarget:
        """The CPU this process runs on."""
        return _host()

    @staticmethod
    def from_name(name: str) -> HostTarget:
        """A generic target by its x86-64 level, or the host's for ``"native"``.

        Args:
            name: ``native``, ``x86-64``, ``x86-64-v2``, ``x86-64-v3`` or ``x86-64-v4``.

        Raises:
            ValueError: unknown name.
        """
        if name == "native":
            return _host()
        if name not in _LEVEL_BYTES:
            known = ", ".join(("native", *_LEVEL_BYTES))
            raise ValueError(f"unknown CPU target {name!r}. Known names: {known}")
        return HostTarget(_host().triple, name, "", _LEVEL_BYTES[name])

    @property
    def panel(self) -> int:
        """Columns of a panel of packed f32 weights: two vectors, one micro-kernel wide."""
        return 2 * self.vector_bytes // 4


@functools.cache
def _host() -> HostTarget:
    lib = library()
    features = take_message(lib.LLVMGetHostCPUFeatures())
    enabled = set(features.split(","))
    # The dialects below ask for these sets together, so a CPU with only a part of one counts as
    # the level under it.
    if {"+avx512f", "+avx512bw", "+avx512vl", "+avx512dq"} <= enabled:
        vector_bytes = 64
    elif {"+avx2", "+fma"} <= enabled:
        vector_bytes = 32
    else:
        vector_bytes = 16
    return HostTarget(
        triple=take_message(lib.LLVMGetDefaultTargetTriple()),
        cpu=take_message(lib.LLVMGetHostCPUName()),
        features=features,
        vector_bytes=vector_bytes,
    )
