# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Capture: the user's dims, ranges and names; torch's guards; errors in the user's words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sympy import isprime
from torch import Tensor, nn
from torch.export import Dim

from reference.importing import Imported
from shapejit.errors import ErrorId, ShapeJitError
from shapejit.importer import export, guards
from shapejit.importer.dynamic_shapes import ExampleCall, read_inputs
from shapejit.importer.examples import traced_examples
from shapejit.importer.export import CapturedModel, capture, user_values
from shapejit.importer.sizes import LEAST_TRACED
from shapejit.symbolic import Expr


class Model(nn.Module):
    """Wraps a function of up to three tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor | None = None, z: Tensor | None = None) -> Any:
        given = [value for value in (x, y, z) if value is not None]
        return self.function(*given)


def dim(name: str = "s", low: int = 1, high: int = 64) -> Any:
    return Dim(name, min=low, max=high)


def captured(function: Callable[..., Any], *args: Tensor, shapes: Any) -> CapturedModel:
    return capture(Model(function), args, None, shapes)


def sizes_of(model: CapturedModel) -> list[list[str]]:
    """Each input's sizes, in the user's names."""
    table = model.sizes.table
    return [
        [table.describe(size) for size in model.sizes.shape(value.shape)]
        for value in user_values(model.program)
        if isinstance(value, Tensor)
    ]


# Reading dynamic_shapes ---------------------------------------------------------------------------


def _function(ids: Any, batch: Any, *states: Any, count: int = 3, **options: Any) -> None: ...


def _example() -> ExampleCall:
    batch = {"mask": torch.zeros(3), "more": [torch.zeros(2, 6)]}
    keywords = {"count": 7, "extra": torch.zeros(4)}
    return ExampleCall.bind(_function, (torch.zeros(3, 4), batch, torch.zeros(5)), keywords)


def test_every_notation_of_a_dim_is_read() -> None:
    rows = Dim("rows", min=2, max=64)
    leaves = read_inputs(
        _example(),
        {
            "ids": {0: rows, 1: (1, 4, 9)},
            "batch": {"mask": (rows,), "more": [{-1: 2 * rows - 2, 0: Dim.AUTO}]},
            "states": ({0: Dim.DYNAMIC},),
            "options": {"extra": [4]},
        },
    )
    found = {leaf.name: {i: d.label for i, d in leaf.dims.items()} for leaf in leaves}
    assert found == {
        "ids": {0: "rows", 1: "ids_1"},
        'batch["mask"]': {0: "rows"},
        'batch["more"][0]': {1: "2*rows - 2", 0: "batch_more_0_0"},
        "states[0]": {0: "states_0_0"},
        "count": {},
        "extra": {},
    }
    ids = leaves[0].dims
    assert (ids[1].root.min, ids[1].root.opt, ids[1].root.max) == (1, 4, 9)
    assert (ids[0].root.min, ids[0].root.max) == (2, 64)


@pytest.mark.parametrize(
    ("shapes", "error", "text"),
    [
        ({"idz": {}}, ErrorId.SJ_EXPORT_003, '"idz", which is not an argument'),
        (5, ErrorId.SJ_EXPORT_002, "dynamic_shapes is 5"),
        (({},), ErrorId.SJ_EXPORT_002, "1 entries, but the call has 5 arguments"),
        ({"ids": {5: dim()}}, ErrorId.SJ_EXPORT_004, 'dim 5 of argument "ids".*rank 2'),
        ({"ids": {0: (3, 2, 1)}}, ErrorId.SJ_EXPORT_005, r'"ids_0" is \(3, 2, 1\)'),
        ({"ids": {0: (3, 2)}}, ErrorId.SJ_EXPORT_002, r'\["ids"\]\[0\] is \(3, 2\)'),
        (
            {"ids": {0: dim("s"), 1: dim("s", high=9)}},
            ErrorId.SJ_EXPORT_006,
            '"s" has the range 1..9',
        ),
        ({"ids": (None,)}, ErrorId.SJ_EXPORT_002, "ids has 2 dims, not 1"),
        ({"ids": {0: "rows"}}, ErrorId.SJ_EXPORT_002, "'rows'"),
        ({"ids": {0: 7}}, ErrorId.SJ_EXPORT_002, "the example has 3 there"),
        ({"batch": {"q": None}}, ErrorId.SJ_EXPORT_002, "batch has no 'q' there"),
        ({"batch": [None]}, ErrorId.SJ_EXPORT_002, "mirror a dict of 2 entries"),
        ({"count": Dim.DYNAMIC}, ErrorId.SJ_EXPORT_015, "an int that varies"),
    ],
)
def test_malformed_dynamic_shapes(shapes: Any, error: ErrorId, text: str) -> None:
    with pytest.raises(ShapeJitError, match=text) as caught:
        read_inputs(_example(), shapes)
    assert caught.value.id is error


def test_example_call_that_does_not_fit() -> None:
    with pytest.raises(ShapeJitError, match=r"SJ-ARG-008.*missing a required argument: 'batch'"):
        ExampleCall.bind(_function, (1,), {})


# Examples -----------------------------------------------------------------------------------------


def test_examples_of_size_0_and_1_are_remade() -> None:
    call = ExampleCall.bind(
        Model(min).forward, (torch.full((1, 0), 7.0), torch.tensor([[5], [6]]), torch.ones(2)), {}
    )
    shapes = {"x": {0: dim("a"), 1: dim("b", 0)}, "y": {1: dim("a")}, "z": {0: 2 * dim("a")}}
    x, y, z = traced_examples(read_inputs(call, shapes))
    rows = x.shape[0]
    assert rows >= 2 and x.shape[1] >= 2 and rows != x.shape[1]
    assert y.tolist() == [[5] * rows, [6] * rows]
    assert z.tolist() == [1.0] * 2 * rows


def test_examples_are_cloned() -> None:
    x = torch.randn(4, 4)
    model = captured(lambda x, y: x + y.t(), x, x, shapes=None)
    assert sizes_of(model) == [["4", "4"], ["4", "4"]]


@pytest.mark.parametrize(
    ("shape", "error", "text"),
    [
        ({"x": {0: dim(high=3)}}, "SJ-EXPORT-007", '"s" = 4 of the example for argument "x"'),
        ({"x": {0: 3 * dim()}}, "SJ-SHAPE-004", "is 4, but it is compiled as 3[*]s"),
        (
            {"x": {0: dim(), 1: dim()}},
            "SJ-SHAPE-006",
            '"s" = 5 of argument "x".* is 4 by argument "x"',
        ),
    ],
)
def test_examples_outside_their_dims(shape: Any, error: str, text: str) -> None:
    with pytest.raises(ShapeJitError, match=f"{error}.*{text}"):
        captured(torch.neg, torch.randn(4, 5), shapes=shape)


# Names, ranges, relations -------------------------------------------------------------------------


def test_names_ranges_and_opts_are_kept() -> None:
    shapes = {"x": {0: dim("batch", 0, 8), 1: (1, 128, 512)}}
    model = captured(torch.neg, torch.randn(3, 4), shapes=shapes)
    batch, seq = model.sizes.table.symbols
    assert (batch.name, batch.id, batch.min, batch.max, batch.opt) == ("batch", 0, 0, 8, None)
    assert (seq.name, seq.id, seq.min, seq.max, seq.opt) == ("x_1", 1, 1, 512, 128)
    assert sizes_of(model) == [["batch", "x_1"]]


def test_one_dim_in_several_places_is_one_symbol() -> None:
    s, t = dim("s"), dim("t")
    model = captured(
        lambda x, y: x * y.t(),
        torch.randn(5, 7),
        torch.randn(7, 5),
        shapes=({0: s, 1: t}, {0: t, 1: s}, None)[:2],
    )
    assert sizes_of(model) == [["s", "t"], ["t", "s"]]


def test_derived_dims_keep_their_root() -> None:
    model = captured(
        lambda x: x.reshape(4, -1, 8) * 2, torch.randn(4, 8), shapes={"x": {1: 8 * dim("t", 0, 9)}}
    )
    assert sizes_of(model) == [["4", "8*t"]]
    (symbol,) = model.sizes.table.symbols
    assert (symbol.name, symbol.min, symbol.max) == ("t", 0, 9)


def test_unnamed_dims_that_must_be_equal_are_merged() -> None:
    shapes = {"x": {1: (1, 4, 64)}, "y": {1: (2, 8, 80)}}
    model = captured(torch.add, torch.randn(4, 16), torch.randn(4, 16), shapes=shapes)
    first, second = model.sizes.table.symbols
    assert second.equal_to == first.id
    assert (first.min, first.max, first.opt) == (2, 64, 4)
    assert sizes_of(model) == [["4", "x_1"], ["4", "x_1"]]


def test_a_size_that_is_the_sum_of_two_others() -> None:
    shapes = ({0: dim("s")}, {0: dim("t")}, {0: dim("u", 1, 100)})
    model = captured(
        lambda x, y, z: torch.cat([x, y]) + z,
        *(torch.randn(n, 2) for n in (4, 5, 9)),
        shapes=shapes,
    )
    assert sizes_of(model)[2] == ["s + t", "2"]
    assert [str(c) for c in model.constraints] == ["-s0 - s1 + 100 >= 0"]


def test_a_size_that_is_another_less_two() -> None:
    """The clamped size of a slice meets torch's unclamped spelling of it."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x[2:] * 2 + y).view(y.shape[0], 2, 2)

    shapes = ({0: (1, 6, 9)}, {0: (0, 4, 5)})
    args = [torch.randn(6, 4), torch.randn(4, 4)]
    model = Imported(Model(function), args, shapes)
    assert [c.rule for c in model.imported.constraints] == ["s0 - 2 >= 0", "-s0 + 7 >= 0"]
    for size in (2, 3, 7):
        model.check(torch.randn(size, 4), torch.randn(size - 2, 4))
    with pytest.raises(ShapeJitError, match=r"SJ-EXPORT-010.*t = s - 2"):
        capture(Model(function), args, None, ({0: dim("s")}, {0: dim("t")}))


