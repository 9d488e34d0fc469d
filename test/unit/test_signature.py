# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Signatures: values of symbols for good calls, and the full message for every bad one."""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as pytree

from shapejit.artefacts import (
    ConstantInput,
    Derivation,
    InputSpec,
    Parameter,
    SizeInput,
    SymbolSpec,
    TensorInput,
)
from shapejit.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    GradError,
    InternalError,
    ShapeError,
    ShapeJitError,
)
from shapejit.signature import Signature, same_constant, solve_affine
from shapejit.symbolic import Expr
from unit.tensors_without_memory import KINDS

CPU = torch.device("cpu")
S0, S1, S2 = Expr.symbol(0), Expr.symbol(1), Expr.symbol(2)
BATCH = SymbolSpec("batch", min=1, max=64)
SEQ = SymbolSpec("seq", min=2, max=1024)


def tensor(path: str, *dims: Expr | int, dtype: str = "float32") -> TensorInput:
    """An input of the given dims."""
    return TensorInput(
        path, dtype, tuple(d if isinstance(d, Expr) else Expr.const(d) for d in dims)
    )


def signature(
    *inputs: InputSpec, symbols: Any = (BATCH, SEQ), device: torch.device = CPU
) -> Signature:
    """A signature with one positional parameter an input."""
    parameters = [Parameter(spec.path, False, None) for spec in inputs]
    return Signature(parameters, inputs, symbols, device)


def bind(sig: Signature, *args: Any, **kwargs: Any) -> list[int]:
    """The values of the symbols for a call."""
    return sig.bind(sig.flatten(args, kwargs))


def message(error: type[ShapeJitError], sig: Signature, *args: Any, **kwargs: Any) -> str:
    """The text of the error that a call raises."""
    with pytest.raises(error) as raised:
        bind(sig, *args, **kwargs)
    return str(raised.value)


TWO = signature(tensor("ids", S0, S1, dtype="int64"), tensor("x", S0, S1, 768))


def two(batch: int = 3, seq: int = 5) -> tuple[Tensor, Tensor]:
    """Good inputs of `TWO`."""
    return torch.zeros(batch, seq, dtype=torch.int64), torch.zeros(batch, seq, 768)


# Good calls.


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(2, 1024))
def test_plain_symbols_are_read_off(batch: int, seq: int) -> None:
    ids, x = (leaf.expand(batch, seq, *leaf.shape[2:]) for leaf in two(1, 1))
    assert bind(TWO, ids, x) == [batch, seq]


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(1, 9), st.integers(-3, 12))
def test_affine_dims_are_solved(value: int, scale: int, offset: int) -> None:
    size = scale * value + offset
    if size < 0:
        return
    sig = signature(tensor("x", S0 * scale + offset), symbols=[SymbolSpec("n")])
    assert bind(sig, torch.empty(size)) == [value]


def test_a_plain_dim_is_preferred_to_an_affine_one() -> None:
    sig = signature(tensor("x", S0 * 2 + 1), tensor("y", S0), symbols=[SymbolSpec("n")])
    assert [(s.place.input, s.scale) for s in sig.solutions] == [(1, 1)]
    assert bind(sig, torch.empty(7), torch.empty(3)) == [3]


def test_expressions_of_several_symbols_are_verified() -> None:
    sig = signature(tensor("x", S0 * S1), tensor("y", S0, S1), symbols=[BATCH, SEQ])
    assert bind(sig, torch.empty(12), torch.empty(3, 4)) == [3, 4]


