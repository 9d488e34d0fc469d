# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The signature of a program: checks a call and finds its symbols' values, fast.

When a program is made, the dims of its inputs become a plan over one flat list of sizes: symbols
read off directly, symbols solved from ``a*s + b``, and sizes to verify. A call runs the plan, which
only says yes or no; when it says no, `shapejit.diagnosis` looks again and words the error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import DLDeviceType

from shapejit.artefacts import (
    ConstantInput,
    InputSpec,
    Parameter,
    Scalar,
    SizeInput,
    SymbolSpec,
    TensorInput,
)
from shapejit.errors import ErrorId, ShapeJitError, quote
from shapejit.native_calls import Sizes, has_memory
from shapejit.symbolic import Expr

UNBOUNDED = sys.maxsize


@dataclass(frozen=True)
class Place:
    """Where a size comes from: dim `dim` of the flattened input `input`; dim 0 for an int."""

    input: int
    dim: int


@dataclass(frozen=True)
class Solution:
    """How a symbol is found: from the size at `place`, which is ``scale * symbol + offset``."""

    symbol: int
    place: Place
    scale: int = 1
    offset: int = 0


class Signature:
    """What a program may be called with.

    Args:
        parameters: the arguments of a call, positional ones first.
        inputs: the leaves of all parameters, in order.
        symbols: the module's symbols, by id.
        device: where all input tensors must be.

    Raises:
        ShapeError: a symbol cannot be worked out from the sizes of the inputs (SJ-SHAPE-009).
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        inputs: Sequence[InputSpec],
        symbols: Sequence[SymbolSpec],
        device: torch.device,
    ) -> None:
        self.parameters = tuple(parameters)
        self.inputs = tuple(inputs)
        self.symbols = tuple(symbols)
        self.device = device
        self.positional = tuple(p for p in parameters if not p.keyword)
        self.tensors = tuple(
            (index, spec) for index, spec in enumerate(inputs) if isinstance(spec, TensorInput)
        )
        # GPUs are told apart by a number, which is quicker to ask for.
        is_known = device.type == "cuda" and device.index is not None
        self._device_number = device.index if is_known else -1
        self._all_leaves = all(parameter.tree is None for parameter in parameters)
        self._all_positional = len(self.positional) == len(self.parameters)
        self._ints = [index for index, spec in enumerate(inputs) if isinstance(spec, SizeInput)]
        self._constants = tuple(
            (index, spec.value)
            for index, spec in enumerate(inputs)
            if isinstance(spec, ConstantInput)
        )
        self._only_tensors = not self._ints and not self._constants
        self._compile_plan()
        self._native_sizes = _native_sizes(self.tensors, device)

    @cached_property
    def names(self) -> str:
        """The parameters as users write them: ``(ids, mask, *, past)``."""
        names = [parameter.name for parameter in self.positional]
        keywords = [parameter.name for parameter in self.parameters if parameter.keyword]
        return f"({', '.join([*names, '*', *keywords] if keywords else names)})"

    @cached_property
    def sizes(self) -> tuple[tuple[Place, Expr], ...]:
        """Every size that a call passes, as compiled: dims of all tensors, then ints."""
        dims = [
            (Place(index, dim), size)
            for index, spec in self.tensors
            for dim, size in enumerate(spec.dims)
        ]
        ints = [
            (Place(index, 0), spec.size)
            for index, spec in enumerate(self.inputs)
            if isinstance(spec, SizeInput)
        ]
        return (*dims, *ints)

    def path(self, place: Place) -> str:
        """The argument that a size belongs to, as the user writes it."""
        return self.inputs[place.input].path

    def root(self, symbol: int) -> int:
        """The symbol that `symbol` was merged into, or itself."""
        while (merged := self.symbols[symbol].equal_to) is not None:
            symbol = merged
        return symbol

    def rooted(self, size: Expr) -> Expr:
        """`size` with merged symbols replaced by those they were merged into."""
        merged = {s: Expr.symbol(self.root(s)) for s in size.symbols() if self.root(s) != s}
        return size.substitute(symbols=merged) if merged else size

    # Arguments to leaves.

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The leaves of a call's arguments, in the order of `inputs`.

        Raises:
            ArgumentError: wrong number, names or structure of arguments.
        """
        values = args
        if kwargs or not self._all_positional or len(args) != len(self.parameters):
            values = self._arrange(args, kwargs)
        if self._all_leaves:
            return values
        leaves: list[Any] = []
        for parameter, value in zip(self.parameters, values, strict=True):
            if parameter.tree is None:
                leaves.append(value)
                continue
            try:
                leaves += parameter.tree.flatten_up_to(value)
            except ValueError:
                from shapejit.diagnosis import structure_error

                raise structure_error(parameter, value) from None
        return leaves

    def _arrange(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """One value a parameter; positional parameters may be passed by name."""
        rest = self.parameters[len(args) :]
        fits = len(args) <= len(self.positional) and len(kwargs) == len(rest)
        if not fits or any(parameter.name not in kwargs for parameter in rest):
            from shapejit.diagnosis import arity_error

            raise arity_error(self, args, kwargs)
        return args + tuple(kwargs[parameter.name] for parameter in rest)

    # Leaves to values of symbols.

    def bind(self, leaves: Sequence[Any]) -> list[int]:
        """Check the leaves of a call and return the value of every symbol, 0 for derived ones.

        Raises:
            ShapeJitError: a leaf is not what the program was compiled for; names which, and why.
        """
        return self.solve(self.sizes_of(leaves), leaves)

    def sizes_of(self, leaves: Sequence[Any]) -> tuple[int, ...]:
        """Check all of a call's leaves but their sizes, and return those in the order of `sizes`.

        Raises:
            ShapeJitError: as for `bind`.
        """
        sizes = None if self._native_sizes is None else self._native_sizes.read(leaves)
        if sizes is None:
            sizes = self._tensor_sizes(leaves)
        if sizes is None:
            raise self._diagnose(leaves)
        if self._only_tensors:
            return sizes
        for index in self._ints:
            if type(leaves[index]) is not int:
                raise self._diagnose(leaves)
        for index, value in self._constants:
            if not same_constant(leaves[index], value):
                raise self._diagnose(leaves)
        return (*sizes, *(leaves[index] for index in self._ints))

    def solve(self, sizes: tuple[int, ...], leaves: Sequence[Any]) -> list[int]:
        """Check the sizes of a call and return the value of every symbol, 0 for derived ones.

        Raises:
            ShapeJitError: as for `bind`.
        """
        symbols = self._solve(sizes)
        if symbols is None:
            raise self._diagnose(leaves)
        return symbols

    def _tensor_sizes(self, leaves: Sequence[Any]) -> tuple[int, ...] | None:
        """The sizes of all tensors in a row; None if a leaf is no tensor as it has to be."""
        sizes: list[int] = []
        device, number, strided = self.device, self._device_number, torch.strided
        try:
            for index, dtype, rank in self._tensor_checks:
                leaf = leaves[index]
                shape = leaf.shape
                if (
                    leaf.dtype is not dtype
                    or len(shape) != rank
                    or (leaf.device != device if number < 0 else leaf.get_device() != number)
                    or leaf.layout is not strided
                    or not isinstance(leaf, Tensor)
                    or not has_memory(leaf)
                ):
                    return None
                sizes += shape
        except (AttributeError, RuntimeError, TypeError):
            # It is something else, or a nested tensor, which calls itself strided.
            return None
        return tuple(sizes)

    def with_derived(self, symbols: Sequence[int]) -> list[int]:
        """The values that `bind` gave, with those of derived symbols filled in."""
        values = list(symbols)
        for symbol, spec in enumerate(self.symbols):
            if spec.derived is not None:
                values[symbol] = spec.derived.evaluate(values)
        return values

    def check_grad(self, leaves: Sequence[Any]) -> None:
        """Call under grad mode: GradError (SJ-GRAD-001) if an input requires grad."""
        for index, spec in self.tensors:
            if leaves[index].requires_grad:
                raise ErrorId.SJ_GRAD_001.error(what=f"argument {quote(spec.path)}")

    def _diagnose(self, leaves: Sequence[Any]) -> ShapeJitError:
        from shapejit.diagnosis import diagnose

        return diagnose(self, leaves)

    # The plan.

    def _compile_plan(self) -> None:
        places = [(place, self.rooted(size)) for place, size in self.sizes]
        position_of = {place: position for position, (place, _) in enumerate(places)}
        self.solutions = self._find_solutions(places)
        self._tensor_checks = [
            (index, getattr(torch, spec.dtype), len(spec.dims)) for index, spec in self.tensors
        ]
        self._solve = _solver(self, position_of, [size for _, size in places])

    def _find_solutions(self, places: Sequence[tuple[Place, Expr]]) -> tuple[Solution, ...]:
        """One solution for each symbol that is neither merged nor derived; plain dims first."""
        solutions: dict[int, Solution] = {}
        for place, size in places:
            symbol = size.symbol_index
            if symbol is not None and symbol not in solutions:
                solutions[symbol] = Solution(symbol, place)
        for place, size in places:
            affine = solve_affine(size)
            if affine is not None and affine[0] not in solutions:
                solutions[affine[0]] = Solution(affine[0], place, affine[1], affine[2])
        for symbol, spec in enumerate(self.symbols):
            if spec.derived is None and spec.equal_to is None and symbol not in solutions:
                raise self._undetermined(symbol)
        return tuple(solutions.values())

    def _undetermined(self, symbol: int) -> ShapeJitError:
        from shapejit.diagnosis import named

        uses = [
            f"{named(size, self.symbols)} of argument {quote(self.path(place))} (dim {place.dim})"
            for place, size in self.sizes
            if symbol in self.rooted(size).symbols()
        ]
        return ErrorId.SJ_SHAPE_009.error(
            dim=self.symbols[symbol].name, uses=", ".join(uses) or "no input at all"
        )


def _solver(
    signature: Signature, position_of: Mapping[Place, int], sizes: Sequence[Expr]
) -> Callable[[tuple[int, ...]], list[int] | None]:
    """A function from all sizes of a call in a row to the values of the symbols, 0 for derived
    ones; None if a rule is broken. It is made for the signature, as every call goes through it.

    Args:
        signature: with its solutions.
        position_of: where in the row each size of the signature is.
        sizes: what they are over symbols, in their order.
    """
    lines = [f"[{', '.join(f'z{position}' for position in range(len(sizes)))}] = sizes"]
    rules: list[str] = []
    solved = set()
    for solution in signature.solutions:
        position = position_of[solution.place]
        solved.add(position)
        if (solution.scale, solution.offset) == (1, 0):
            lines.append(f"s{solution.symbol} = z{position}")
            continue
        lines.append(
            f"s{solution.symbol}, r{position} = divmod(z{position} - {solution.offset}, "
            f"{solution.scale})"
        )
        rules.append(f"not r{position}")
    for symbol, spec in enumerate(signature.symbols):
        if spec.derived is not None:
            lines.append(f"s{symbol} = 0")
            continue
        if (root := signature.root(symbol)) != symbol:
            lines.append(f"s{symbol} = s{root}")
        rules.append(f"s{symbol} >= {spec.min}")
        rules += [] if spec.max is None else [f"s{symbol} <= {spec.max}"]
        rules += [] if spec.divisor == 1 else [f"s{symbol} % {spec.divisor} == 0"]
    lines.append(f"symbols = [{', '.join(f's{i}' for i in range(len(signature.symbols)))}]")
    verified: list[Callable[[list[int]], int]] = []
    for position, size in enumerate(sizes):
        if position in solved:
            continue
        if size.constant is not None:
            rules.append(f"z{position} == {size.constant}")
        elif (other := size.symbol_index) is not None:
            rules.append(f"z{position} == s{other}")
        else:
            rules.append(f"z{position} == verified[{len(verified)}](symbols)")
            verified.append(size.evaluate)
    lines.append(f"return symbols if {' and '.join(rules) or True} else None")
    namespace: dict[str, Any] = {"verified": verified}
    exec("def solve(sizes):\n " + "\n ".join(lines), namespace)
    solve: Callable[[tuple[int, ...]], list[int] | None] = namespace["solve"]
    return solve


_DEVICE_TYPES = {"cpu": DLDeviceType.kDLCPU, "cuda": DLDeviceType.kDLCUDA}


def _native_sizes(tensors: Sequence[tuple[int, TensorInput]], device: torch.device) -> Sizes | None:
    """What reads the sizes of tensors natively; None if it cannot tell such tensors from others."""
    number = 0 if device.type == "cpu" else device.index
    if device.type not in _DEVICE_TYPES or number is None:
        return None
    expected = [
        (index, torch.empty(0, dtype=getattr(torch, spec.dtype)), len(spec.dims))
        for index, spec in tensors
    ]
    try:
        return Sizes(expected, _DEVICE_TYPES[device.type], number)
    except (BufferError, RuntimeError):  # DLPack has no such element type
        return None


def solve_affine(size: Expr) -> tuple[int, int, int] | None:
    """(symbol, scale, offset) if `size` is scale * symbol + offset with scale >= 1, else None."""
    symbols = size.symbols()
    if len(symbols) != 1:
        return None
    (symbol,) = symbols
    offset = size.evaluate(symbols={symbol: 0})
    scale = size.evaluate(symbols={symbol: 1}) - offset
    if scale < 1 or size != Expr.symbol(symbol) * scale + offset:
        return None
    return symbol, scale, offset


def same_constant(value: Any, expected: Scalar) -> bool:
    """Whether a call's leaf is the compiled constant: same type and value, NaN equal to NaN."""
    if type(value) is not type(expected):
        return False
    return bool(value == expected) or (value != value and expected != expected)
