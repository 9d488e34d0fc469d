# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How inputs are written on the command line.

================  ==============================================================================
``--input``       ``ids:int64:4x128`` or ``ids:int64:batchxseq`` or ``ids:int64``
``--dim``         ``batch=1:64`` (min:max), ``batch=1:8:64`` (min:opt:max), ``batch`` (any size)
``--shapes``      ``ids:4x128,mask:4x128``, when compiling also ``ids:batchxseq,mask:batchxseq``
``--minShapes``   ``ids:1x3,mask:1x3``, with ``--maxShapes`` and, if wanted, ``--optShapes``
================  ==============================================================================

``scalar`` is the shape without dims. Nothing here needs torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shapejit.errors import ErrorId, ShapeJitError, join_names, quote
from shapejit.options import close_match_hint

DTYPES = (
    "bfloat16",
    "bool",
    "float16",
    "float32",
    "float64",
    "int16",
    "int32",
    "int64",
    "int8",
    "uint8",
)

_SCALAR = "scalar"
_NAME = r"[A-Za-z_]\w*"

_EXAMPLES = {
    "--input": "--input ids:int64:4x128",
    "--dim": "--dim batch=1:8:64",
    "--shapes": "--shapes ids:4x128,mask:4x128",
    "--minShapes": "--minShapes ids:1x3,mask:1x3",
    "--optShapes": "--optShapes ids:8x128,mask:8x128",
    "--maxShapes": "--maxShapes ids:64x512,mask:64x512",
}


@dataclass(frozen=True)
class NamedDim:
    """A dim that `--dim` declares: the same wherever its name occurs.

    Attributes:
        min, max: the range, both included; no `max` means unbounded.
        opt: the size expected most often.
    """

    name: str
    min: int = 0
    opt: int | None = None
    max: int | None = None


@dataclass(frozen=True)
class RangedDim:
    """A dim without a name, from trtexec's options: it is one of its own."""

    min: int
    opt: int | None
    max: int


DimSpec: TypeAlias = int | NamedDim | RangedDim


@dataclass(frozen=True)
class InputSpec:
    """What the options say of one input; None is what they do not say.

    Attributes:
        option, text: the option that names it, for messages.
    """

    name: str
    option: str
    text: str
    dtype: str | None = None
    dims: tuple[DimSpec, ...] | None = None


@dataclass(frozen=True)
class ShapeOptions:
    """The options as given; the empty ones are not."""

    input: tuple[str, ...] = ()
    dim: tuple[str, ...] = ()
    shapes: str | None = None
    min_shapes: str | None = None
    opt_shapes: str | None = None
    max_shapes: str | None = None

    def given(self) -> list[str]:
        """The names of the options that are given."""
        values = {
            "--input": self.input,
            "--dim": self.dim,
            "--shapes": self.shapes,
            "--minShapes": self.min_shapes,
            "--optShapes": self.opt_shapes,
            "--maxShapes": self.max_shapes,
        }
        return [option for option, value in values.items() if value]


@dataclass(frozen=True)
class Sizes:
    """Sizes to run with.

    Attributes:
        text: the option's text, for messages.
        shapes: by input.
        dims: by name of a dim.
    """

    text: str
    shapes: Mapping[str, tuple[int, ...]]
    dims: Mapping[str, int]


def malformed(option: str, text: str, rule: str) -> ShapeJitError:
    """The error for a text that breaks a rule of its option (SJ-CLI-001)."""
    return ErrorId.SJ_CLI_001.error(option=option, text=text, rule=rule, example=_EXAMPLES[option])


def read_inputs(options: ShapeOptions) -> dict[str, InputSpec]:
    """What the options say of each input that they name.

    Raises:
        CommandLineError: an option is malformed, or two of them contradict (SJ-CLI-001).
    """
    dims = _read_dims(options.dim)
    specs: dict[str, InputSpec] = {}
    for text in options.input:
        spec = _read_input(text, dims)
        if spec.name in specs:
            raise malformed("--input", text, f"input {quote(spec.name)} is given twice")
        specs[spec.name] = spec
    shapes: dict[str, tuple[DimSpec, ...]] = {}
    if options.shapes is not None:
        shapes = {
            name: _read_dims_of(text, "--shapes", options.shapes, dims)
            for name, text in _items(options.shapes, "--shapes")
        }
        _add_shapes(specs, shapes, "--shapes", options.shapes)
    _add_shapes(specs, _read_ranges(options), "--minShapes", options.min_shapes or "")
    _check_used(options.dim, specs)
    return specs


