# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sizes at the edge of what a model was traced for: nothing is read past an end, nothing legal is
refused, and what PyTorch refuses at some sizes only is an error there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from torch import Tensor
from torch.export import Dim

import shapejit
from reference.importing import Imported, Table, quick, sizes
from shapejit.diagnosis import named
from shapejit.errors import ExportError, ShapeError, ShapeJitError
from shapejit.importer.dynamic_shapes import DimKind, RootDim
from shapejit.importer.sizes import SymbolTable
from shapejit.symbolic import Expr


def keeps_to_rules(model: Imported, *roots: int) -> bool:
    """Whether a call with these sizes of the dims passes the model's checks."""
    values = list(roots)
    for symbol in model.imported.symbols[len(roots) :]:
        assert symbol.derived is not None
        values.append(symbol.derived.evaluate(values))
    left = [Expr.parse(fact.rule.partition(" >= ")[0]) for fact in model.imported.constraints]
    return all(expr.evaluate(symbols=values) >= 0 for expr in left)


BETWEEN_DIMS = {
    "first": lambda x, y: x[: y.shape[0]],
    "rest": lambda x, y: x[y.shape[0] :],
    "last": lambda x, y: x[-y.shape[0] :],
    "narrow": lambda x, y: x.narrow(0, 0, y.shape[0]),
    "narrow_end": lambda x, y: x.narrow(0, x.shape[0] - y.shape[0], y.shape[0]),
    "split_head": lambda x, y: x.split([y.shape[0], x.shape[0] - y.shape[0]])[0],
    "split_tail": lambda x, y: x.split([y.shape[0], x.shape[0] - y.shape[0]])[1],
    "topk": lambda x, y: x.topk(y.shape[0]).values,
    "positions": lambda x, y: torch.arange(y.shape[0], x.shape[0]).float(),
}


@pytest.mark.parametrize("name", BETWEEN_DIMS)
def test_a_part_as_long_as_another_dim(name: str) -> None:
    """It is right where it lies within the tensor, and refused where it does not."""
    examples, dims = [torch.randn(11), torch.randn(7)], [{0: "a"}, {0: "b"}]
    model = Imported.table({name: BETWEEN_DIMS[name]}, examples, dims, high=20)
    for a, b in ((7, 5), (9, 1), (20, 19)):
        assert keeps_to_rules(model, a, b)
        model.check(torch.randn(a), torch.randn(b))
    assert not keeps_to_rules(model, 5, 9)
    assert not keeps_to_rules(model, 1, 20)


def test_a_call_that_would_read_past_the_end() -> None:
    a, b = Dim("a", min=1, max=20), Dim("b", min=1, max=20)
    compiled = shapejit.compile(
        Table({"part": BETWEEN_DIMS["narrow"]}).eval(),
        (torch.randn(11), torch.randn(7)),
        dynamic_shapes={"inputs": ({0: a}, {0: b})},
        target="cpu",
    )
    x = torch.randn(9)
    assert torch.equal(compiled(x, torch.randn(4))["part"], x[:4])
    with pytest.raises(ShapeError, match="SJ-SHAPE-008 the sizes a = 9, b = 10 break the rule"):
        compiled(x, torch.randn(10))


def test_dims_that_are_always_empty() -> None:
    """Loops over them have no indices to take apart."""
    functions = {
        "compared": lambda x: torch.where(x[2:].transpose(0, 1) > 0, 1.0, x[2:].transpose(0, 1)),
        "sums": lambda x: x[:, :0].exp().sum(1),
        "counted": lambda x: (x[2:] > 0).sum((0, 2)),
        "joined": lambda x: torch.cat([x[2:], x * 2]),
    }
    compiled = shapejit.compile(
        Table(functions).eval(),
        (torch.randn(2, 3, 5),),
        dynamic_shapes={"inputs": ({2: Dim("a", min=1, max=40)},)},
        target="cpu",
        opt_level=0,
    )
    for a in (1, 9, 40):
        x = torch.randn(2, 3, a)
        for name, function in functions.items():
            assert torch.equal(compiled(x)[name], function(x)), name


def _written(x: Tensor) -> Tensor:
    x = x[1:].clone()
    x[2:] = 0.0
    return x