def test_a_relation_between_dims_becomes_a_constraint() -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] * x.shape[1] > 8 else x * 3

    model = captured(function, torch.randn(4, 16), shapes={"x": {0: dim("s"), 1: dim("t")}})
    (constraint,) = model.constraints
    assert str(constraint) == "s0*s1 - 9 >= 0"
    assert re.fullmatch(r"test_import_export.py:\d+", str(constraint.source))


def test_dims_that_torch_refuses_for_no_reason_are_kept() -> None:
    """torch.export refuses a range in which an intermediate size gets small; ours are right."""
    model = captured(lambda x: x[1:-1] * 2, torch.randn(6, 4), shapes={"x": {0: dim("s", 0, 9)}})
    (symbol,) = model.sizes.table.symbols
    assert (symbol.name, symbol.min, symbol.max) == ("s", 0, 9)


def test_a_range_that_ends_below_the_traced_size() -> None:
    model = captured(torch.neg, torch.randn(1, 4), shapes={"x": {0: dim("s", 0, 1)}})
    assert [(s.min, s.max) for s in model.sizes.table.symbols] == [(0, 1)]


def test_auto_dims_may_become_static() -> None:
    shapes = {"x": {0: Dim.AUTO, 1: Dim.AUTO}}
    model = captured(lambda x: x + torch.ones(16), torch.randn(4, 16), shapes=shapes)
    assert sizes_of(model) == [["x_0", "16"]]