def test_floor_division_is_verified() -> None:
    sig = signature(tensor("x", S0), tensor("y", (S0 + 1) // 2), symbols=[SymbolSpec("n")])
    assert bind(sig, torch.empty(7), torch.empty(4)) == [7]
    assert message(ShapeError, sig, torch.empty(7), torch.empty(3)).startswith(
        'SJ-SHAPE-007 dim 0 of argument "y" is 3, but it is compiled as (n + 1)'
    )


def test_merged_symbols_take_the_value_of_their_root() -> None:
    merged = SymbolSpec("mask_len", min=1, max=64, equal_to=0)
    sig = signature(tensor("x", S0), tensor("mask", S1), symbols=[BATCH, merged])
    assert bind(sig, torch.empty(5), torch.empty(5)) == [5, 5]


def test_a_merged_symbol_may_be_the_only_use_of_its_root() -> None:
    sig = signature(tensor("mask", S1), symbols=[BATCH, SymbolSpec("rows", equal_to=0)])
    assert bind(sig, torch.empty(5)) == [5, 5]


def test_derived_symbols_are_left_to_the_host_program() -> None:
    derived = [
        SymbolSpec("d1", derived=Derivation("max", S0 - 4, Expr.const(0))),
        SymbolSpec("d2", derived=Derivation("ceildiv", S0, Expr.const(4))),
        SymbolSpec("d3", derived=Derivation("min", S1, S2)),
        SymbolSpec("d4", derived=Derivation("floordiv", S0, Expr.const(4))),
        SymbolSpec("d5", derived=Derivation("mod", S0, Expr.const(4))),
    ]
    sig = signature(tensor("x", S0), symbols=[SymbolSpec("n"), *derived])
    values = bind(sig, torch.empty(11))
    assert values == [11, 0, 0, 0, 0, 0]
    assert sig.with_derived(values) == [11, 7, 3, 3, 2, 3]


def test_unbounded_symbols_take_any_size() -> None:
    sig = signature(tensor("x", S0, 0), symbols=[SymbolSpec("n")])
    assert bind(sig, torch.empty(1 << 40, 0)) == [1 << 40]


def test_rank_0_and_empty_tensors() -> None:
    sig = signature(tensor("x"), tensor("y", S0), symbols=[SymbolSpec("n")])
    assert bind(sig, torch.tensor(1.0), torch.empty(0)) == [0]


def test_parameters_and_subclasses_of_tensors_are_tensors() -> None:
    sig = signature(tensor("x", S0), symbols=[SymbolSpec("n")])
    assert bind(sig, torch.nn.Parameter(torch.empty(4))) == [4]


def test_an_int_argument_may_be_a_size() -> None:
    sig = signature(SizeInput("n", S0 * 2), tensor("x", S0), symbols=[SymbolSpec("n")])
    assert bind(sig, 6, torch.empty(3)) == [3]
    only = signature(SizeInput("n", S0), symbols=[SymbolSpec("n", max=8)])
    assert bind(only, 5) == [5]


# Numbers, names and structure of arguments.

BATCH_DICT = {"ids": 0, "mask": 0}
NESTED = Signature(
    [
        Parameter("batch", False, pytree.tree_structure(BATCH_DICT)),
        Parameter("states", False, pytree.tree_structure([0, (0, 0)])),
        Parameter("scale", True, None),
    ],
    [
        tensor('batch["ids"]', S0),
        tensor('batch["mask"]', S0),
        tensor("states[0]", S1),
        tensor("states[1][0]", S1),
        ConstantInput("states[1][1]", None),
        ConstantInput("scale", 0.5),
    ],
    [BATCH, SEQ],
    CPU,
)


def nested(batch: Any = None, states: Any = None, scale: Any = 0.5) -> dict[str, Any]:
    """Good arguments of `NESTED`, some replaced."""
    return {
        "batch": {"ids": torch.empty(3), "mask": torch.empty(3)} if batch is None else batch,
        "states": [torch.empty(4), (torch.empty(4), None)] if states is None else states,
        "scale": scale,
    }


def test_positional_arguments_may_be_passed_by_name() -> None:
    ids, x = two()
    assert bind(TWO, ids, x=x) == [3, 5]
    assert bind(TWO, x=x, ids=ids) == [3, 5]


def test_nested_arguments() -> None:
    good = nested()
    assert NESTED.names == "(batch, states, *, scale)"
    assert bind(NESTED, **good) == [3, 4]
    assert bind(NESTED, good["batch"], good["states"], scale=0.5) == [3, 4]


def test_keys_of_dicts_may_come_in_any_order_and_kind_of_dict() -> None:
    batch = OrderedDict(mask=torch.empty(3), ids=torch.empty(3))
    assert bind(NESTED, **nested(batch)) == [3, 4]


def test_missing_arguments() -> None:
    ids, x = two()
    assert message(ArgumentError, TWO, ids) == (
        'SJ-ARG-001 the call lacks argument "x"; the program takes (ids, x). Pass argument "x".'
    )
    assert message(ArgumentError, TWO) == (
        'SJ-ARG-001 the call lacks arguments "ids" and "x"; the program takes (ids, x). Pass '
        'arguments "ids" and "x".'
    )
    assert message(ArgumentError, TWO, x=x).startswith('SJ-ARG-001 the call lacks argument "ids"')


def test_unexpected_arguments() -> None:
    ids, x = two()
    assert message(ArgumentError, TWO, ids, x, x, labels=x) == (
        "SJ-ARG-002 the call passes 1 positional argument too many and keyword argument "
        '"labels", which the program does not take; it takes (ids, x). Leave out 1 positional '
        'argument too many and keyword argument "labels", or compile again with such an example '
        "call."
    )
    assert message(ArgumentError, TWO, ids, ids=ids).startswith(
        'SJ-ARG-002 the call passes keyword argument "ids"'
    )
    assert message(ArgumentError, NESTED, *nested().values()).startswith(
        "SJ-ARG-002 the call passes 1 positional argument too many"
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"batch": torch.empty(3)},
            'SJ-ARG-003 argument "batch" is a tensor, but the program was compiled for a dict of '
            '"ids" and "mask". Pass the compiled structure, or compile again with such an example '
            "call.",
        ),
        (
            {"batch": {"ids": torch.empty(3)}},
            'argument "batch" is a dict of "ids", but the program was compiled for a dict of '
            '"ids" and "mask".',
        ),
        ({"batch": {}}, 'argument "batch" is an empty dict, but'),
        (
            {"batch": {"ids": torch.empty(3), "mask": [torch.empty(3)]}},
            'argument `batch["mask"]` is a list of 1, but the program was compiled for a tensor',
        ),
        (
            {"states": [torch.empty(4), [torch.empty(4), None]]},
            'argument "states[1]" is a list of 2, but the program was compiled for a tuple of 2.',
        ),
        ({"states": [torch.empty(4)]}, 'argument "states" is a list of 1, but'),
        (
            {"states": [torch.empty(4), namedtuple("Pair", "a b")(torch.empty(4), None)]},
            "Pair of 2, but the program was compiled for a tuple of 2.",
        ),
        ({"states": 3}, 'argument "states" is an int, but'),
        ({"states": [torch.empty(4), None]}, 'argument "states[1]" is None, but'),
    ],
)
def test_other_structures(change: dict[str, Any], text: str) -> None:
    found = message(ArgumentError, NESTED, **nested(**change))
    assert text in found
    assert found.startswith("SJ-ARG-00")


