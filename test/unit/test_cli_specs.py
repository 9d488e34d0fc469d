# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How inputs are written on the command line: what is read, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapejit.cli.specs import (
    DTYPES,
    InputSpec,
    NamedDim,
    RangedDim,
    ShapeOptions,
    read_inputs,
    read_sizes,
)
from shapejit.errors import CommandLineError

BATCH = NamedDim("batch", 1, 8, 64)
SEQ = NamedDim("seq", 1, None, 512)
DIMS = ("batch=1:8:64", "seq=1:512")


def specs(**options: object) -> dict[str, InputSpec]:
    return read_inputs(ShapeOptions(**options))  # type: ignore[arg-type]


def refusal(**options: object) -> str:
    with pytest.raises(CommandLineError) as raised:
        specs(**options)
    return str(raised.value)


def test_inputs() -> None:
    found = specs(input=("ids:int64:batchxseq", "x:float32:3x17", "y:bool"), dim=DIMS)
    assert found["ids"].dims == (BATCH, SEQ)
    assert [(s.dtype, s.dims) for s in found.values()][1:] == [("float32", (3, 17)), ("bool", None)]


def test_a_dim_alone_takes_any_size() -> None:
    assert specs(input=("x:float32:nx3",), dim=("n",))["x"].dims == (NamedDim("n"), 3)


def test_scalars() -> None:
    assert specs(input=("x:float32:scalar",))["x"].dims == ()
    assert specs(min_shapes="x:scalar", max_shapes="x:scalar")["x"].dims == ()


def test_shapes_add_to_inputs() -> None:
    found = specs(input=("ids:int64",), shapes="ids:batchxseq,mask:batchxseq", dim=DIMS)
    assert [(s.name, s.dtype, s.dims) for s in found.values()] == [
        ("ids", "int64", (BATCH, SEQ)),
        ("mask", None, (BATCH, SEQ)),
    ]


def test_the_way_of_trtexec() -> None:
    found = specs(min_shapes="x:1x3,y:4", opt_shapes="x:8x3,y:4", max_shapes="x:64x3,y:4")
    assert [spec.dims for spec in found.values()] == [(RangedDim(1, 8, 64), 3), (4,)]
    found = specs(min_shapes="x:0x3", max_shapes="x:64x3")
    assert found["x"].dims == (RangedDim(0, None, 64), 3)


def test_names_of_dims_may_hold_an_x() -> None:
    dims = ("pixels=1:64", "x=1:4", "pi=1:9")
    found = specs(input=("a:float32:pixelsxxxpi",), dim=dims)["a"].dims
    assert found is not None
    assert [dim.name for dim in found if isinstance(dim, NamedDim)] == ["pixels", "x", "pi"]


def test_an_ambiguous_shape_is_refused() -> None:
    text = refusal(input=("a:float32:axbxa",), dim=("a=1:2", "axb=1:2", "bxa=1:2", "b=1:2"))
    assert 'the shape "axbxa" can be read as a x b x a or a x bxa; rename a dim' in text


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"input": ("ids",)}, "it must be NAME:DTYPE:SHAPE, or NAME:DTYPE"),
        ({"input": ("ids:3x17",)}, '"3x17" is not a dtype'),
        ({"input": ("ids:int46:3",)}, '"int46" is not a dtype (did you mean "int64"?)'),
        (
            {"input": ("ids:int64:3x",)},
            'the shape "3x" must be numbers or names given by --dim, with x between them',
        ),
        (
            {"input": ("ids:int64:bxs",), "dim": ("b=1:2",)},
            "must be numbers or dims that --dim declares (b), with x between them",
        ),
        ({"input": ("a:bool:1", "a:bool:2")}, 'input "a" is given twice'),
        ({"dim": ("batch=1",)}, "it must be NAME=MIN:MAX, NAME=MIN:OPT:MAX or NAME"),
        ({"dim": ("2b=1:2",)}, "it must be NAME=MIN:MAX"),
        ({"dim": ("b=9:4",)}, "the sizes 9:4 must not decrease from min to max"),
        ({"dim": ("b=1:9:4",)}, "the sizes 1:9:4 must not decrease from min to max"),
        ({"dim": ("b=1:2", "b=1:3")}, 'dim "b" is given twice'),
        ({"dim": ("b=1:2",)}, "no shape of --input or --shapes mentions b"),
        ({"shapes": "x"}, '"x" must be INPUT:SHAPE, with commas between inputs'),
        ({"shapes": "x:3,x:4"}, 'input "x" is given twice'),
        (
            {"input": ("x:bool:3",), "shapes": "x:3"},
            'the shape of input "x" is given by --input already',
        ),
        ({"min_shapes": "x:3"}, "--minShapes and --maxShapes must be given together"),
        ({"opt_shapes": "x:3"}, "--minShapes and --maxShapes must be given together"),
        (
            {"min_shapes": "x:1x3", "max_shapes": "x:1xn"},
            'the shape "1xn" must be whole numbers with x between them, or scalar',
        ),
        (
            {"min_shapes": "x:1,y:1", "max_shapes": "x:1"},
            'it must name the inputs of --minShapes: "x" and "y"',
        ),
        (
            {"min_shapes": "x:1x3", "max_shapes": "x:1"},
            'input "x" has 2 dims in --minShapes',
        ),
        (
            {"min_shapes": "x:4", "max_shapes": "x:1"},
            "the sizes 4:1 must not decrease from min to max",
        ),
        (
            {"min_shapes": "x:1", "opt_shapes": "x:9", "max_shapes": "x:4"},
            "the sizes 1:9:4 must not decrease from min to max",
        ),
    ],
)
def test_malformed_options_name_the_rule(options: dict[str, object], rule: str) -> None:
    assert rule in refusal(**options)


def test_a_refusal_names_text_rule_and_example() -> None:
    assert refusal(min_shapes="x:1x3", max_shapes="x:1*3") == (
        'SJ-CLI-001 --maxShapes "x:1*3": the shape "1*3" must be whole numbers with x between '
        "them, or scalar. Write for example --maxShapes ids:64x512,mask:64x512."
    )


def test_sizes_to_run_with() -> None:
    sizes = read_sizes("ids:4x128,mask:4x128")
    assert (sizes.shapes, sizes.dims) == ({"ids": (4, 128), "mask": (4, 128)}, {})
    sizes = read_sizes("ids:4x128,batch=4, seq=7,y:scalar")
    assert (sizes.shapes, sizes.dims) == ({"ids": (4, 128), "y": ()}, {"batch": 4, "seq": 7})


@pytest.mark.parametrize("text", ["", "ids", "ids:4xseq", "b=1,b=2", "x:1,x:2", "b=-1", ":3"])
def test_malformed_sizes(text: str) -> None:
    with pytest.raises(CommandLineError, match="SJ-CLI-001 --shapes"):
        read_sizes(text)


@given(
    st.sampled_from(DTYPES),
    st.lists(st.one_of(st.integers(0, 10**6), st.sampled_from(["n", "x", "width", "xx"]))),
)
def test_every_shape_is_read_as_written(dtype: str, shape: list[int | str]) -> None:
    names = sorted({dim for dim in shape if isinstance(dim, str)})
    text = "x".join(map(str, shape)) or "scalar"
    try:
        found = specs(input=(f"i:{dtype}:{text}",), dim=tuple(f"{name}=1:9" for name in names))
    except CommandLineError as error:
        assert "can be read as" in str(error)
        assert {"x", "xx"} & {*names}
        return
    dims = found["i"].dims
    assert dims is not None
    assert [dim.name if isinstance(dim, NamedDim) else dim for dim in dims] == shape