# x is [a, b] with a and b from 1 on.
AT_THE_EDGE = {
    "slices_of_slices": lambda x: x[1:][2:],
    "written": _written,
    "inner": lambda x: x[1:-1:2],
    "strided_tail": lambda x: x[-2:][::2],
    "transposed": lambda x: torch.where(x[:, 2:].t() > 0, x[:, 2:].t(), 1.0),
    "flat": lambda x: x[1:-1].flatten(),
    "flat_rows": lambda x: (x[:, 1:-1, None] * torch.ones(3)).flatten(0, 1),
    "diagonal": lambda x: x.diagonal(2),
    "diagonal_below": lambda x: x.diagonal(-3),
    "zeros": lambda x: torch.zeros(x[:-2].shape[0]) + x[:-2, 0],
    "filled": lambda x: torch.full((x[:-3].shape[0], 2), 3.0),
    "positions": lambda x: torch.arange(x[:-2].shape[0]),
    "cut": lambda x: torch.cat([x[:-2], x[2:]]),
}


@pytest.fixture(scope="module")
def edges() -> Imported:
    return Imported.table(AT_THE_EDGE, [torch.randn(7, 5)], [{0: "a", 1: "b"}], low=1, high=12)


@quick
@given(a=sizes(1, 12), b=sizes(1, 12))
def test_every_size_of_the_range(edges: Imported, a: int, b: int) -> None:
    edges.check(torch.randn(a, b))


def test_no_size_of_the_range_is_refused(edges: Imported) -> None:
    """torch asked how the parts lie in memory; and no part is empty at the example's sizes."""
    assert all(keeps_to_rules(edges, a, b) for a in range(1, 13) for b in range(1, 13))


def test_sizes_at_which_a_rule_of_torch_holds_are_named() -> None:
    """`chunk` gives two parts of two elements or more: found by trying all sizes of the range."""
    example = [torch.randn(11)]

    def halves(low: int) -> Imported:
        table = {"first": lambda x: x[2:].chunk(2)[0], "second": lambda x: x[2:].chunk(2)[1]}
        return Imported.table(table, example, [{0: "a"}], low=low)

    with pytest.raises(
        ExportError, match=r"SJ-EXPORT-011 the model works only for a >= 4, .* 1..64"
    ):
        halves(1)
    model = halves(4)
    for a in (4, 5, 6, 64):
        assert keeps_to_rules(model, a)
        model.check(torch.randn(a))


def test_a_number_of_parts_that_varies_is_reported() -> None:
    """Among the operators that cannot be compiled, with all the others."""
    table = {
        "parts": lambda x: x.narrow(0, 0, 6).split(2)[0],
        "varying": lambda x: torch.cat(x.split(2)),
    }
    with pytest.raises(ShapeJitError, match=r"SJ-(OP-001|EXPORT-0(08|10|11))"):
        Imported.table(table, [torch.randn(11)], [{0: "a"}], low=6)


def test_a_rule_says_what_a_clamped_size_is() -> None:
    table = {"part": lambda x, y: x[2:].narrow(0, 0, y.shape[0])}
    examples, dims = [torch.randn(11), torch.randn(7)], [{0: "a"}, {0: "b"}]
    model = Imported.table(table, examples, dims)
    rules = [named(fact.rule, model.imported.symbols) for fact in model.imported.constraints]
    assert "max(a - 2, 0) - b >= 0" in rules or "-b + max(a - 2, 0) >= 0" in rules


def test_a_vector_as_weight() -> None:
    table = {
        "rows": lambda x, w: F.linear(x, w),
        "vector": lambda x, w: F.linear(x[0], w),
    }
    imported = Imported.table(
        table, [torch.randn(5, 7), torch.randn(7)], [{0: "a", 1: "b"}, {0: "b"}]
    )
    imported.check(torch.randn(3, 4), torch.randn(4))
    imported.check(torch.randn(1, 1), torch.randn(1))


# Derived symbols ----------------------------------------------------------------------------------


@given(a=sizes(0, 9), b=sizes(0, 9))
def test_a_least_size_may_be_negative_before_it_is_clamped(a: int, b: int) -> None:
    table = SymbolTable()
    roots = [table.root(RootDim(name, 0, 9, None, DimKind.NAMED)).expr for name in "ab"]
    least = table.minimum(roots[0], roots[1] - 3)
    clamped = table.maximum(least, Expr.const(0))
    values = [a, b]
    for symbol in table.symbols[2:]:
        assert symbol.derived is not None
        values.append(symbol.derived.evaluate(values))
        assert symbol.min <= values[-1] <= (9 if symbol.max is None else symbol.max)
    assert least.evaluate(symbols=values) == min(a, b - 3)
    assert clamped.evaluate(symbols=values) == max(min(a, b - 3), 0)