def test_constants_must_be_equal() -> None:
    assert message(ArgumentError, NESTED, **nested(scale=2.0)) == (
        'SJ-ARG-005 argument "scale" is 2.0, but the program was compiled with the constant 0.5. '
        "Pass 0.5, or compile again with 2.0."
    )
    found = message(
        ArgumentError, NESTED, **nested(states=[torch.empty(4), (torch.empty(4), torch.empty(1))])
    )
    assert 'argument "states[1][1]" is a tensor, but' in found
    assert "with the constant None" in found


def test_which_constants_are_the_same() -> None:
    assert same_constant(float("nan"), float("nan"))
    assert same_constant("a", "a")
    assert same_constant(None, None)
    assert not same_constant(True, 1)
    assert not same_constant(1, 1.0)
    assert not same_constant(torch.tensor(1), 1)


# Tensors.


@pytest.mark.parametrize(
    ("value", "kind", "remedy"),
    [
        (np.zeros(3), "a numpy.ndarray", "torch.from_numpy(x)"),
        (1.5, "a float", "torch.tensor(x, dtype=torch.float32)"),
        ([1.0], "a list of 1", "torch.tensor(x, dtype=torch.float32)"),
        (None, "None", "a tensor"),
    ],
)
def test_not_a_tensor(value: Any, kind: str, remedy: str) -> None:
    sig = signature(tensor("x", S0), symbols=[SymbolSpec("n")])
    assert message(ArgumentError, sig, value) == (
        f'SJ-ARG-004 argument "x" is {kind}, but the program was compiled for a tensor of '
        f"torch.float32. Pass {remedy}."
    )


