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
        self._all_leaves = all(parameter.tree is None for parameter in parameters)
        self._all_positional = len(self.positional) == len(self.parameters)
        self._ints = [index for index, spec in enumerate(inputs) if isinstance(spec, SizeInput)]
        self._constants = tuple(
            (index, spec.value)
            for index, spec in enumerate(inputs)
            if isinstance(spec, ConstantInput)
        )
        self._compile_plan()

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
        return self.solve(self.measure(leaves), leaves)

    def measure(self, leaves: Sequence[Any]) -> list[int]:
        """Check all of the leaves of a call but their sizes, and return these in a row.

        Raises:
            ShapeJitError: as for `bind`.
        """
        sizes = self._tensor_sizes(leaves)
        if sizes is None:
            raise self._diagnose(leaves)
        for index in self._ints:
            if type(leaves[index]) is not int:
                raise self._diagnose(leaves)
            sizes.append(leaves[index])
        for index, value in self._constants:
            if not same_constant(leaves[index], value):
                raise self._diagnose(leaves)
        return sizes

    def _tensor_sizes(self, leaves: Sequence[Any]) -> list[int] | None:
        """The sizes of all tensors in a row; None if a leaf is no tensor as it has to be."""
        sizes: list[int] = []
        device, strided = self.device, torch.strided
        try:
            for index, dtype, rank in self._tensor_checks:
                leaf = leaves[index]
                shape = leaf.shape
                if (
                    leaf.dtype is not dtype
                    or len(shape) != rank
                    or leaf.device != device
                    or leaf.layout is not strided
                    or not isinstance(leaf, Tensor)
                ):
                    return None
                sizes += shape
        except (AttributeError, RuntimeError, TypeError):
            # It is something else, or a nested tensor, which calls itself strided.
            return None
        return sizes

    def solve(self, sizes: Sequence[int], leaves: Sequence[Any]) -> list[int]:
        """The value of every symbol, 0 for derived ones, from what `measure` gave for the leaves.

        Raises:
            ShapeJitError: as for `bind`.
        """
        symbols = self._solve(sizes)
        if symbols is None:
            raise self._diagnose(leaves)
        return symbols

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

    def _solve(self, sizes: Sequence[int]) -> list[int] | None:
        """Values of the symbols from all sizes of the inputs in a row; None if a rule is broken."""
        symbols = [0] * len(self.symbols)
        for symbol, position in self._direct:
            symbols[symbol] = sizes[position]
        for symbol, position, scale, offset in self._affine:
            symbols[symbol], remainder = divmod(sizes[position] - offset, scale)
            if remainder:
                return None
        for symbol, root in self._merged:
            symbols[symbol] = symbols[root]
        for symbol, low, high, divisor in self._ranges:
            value = symbols[symbol]
            if not low <= value <= high or (divisor != 1 and value % divisor):
                return None
        return symbols if self._agree(sizes, symbols) else None

    def _agree(self, sizes: Sequence[int], symbols: list[int]) -> bool:
        """Whether the sizes that determine no symbol are as the symbols' values say."""
        for position, value in self._static:
            if sizes[position] != value:
                return False
        for position, symbol in self._repeated:
            if sizes[position] != symbols[symbol]:
                return False
        return all(sizes[position] == evaluate(symbols) for position, evaluate in self._verified)

    def _diagnose(self, leaves: Sequence[Any]) -> ShapeJitError:
        from shapejit.diagnosis import diagnose

        return diagnose(self, leaves)

    # The plan.

    def _compile_plan(self) -> None:
        places = [(place, self.rooted(size)) for place, size in self.sizes]
        position_of = {place: position for position, (place, _) in enumerate(places)}
        self.solutions = self._find_solutions(places)
        used = {solution.place for solution in self.solutions}
        self._tensor_checks = [
            (index, getattr(torch, spec.dtype), len(spec.dims)) for index, spec in self.tensors
        ]
        self._direct: list[tuple[int, int]] = []  # symbol, position
        self._affine: list[tuple[int, int, int, int]] = []  # symbol, position, scale, offset
        for solution in self.solutions:
            position = position_of[solution.place]
            if (solution.scale, solution.offset) == (1, 0):
                self._direct.append((solution.symbol, position))
            else:
                self._affine.append((solution.symbol, position, solution.scale, solution.offset))
        self._merged = [
            (symbol, self.root(symbol))
            for symbol in range(len(self.symbols))
            if self.root(symbol) != symbol
        ]
        self._ranges = [
            (symbol, spec.min, UNBOUNDED if spec.max is None else spec.max, spec.divisor)
            for symbol, spec in enumerate(self.symbols)
            if spec.derived is None
        ]
        self._static: list[tuple[int, int]] = []  # position, size
        self._repeated: list[tuple[int, int]] = []  # position, symbol
        self._verified: list[tuple[int, Callable[[list[int]], int]]] = []
        for position, (place, size) in enumerate(places):
            if place not in used:
                self._plan_check(position, size)

    def _plan_check(self, position: int, size: Expr) -> None:
        if size.constant is not None:
            self._static.append((position, size.constant))
        elif (symbol := size.symbol_index) is not None:
            self._repeated.append((position, symbol))
        else:
            self._verified.append((position, size.evaluate))

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
