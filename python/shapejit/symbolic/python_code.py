# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Expressions as Python functions, for callers that evaluate the same ones again and again.

`Expr.evaluate` walks through an expression in every call, which takes microseconds; a function made
of it takes a fraction of one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from shapejit.symbolic.expr import Expr


class _Source:
    """An algebra whose elements are Python source text over ``s``, the values of the symbols."""

    def constant(self, value: int) -> str:
        return f"({value})"

    def symbol(self, index: int) -> str:
        return f"s[{index}]"

    def dim(self, index: int) -> str:
        raise ValueError(f"d{index} has no value: only expressions of symbols become functions")

    def add(self, lhs: str, rhs: str) -> str:
        return f"({lhs} + {rhs})"

    def mul(self, lhs: str, rhs: str) -> str:
        return f"({lhs} * {rhs})"

    def floordiv(self, lhs: str, rhs: str) -> str:
        return f"({lhs} // {rhs})"

    def mod(self, lhs: str, rhs: str) -> str:
        return f"({lhs} % {rhs})"


@functools.lru_cache(maxsize=4096)
def compiled(exprs: tuple[Expr, ...]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """A function from the values of the symbols to those of expressions.

    Raises:
        ValueError: an expression has dims.
    """
    source = _Source()
    body = "".join(f"{expr.build(source)}, " for expr in exprs)
    # The text holds integers, symbols and operators alone: nothing that came from outside.
    function: Callable[[Sequence[int]], tuple[int, ...]] = eval(f"lambda s: ({body})", {})
    return function