def read_sizes(text: str) -> Sizes:
    """Sizes from ``ids:4x128,mask:4x128`` or ``batch=4,seq=128``, or both mixed.

    Raises:
        CommandLineError: it is malformed (SJ-CLI-001).
    """
    shapes: dict[str, tuple[int, ...]] = {}
    dims: dict[str, int] = {}
    for item in text.split(","):
        if match := re.fullmatch(rf"\s*({_NAME})=(\d+)\s*", item):
            if match[1] in dims:
                raise malformed("--shapes", text, f"dim {quote(match[1])} is given twice")
            dims[match[1]] = int(match[2])
            continue
        ((name, shape),) = _items(item, "--shapes", whole=text)
        if name in shapes:
            raise malformed("--shapes", text, f"input {quote(name)} is given twice")
        shapes[name] = _read_numbers(shape, "--shapes", text)
    return Sizes(text, shapes, dims)


# Single options.


def _read_dims(texts: Sequence[str]) -> dict[str, NamedDim]:
    dims: dict[str, NamedDim] = {}
    for text in texts:
        match = re.fullmatch(rf"({_NAME})(?:=(\d+)(?::(\d+))?:(\d+))?", text)
        if match is None:
            raise malformed("--dim", text, "it must be NAME=MIN:MAX, NAME=MIN:OPT:MAX or NAME")
        name, *bounds = match.groups()
        low, opt, high = (None if bound is None else int(bound) for bound in bounds)
        dim = NamedDim(name, low or 0, opt, high)
        _check_order(dim, "--dim", text)
        if name in dims:
            raise malformed("--dim", text, f"dim {quote(name)} is given twice")
        dims[name] = dim
    return dims


def _check_order(dim: NamedDim | RangedDim, option: str, text: str) -> None:
    bounds = [bound for bound in (dim.min, dim.opt, dim.max) if bound is not None]
    if bounds != sorted(bounds):
        listed = ":".join(map(str, bounds))
        raise malformed(option, text, f"the sizes {listed} must not decrease from min to max")


def _read_input(text: str, dims: Mapping[str, NamedDim]) -> InputSpec:
    name, *rest = (part.strip() for part in text.split(":"))
    if not name or len(rest) not in (1, 2):
        raise malformed("--input", text, "it must be NAME:DTYPE:SHAPE, or NAME:DTYPE")
    dtype = rest[0]
    if dtype not in DTYPES:
        hint = close_match_hint(dtype, list(DTYPES))
        rule = f"{quote(dtype)} is not a dtype{hint}; the dtypes are {', '.join(DTYPES)}"
        raise malformed("--input", text, rule)
    sizes = _read_dims_of(rest[1], "--input", text, dims) if len(rest) == 2 else None
    return InputSpec(name, "--input", text, dtype, sizes)


def _read_ranges(options: ShapeOptions) -> dict[str, tuple[DimSpec, ...]]:
    """The dims of ``--minShapes``, ``--optShapes`` and ``--maxShapes`` together."""
    texts = {
        "--minShapes": options.min_shapes,
        "--optShapes": options.opt_shapes,
        "--maxShapes": options.max_shapes,
    }
    given = {option: text for option, text in texts.items() if text is not None}
    if not given:
        return {}
    option, text = next(iter(given.items()))
    if "--minShapes" not in given or "--maxShapes" not in given:
        raise malformed(option, text, "--minShapes and --maxShapes must be given together")
    bounds: dict[str, dict[str, tuple[int, ...]]] = {
        option: {name: _read_numbers(shape, option, text) for name, shape in _items(text, option)}
        for option, text in given.items()
    }
    least = bounds["--minShapes"]
    for option, shapes in bounds.items():
        _check_same_inputs(least, shapes, option, given[option])
    dims: dict[str, tuple[DimSpec, ...]] = {}
    for name, low in least.items():
        opt = bounds["--optShapes"][name] if "--optShapes" in bounds else (None,) * len(low)
        dims[name] = tuple(
            a if a == c and b in (None, a) else _ranged(a, b, c, given)
            for a, b, c in zip(low, opt, bounds["--maxShapes"][name], strict=True)
        )
    return dims


