# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The imported module and its description: arguments, results, symbols, locations, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import shapejit.ir as sir
from reference.importing import Imported
from shapejit import artefacts
from shapejit.errors import ShapeJitError
from shapejit.importer import import_model
from shapejit.symbolic import Expr


class Function(nn.Module):
    """A model that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Tied(nn.Module):
    """Weights that are tied, unused, constants, and a buffer that is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Parameter(torch.zeros(3))
        self.register_buffer("table", torch.arange(6.0), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.table
        return self.head(torch.where(x > 0, x, torch.tensor(0.5)))


class Pair(NamedTuple):
    """A result with named parts."""

    logits: Tensor
    rest: Any


class Nested(nn.Module):
    """Takes and returns all kinds of structures."""

    def forward(self, batch: dict[str, Any], *states: Tensor, scale: float, bias: Tensor) -> Any:
        x = batch["x"] * scale + bias
        return {
            "pair": Pair(x + states[0], [x.shape[0], states[1]]),
            "none": None,
            "number": 3,
            "twice": (x, x),
        }


def test_arguments_and_weights() -> None:
    model = Imported(Tied(), [torch.randint(0, 11, (3, 4))], {"ids": {0: Dim("batch", max=9)}})
    imported = model.imported
    assert imported.inputs == (
        artefacts.TensorInput("ids", "int64", (Expr.symbol(0), Expr.const(4))),
    )
    assert imported.parameters == (artefacts.Parameter("ids", keyword=False, tree=None),)
    tied, table = imported.weights
    assert tied.name in ("embed.weight", "head.weight")
    assert (tied.shape, tied.constant) == ((11, 6), False)
    assert table == artefacts.WeightSpec("table", "float32", (6,), constant=True)
    assert imported.weight_tensors[0].data_ptr() == model.model.embed.weight.data_ptr()
    text = str(imported.module)
    for attribute in (
        'shapejit.kind = "input", shapejit.name = "ids"',
        f'shapejit.kind = "weight", shapejit.name = "{tied.name}"',
    ):
        assert attribute in text
    model.check(torch.randint(0, 11, (5, 4)))


def test_symbols_are_declared() -> None:
    imported = import_model(
        Function(lambda x: x[1:] * 2),
        [torch.randn(4, 6)],
        dynamic_shapes={"args": ({0: (0, 8, 64), 1: Dim("cols")},)},
    )
    symbols = sir.symbols(imported.module)
    assert [(s.name, s.min, s.max, s.opt, s.derived) for s in symbols] == [
        ("args_0_0", 0, 64, 8, None),
        ("cols", 0, None, None, None),
        ("d2", 0, None, None, "max"),
    ]
    assert imported.symbols[2].derived is not None
    assert imported.symbols[0] == artefacts.SymbolSpec("args_0_0", 0, 64, 8)
    assert set(imported.seconds) == {"export", "decompose", "torch-mlir", "convert"}


def test_constraints_are_declared() -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > x.shape[1] else x * 3

    shapes = {"args": ({0: Dim.AUTO, 1: Dim.AUTO},)}
    imported = import_model(Function(function), [torch.randn(6, 4)], dynamic_shapes=shapes)
    (constraint,) = imported.constraints
    assert constraint.rule == "s0 - s1 - 1 >= 0"
    assert constraint.location is not None and constraint.location.startswith("test_import_model")
    text = str(imported.module)
    assert "affine_set<()[s0, s1] : (s0 - s1 - 1 >= 0)>" in text
    assert 'because "args_0_0 - args_0_1 - 1 >= 0 (test_import_model.py:' in text


def test_locations_name_operator_and_line() -> None:
    shapes = {"args": ({0: Dim("n")},)}
    imported = import_model(Function(torch.exp), [torch.randn(3)], dynamic_shapes=shapes)
    text = imported.module.operation.get_asm(enable_debug_info=True)
    assert 'loc("aten.exp"(' in text
    assert 'test_import_model.py":' in text


def test_structures_in_and_out() -> None:
    rows = Dim("rows", min=1, max=9)
    model = Imported(
        Nested(),
        [{"x": torch.randn(4, 3), "skip": None}, torch.randn(4, 3), torch.randn(2)],
        {"batch": {"x": {0: rows}}, "states": ({0: rows}, None)},
        kwargs={"bias": torch.randn(3), "scale": 0.5},
    )
    imported = model.imported
    assert [spec.path for spec in imported.inputs] == [
        'batch["x"]',
        'batch["skip"]',
        "states[0]",
        "states[1]",
        "bias",
        "scale",
    ]
    assert imported.inputs[5] == artefacts.ConstantInput("scale", 0.5)
    assert [(p.name, p.keyword, p.tree is None) for p in imported.parameters] == [
        ("batch", False, False),
        ("states[0]", False, True),
        ("states[1]", False, True),
        ("bias", True, True),
        ("scale", True, True),
    ]
    kinds = [type(spec).__name__ for spec in imported.outputs]
    assert kinds == [
        "TensorOutput",
        "SizeOutput",
        "InputOutput",
        "ConstantOutput",
        "ConstantOutput",
        "TensorOutput",
        "TensorOutput",
    ]
    assert imported.outputs[1] == artefacts.SizeOutput(Expr.symbol(0))
    assert imported.outputs[2] == artefacts.InputOutput(3)
    model.check(
        {"x": torch.randn(1, 3), "skip": None},
        torch.randn(1, 3),
        torch.randn(2),
        bias=torch.randn(3),
        scale=0.5,
    )


def test_results_are_no_arguments_and_all_different() -> None:
    model = Imported.table(
        {"copy": lambda x: x.clone(), "view": lambda x: x.t(), "again": lambda x: x.t()},
        [torch.randn(3, 4)],
        [{0: "n"}],
    )
    (function,) = sir.functions(model.imported.module)
    operands = list(sir.operations(sir.body(function))[-1].operands)
    assert len(set(operands)) == 3
    assert not set(operands) & set(sir.body(function).arguments)
    model.check(torch.randn(5, 4))


def test_every_unsupported_operator_is_listed_once() -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.mode(x, dim=-1, keepdim=True)[0]
        z = torch.mode(y * 2, dim=0, keepdim=True)[1]
        return y + z + torch.fft.fft(x).abs()

    with pytest.raises(ShapeJitError) as caught:
        import_model(
            Function(function), [torch.randn(3, 4)], dynamic_shapes={"args": ({0: Dim("n")},)}
        )
    text = str(caught.value)
    assert "SJ-OP-001 the model uses 2 operators" in text
    assert "aten.mode" in text and "2 uses  first at test_import_model.py:" in text
    assert "aten._fft_r2c" in text and "1 use   first at test_import_model.py:" in text


def test_unsupported_operands_are_listed_with_the_reason() -> None:
    with pytest.raises(ShapeJitError, match=r"aten.index.Tensor by a mask") as caught:
        import_model(Function(lambda x, m: x[m].sum()), [torch.randn(4), torch.ones(4) > 0])
    assert "SJ-OP-001" in str(caught.value) or "SJ-EXPORT-012" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda x: torch.view_as_complex(x).abs(), "SJ-OP-001"),
        (
            lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y * 2, (x,)),
            "SJ-EXPORT-017 the model holds cond",
        ),
        (lambda x: torch.dropout(x, 0.5, train=True), "SJ-TRAIN-002.*dropout in training mode"),
        (lambda x: torch.nonzero(x), "SJ-OP-001|SJ-EXPORT-012"),
    ],
)
def test_models_that_cannot_be_compiled(function: Callable[..., Any], error: str) -> None:
    with pytest.raises(ShapeJitError, match=error):
        import_model(Function(function), [torch.randn(4, 2)])