def test_not_an_int() -> None:
    sig = signature(SizeInput("n", S0), symbols=[SymbolSpec("n")])
    for value, kind in ((True, "a bool"), (2.0, "a float"), (torch.tensor(2), "a tensor")):
        assert message(ArgumentError, sig, value) == (
            f'SJ-ARG-004 argument "n" is {kind}, but the program was compiled for an int. '
            "Pass an int."
        )


def test_wrong_dtype() -> None:
    ids, x = two()
    assert message(DtypeError, TWO, ids.int(), x) == (
        'SJ-DTYPE-001 argument "ids" is torch.int32, but the program was compiled for '
        "torch.int64. Pass ids.to(torch.int64), or compile again with an example of torch.int32."
    )


def test_wrong_device() -> None:
    ids, x = two()
    assert message(DeviceError, TWO, ids, x.to("meta")) == (
        'SJ-DEVICE-001 argument "x" is on meta, but the program was compiled for cpu. Pass '
        'x.to("cpu"), or compile again with inputs and weights on meta.'
    )


def test_wrong_layout() -> None:
    sig = signature(tensor("x", S0, S1))
    dense = torch.ones(2, 3)
    assert message(ArgumentError, sig, dense.to_sparse()) == (
        'SJ-ARG-006 argument "x" is a tensor of layout torch.sparse_coo, but only dense (strided) '
        "tensors can be passed. Pass x.to_dense()."
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: nested tensors are a prototype
        nested_tensor = torch.nested.nested_tensor([dense[0], dense[1]])
    assert "a tensor of layout nested, but" in message(ArgumentError, sig, nested_tensor)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_without_memory(kind: str) -> None:
    ids, x = two()
    missing = KINDS[kind](x)
    assert message(ArgumentError, TWO, ids, missing) == (
        f'SJ-ARG-012 "x" is a {type(missing).__name__} whose elements are not in memory of its '
        "own, where kernels look for them. Pass a plain tensor with the values, such as "
        "to_local() of a distributed one, and call outside of FakeTensorMode and of torch.func's "
        "transforms."
    )


def test_gradients() -> None:
    ids, x = two()
    TWO.check_grad((ids, x))
    with pytest.raises(GradError) as raised:
        TWO.check_grad((ids, x.requires_grad_()))
    assert str(raised.value) == (
        'SJ-GRAD-001 argument "x" requires grad and grad mode is on, but the program computes no '
        "gradients. Call it under torch.no_grad() or torch.inference_mode()."
    )


# Sizes.


def test_wrong_rank() -> None:
    ids, x = two()
    assert message(ShapeError, TWO, ids[None], x) == (
        'SJ-SHAPE-001 argument "ids" has rank 3 (shape [1, 3, 5]), but the program was compiled '
        "for rank 2 (shape [batch, seq]). Pass a tensor of rank 2."
    )


def test_below_its_range() -> None:
    assert message(ShapeError, TWO, *two(3, 1)) == (
        'SJ-SHAPE-002 dim "seq" = 1 of argument "ids" (dim 1) is below its range 2..1024. Pass '
        'at least 2, or compile with Dim("seq", min=1, max=1024).'
    )


def test_above_its_range() -> None:
    assert message(ShapeError, TWO, *two(3, 1537)) == (
        'SJ-SHAPE-003 dim "seq" = 1537 of argument "ids" (dim 1) is above its range 2..1024. '
        'Pass at most 1024, or compile with Dim("seq", min=2, max=2048).'
    )


def test_range_of_a_solved_symbol() -> None:
    sig = signature(tensor("x", S0 * 8), symbols=[SymbolSpec("h", min=2, max=10)])
    assert message(ShapeError, sig, torch.empty(8)) == (
        'SJ-SHAPE-002 dim "h" = 1 of argument "x" (dim 0) is below its range 2..10. Pass at '
        'least 2, or compile with Dim("h", min=1, max=10).'
    )
    shifted = signature(tensor("x", S0 + 3), symbols=[SymbolSpec("h")])
    assert 'Dim("h", min=0)' in message(ShapeError, shifted, torch.empty(1))


def test_range_of_a_merged_symbol() -> None:
    symbols = [SymbolSpec("a", min=0, max=99), SymbolSpec("b", min=0, max=9, equal_to=0)]
    sig = signature(tensor("x", S0), tensor("y", S1), symbols=symbols)
    assert message(ShapeError, sig, torch.empty(20), torch.empty(20)).startswith(
        'SJ-SHAPE-003 dim "b" = 20 of argument "y" (dim 0) is above its range 0..9.'
    )


def test_off_its_divisor() -> None:
    sig = signature(tensor("image", 3, S0 * 8), symbols=[SymbolSpec("h")])
    assert message(ShapeError, sig, torch.empty(3, 30)) == (
        'SJ-SHAPE-004 dim 1 of argument "image" is 30, but it is compiled as 8*h, so it must be '
        "a multiple of 8. Pad it to 32, or compile with a Dim of its own that may be any size."
    )
    shifted = signature(tensor("image", S0 * 4 + 1), symbols=[SymbolSpec("h")])
    assert "must be a multiple of 4 plus 1. Pad it to 33," in message(
        ShapeError, shifted, torch.empty(30)
    )
    declared = signature(tensor("image", S0), symbols=[SymbolSpec("h", divisor=8)])
    assert message(ShapeError, declared, torch.empty(30)).startswith(
        'SJ-SHAPE-004 dim 0 of argument "image" is 30, but it is compiled as h, so it must be a '
        "multiple of 8. Pad it to 32,"
    )


def test_static_size_differs() -> None:
    ids, x = two()
    assert message(ShapeError, TWO, ids, x[..., :700]) == (
        'SJ-SHAPE-005 dim 2 of argument "x" is 700, but the program was compiled for 768 there '
        "(shape [batch, seq, 768]). Pass 768, or compile with that dim dynamic: "
        'dynamic_shapes={"x": {2: Dim("name")}}.'
    )
    inner = Signature([Parameter("batch", False, None)], [tensor('batch["x"]', 4)], [], CPU)
    assert message(ShapeError, inner, torch.empty(5)) == (
        'SJ-SHAPE-005 dim 0 of argument `batch["x"]` is 5, but the program was compiled for 4 '
        "there (shape [4]). Pass 4, or compile with that dim dynamic."
    )


def test_two_inputs_disagree() -> None:
    ids, _ = two()
    assert message(ShapeError, TWO, ids, torch.zeros(4, 5, 768)) == (
        'SJ-SHAPE-006 dim "batch" = 4 of argument "x" (dim 0), but it is 3 by argument "ids" '
        "(dim 0). Pass equal sizes, or compile with two Dims of different names if the model "
        "allows it."
    )


def test_a_size_differs_from_its_expression() -> None:
    sig = signature(tensor("x", S0), tensor("y", S0 * 2 + 1), symbols=[SEQ])
    assert message(ShapeError, sig, torch.empty(3), torch.empty(5)) == (
        'SJ-SHAPE-007 dim 0 of argument "y" is 5, but it is compiled as 2*seq + 1, which is 7 '
        "for seq = 3. Pass 7 there, or compile with a Dim of its own for it."
    )


def test_a_dim_that_no_input_determines() -> None:
    with pytest.raises(ShapeError) as raised:
        signature(tensor("x", S0 * S1), tensor("y", S0), symbols=[BATCH, SymbolSpec("width")])
    assert str(raised.value) == (
        'SJ-SHAPE-009 dim "width" cannot be worked out from the sizes of the inputs: it occurs '
        'only in batch*width of argument "x" (dim 0). Give it a dim of its own in one of the '
        "inputs."
    )
    with pytest.raises(ShapeError, match="it occurs only in no input at all"):
        signature(tensor("x", 4), symbols=[BATCH])


def test_a_tensor_that_changes_meanwhile_is_still_an_error() -> None:
    ids, x = two()
    assert isinstance(TWO._diagnose((ids, x)), InternalError)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (S0, (0, 1, 0)),
        (S1 * 3 - 2, (1, 3, -2)),
        (Expr.const(4), None),
        (S0 * S1, None),
        (S0 * S0, None),
        (S0 // 2, None),
        (S0 * -1 + 9, None),
    ],
)
def test_solve_affine(size: Expr, expected: tuple[int, int, int] | None) -> None:
    assert solve_affine(size) == expected
