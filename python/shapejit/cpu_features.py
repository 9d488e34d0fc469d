# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which CPU features native code needs, and which this CPU lacks."""

from __future__ import annotations

from shapejit.artefacts import TargetInfo
from shapejit.codegen import HostTarget
from shapejit.errors import ErrorId, join_names

# Features that compiled kernels can contain, by the start of LLVM's name. The rest of what a CPU
# has (power, virtualisation, cache control) never occurs in them, and differs between machines.
_USED_BY_CODE = (
    "adx", "aes", "amx", "avx", "bmi", "cmov", "crc32", "cx16", "cx8", "f16c", "fma", "fxsr",
    "gfni", "lzcnt", "mmx", "movbe", "pclmul", "popcnt", "sahf", "sha", "sse", "ssse3", "vaes",
    "vpclmulqdq", "64bit",
)  # fmt: skip

_V1 = ("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_V2 = (*_V1, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_LEVELS = {"x86-64": _V1, "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}


def host_target(target_cpu: str) -> HostTarget:
    """The CPU that the option `target_cpu` names: "host", or an x86-64 level.

    Raises:
        TargetError: it names neither (SJ-TARGET-004).
    """
    known = ("host", *_LEVELS)
    if target_cpu not in known:
        raise ErrorId.SJ_TARGET_004.error(cpu=target_cpu, known=join_names(known, "or"))
    return HostTarget.host() if target_cpu == "host" else HostTarget.from_name(target_cpu)


def target_info(target: HostTarget) -> TargetInfo:
    """The record of `target` that a program carries."""
    features = _LEVELS.get(target.cpu) or _enabled(target.features)
    return TargetInfo("cpu", target.triple, target.cpu, tuple(sorted(features)))


def missing_features(target: TargetInfo) -> list[str]:
    """The features that code for `target` may use and this CPU lacks."""
    return sorted(set(target.features) - _enabled(HostTarget.host().features))


def _enabled(features: str) -> frozenset[str]:
    """Names of the features that LLVM's string ``+avx2,-avx512f,...`` turns on."""
    names = (name[1:] for name in features.split(",") if name.startswith("+"))
    return frozenset(name for name in names if name.startswith(_USED_BY_CODE))
