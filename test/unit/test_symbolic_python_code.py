# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Expressions as Python functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapejit.symbolic import Expr
from shapejit.symbolic.python_code import compiled

LEAVES = st.one_of(st.integers(-9, 9).map(Expr.const), st.integers(0, 3).map(Expr.symbol))
EXPRS = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.tuples(parts, parts).map(lambda pair: pair[0] + pair[1]),
        st.tuples(parts, parts).map(lambda pair: pair[0] * pair[1]),
        st.tuples(parts, st.integers(1, 9)).map(lambda pair: pair[0] // pair[1]),
        st.tuples(parts, st.integers(1, 9)).map(lambda pair: pair[0] % pair[1]),
    ),
    max_leaves=8,
)


@given(
    exprs=st.lists(EXPRS, max_size=3),
    values=st.lists(st.integers(-50, 50), min_size=4, max_size=4),
)
def test_functions_give_what_expressions_are(exprs: list[Expr], values: list[int]) -> None:
    found = compiled(tuple(exprs))(values)
    assert found == tuple(expr.evaluate(values) for expr in exprs)


def test_dims_have_no_value() -> None:
    with pytest.raises(ValueError, match="d2 has no value"):
        compiled((Expr.dim(2) + 1,))