@pytest.mark.parametrize(
    ("function", "shapes", "text"),
    [
        pytest.param(
            lambda x: x + torch.ones(16),
            {"x": {1: dim()}},
            'SJ-EXPORT-008 dim "s" of argument "x" .dim 1.*fixes it to 16',
            id="specialised",
        ),
        pytest.param(
            torch.add,
            {"x": {1: dim("s")}, "y": {1: dim("t")}},
            'SJ-EXPORT-009 dims "t" and "s".*forces them to be equal',
            id="equal",
        ),
        pytest.param(
            lambda x: x.reshape(4, -1, 8) * 2,
            {"x": {1: dim()}},
            r'SJ-EXPORT-010.*s divisible by 8.*8 \* Dim\("s"\)',
            id="divisor",
        ),
        pytest.param(
            lambda x: x[:, :10] + 1,
            {"x": {1: dim()}},
            r'SJ-EXPORT-011.*s >= 10.*Dim\("s", min=10, max=64\)',
            id="slice",
        ),
        pytest.param(
            lambda x: x * 2 if x.shape[1] < 20 else x * 3,
            {"x": {1: dim()}},
            r'SJ-EXPORT-011.*s <= 19.*Dim\("s", min=1, max=19\).*test_import_export.py:\d+',
            id="branch",
        ),
        pytest.param(
            lambda x, y: x.sum() if x.shape[1] != y.shape[1] else y.sum(),
            {"x": {1: dim("s")}, "y": {1: dim("t")}},
            r"SJ-EXPORT-009|SJ-EXPORT-010",
            id="inequation",
        ),
        pytest.param(
            lambda x: x[0] if x.sum() > 0 else x[1],
            None,
            r"SJ-EXPORT-001.*data-dependent.*test_import_export.py:\d+",
            id="data",
        ),
        pytest.param(lambda x: x @ x, None, "SJ-EXPORT-001.*test_import_export.py", id="fault"),
    ],
)
def test_models_that_do_not_hold_for_the_dims(
    function: Callable[..., Any], shapes: Any, text: str
) -> None:
    args = [torch.randn(4, 16)]
    if shapes and "y" in shapes:
        args.append(torch.randn(4, 16))
    with pytest.raises(ShapeJitError, match=re.compile(text, re.DOTALL)):
        captured(function, *args, shapes=shapes)