def test_a_buffer_that_changes_is_a_state() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return x + self.count

    model = Counter()
    imported = import_model(model, [torch.randn(3)])
    assert [state.name for state in imported.states] == ["count"]
    assert imported.state_tensors[0] is model.count
    assert not imported.weights
    text = str(imported.module)
    assert 'shapejit.kind = "input", shapejit.name = "count"' in text
    assert 'shapejit.name = "count", shapejit.updates = 1 : i64' in text


def test_an_input_that_changes_is_a_result_of_the_function() -> None:
    imported = import_model(Function(lambda x, y: x.add_(1) * y), [torch.ones(4), torch.ones(4)])
    assert imported.updates == (0,)
    assert len(imported.outputs) == 1
    assert "shapejit.updates = 0 : i64" in str(imported.module)


def test_dtypes_that_are_not_supported() -> None:
    with pytest.raises(ShapeJitError, match='SJ-DTYPE-002 input "args\\[0\\]" is complex64'):
        import_model(Function(lambda x: x.clone()), [torch.randn(3, dtype=torch.complex64)])


def test_decompositions_serve_operators_without_a_rule() -> None:
    functions = {
        "addr": lambda x, y: torch.addr(x, x[:, 0], x[0]),
        "pairwise_distance": lambda x, y: nn.functional.pairwise_distance(x, y),
        "huber": lambda x, y: nn.functional.huber_loss(x, y),
        "isclose": lambda x, y: torch.isclose(x, y),
        "pixel_shuffle": lambda x, y: nn.functional.pixel_shuffle(x.view(-1, 4, 1, 1), 2),
        "norm": lambda x, y: (x - y).norm(dim=-1),
        "smooth_l1": lambda x, y: nn.functional.smooth_l1_loss(x, y),
    }
    model = Imported.table(functions, [torch.randn(5, 4), torch.randn(5, 4)], [{0: "n"}] * 2)
    for size in (1, 2, 9):
        model.check(torch.randn(size, 4), torch.randn(size, 4))


def test_inputs_named_like_builtins() -> None:
    """Copying a graph renames such placeholders; inputs and results are matched by position."""

    class Named(torch.nn.Module):
        def forward(self, input: torch.Tensor, id: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return input + 1, id

    batch = Dim("batch", min=1, max=8)
    model = Named().eval()
    example = (torch.randn(3, 4), torch.randn(3))
    imported = import_model(model, example, dynamic_shapes=({0: batch}, {0: batch}))
    assert [spec.path for spec in imported.inputs] == ["input", "id"]
    assert isinstance(imported.outputs[0], artefacts.TensorOutput)
    assert imported.outputs[1] == artefacts.InputOutput(1)
