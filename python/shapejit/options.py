# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Options of one compilation: a frozen, validated record with a stable hash."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any, get_type_hints

from shapejit.errors import ErrorId

PRECISIONS = ("auto", "ieee", "tf32")
"""What `CompileOptions.float32_precision` may be."""

WINOGRAD = ("auto", "off", "force")
"""What `CompileOptions.winograd` may be."""


@dataclass(frozen=True)
class CompileOptions:
    """How to compile; every field has a default that suits use in production.

    Attributes:
        opt_level: LLVM's optimisation level for kernels, 0 to 3.
        target_cpu: the CPU to generate code for: "host", the one at hand, or a level such as
            "x86-64-v3", for programs that are saved for other machines.
        deterministic: the same inputs give the same bits on every call; on the cpu target they
            do in any case.
        float32_precision: of products of float32 on a GPU: "ieee", as exactly as that; "tf32",
            which lets tensor cores round their factors to 11 bits; or "auto", as PyTorch is set
            when the model is compiled, for products (torch.set_float32_matmul_precision) and for
            convolutions (torch.backends.cudnn.conv.fp32_precision, which allows tf32 by default).
        float32_conv_precision: the same of convolutions alone; "auto" leaves it to
            float32_precision.
        background: whether a program for a GPU starts with one variant of each kernel, and gets the
            others while it is called already; not if `deterministic`. See docs/gpu.md.
        max_regions: most regions of shapes that get code of their own, at least 1; the cpu target
            needs one.
        winograd: whether convolutions of three taps a dim on a GPU use Winograd's algorithm:
            "auto", where it pays; "off"; "force", wherever it can be used.
        max_rel_error: relative error that it may have. The default allows F(2,3) and F(2x2,3x3) of
            float32, which are as accurate as a direct sum; see docs/winograd.md.
        free_original: give back the memory of weights of which only packed copies are read. The
            tensors of the original module become empty.
        verify_each: verify all types and shapes after each stage; False leaves it to the knob
            SHAPEJIT_VERIFY_EACH.
        dump_to: folder for the IR after each stage and every kernel's code; None leaves it to the
            knob SHAPEJIT_DUMP_TO.
    """

    opt_level: int = 2
    target_cpu: str = "host"
    deterministic: bool = False
    float32_precision: str = "auto"
    float32_conv_precision: str = "auto"
    background: bool = False
    max_regions: int = 16
    winograd: str = "auto"
    max_rel_error: float = 2e-6
    free_original: bool = False
    verify_each: bool = False
    dump_to: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.dump_to, os.PathLike):
            object.__setattr__(self, "dump_to", os.fspath(self.dump_to))
        _check_types(self)
        _check(0 <= self.opt_level <= 3, "opt_level", self.opt_level, "it must be from 0 to 3")
        _check(self.max_regions >= 1, "max_regions", self.max_regions, "it must be at least 1")
        for name in ("float32_precision", "float32_conv_precision"):
            value = getattr(self, name)
            _check(value in PRECISIONS, name, value, f"it must be one of {', '.join(PRECISIONS)}")
        _check(
            self.winograd in WINOGRAD,
            "winograd",
            self.winograd,
            f"it must be one of {', '.join(WINOGRAD)}",
        )
        _check(
            self.max_rel_error >= 0, "max_rel_error", self.max_rel_error, "it must be at least 0"
        )
        _check(self.target_cpu != "", "target_cpu", self.target_cpu, "it must name a CPU")
        _check(self.dump_to != "", "dump_to", self.dump_to, "it must name a folder")

    def override(self, **overrides: Any) -> CompileOptions:
        """A copy with some fields replaced; OptionError names an unknown one and its neighbours."""
        names = sorted(_defaults())
        for name in overrides:
            if name not in names:
                raise ErrorId.SJ_OPTION_001.error(
                    option=name, hint=close_match_hint(name, names), options=", ".join(names)
                )
        return dataclasses.replace(self, **overrides)

    def hash(self) -> str:
        """SHA-256, in hexadecimal, over the fields that change the code, sorted by name."""
        fields = dataclasses.asdict(self)
        for name in _WITHOUT_EFFECT_ON_CODE:
            del fields[name]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


_WITHOUT_EFFECT_ON_CODE = ("background", "free_original", "verify_each", "dump_to")


def close_match_hint(name: str, names: list[str]) -> str:
    """`` (did you mean "x"?)`` for the nearest of `names`, or nothing when none is near."""
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f' (did you mean "{matches[0]}"?)' if matches else ""


def _defaults() -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(CompileOptions)}


def _check(holds: bool, option: str, value: object, rule: str) -> None:
    if not holds:
        raise ErrorId.SJ_OPTION_002.error(
            option=option,
            value=repr(value),
            rule=rule,
            suggestion=f"for example {option}={_defaults()[option]!r}, the default",
        )


def _check_types(options: CompileOptions) -> None:
    for name, hint in get_type_hints(CompileOptions).items():
        value = getattr(options, name)
        # bool is a subclass of int, but opt_level=True is a mistake.
        fits = isinstance(value, hint) and not (hint is int and isinstance(value, bool))
        expected = getattr(hint, "__name__", str(hint)).replace("str | None", "str or None")
        _check(fits, name, value, f"it must be of type {expected}")
