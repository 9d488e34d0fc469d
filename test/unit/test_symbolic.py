# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Properties of symbolic sizes, against Python's integers, numpy's reshape and MLIR's maps."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import threading

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from shapejit.symbolic import (
    Expr,
    Ranges,
    delinearize,
    invert_map,
    is_reshape,
    linearize,
    map_exprs,
    parse,
    product,
    reshape_map,
    to_map,
)
from shapejit.symbolic.refute import Counterexamples

S = [Expr.symbol(i) for i in range(4)]
D = [Expr.dim(i) for i in range(4)]

leaves = st.one_of(
    st.integers(-9, 9).map(Expr.const),
    st.sampled_from(S[:3]),
    st.sampled_from(D[:3]),
)
divisors = st.one_of(
    st.integers(1, 8).map(Expr.const),
    st.sampled_from(S[:3]),
    st.builds(lambda c, s: c * s, st.integers(1, 4), st.sampled_from(S[:3])),
    st.just(S[0] * S[1]),
    st.just(S[1] + 2),
)


def _compound(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(Expr.__add__, children, children),
        st.builds(Expr.__sub__, children, children),
        st.builds(Expr.__mul__, children, st.one_of(divisors, st.integers(-4, 4).map(Expr.const))),
        st.builds(Expr.__floordiv__, children, divisors),
        st.builds(Expr.__mod__, children, divisors),
    )


exprs = st.recursive(leaves, _compound, max_leaves=7)
polynomials = st.recursive(
    leaves,
    lambda e: st.one_of(st.builds(Expr.__add__, e, e), st.builds(Expr.__mul__, e, e)),
    max_leaves=7,
)
symbol_values = st.lists(st.integers(1, 40), min_size=4, max_size=4)
dim_values = st.lists(st.integers(0, 60), min_size=4, max_size=4)


# The algebra --------------------------------------------------------------------------------------


@given(exprs, exprs, exprs)
def test_ring_laws_hold_by_identity(a: Expr, b: Expr, c: Expr) -> None:
    assert a + b is b + a
    assert (a + b) + c is a + (b + c)
    assert a * b is b * a
    assert a * (b + c) is a * b + a * c
    assert (a * b) * c is a * (b * c)
    assert a - a is Expr.const(0)
    assert a + 0 is a
    assert a * 1 is a
    assert 0 - (0 - a) is a
    assert -a is 0 - a


@given(exprs, exprs, symbol_values, dim_values)
def test_evaluation_is_a_homomorphism(
    a: Expr, b: Expr, symbols: list[int], dims: list[int]
) -> None:
    x, y = a.evaluate(symbols, dims), b.evaluate(symbols, dims)
    assert (a + b).evaluate(symbols, dims) == x + y
    assert (a - b).evaluate(symbols, dims) == x - y
    assert (a * b).evaluate(symbols, dims) == x * y


