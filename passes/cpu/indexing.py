# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Index arithmetic and loop structure of CPU kernels.

Emitters compute addresses as `Expr` over symbols and over *variables*: SSA index values (loop
counters, loaded indices) that are registered with the `Indexer` and then stand as dims of an
expression. `Indexer.value` turns an expression into operations, and puts every part of it in the
outermost loop level where all it depends on is known, once: so an offset that only moves with the
row is computed in the row loop, whoever asks for it and however deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from mlir import ir
from mlir.dialects import arith, scf

from shapejit.symbolic import Expr, Ranges
from shapejit.symbolic.expr import Atom, AtomKind, Term, as_expr

Size: TypeAlias = Expr | int
Value: TypeAlias = Any  # mlir.ir.Value; the bindings carry no types
LoopBody: TypeAlias = Callable[[Expr, list[Value]], Sequence[Value]]

# Size of a variable of which only `>= 0` is known.
_UNKNOWN_SIZE = Expr.const(1 << 62)


class _Level:
    """One nesting level: what was computed there, and where more can be added."""

    def __init__(self) -> None:
        self.cache: dict[object, Value] = {}
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
    """Values of index expressions in the function under construction.

    Args:
        symbols: index values of s0, s1, .. at the function's entry.
    """

    def __init__(self, symbols: Sequence[Value]) -> None:
        self._symbols = list(symbols)
        self._names: dict[Atom, Expr] = {}  # symbols that stand for divisions
        self._levels = [_Level()]
        self._variables: list[tuple[Value, int]] = []  # with the level they live in
        self._sizes: list[Expr] = []
        self._known_ranges: Ranges | None = None
        self._type = ir.IndexType.get()

    # Variables ------------------------------------------------------------------------------------

    def variable(self, value: Value, size: Size | None = None, level: int | None = None) -> Expr:
        """An SSA index value as an expression.

        Args:
            value: of index type.
            size: the value lies in [0, size); None if only `>= 0` is known.
            level: the loop level that defines the value; by default the innermost.
        """
        self._variables.append((value, len(self._levels) - 1 if level is None else level))
        self._sizes.append(_UNKNOWN_SIZE if size is None else as_expr(size))
        self._known_ranges = None
        return Expr.dim(len(self._variables) - 1)

    def named(self, expr: Size) -> Expr:
        """The expression with each division of symbols as a symbol of its own.

        Sizes of strided images are divisions of divisions. Nothing is known of such a symbol but
        that it is a size, so no proof looks into it, which could take minutes. To be called outside
        of loops.
        """
        return as_expr(expr).map_atoms(self._named_atom)

    def _named_atom(self, atom: Atom) -> Expr:
        expr = Expr.from_atom(atom)
        if atom.kind is not AtomKind.FLOORDIV or expr.dims():
            return expr
        if atom not in self._names:
            self._symbols.append(self.value(expr))
            self._names[atom] = Expr.symbol(len(self._symbols) - 1)
        return self._names[atom]

    def spelled_out(self, expr: Size) -> Expr:
        """The inverse of `named`: the expression over the symbols of the function."""
        symbols = {
            name.symbol_index: Expr.from_atom(atom)
            for atom, name in self._names.items()
            if name.symbol_index is not None
        }
        return as_expr(expr).substitute(symbols=symbols)

    @property
    def ranges(self) -> Ranges:
        """What is known of the symbols and variables."""
        if self._known_ranges is None:
            self._known_ranges = Ranges(None, self._sizes)
        return self._known_ranges

    def compute(
        self, build: Callable[..., Value], *operands: Size, size: Size | None = None
    ) -> Expr:
        """A new variable: ``build`` of the operands' values, placed as far out as they allow."""
        level = max((self._level(as_expr(operand)) for operand in operands), default=0)
        values = [self.value(operand) for operand in operands]
        with self._levels[level].insertion():
            return self.variable(build(*values), size, level)

    def minimum(self, lhs: Size, rhs: Size) -> Expr:
        """min(lhs, rhs) of non-negative expressions."""
        lhs, rhs = self.simplify(lhs), self.simplify(rhs)
        # Proofs from ranges would find little more, and take a quarter of the time of emission.
        if (difference := (rhs - lhs).constant) is not None:
            return lhs if difference >= 0 else rhs
        bound = next((e for e in (lhs, rhs) if e.constant is not None), lhs)
        return self.compute(arith.minui, lhs, rhs, size=bound + 1)

    def clamp(self, value: Size, limit: Size) -> Expr:
        """``value``, which may be negative, limited to [0, limit]."""
        zero = self.constant(0)
        return self.compute(
            lambda number, most: arith.minsi(arith.maxsi(number, zero), most),
            value,
            limit,
            size=as_expr(limit) + 1,
        )

    # Values ---------------------------------------------------------------------------------------

    def simplify(self, expr: Size) -> Expr:
        """The expression with the divisions that the known ranges make needless removed."""
        return self.ranges.simplify(as_expr(expr))

    def constant(self, value: int) -> Value:
        """A constant of index type, defined at the function's entry."""
        cache = self._levels[0].cache
        if value not in cache:
            with self._levels[0].insertion():
                cache[value] = arith.constant(self._type, value)
        return cache[value]

    def value(self, expr: Size) -> Value:
        """The value of an expression, as of index type."""
        return self._sum(self.simplify(expr).display_terms())

    def compare(self, predicate: str, lhs: Size, rhs: Size) -> Value:
        """``lhs predicate rhs`` as i1, signed; the predicate is eq, ne, slt, sle, sgt or sge."""
        codes = arith.CmpIPredicate
        return arith.cmpi(getattr(codes, predicate), self.value(lhs), self.value(rhs))

    def _level(self, expr: Expr) -> int:
        return max((self._variables[dim][1] for dim in expr.dims()), default=0)

    def _atom_level(self, atom: Atom) -> int:
        if atom.kind is AtomKind.DIM:
            return self._variables[atom.index][1]
        return max(map(self._level, atom.operands), default=0)

    def _term_level(self, term: Term) -> int:
        return max(map(self._atom_level, term[0]), default=0)

    def _memo(self, level: int, key: object, build: Callable[[], Value]) -> Value:
        """``build()`` computed once in the given level."""
        cache = self._levels[level].cache
        if key not in cache:
            with self._levels[level].insertion():
                cache[key] = build()
        return cache[key]

    def _sum(self, terms: tuple[Term, ...]) -> Value:
        """The sum of terms, those of outer levels first, so that only the rest moves inside."""
        if not terms or terms == (((), terms[0][1]),):
            return self.constant(terms[0][1] if terms else 0)
        level = max(map(self._term_level, terms))
        outer = tuple(term for term in terms if self._term_level(term) < level)
        inner = [term for term in terms if self._term_level(term) == level]
        # A positive term first, if there is one, from which the negative ones are subtracted.
        inner.sort(key=lambda term: term[1] < 0)

        def build() -> Value:
            total = self._sum(outer) if outer else None
            for atoms, coefficient in inner:
                if total is None:
                    total = self._product(atoms, coefficient)
                elif coefficient < 0:
                    total = arith.subi(total, self._product(atoms, -coefficient))
                else:
                    total = arith.addi(total, self._product(atoms, coefficient))
            return total

        return self._memo(level, terms, build)

    def _product(self, atoms: tuple[Atom, ...], coefficient: int) -> Value:
        if not atoms:
            return self.constant(coefficient)
        level = max(map(self._atom_level, atoms))
        outer = tuple(atom for atom in atoms if self._atom_level(atom) < level)
        inner = [atom for atom in atoms if self._atom_level(atom) == level]

        def build() -> Value:
            values = [self._atom(atom) for atom in inner]
            if outer or coefficient != 1:
                values.append(self._product(outer, coefficient))
            total = values[0]
            for value in values[1:]:
                total = arith.muli(total, value)
            return total

        return self._memo(level, (atoms, coefficient), build)

    def _atom(self, atom: Atom) -> Value:
        if atom.kind is AtomKind.SYMBOL:
            return self._symbols[atom.index]
        if atom.kind is AtomKind.DIM:
            return self._variables[atom.index][0]
        level = self._atom_level(atom)
        return self._memo(level, atom, lambda: self._division(atom))

    def _division(self, atom: Atom) -> Value:
        """floordiv or mod. A divisor that may be 0 (the size of an empty dim) is made 1, since the
        division can end up outside of the loop that an empty dim skips."""
        dividend, divisor = map(self.simplify, atom.operands)
        numerator, denominator = self.value(dividend), self._at_least_one(divisor)
        modulo = atom.kind is AtomKind.MOD
        if self.ranges.is_nonnegative(dividend):
            return (arith.remui if modulo else arith.divui)(numerator, denominator)
        quotient = arith.divsi(numerator, denominator)
        rest = arith.subi(numerator, arith.muli(quotient, denominator))
        negative = arith.cmpi(arith.CmpIPredicate.slt, rest, self.constant(0))
        if modulo:
            return arith.select(negative, arith.addi(rest, denominator), rest)
        return arith.select(negative, arith.subi(quotient, self.constant(1)), quotient)

    def _at_least_one(self, divisor: Expr) -> Value:
        if divisor.constant is not None:
            return self.constant(divisor.constant)
        key = ("at least one", divisor)
        return self._memo(
            self._level(divisor),
            key,
            lambda: arith.maxui(self.value(divisor), self.constant(1)),
        )

    # Structure ------------------------------------------------------------------------------------

    @contextmanager
    def _nested(self, operation: Any, block: Any) -> Iterator[None]:
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
        lower: Size,
        upper: Size,
        body: LoopBody,
        *,
        step: int = 1,
        init: Sequence[Value] = (),
    ) -> list[Value]:
        """``for i = lower to upper step step``: emits ``body(i, carried values)``.

        Returns:
            The carried values after the last iteration. A loop that is known to run exactly once
            is emitted as its body alone.
        """
        lower, upper = self.simplify(lower), self.simplify(upper)
        if lower.constant is not None and upper.constant is not None:
            if lower.constant >= upper.constant:
                return list(init)
            if lower.constant + step >= upper.constant:
                return list(body(lower, list(init)))
        bounds = (self.value(lower), self.value(upper), self.constant(step))
        operation = scf.ForOp(*bounds, list(init))
        with self._nested(operation, operation.body):
            variable = self.variable(operation.induction_variable, upper)
            scf.YieldOp(list(body(variable, list(operation.inner_iter_args))))
        return list(operation.results)

    def nest(self, sizes: Sequence[Size], body: Callable[[list[Expr]], None]) -> None:
        """Loops over all indices below ``sizes``, the last one innermost."""

        def level(indices: list[Expr]) -> None:
            if len(indices) == len(sizes):
                body(indices)
                return

            def inner(index: Expr, _: list[Value]) -> Sequence[Value]:
                level([*indices, index])
                return ()

            self.loop(0, sizes[len(indices)], inner)

        level([])

    def when(self, condition: Value, body: Callable[[], None]) -> None:
        """``if condition``: emits ``body()`` in it."""
        operation = scf.IfOp(condition)
        with self._nested(operation, operation.then_block):
            body()
            scf.YieldOp([])
