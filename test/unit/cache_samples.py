# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Keys and contents for tests of the cache: each key has one content, by which it is checked."""

from __future__ import annotations

import hashlib
from typing import Any

from hypothesis import settings

from shapejit.cache.entry import Header
from shapejit.cache.key import TargetKey, VariantKey

TARGET = TargetKey("x86_64-unknown-linux-gnu", "znver4", ("+avx2", "+fma"), 32)


def examples(count: int) -> settings:
    """Hypothesis settings for ``count`` examples."""
    return settings(max_examples=count, deadline=None)


def sample_key(number: int = 0, **changes: Any) -> VariantKey:
    """A key; another for each number."""
    fields: dict[str, Any] = {
        "kind": "gemm",
        "dtypes": ("f32", "f32", "f32"),
        "layouts": ("(d0, d1, d2) -> (d0, d2)", "(d0, d1, d2) -> (d1, d2)"),
        "math_mode": "ieee",
        "epilogue": "",
        "text": f"text of kernel {number}",
        "schedule": (("panel", 16),),
        "alignment": 1,
        "parameters": "by-value",
        "index_bits": 64,
        "target": TARGET,
        "opt_level": 2,
        "toolchain": (("llvm", "22.1.8.2"), ("mlir", "22.1.8.4")),
        "passes": "digest of the passes",
    }
    return VariantKey(**{**fields, **changes})


def content(key: VariantKey, size: int | None = None) -> bytes:
    """What belongs under a key; the size depends on the key too if none is given."""
    seed = hashlib.sha256(key.digest.encode()).digest()
    if size is None:
        size = 200 + int.from_bytes(seed[:4], "little") % 60_000
    return hashlib.shake_128(seed).digest(size)


def header(key: VariantKey, seconds: float = 0.25) -> Header:
    """A header for the key's entry."""
    return Header(key.record(), seconds, 1.75e9, "made for a test")
