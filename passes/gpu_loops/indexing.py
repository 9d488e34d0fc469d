# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Index arithmetic and loop structure of kernels of loops.

Emitters compute addresses as `Expr` over the kernel's symbols and over *variables*: SSA values
(loop counters, a thread's number, loaded indices) that are registered with the `Indexer` and then
stand as dims of an expression. `Indexer.value` turns an expression into operations, and puts every
part of it in the outermost loop level where all it depends on is known, once: so an offset that
only moves with the row is computed in the row loop, whoever asks for it and however deep. Divisions
of symbols are computed by the host.

Indices have 32 bits unless a tensor may be too large for that: divisions of 64 bits take ten times
as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from mlir import ir
from mlir.dialects import arith, scf

from shapejit.passes.nvgpu.builder import (
    Num,
    Type,
    Value,
    add,
    compare,
    integer,
    mul,
    repeat_while,
    select,
    sub,
    udiv,
    umax,
    urem,
    value,
)
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.symbolic import Expr, Ranges, delinearize
from shapejit.symbolic.expr import Atom, AtomKind, Term, as_expr

Size: TypeAlias = Expr | int
LoopBody: TypeAlias = Callable[[Expr, list[Value]], Sequence[Value]]

# Size of a variable of which only `>= 0` is known.
_UNKNOWN_SIZE = Expr.const(1 << 62)
# Symbols from here on stand for the quotients of `Indexer.multiples`.
_FIRST_QUOTIENT = 1 << 20


class _Level:
    """One nesting level: what was computed there, and where more can be added."""

    def __init__(self) -> None:
        self.cache: dict[object, Any] = {}
        self.inner: Any = None  # the operation in this level that holds the level below

    @contextmanager
    def insertion(self) -> Iterator[None]:
        """Inserts before the level below, or at the current point if this is the innermost."""
        if self.inner is None:
            yield
            return
        with ir.InsertionPoint(self.inner):
            yield


class Indexer:
    """Values of index expressions in the kernel under construction.

    Args:
        function: gives the symbols.
        wide: whether indices have 64 bits.
    """

    def __init__(self, function: KernelFunction, wide: bool) -> None:
        self._function = function
        self.type: Type = integer(64 if wide else 32)
        self._bytes = 8 if wide else 4
        self._levels = [_Level()]
        self._variables: list[tuple[Value, int]] = []  # with the level they live in
        self._sizes: list[Expr] = []
        self._known_ranges: Ranges | None = None
        self._multiples: dict[int, Expr] = {}
        self._computed: set[int] = set()

    # Variables ------------------------------------------------------------------------------------

    def variable(
        self,
        number: Value,
        size: Size | None = None,
        level: int | None = None,
        computed: bool = False,
    ) -> Expr:
        """An SSA value of the index type as an expression.

        Args:
            number: the value.
            size: it lies in [0, size); None if only `>= 0` is known.
            level: the loop level that defines it; by default the innermost.
            computed: whether a body computed it.
        """
        dim = len(self._variables)
        self._variables.append((number, len(self._levels) - 1 if level is None else level))
        self._sizes.append(_UNKNOWN_SIZE if size is None else self._replaced(size))
        if self._known_ranges is not None and not self._known_ranges.add_dim(dim, self._sizes[dim]):
            self._known_ranges = None
        if computed:
            self._computed.add(dim)
        return Expr.dim(dim)

    def is_computed(self, variable: int) -> bool:
        """Whether a variable, by number, was computed by a body."""
        return variable in self._computed

    @property
    def ranges(self) -> Ranges:
        """What is known of the variables."""
        if self._known_ranges is None:
            self._known_ranges = Ranges(None, self._sizes)
        return self._known_ranges

    @contextmanager
    def multiples(self, divisors: Mapping[int, int]) -> Iterator[None]:
        """Within, symbols are multiples of these numbers: it was asked before."""
        quotients = {
            symbol: Expr.symbol(_FIRST_QUOTIENT + symbol) * divisor
            for symbol, divisor in divisors.items()
        }
        saved, self._multiples = self._multiples, quotients
        try:
            yield
        finally:
            self._multiples = saved

    def _replaced(self, expr: Size) -> Expr:
        return as_expr(expr).substitute(symbols=self._multiples)

    def _host(self, expr: Expr) -> Expr:
        """An expression over the kernel's own symbols."""
        quotients = {
            _FIRST_QUOTIENT + symbol: Expr.symbol(symbol) // _divisor(multiple)
            for symbol, multiple in self._multiples.items()
        }
        return expr.substitute(symbols=quotients)

    # Values ---------------------------------------------------------------------------------------

    def simplify(self, expr: Size) -> Expr:
        """The expression with the divisions that the known ranges make needless removed."""
        return self.ranges.simplify(self._replaced(expr))

    def value(self, expr: Size) -> Num:
        """The value of an expression; a Python int if it is constant."""
        return self._sum(self.simplify(expr).display_terms())

    def ssa(self, expr: Size) -> Value:
        """The value of an expression as an SSA value of the index type."""
        return value(self.value(expr), self.type)

    def level_of(self, expr: Expr) -> int:
        """The outermost level at which a simplified expression is known."""
        return max((self._variables[dim][1] for dim in expr.dims()), default=0)

    @property
    def depth(self) -> int:
        """The number of the innermost level."""
        return len(self._levels) - 1

    def at_level(self, level: int, key: object, build: Callable[[], Any]) -> Any:
        """``build()`` emitted once in the given level."""
        cache = self._levels[level].cache
        if key not in cache:
            with self._levels[level].insertion():
                cache[key] = build()
        return cache[key]

    def _atom_level(self, atom: Atom) -> int:
        if atom.kind is AtomKind.DIM:
            return self._variables[atom.index][1]
        return max(map(self.level_of, atom.operands), default=0)

    def _term_level(self, term: Term) -> int:
        return max(map(self._atom_level, term[0]), default=0)

    def _sum(self, terms: tuple[Term, ...]) -> Num:
        """The sum of terms, those of outer levels first, so that only the rest moves inside."""
        if not terms or terms == (((), terms[0][1]),):
            return terms[0][1] if terms else 0
        level = max(map(self._term_level, terms))
        outer = tuple(term for term in terms if self._term_level(term) < level)
        inner = [term for term in terms if self._term_level(term) == level]
        # A positive term first, if there is one, from which the negative ones are subtracted.
        inner.sort(key=lambda term: term[1] < 0)

        def build() -> Num:
            total: Num = self._sum(outer) if outer else None
            for atoms, coefficient in inner:
                if total is None:
                    total = self._product(atoms, coefficient)
                else:
                    step = sub if coefficient < 0 else add
                    total = step(total, self._product(atoms, abs(coefficient)))
            return total

        return self.at_level(level, ("sum", terms), build)

    def _product(self, atoms: tuple[Atom, ...], coefficient: int) -> Num:
        if not atoms:
            return coefficient
        level = max(map(self._atom_level, atoms))
        outer = tuple(atom for atom in atoms if self._atom_level(atom) < level)
        inner = [atom for atom in atoms if self._atom_level(atom) == level]

        def build() -> Num:
            total = self._atom(inner[0])
            for atom in inner[1:]:
                total = mul(total, self._atom(atom))
            return mul(total, self._product(outer, coefficient))

        return self.at_level(level, ("product", atoms, coefficient), build)

    def _atom(self, atom: Atom) -> Num:
        if atom.kind is AtomKind.DIM:
            return self._variables[atom.index][0]
        expr = Expr.from_atom(atom) if atom.kind is not AtomKind.MOD else _modulo(atom)
        if not expr.dims():
            return self._function.size(self._host(expr), self._bytes)
        return self.at_level(self._atom_level(atom), atom, lambda: self._division(atom))

    def _division(self, atom: Atom) -> Num:
        """floordiv or mod. A divisor that may be 0 (the size of an empty dim) is made 1, since the
        division can end up outside of the loop that an empty dim skips."""
        dividend, divisor = map(self.simplify, atom.operands)
        numerator, denominator = self.value(dividend), self._at_least_one(divisor)
        modulo = atom.kind is AtomKind.MOD
        if self.ranges.is_nonnegative(dividend):
            return (urem if modulo else udiv)(numerator, denominator)
        numerator, denominator = value(numerator, self.type), value(denominator, self.type)
        quotient = arith.divsi(numerator, denominator)
        rest = sub(numerator, mul(quotient, denominator))
        negative = compare("slt", rest, 0)
        if modulo:
            return select(negative, add(rest, denominator), rest)
        return select(negative, sub(quotient, 1), quotient)

    def _at_least_one(self, divisor: Expr) -> Num:
        if divisor.constant is not None:
            return divisor.constant
        key = ("at least one", divisor)
        return self.at_level(self.level_of(divisor), key, lambda: umax(self.value(divisor), 1))

    # Structure ------------------------------------------------------------------------------------

    @contextmanager
    def nested(self, operation: Any, block: Any) -> Iterator[None]:
        """Emits into a block of an operation at the current point, as a level of its own."""
        self._levels[-1].inner = operation
        self._levels.append(_Level())
        try:
            with ir.InsertionPoint(block):
                yield
        finally:
            self._levels.pop()
            self._levels[-1].inner = None

    def loop(
        self,
        lower: Num,
        upper: Num,
        body: LoopBody,
        *,
        size: Size,
        step: Num = 1,
        init: Sequence[Value] = (),
    ) -> list[Value]:
        """``for i = lower to upper step step``: emits ``body(i, carried values)``.

        Args:
            lower, upper, step: of the index type.
            body: gets i as an expression.
            size: i lies below it.
            init: carried values at the start.

        Returns:
            The carried values after the last iteration.
        """
        bounds = (value(number, self.type) for number in (lower, upper, step))
        operation = scf.ForOp(*bounds, list(init))
        with self.nested(operation, operation.body):
            variable = self.variable(operation.induction_variable, size)
            scf.YieldOp(list(body(variable, list(operation.inner_iter_args))))
        return list(operation.results)

    def repeat_while(
        self,
        init: Sequence[Value],
        condition: Callable[[list[Value]], Value],
        body: Callable[[list[Value]], Sequence[Value]],
    ) -> None:
        """``while condition(carried)``: emits ``body(carried)``, which gives the next ones.

        What the condition needs has to be there before.
        """
        with (
            repeat_while(init, condition) as made,
            self.nested(made.operation, made.operation.after.blocks[0]),
        ):
            made.next = list(body(made.carried))

    def branch(self, condition: Value, then: Callable[[], None], otherwise: Any = None) -> None:
        """``if condition``: emits ``then()`` in it, and ``otherwise()`` in the other side."""
        operation = scf.IfOp(condition, has_else=otherwise is not None)
        sides = [(operation.then_block, then)]
        if otherwise is not None:
            sides.append((operation.else_block, otherwise))
        for block, emit in sides:
            with self.nested(operation, block):
                emit()
                scf.YieldOp([])

    def spread(self, linear: Expr, sizes: Sequence[Size]) -> tuple[Expr, ...]:
        """The indices below ``sizes`` of a linear index."""
        return tuple(map(self.simplify, delinearize(linear, [self._replaced(s) for s in sizes])))


def _divisor(multiple: Expr) -> int:
    [(_, coefficient)] = multiple.terms
    return coefficient


def _modulo(atom: Atom) -> Expr:
    dividend, divisor = atom.operands
    return dividend % divisor