@given(exprs, divisors, symbol_values, dim_values)
def test_division_is_pythons(a: Expr, n: Expr, symbols: list[int], dims: list[int]) -> None:
    x, y = a.evaluate(symbols, dims), n.evaluate(symbols, dims)
    assert (a // n).evaluate(symbols, dims) == x // y
    assert (a % n).evaluate(symbols, dims) == x % y
    assert a.ceildiv(n).evaluate(symbols, dims) == -(-x // y)


@given(exprs, st.integers(-7, -1), symbol_values, dim_values)
def test_a_negative_constant_divides_as_in_python(
    a: Expr, n: int, symbols: list[int], dims: list[int]
) -> None:
    x = a.evaluate(symbols, dims)
    assert (a // n).evaluate(symbols, dims) == x // n
    assert (a % n).evaluate(symbols, dims) == x % n


@given(exprs, divisors)
def test_quotient_and_remainder_make_the_whole(a: Expr, n: Expr) -> None:
    assert n * (a // n) + a % n is a


@given(exprs, exprs, divisors)
def test_a_multiple_leaves_a_quotient_whole(q: Expr, r: Expr, n: Expr) -> None:
    assert (n * q + r) // n is q + r // n
    assert (n * q + r) % n is r % n
    assert (n * q).exact_div(n) is q


@given(polynomials, st.integers(1, 12), st.integers(1, 12), st.integers(-20, 20))
def test_nested_divisions_merge(x: Expr, a: int, b: int, c: int) -> None:
    assert (x // a + c) // b is (x + a * c) // (a * b)
    assert x % (a * b) // a is x // a % b
    assert x % (a * b) % a is x % a


@given(exprs, st.integers(1, 6), st.integers(1, 6))
def test_common_factors_cancel(x: Expr, a: int, b: int) -> None:
    assert (a * x) // (a * b) is x // b
    assert (S[3] * x) // (S[3] * b) is x // b


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((S[0] + S[1]) * 2, S[0] * 2 + S[1] * 2),
        ((S[0] + S[1]) * (S[0] - S[1]), S[0] * S[0] - S[1] * S[1]),
        ((S[0] - 1) // 2 + 1, (S[0] + 1) // 2),
        (((S[0] + 1) // 2 + 1) // 2, (S[0] + 3) // 4),
        ((S[0] * S[1] * 384) // (S[1] * 12), S[0] * 32),
        ((D[0] * S[1] + D[1]) // S[1], D[0] + D[1] // S[1]),
        ((2 * D[0] + 1) // 4, D[0] // 2),
        (7 * D[0] % 4, 3 * D[0] % 4),
        ((S[0] * S[0] - 1) // (S[0] + 1), S[0] - 1),
        (32 * (D[0] // 32) + D[0] % 32, D[0]),
        (S[0].ceildiv(4), (S[0] + 3) // 4),
    ],
)
def test_equal_expressions_are_one_object(left: Expr, right: Expr) -> None:
    assert left is right


def test_constants_are_plain_ints() -> None:
    assert Expr.const(7) == 7
    assert hash(Expr.const(7)) == hash(7)
    assert S[0] != 7
    assert (S[0] - S[0]).constant == 0
    assert S[0].constant is None
    assert 7 - S[0] is -(S[0] - 7)
    assert 7 // Expr.const(2) == 3
    assert 7 % Expr.const(4) == 3


def test_division_by_zero_names_the_dividend() -> None:
    with pytest.raises(ZeroDivisionError, match=r"division of s0 \+ 1 by zero"):
        (S[0] + 1) // 0
    assert S[0].exact_div(0) is None


def test_queries() -> None:
    e = S[0] * D[1] + 3 * D[2] + D[3] // S[2]
    assert e.symbols() == {0, 2}
    assert e.dims() == {1, 2, 3}
    assert e.stride(0) == 0
    assert e.stride(1) is S[0]
    assert e.stride(2) == 3
    assert e.stride(3) is None
    assert (D[1] * D[1]).stride(1) is None
    assert (D[1] * (D[1] // 2)).stride(1) is None
    assert (D[1].dim_index, S[2].symbol_index, S[2].dim_index) == (1, 2, None)
    assert (2 * D[1]).dim_index is None
    assert (S[0] * S[1]).symbol_index is None


@given(exprs, exprs, exprs, symbol_values, dim_values)
def test_substitution_then_evaluation(
    e: Expr, s0: Expr, d1: Expr, symbols: list[int], dims: list[int]
) -> None:
    new_symbol = s0.evaluate(symbols, dims)
    assume(new_symbol > 0)  # it may be a divisor
    result = e.substitute(symbols={0: s0}, dims={1: d1})
    replaced_symbols = [new_symbol, *symbols[1:]]
    replaced_dims = [dims[0], d1.evaluate(symbols, dims), *dims[2:]]
    assert result.evaluate(symbols, dims) == e.evaluate(replaced_symbols, replaced_dims)


def test_substitution_is_simultaneous() -> None:
    assert (S[0] - S[1]).substitute(symbols={0: S[1], 1: S[0]}) is S[1] - S[0]


@given(exprs, exprs)
def test_exact_division_inverts_multiplication(a: Expr, b: Expr) -> None:
    assume(b != 0)
    assert (a * b).exact_div(b) is a


def test_exact_division_refuses_the_rest() -> None:
    assert (S[0] + 1).exact_div(S[0]) is None
    assert (2 * S[0]).exact_div(4) is None
    assert S[0].exact_div(S[1]) is None


def test_product() -> None:
    assert product([]) == 1
    assert product([S[0], 2, S[1]]) is 2 * S[0] * S[1]


def test_order_does_not_depend_on_creation() -> None:
    forms = [S[0] * S[1], D[0] // 3, S[1] // 2, D[1] % 5, S[0], Expr.const(4), D[0] * S[2]]
    texts = set()
    for _ in range(20):
        random.shuffle(forms)
        texts.add(str(sum(forms, start=Expr.const(0))))
    assert texts == {"s0*s1 + s2*d0 + s0 + s1//2 + d0//3 + d1 % 5 + 4"}


def test_interning_is_thread_safe() -> None:
    results: list[list[Expr]] = []
    barrier = threading.Barrier(4)

    def build() -> None:
        barrier.wait()
        base = Expr.symbol(77)
        results.append([(base + i) * (base - i) // (base + 3 * i + 1) for i in range(200)])

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in results[1:]:
        assert all(a is b for a, b in zip(results[0], other, strict=True))


# Text and MLIR ------------------------------------------------------------------------------------


@given(exprs)
def test_text_round_trip(e: Expr) -> None:
    assert parse(str(e)) is e


@given(exprs, symbol_values, dim_values)
def test_text_is_python(e: Expr, symbols: list[int], dims: list[int]) -> None:
    names = {f"s{i}": v for i, v in enumerate(symbols)} | {f"d{i}": v for i, v in enumerate(dims)}
    assert eval(str(e), {}, names) == e.evaluate(symbols, dims)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (S[0] * S[1] + 4, "s0*s1 + 4"),
        (S[0] - 2, "s0 - 2"),
        (-S[0], "-s0"),
        (-(D[0] // 4), "-(d0//4)"),
        (D[0] % 32, "d0 % 32"),
        (D[0] // 32 % 12, "(d0//32) % 12"),
        (D[0] // S[1] % S[0], "(d0//s1) % s0"),
        (2 * (D[0] % 2), "2*(d0 % 2)"),
        (100 * (D[0] // 4 % 8) + D[0] % 4, "d0 % 4 + 100*((d0//4) % 8)"),
        ((D[0] + 3) % 4 - 1, "(d0 + 3) % 4 - 1"),
        (Expr.const(0), "0"),
    ],
)
def test_text(expr: Expr, text: str) -> None:
    assert str(expr) == text
    assert repr(expr) == f"Expr({text!r})"


def test_parse_reads_mlir() -> None:
    assert parse("(d0 floordiv 32) * 4 + d0 mod 8 - -s1") is D[0] // 32 * 4 + D[0] % 8 + S[1]
    assert parse("s0 ceildiv 4") is S[0].ceildiv(4)


@pytest.mark.parametrize("text", ["", "s0 +", "s0 s1", "(s0", "x + 1", "s0 & 1", "3s0", ")", "* 2"])
def test_parse_errors_quote_the_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected .* at offset") as error:
        parse(text)
    assert repr(text) in str(error.value)


@given(exprs)
def test_pickle_and_copy_keep_identity(e: Expr) -> None:
    assert pickle.loads(pickle.dumps(e)) is e
    assert copy.deepcopy(e) is e


@settings(deadline=None)  # the first example imports MLIR
@given(exprs, symbol_values, dim_values)
def test_affine_round_trip(e: Expr, symbols: list[int], dims: list[int]) -> None:
    ir = pytest.importorskip("mlir.ir")
    with ir.Context() as context:
        try:
            affine = e.to_affine(context)
        except ValueError:
            reject()  # a product of dims
        assert Expr.from_affine(affine) is e
        mapped = ir.AffineMap.get(4, 4, [affine])
        assert map_exprs(ir.Attribute.parse(f"affine_map<{mapped}>").value) == (e,)


def test_maps_keep_symbol_numbers() -> None:
    ir = pytest.importorskip("mlir.ir")
    with ir.Context() as context:
        affine_map = to_map(2, [D[1] + S[2], D[0]], context)
        assert str(affine_map) == "(d0, d1)[s0, s1, s2] -> (d1 + s2, d0)"
        assert map_exprs(affine_map) == (D[1] + S[2], D[0])
        assert str(to_map(1, [], context)) == "(d0) -> ()"
        with pytest.raises(ValueError, match="both factors depend on a dim"):
            (D[0] * D[1]).to_affine(context)
        with pytest.raises(ValueError, match="the divisor depends on a dim"):
            (S[0] // D[1]).to_affine(context)


def test_build_into_python_ints() -> None:
    class Ints:
        def constant(self, value: int) -> int:
            return value

        def symbol(self, index: int) -> int:
            return (5, 7)[index]

        def dim(self, index: int) -> int:
            return (11, 13)[index]

        def add(self, lhs: int, rhs: int) -> int:
            return lhs + rhs

        def mul(self, lhs: int, rhs: int) -> int:
            return lhs * rhs

        def floordiv(self, lhs: int, rhs: int) -> int:
            return lhs // rhs

        def mod(self, lhs: int, rhs: int) -> int:
            return lhs % rhs

    e = (S[0] * D[0] + D[1]) // S[1] - 3 * (D[1] % S[0]) - 2
    assert e.build(Ints()) == e.evaluate((5, 7), (11, 13))
    assert Expr.const(0).build(Ints()) == 0


# Ranges -------------------------------------------------------------------------------------------

symbol_ranges = st.lists(
    st.tuples(st.integers(1, 6), st.one_of(st.none(), st.integers(0, 6))), min_size=4, max_size=4
).map(lambda rs: {i: (lo, None if w is None else lo + w) for i, (lo, w) in enumerate(rs)})
dim_sizes = st.lists(
    st.one_of(st.integers(1, 40).map(Expr.const), divisors), min_size=4, max_size=4
)


@settings(deadline=None)  # proofs over random ranges may search long
@given(exprs, symbol_ranges, dim_sizes, st.data())
def test_ranges_are_sound(
    e: Expr, ranges: dict[int, tuple[int, int | None]], sizes: list[Expr], data: st.DataObject
) -> None:
    simplified = e.simplify(ranges, sizes)
    low, high = e.bounds(ranges, sizes)
    nonnegative = e.is_nonnegative(ranges, sizes)
    for _ in range(5):
        symbols = [
            data.draw(st.integers(lo, 60 if hi is None else hi)) for lo, hi in ranges.values()
        ]
        dims = [data.draw(st.integers(0, size.evaluate(symbols) - 1)) for size in sizes]
        value = e.evaluate(symbols, dims)
        assert simplified.evaluate(symbols, dims) == value
        assert low is None or low <= value
        assert high is None or value <= high
        assert not nonnegative or value >= 0


@settings(deadline=None)
@given(st.lists(exprs, min_size=1, max_size=3), symbol_ranges, dim_sizes, st.integers(0, 3))
def test_dims_that_are_added_later_are_as_good(
    asked: list[Expr], ranges: dict[int, tuple[int, int | None]], sizes: list[Expr], known: int
) -> None:
    grown = Ranges(ranges, sizes[:known])
    absent = dict.fromkeys(range(known, 4), 0)
    for e in asked:
        grown.is_nonnegative(e.substitute(dims=absent))
    for dim in range(known, 4):
        assert grown.add_dim(dim, sizes[dim])
    whole = Ranges(ranges, sizes)
    for e in asked:
        assert grown.simplify(e) == whole.simplify(e)
        assert grown.bounds(e) == whole.bounds(e)
        assert grown.is_nonnegative(e) == whole.is_nonnegative(e)


def test_a_dim_that_says_more_of_a_symbol_is_not_added() -> None:
    """With it the symbol is at least 1, which is news for what was asked before."""
    ranges = Ranges(None, [8])
    assert not ranges.is_nonnegative(S[0] - 1)
    assert not ranges.add_dim(1, S[0])
    assert Ranges(None, [8, S[0]]).is_nonnegative(S[0] - 1)
    assert Ranges({0: (1, None)}).add_dim(0, S[0])
    assert ranges.add_dim(1, 4)
    assert ranges.is_nonnegative(3 - D[1])


@pytest.mark.parametrize(
    ("expr", "sizes", "simple"),
    [
        ((32 * D[0] + D[1]) // 32, [12, 32], D[0]),
        ((32 * D[0] + D[1]) % 32, [12, 32], D[1]),
        ((32 * D[0] + D[1]) // 384, [S[0], 32], D[0] // 12),
        ((32 * D[0] + D[1]) % 384, [12, 32], 32 * D[0] + D[1]),
        ((32 * D[0] + D[1]) % 384, [S[0], 32], 32 * (D[0] % 12) + D[1]),
        ((S[1] * D[0] + D[1]) // S[1], [S[0], S[1]], D[0]),
        ((S[1] * D[0] + D[1]) % S[1], [S[0], S[1]], D[1]),
        ((S[1] * D[0] + D[1]) // (S[0] * S[1]), [S[0], S[1]], Expr.const(0)),
        ((D[0] + 32) // 64, [32], Expr.const(0)),
        ((D[0] // S[1]) // S[0], [S[0] * S[1]], Expr.const(0)),
        ((D[0] - 1) // 4, [1], Expr.const(-1)),
        (S[0] // 65, [], Expr.const(0)),
        (D[0] // 32, [64], D[0] // 32),
        (D[0] % 2 // 4, [64], Expr.const(0)),
        ((D[0] % 32 + 32 * D[1]) // 384, [S[0], S[1]], D[1] // 12),
    ],
)
def test_simplify(expr: Expr, sizes: list[Expr | int], simple: Expr) -> None:
    ranges = {0: (1, 64), 1: (1, 512)}
    assert expr.simplify(ranges, sizes) is simple


@pytest.mark.parametrize(
    ("expr", "bounds"),
    [
        (S[0], (1, 64)),
        (S[2], (0, None)),
        (S[0] * S[1], (1, 64 * 512)),
        (S[0] - D[0] - 1, (0, 63)),
        (D[0] % 8, (0, 7)),
        (S[2] - S[2] // 4 * 4, (0, 3)),
        ((S[1] + 1) // 2, (1, 256)),
        (S[2] - S[2] // 3, (0, None)),
        (S[2] * S[2] - 3, (-3, None)),
        (-S[2], (None, 0)),
        (64 // S[0], (1, 64)),
    ],
)
def test_bounds(expr: Expr, bounds: tuple[int | None, int | None]) -> None:
    assert expr.bounds({0: (1, 64), 1: (1, 512)}, [S[0]]) == bounds


def test_symbolic_order() -> None:
    ranges = {0: (1, None), 1: (2, None)}
    assert S[0].provably_le(S[0] * S[1], ranges)
    assert not (S[0] * S[1]).provably_le(S[0], ranges)
    assert (S[0] * S[0] - S[0]).is_nonnegative(ranges)
    assert ((S[0] - 1) * (S[1] - 2)).is_nonnegative(ranges)
    assert not (S[0] - S[1]).is_nonnegative(ranges)
    assert (S[1] // 2 * 2).provably_le(S[1])
    assert Expr.const(3).provably_le(4)
    offset = linearize(D[:3], [S[0], S[1], 384])
    assert (offset + 1).provably_le(S[0] * S[1] * 384, ranges, [S[0], S[1], 384])


def test_ranges_answer_many_queries() -> None:
    ranges = Ranges({0: (4, 4)}, [S[0]])
    assert ranges.bounds(D[0]) == (0, 3)
    assert ranges.simplify(D[0] // 4) == 0
    assert ranges.provably_le(D[0] + 1, S[0])
    assert ranges.is_nonnegative(3 - D[0])


def test_proofs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an expression whose divisions can be eliminated in thousands of orders.

    These are places of two feature maps, one behind the other, of a picture of any size.
    """
    places = (S[1] + 3) // 4 * ((S[2] + 3) // 4) + (S[1] + 7) // 8 * ((S[2] + 7) // 8)
    ranges = Ranges({0: (1, 8), 1: (1, 512), 2: (1, 512)}, [S[0] * places])
    looked_at = 0
    least = Ranges._least

    def counted(self: Ranges, expr: Expr) -> float:
        nonlocal looked_at
        looked_at += 1
        assert looked_at < 200_000, "the search does not end"
        return least(self, expr)

    monkeypatch.setattr(Ranges, "_least", counted)
    image = D[0] // places
    assert ranges.simplify(image) == image
    assert ranges.is_nonnegative(image)
    assert ranges.is_nonnegative(D[0] - image * places)


# Reshapes -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 6), max_size=4), st.data())
def test_linearize_is_row_major(sizes: list[int], data: st.DataObject) -> None:
    index = [data.draw(st.integers(0, size - 1)) for size in sizes]
    offset = linearize(index, sizes).constant
    assert offset == (np.ravel_multi_index(index, sizes) if sizes else 0)
    assert offset is not None
    assert [e.constant for e in delinearize(offset, sizes)] == index


def test_linearize_checks_the_rank() -> None:
    with pytest.raises(ValueError, match="1 indices for an array of rank 2"):
        linearize([D[0]], [2, 3])


def _factorings(count: int) -> st.SearchStrategy[list[int]]:
    """Shapes with `count` elements, ones included."""

    def split(cuts: list[int]) -> list[int]:
        sizes, rest = [], count
        for cut in cuts:
            size = next(d for d in range(cut, 0, -1) if rest % d == 0)
            sizes.append(size)
            rest //= size
        return [*sizes, rest]

    return st.lists(st.integers(1, 8), max_size=4).map(split)


@given(
    st.sampled_from([1, 2, 12, 24, 36, 60]).flatmap(
        lambda n: st.tuples(_factorings(n), _factorings(n))
    ),
    st.integers(0, 3),
)
def test_reshape_map_is_numpys_reshape(shapes: tuple[list[int], list[int]], n_symbols: int) -> None:
    src, dst = shapes
    # Make some sizes symbolic, the same ones on both sides.
    symbolic = {size: S[i] for i, size in enumerate([2, 3, 4][:n_symbols])}
    symbols = [2, 3, 4, 0]
    sym_src = [symbolic.get(size, Expr.const(size)) for size in src]
    sym_dst = [symbolic.get(size, Expr.const(size)) for size in dst]
    if product(sym_src) is not product(sym_dst):
        sym_src, sym_dst = [Expr.const(n) for n in src], [Expr.const(n) for n in dst]
    array = np.arange(np.prod(src, dtype=int)).reshape(src)
    expected = array.reshape(dst)
    index_map = reshape_map(sym_src, sym_dst)
    for index in itertools.product(*map(range, dst)):
        source = tuple(e.evaluate(symbols, index) for e in index_map)
        assert array[source] == expected[index]


@pytest.mark.parametrize(
    ("src", "dst", "index_map"),
    [
        ([S[0], S[1], 384], [S[0], S[1], 12, 32], "d0, d1, 32*d2 + d3"),
        ([S[0], S[1], 12, 32], [S[0], S[1], 384], "d0, d1, d2//32, d2 % 32"),
        ([S[0], S[1], 384], [S[0] * S[1], 384], "d0//s1, d0 % s1, d1"),
        ([S[0] * S[1], 384], [S[0], S[1], 384], "s1*d0 + d1, d2"),
        ([2, 3, S[0]], [6, S[0]], "d0//3, d0 % 3, d1"),
        ([1, S[0], 1], [S[0], 1, 1], "0, d0, 0"),
        ([S[0], 2, 4], [S[0], 4, 2], "d0, d1//2, d2 + 2*(d1 % 2)"),
        ([S[0]], [S[0]], "d0"),
        ([0, S[0]], [0, S[0]], "d0, d1"),
        ([0, S[0]], [S[1], 0, 3], "0, 0"),
        ([], [1, 1], ""),
        ([1], [], "0"),
    ],
)
def test_reshape_map(src: list[Expr | int], dst: list[Expr | int], index_map: str) -> None:
    assert ", ".join(map(str, reshape_map(src, dst))) == index_map


def test_reshape_map_names_both_shapes() -> None:
    message = r"cannot reshape \[s0, 4\] to \[s1, 4\]: the element counts 4\*s0 and 4\*s1 differ"
    with pytest.raises(ValueError, match=message):
        reshape_map([S[0], 4], [S[1], 4])


# Rearrangements -----------------------------------------------------------------------------------

RANGES = {0: (1, 64), 1: (1, 512)}


@pytest.mark.parametrize(
    ("exprs", "src", "dst", "inverse"),
    [
        ("d1, d0", [S[0], 8], [8, S[0]], "d1, d0"),
        ("d0, d2//32, d1, d2%32", [S[0], 12, S[1], 32], [S[0], S[1], 384], "d0, d2, 32*d1 + d3"),
        ("d0, d2, 32*d1 + d3", [S[0], S[1], 384], [S[0], 12, S[1], 32], "d0, d2//32, d1, d2 % 32"),
        (
            "d0//s1, d1//32, d0 % s1, d1 % 32",
            [S[0], 12, S[1], 32],
            [S[0] * S[1], 384],
            "s1*d0 + d2, 32*d1 + d3",
        ),
        ("d0//6, d0//2 % 3, d0 % 2", [S[0], 3, 2], [6 * S[0]], "6*d0 + 2*d1 + d2"),
        ("6*d0 + 2*d1 + d2", [6 * S[0]], [S[0], 3, 2], "d0//6, (d0//2) % 3, d0 % 2"),
        ("d0, 0, d1", [S[0], 1, 4], [S[0], 4], "d0, d2"),
        ("d0, d2", [S[0], 4], [S[0], 1, 4], "d0, 0, d1"),
        ("", [], [1], "0"),
    ],
)
def test_invert_map(exprs: str, src: list[Expr | int], dst: list[Expr | int], inverse: str) -> None:
    found = invert_map([parse(e) for e in exprs.split(",") if e], src, dst, RANGES)
    assert found is not None
    assert ", ".join(map(str, found)) == inverse


@pytest.mark.parametrize(
    ("exprs", "src", "dst"),
    [
        ("d0", [S[0]], [S[0], 2]),  # repeats
        ("d0, 0", [S[0], 2], [S[0]]),  # omits
        ("d0 % 2, d0 % 2", [2, 2], [4]),  # repeats and omits
        ("d0 + d1", [4], [2, 2]),
        ("3 - d0", [4], [4]),  # all elements, but in no order that is understood
        ("d0, d0 // s0", [S[0], S[1]], [S[0] * S[1]]),
    ],
)
def test_invert_map_gives_up(exprs: str, src: list[Expr | int], dst: list[Expr | int]) -> None:
    assert invert_map([parse(e) for e in exprs.split(",")], src, dst, RANGES) is None


@settings(deadline=None)
@given(
    st.sampled_from([12, 24, 36, 60]).flatmap(
        lambda n: st.tuples(_factorings(n), _factorings(n), _factorings(n), st.randoms())
    )
)
def test_inverse_of_reshape_transpose_reshape(
    drawn: tuple[list[int], list[int], list[int], random.Random],
) -> None:
    src, middle, dst, generator = drawn
    order = list(range(len(middle)))
    generator.shuffle(order)
    turned = [middle[i] for i in order]
    # dst -> turned -> middle -> src, as indices of dst
    outer = reshape_map(turned, dst)
    turn = {old: outer[new] for new, old in enumerate(order)}
    exprs = [e.substitute(dims=turn).simplify(dim_sizes=dst) for e in reshape_map(src, middle)]

    array = np.arange(np.prod(src, dtype=int)).reshape(src)
    moved = array.reshape(middle).transpose(order).reshape(dst)
    assert is_reshape(exprs, src, dst) == bool((moved.ravel() == array.ravel()).all())
    inverse = invert_map(exprs, src, dst)
    if inverse is None:
        return
    for index in itertools.product(*map(range, src)):
        assert moved[tuple(e.evaluate(dims=index) for e in inverse)] == array[index]


def test_counterexamples() -> None:
    """Values that make an expression negative are within the ranges, and dims not empty."""
    half, quarter = parse("(s0 + 1)//2"), parse("(s0 + 3)//4")
    found = Counterexamples({0: (1, 64)}, {})
    assert found.has(half * 64 - quarter * 192)
    assert not found.has(half - quarter)
    assert not Counterexamples({0: (5, 64)}, {}).has(half - 3)
    assert Counterexamples({0: (4, 64)}, {}).has(half - 3)
    assert not Counterexamples({}, {0: S[0]}).has(S[0] - 1 - D[0] + D[0] // S[0])
    assert not Counterexamples({0: (0, 0)}, {}).has(D[0] // S[0] - 1)
    assert not Counterexamples({}, {0: D[1], 1: S[0]}).has(D[0] // 2 - 1)


@given(exprs, symbol_values)
def test_no_proof_is_refuted(expr: Expr, values: list[int]) -> None:
    """What is proved nonnegative is so, whatever was tried out before."""
    ranges = Ranges(dict.fromkeys(range(4), (1, 40)), [S[0], 7, S[1] + 1])
    dims = [values[0] - 1, 3, values[1]]
    if ranges.is_nonnegative(expr):
        assert expr.evaluate(values, dims) >= 0


def test_is_reshape() -> None:
    rows = [parse("d0//s1"), parse("d0 % s1"), D[1]]
    assert is_reshape(rows, [S[0], S[1], 8], [S[0] * S[1], 8])
    assert not is_reshape(rows, [S[1], S[0], 8], [S[0] * S[1], 8])
    assert not is_reshape([D[1], D[0]], [S[0], S[1]], [S[1], S[0]])
    assert not is_reshape([D[0]], [S[0]], [S[0], S[1]])
