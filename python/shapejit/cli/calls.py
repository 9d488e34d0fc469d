# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Inputs to call a program with: random tensors of given sizes, or tensors from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shapejit.artefacts import ConstantInput, SizeInput, SymbolSpec, TensorInput
from shapejit.cli.flags import InputFlags
from shapejit.cli.random_values import ANY_MODEL, IntRange, random_tensor
from shapejit.cli.specs import Sizes
from shapejit.errors import ErrorId, join_names
from shapejit.options import close_match_hint
from shapejit.program import Program
from shapejit.signature import Signature
from shapejit.symbolic import Expr

_NO_SIZES = Sizes("", {}, {})


@dataclass(frozen=True)
class Call:
    """Arguments of a call, and the shapes of the tensors among them by input."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    @property
    def text(self) -> str:
        """The shapes as the command line writes them: ``ids:4x128,mask:4x128``."""
        return ",".join(
            f"{name}:{'x'.join(map(str, shape)) or 'scalar'}" for name, shape in self.shapes.items()
        )


def random_call(
    program: Program,
    sizes: Sizes | None,
    flags: InputFlags,
    int_ranges: Mapping[str, IntRange],
) -> Call:
    """A call with random inputs.

    Args:
        sizes: what is asked for; the rest follows from it, or is the expected size of its dim, or
            the least one.
        flags: seed, and range of integers.
        int_ranges: range of integers by input, where `flags` states none.

    Raises:
        CommandLineError: `sizes` names an input or a dim that the program lacks (SJ-CLI-004).
    """
    signature = program.signature
    wanted = sizes or _NO_SIZES
    _check_names(wanted, signature)
    symbols = _symbol_values(signature, wanted)
    generator = torch.Generator().manual_seed(flags.seed)
    leaves: list[Any] = []
    for spec in signature.inputs:
        match spec:
            case TensorInput(path, dtype, dims):
                given = wanted.shapes.get(path)
                shape = _evaluated(dims, symbols) if given is None else given
                known = int_ranges.get(path, ANY_MODEL)
                leaves.append(random_tensor(shape, dtype, generator, flags.int_range or known))
            case SizeInput(path, size):
                given = wanted.shapes.get(path)
                leaves.append(given[0] if given else size.evaluate(symbols=symbols))
            case ConstantInput(_, value):
                leaves.append(value)
    return _call(signature, leaves)


def loaded_call(program: Program, path: Path) -> Call:
    """A call with the tensors of a safetensors file, one for each input, under its name.

    Raises:
        CommandLineError: the file cannot be read, or has other names (SJ-CLI-007).
    """
    import safetensors.torch
    from safetensors import SafetensorError

    try:
        tensors = safetensors.torch.load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise ErrorId.SJ_CLI_007.error(
            path=path,
            reason=f"cannot be read: {str(error).rstrip('.')}",
            remedy="Pass a safetensors file with one tensor for each input, under its name",
        ) from error
    signature = program.signature
    _check_tensors(tensors, [spec.path for _, spec in signature.tensors], path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    symbols = _symbol_values(signature, Sizes("", shapes, {}))
    leaves: list[Any] = []
    for spec in signature.inputs:
        match spec:
            case TensorInput(name):
                leaves.append(tensors[name])
            case SizeInput(_, size):
                leaves.append(size.evaluate(symbols=symbols))
            case ConstantInput(_, value):
                leaves.append(value)
    return _call(signature, leaves)


def _check_tensors(tensors: Mapping[str, Tensor], needed: list[str], path: Path) -> None:
    missing = [name for name in needed if name not in tensors]
    extra = [name for name in tensors if name not in needed]
    if missing or extra:
        reason = f"lacks {join_names(missing)}" if missing else f"holds {join_names(extra)} besides"
        raise ErrorId.SJ_CLI_007.error(
            path=path,
            reason=reason,
            remedy=f"Save one tensor for each input, under its name: {join_names(needed)}",
        )


def _call(signature: Signature, leaves: Sequence[Any]) -> Call:
    """The leaves in the structure of the program's arguments."""
    rest = list(leaves)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in signature.parameters:
        count = 1 if parameter.tree is None else parameter.tree.num_leaves
        taken, rest = rest[:count], rest[count:]
        value = taken[0] if parameter.tree is None else parameter.tree.unflatten(taken)
        if parameter.keyword:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    shapes = {spec.path: tuple(leaves[index].shape) for index, spec in signature.tensors}
    return Call(tuple(args), kwargs, shapes)


# Sizes.


def _check_names(sizes: Sizes, signature: Signature) -> None:
    paths = [spec.path for spec in signature.inputs if not isinstance(spec, ConstantInput)]
    dims = [spec.name for spec in signature.symbols if _is_free(spec)]
    for kind, names, known in (("inputs", sizes.shapes, paths), ("dims", sizes.dims, dims)):
        for name in names:
            if name not in known:
                raise ErrorId.SJ_CLI_004.error(
                    option="--shapes",
                    text=sizes.text,
                    name=name,
                    kind=kind,
                    known=join_names(known) or "all static",
                    hint=close_match_hint(name, known),
                )


def _is_free(spec: SymbolSpec) -> bool:
    return spec.derived is None


def _symbol_values(signature: Signature, sizes: Sizes) -> list[int]:
    """A value for every symbol that agrees with `sizes` as far as they agree with each other.

    Where they do not, the call that follows says what is wrong.
    """
    found: dict[int, int] = {}
    for symbol, spec in enumerate(signature.symbols):
        if spec.name in sizes.dims:
            found.setdefault(signature.root(symbol), sizes.dims[spec.name])
    for dims, shape in _given_dims(signature, sizes):
        for size, value in zip(dims, shape, strict=False):  # the call reports another rank
            solved = _solve(signature.rooted(size), value)
            if solved is not None:
                found.setdefault(*solved)
    return [
        found.get(signature.root(symbol), _usual_size(signature.symbols[signature.root(symbol)]))
        for symbol in range(len(signature.symbols))
    ]


def _given_dims(
    signature: Signature, sizes: Sizes
) -> list[tuple[tuple[Expr, ...], tuple[int, ...]]]:
    found = []
    for spec in signature.inputs:
        if spec.path in sizes.shapes:
            match spec:
                case TensorInput(path, _, dims):
                    found.append((dims, sizes.shapes[path]))
                case SizeInput(path, size):
                    found.append(((size,), sizes.shapes[path]))
    return found


def _solve(size: Expr, value: int) -> tuple[int, int] | None:
    """Symbol and its value from ``scale * symbol + offset == value``, if `size` is of that form."""
    symbols = size.symbols()
    if len(symbols) != 1:
        return None
    (symbol,) = symbols
    offset, at_one, at_two = (
        size.substitute(symbols={symbol: Expr.const(n)}).constant for n in (0, 1, 2)
    )
    if offset is None or at_one is None or at_two is None:
        return None
    scale = at_one - offset
    if scale == 0 or at_two - at_one != scale or (value - offset) % scale:
        return None
    return symbol, (value - offset) // scale


def _usual_size(spec: SymbolSpec) -> int:
    """The size expected most, or else the least one that is not empty."""
    if spec.opt is not None:
        return spec.opt
    least = max(spec.min, 1)
    rounded = -(-least // spec.divisor) * spec.divisor
    return rounded if spec.max is None else min(rounded, spec.max)


def _evaluated(dims: Sequence[Expr], symbols: Sequence[int]) -> tuple[int, ...]:
    return tuple(size.evaluate(symbols=symbols) for size in dims)
