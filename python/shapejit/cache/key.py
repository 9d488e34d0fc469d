# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The key of a cache entry: a readable record of all that determines a piece of native code.

The record is written as canonical JSON and hashed, so the digest of an entry can be computed again
from the record that is stored with it. A record never holds pointers, streams or the concrete
values of free sizes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

Scalar: TypeAlias = int | bool | str
Items: TypeAlias = tuple[tuple[str, Scalar], ...]

#: Separates these digests from all other uses of SHA-256, and from those of other record layouts.
_DOMAIN = b"shapejit cache key 1\0"


#: The kind of a key of a whole program.
PROGRAM = "program"

#: The kind of a key of a choice among kernels, which is no code.
CHOICE = "choice"


class Key(Protocol):
    """What the cache needs of a key."""

    @property
    def kind(self) -> str:
        """What the code does; `PROGRAM` for all the code of a program."""

    @property
    def digest(self) -> str:
        """SHA-256 of the record in hexadecimal."""

    def record(self) -> dict[str, Any]:
        """The record as JSON values."""


@dataclass(frozen=True)
class TargetKey:
    """The machine that the code is for, as the code generator is told.

    Attributes:
        triple: LLVM's target triple.
        cpu: LLVM's name of the CPU or GPU.
        features: features turned on (``+avx2``) and off (``-sse4a``), as `split_features` gives.
        vector_bytes: bytes of the widest vector register that the code uses.
    """

    triple: str
    cpu: str
    features: tuple[str, ...]
    vector_bytes: int

    def __post_init__(self) -> None:
        _check(self, ("triple", "cpu"), str)
        _check(self, ("vector_bytes",), int)
        _check_strings(self, ("features",))


@dataclass(frozen=True)
class VariantKey:
    """Key of one kernel binary, of a host program, or of a whole program.

    Fields that the text of the IR implies are there for the reader of a record; two keys are equal
    only if all fields are.

    Attributes:
        kind: what the code does: ``gemm``, ``attention``, ``loop``, ``host``; ``program`` for all
            the code of a program.
        dtypes: element types of the operands, then of the results.
        layouts: index map of every operand and result, or their shapes.
        math_mode: ``ieee``, ``tf32``, ...
        epilogue: digest of what is applied to the results before they are stored; may be empty.
        text: digest of the IR without names and locations; of a program, of the exported program's
            text.
        schedule: tile sizes and the like by name; what is baked in of the device belongs here.
        alignment: bytes to which the code takes all buffers to be aligned; 1 for no assumption.
        parameters: ``by-value`` or ``block``: how the code receives sizes and pointers.
        index_bits: width of the integers that addresses are computed in.
        target: the machine.
        opt_level: LLVM's optimisation level, 0 to 3.
        toolchain: versions by name of all that takes part in code generation.
        passes: digest of the passes and of the code generator.
        digest: SHA-256 of the record in hexadecimal.
    """

    kind: str
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    math_mode: str
    epilogue: str
    text: str
    schedule: Items
    alignment: int
    parameters: str
    index_bits: int
    target: TargetKey
    opt_level: int
    toolchain: Items
    passes: str
    digest: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check(self, ("kind", "math_mode", "epilogue", "text", "parameters", "passes"), str)
        _check(self, ("alignment", "index_bits", "opt_level"), int)
        _check(self, ("target",), TargetKey)
        _check_strings(self, ("dtypes", "layouts"))
        object.__setattr__(self, "schedule", _sorted_items("schedule", self.schedule))
        object.__setattr__(self, "toolchain", _sorted_items("toolchain", self.toolchain))
        object.__setattr__(self, "digest", record_digest(self.record()))

    def record(self) -> dict[str, Any]:
        """The record as JSON values."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        fields["target"] = dataclasses.asdict(self.target)
        fields["schedule"] = dict(self.schedule)
        fields["toolchain"] = dict(self.toolchain)
        return fields


def record_digest(record: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, of a record given as JSON values.

    Raises:
        ValueError: a string in it cannot be encoded as UTF-8 (UnicodeEncodeError), or a number is
            not finite.
    """
    return hashlib.sha256(_DOMAIN + canonical_json(record).encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """The one spelling of JSON values: sorted names, no spaces, nothing escaped without need.

    Escaping all but ASCII would give one text to a character outside the Unicode's first plane and
    to the two surrogates that spell it.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def text_digest(text: str) -> str:
    """SHA-256 of a text in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def split_features(features: str) -> tuple[str, ...]:
    """LLVM's feature string ``+avx2,+fma,-sse4a`` in a canonical order.

    LLVM applies features from left to right, and turning one off also turns off those that need
    it. Hence only neighbours of the same sign may change places.
    """
    names = [name for name in features.split(",") if name]
    runs = itertools.groupby(names, key=lambda name: name[0])
    return tuple(itertools.chain.from_iterable(sorted(set(run)) for _, run in runs))


def sorted_items(values: Mapping[str, Scalar]) -> Items:
    """A mapping in the form that fields of keys have."""
    return tuple(sorted(values.items()))


# Checks. A key with a list where a tuple belongs, or True where 1 does, would be another key.


def _check(key: object, names: Iterable[str], expected: type) -> None:
    for name in names:
        value = getattr(key, name)
        if type(value) is not expected:
            raise TypeError(f"{name} of a key must be of type {expected.__name__}, got {value!r}")


def _check_strings(key: object, names: Iterable[str]) -> None:
    _check(key, names, tuple)
    for name in names:
        if any(type(value) is not str for value in getattr(key, name)):
            raise TypeError(f"{name} of a key must hold strings, got {getattr(key, name)!r}")


def _sorted_items(name: str, items: Items) -> Items:
    if any(type(key) is not str or type(value) not in (int, bool, str) for key, value in items):
        raise TypeError(f"{name} of a key must map names to int, bool or str, got {items!r}")
    if len({key for key, _ in items}) != len(items):
        raise ValueError(f"{name} of a key names something twice: {items!r}")
    return tuple(sorted(items, key=lambda item: item[0]))