def _ranged(low: int, opt: int | None, high: int, given: Mapping[str, str]) -> RangedDim:
    dim = RangedDim(low, opt, high)
    _check_order(dim, "--maxShapes", given["--maxShapes"])
    return dim


def _check_same_inputs(
    least: Mapping[str, tuple[int, ...]],
    shapes: Mapping[str, tuple[int, ...]],
    option: str,
    text: str,
) -> None:
    if shapes.keys() != least.keys():
        rule = f"it must name the inputs of --minShapes: {join_names(list(least))}"
        raise malformed(option, text, rule)
    for name, shape in shapes.items():
        if len(shape) != len(least[name]):
            rule = f"input {quote(name)} has {len(least[name])} dims in --minShapes"
            raise malformed(option, text, rule)


def _add_shapes(
    specs: dict[str, InputSpec],
    shapes: Mapping[str, tuple[DimSpec, ...]],
    option: str,
    text: str,
) -> None:
    for name, dims in shapes.items():
        known = specs.get(name)
        if known is not None and known.dims is not None:
            rule = f"the shape of input {quote(name)} is given by {known.option} already"
            raise malformed(option, text, rule)
        dtype = None if known is None else known.dtype
        specs[name] = InputSpec(name, option, text, dtype, dims)


def _check_used(texts: Sequence[str], specs: Mapping[str, InputSpec]) -> None:
    used = {
        dim.name for spec in specs.values() for dim in spec.dims or () if isinstance(dim, NamedDim)
    }
    for text in texts:
        name = text.partition("=")[0]
        if name not in used:
            raise malformed("--dim", text, f"no shape of --input or --shapes mentions {name}")


# Shapes.


def _items(text: str, option: str, whole: str | None = None) -> list[tuple[str, str]]:
    """Input and shape from each of ``ids:1x3,mask:1x3``."""
    found: dict[str, str] = {}
    for item in text.split(","):
        name, colon, shape = (part.strip() for part in item.rpartition(":"))
        if not name or not colon or not shape:
            rule = f"{quote(item.strip())} must be INPUT:SHAPE, with commas between inputs"
            raise malformed(option, whole or text, rule)
        if name in found:
            raise malformed(option, whole or text, f"input {quote(name)} is given twice")
        found[name] = shape
    return list(found.items())


def _read_numbers(shape: str, option: str, text: str) -> tuple[int, ...]:
    if shape == _SCALAR:
        return ()
    if not re.fullmatch(r"\d+(x\d+)*", shape):
        rule = f"the shape {quote(shape)} must be whole numbers with x between them, or {_SCALAR}"
        raise malformed(option, text, rule)
    return tuple(map(int, shape.split("x")))


def _read_dims_of(
    shape: str, option: str, text: str, dims: Mapping[str, NamedDim]
) -> tuple[DimSpec, ...]:
    """The dims of a shape that may hold names: ``batchx128``."""
    if shape == _SCALAR:
        return ()
    readings = list(_readings(shape, sorted(dims)))
    if not readings:
        known = f"dims that --dim declares ({', '.join(dims)})" if dims else "names given by --dim"
        rule = f"the shape {quote(shape)} must be numbers or {known}, with x between them"
        raise malformed(option, text, rule)
    if len(readings) > 1:
        two = " or ".join(" x ".join(reading) for reading in readings[:2])
        rule = f"the shape {quote(shape)} can be read as {two}; rename a dim"
        raise malformed(option, text, rule)
    return tuple(int(part) if part.isdigit() else dims[part] for part in readings[0])


def _readings(shape: str, names: Sequence[str]) -> Iterator[list[str]]:
    """Every way to read a shape; names may hold an x themselves."""
    number = re.match(r"\d+", shape)
    starts = [number[0]] if number else [name for name in names if shape.startswith(name)]
    for part in starts:
        rest = shape[len(part) :]
        if not rest:
            yield [part]
        elif rest.startswith("x"):
            yield from ([part, *others] for others in _readings(rest[1:], names))