# Modes and kinds of models ------------------------------------------------------------------------


def test_train_mode_is_refused_where_it_matters() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    with pytest.raises(ShapeJitError, match=r"SJ-TRAIN-001.*1 \(Dropout\), 2 \(BatchNorm1d\)"):
        capture(model, (torch.randn(3, 4),), None, None)
    capture(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)), (torch.randn(3, 4),), None, None)


def even_or_not(x: Tensor) -> Tensor:
    """One function in two ways, as torch's own code has short cuts for sizes that divide others."""
    if x.shape[1] % 2 == 0:
        return x.unflatten(1, (-1, 2)).sum((1, 2))
    return x.sum(1)


def test_short_cuts_of_torch_at_the_examples_sizes_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model is traced again at sizes that are multiples of nothing."""
    with pytest.raises(ShapeJitError, match=r"SJ-EXPORT-010.*s divisible by 2"):
        captured(even_or_not, torch.randn(3, 8), shapes={"x": {1: dim()}})
    monkeypatch.setattr(guards, "is_torch_file", lambda file: True)
    model = captured(even_or_not, torch.randn(3, 8), shapes={"x": {1: dim()}})
    assert sizes_of(model) == [["3", "s"]]
    assert not model.constraints
    assert not any("unflatten" in str(n.target) or "view" in str(n.target)
                   for n in model.program.graph.nodes)  # fmt: skip


def halved_twice(x: Tensor) -> Tensor:
    """Rounds halves down as torch 2.11 does for pooling: it asks for the remainder first."""
    for _ in range(2):
        size = x.shape[1]
        half = size // 2
        if size % 2 != 0 and size < 0:
            half -= 1
        x = x[:, :half]
    return x


@pytest.mark.parametrize("size", [12, 13, 14, 19, 63])
def test_short_cuts_deeper_in_the_model_are_left_out(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the sizes near the example's, one is taken that is odd, and of which a half is odd too."""
    monkeypatch.setattr(guards, "is_torch_file", lambda file: True)
    model = captured(halved_twice, torch.randn(3, size), shapes={"x": {1: dim(low=4)}})
    assert not model.constraints
    result = next(n for n in model.program.graph.nodes if n.op == "output").args[0][0].meta["val"]
    expr = model.sizes.shape(result.shape)[1]
    assert all(expr.evaluate({0: s}) == s // 2 // 2 for s in range(4, 65))


def test_the_same_sizes_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way of the model's own is asked for at any sizes: no others are looked for."""
    exports: list[int] = []
    run_export = export._run_export

    def counted(*given: Any) -> Any:
        exports.append(1)
        return run_export(*given)

    monkeypatch.setattr(export, "_run_export", counted)
    with pytest.raises(ShapeJitError, match="SJ-EXPORT-010"):
        captured(even_or_not, torch.randn(3, 8), shapes={"x": {1: dim()}})
    assert len(exports) == 3  # the user's dims, any dims, and any dims at a prime size


@pytest.mark.parametrize("size", [12, 13])
def test_what_holds_at_even_sizes_alone_is_refused(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though torch's own code asked: there is no other size at which nothing is asked."""
    monkeypatch.setattr(guards, "is_torch_file", lambda file: True)

    def even(x: Tensor) -> Tensor:
        if x.shape[1] % 2:
            raise ValueError("even sizes only")
        return x + 1

    rule = "SJ-EXPORT-010.*s divisible by 2" if size == 12 else "even sizes only"
    with pytest.raises(ShapeJitError, match=rule):
        captured(even, torch.randn(3, size), shapes={"x": {1: dim(low=4)}})


@given(size=st.integers(4, 400), levels=st.integers(1, 4), low=st.integers(4, 100))
def test_examples_are_unlike_what_they_should_be(size: int, levels: int, low: int) -> None:
    """No half of a size, of a half of it and so on is even, where the range has such a prime."""
    size, high = max(size, low), max(size, low) + 300
    call = ExampleCall.bind(Model(torch.abs).forward, [torch.zeros(size, 4)], {})
    leaves = read_inputs(call, {"x": {0: dim("s", low, high)}})
    symbol = Expr.symbol(0)
    unlike = {"s": [symbol // 2**level % 2 for level in range(levels)]}
    (tensor,) = traced_examples(leaves, unlike=unlike)
    assert low <= tensor.shape[0] <= high
    assert isprime(tensor.shape[0])
    assert all(tensor.shape[0] >> level & 1 for level in range(levels))


@given(
    examples=st.lists(st.integers(0, 40), min_size=2, max_size=3),
    low=st.integers(0, 12),
    width=st.integers(1, 40),
)
def test_prime_examples_are_distinct_primes_in_range(
    examples: list[int], low: int, width: int
) -> None:
    high = low + width
    values = [torch.zeros(min(max(size, low), high), 4) for size in examples]
    dims = [{0: dim(f"s{number}", low, high)} for number in range(len(values))]
    call = ExampleCall.bind(Model(torch.add).forward, values, {})
    shapes = dict(zip("xyz", dims, strict=False))
    leaves = read_inputs(call, shapes)
    found = [int(tensor.shape[0]) for tensor in traced_examples(leaves, unlike={})]
    primes = [size for size in range(max(low, 5), high + 1) if isprime(size)]
    if len(primes) >= len(examples):
        assert len(set(found)) == len(found)
        assert all(size in primes for size in found)
    assert all(size <= max(high, LEAST_TRACED) for size in found)


def test_not_a_model() -> None:
    with pytest.raises(ShapeJitError, match=r"SJ-ARG-007 compile.. was given a function"):
        capture(lambda x: x, (torch.randn(3),), None, None)  # type: ignore[arg-type]


def test_an_exported_program_brings_its_own_dims() -> None:
    dims = {0: dim("b", 2, 9), 1: 2 * dim("t")}
    program = torch.export.export(
        Model(torch.mul).eval(),
        (torch.randn(4, 6), torch.randn(4, 6)),
        dynamic_shapes={"x": dims, "y": dims},
        strict=False,
    )
    model = capture(program, None, None, None)
    names = [leaf.name for leaf in model.leaves]
    assert names == ["x", "y"]
    symbols = model.sizes.table.symbols
    assert [(s.min, s.max) for s in symbols] == [(2, 9), (2, 64)] or symbols[1].min in (1, 2)
    assert sizes_of(model)[0] == sizes_of(model)[1]
    assert sizes_of(model)[0][0] == "x_0"

    named = capture(program, None, None, {"x": {0: dim("rows", 1, 7)}, "y": None})
    assert named.sizes.table.symbols[0].name == "rows"
    assert sizes_of(named)[1][0] == "rows"
    with pytest.raises(
        ShapeJitError, match=r"SJ-ARG-008 compile.. of an exported program takes no"
    ):
        capture(program, (torch.randn(4, 6),), None, None)


def test_shapes_collections_are_read() -> None:
    from torch.export import ShapesCollection

    x = torch.randn(4, 6)
    shapes = ShapesCollection()
    shapes[x] = {0: dim("rows")}
    model = capture(Model(torch.neg), (x,), None, shapes)
    assert sizes_of(model) == [["rows", "6"]]
