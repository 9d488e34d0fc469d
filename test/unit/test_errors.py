# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The catalogue of errors: every entry renders, has its Python type, and is documented."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest

import shapejit
from shapejit.docs_gen import errors as docs
from shapejit.docs_gen.error_examples import EXAMPLES
from shapejit.errors import ErrorId, ShapeJitError, join_names, quote

ROOT = Path(__file__).parents[2]


def test_text_of_an_error_is_id_message_way_out_and_location() -> None:
    error = EXAMPLES[ErrorId.SJ_SHAPE_003].error(ErrorId.SJ_SHAPE_003)
    assert str(error) == (
        'SJ-SHAPE-003 dim "seq" = 1537 of argument "ids" (dim 1) is above its range 1..1024. '
        'Pass at most 1024, or compile with Dim("seq", min=1, max=2048). (model.py:41)'
    )
    assert error.id is ErrorId.SJ_SHAPE_003
    assert error.fields["size"] == 1537
    assert error.location == "model.py:41"


def test_a_list_in_a_message_stands_on_lines_of_its_own() -> None:
    error = EXAMPLES[ErrorId.SJ_OP_001].error(ErrorId.SJ_OP_001)
    assert str(error).splitlines() == [
        "SJ-OP-001 the model uses 2 operators that shapejit does not compile:",
        "  aten.fft_rfft.default  x3  model.py:17",
        "  aten.unique2.default   x1  model.py:25",
        "Replace them in the model, or add a rule for each (docs/custom-ops.md).",
    ]


@pytest.mark.parametrize("error_id", ErrorId)
def test_every_entry_fills_its_templates_from_its_example(error_id: ErrorId) -> None:
    example = EXAMPLES[error_id]
    assert frozenset(example.fields) == error_id.value.field_names()
    text = str(example.error(error_id))
    assert text.startswith(error_id.code + " ")
    assert not re.search(r"\.\.( |$)", text), "two full stops in a row"
    assert "{" not in error_id.value.title


@pytest.mark.parametrize("error_id", ErrorId)
def test_every_error_survives_pickling(error_id: ErrorId) -> None:
    error = EXAMPLES[error_id].error(error_id)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.id) == (type(error), str(error), error_id)


@pytest.mark.parametrize(
    ("error_id", "python_type"),
    [
        (ErrorId.SJ_SHAPE_001, ValueError),
        (ErrorId.SJ_DTYPE_001, TypeError),
        (ErrorId.SJ_DEVICE_001, ValueError),
        (ErrorId.SJ_GRAD_001, RuntimeError),
        (ErrorId.SJ_TRAIN_001, RuntimeError),
        (ErrorId.SJ_ARG_001, TypeError),
        (ErrorId.SJ_EXPORT_001, ValueError),
        (ErrorId.SJ_OP_001, NotImplementedError),
        (ErrorId.SJ_OPTION_001, ValueError),
        (ErrorId.SJ_KNOB_001, ValueError),
        (ErrorId.SJ_LOAD_001, ValueError),
        (ErrorId.SJ_TARGET_001, RuntimeError),
        (ErrorId.SJ_INTERNAL_001, RuntimeError),
    ],
)
def test_errors_are_also_the_natural_python_type(
    error_id: ErrorId, python_type: type[Exception]
) -> None:
    error = EXAMPLES[error_id].error(error_id)
    assert isinstance(error, python_type)
    assert isinstance(error, ShapeJitError)
    assert isinstance(error, shapejit.ShapeJitError)


def package_sources() -> list[Path]:
    """All Python files that may raise errors."""
    files = [*ROOT.glob("python/shapejit/**/*.py"), *ROOT.glob("passes/**/*.py")]
    catalogue = [
        ROOT / "python/shapejit" / name for name in ("errors.py", "docs_gen/error_examples.py")
    ]
    return [path for path in files if path not in catalogue]


def test_every_id_is_raised_somewhere() -> None:
    text = "\n".join(path.read_text() for path in package_sources())
    used = set(re.findall(r"SJ_[A-Z]+_\d+", text))
    assert sorted(member.name for member in ErrorId if member.name not in used) == []


@pytest.mark.parametrize("path", package_sources(), ids=lambda path: path.stem)
def test_errors_are_raised_with_the_fields_of_their_templates(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(value=ast.Name("ErrorId"), attr=name), attr="error"
                ),
                keywords=keywords,
            ) if all(keyword.arg for keyword in keywords):
                given = {keyword.arg for keyword in keywords} - {"location"}
                assert given == ErrorId[name].value.field_names(), f"{path}:{node.lineno}"


def test_ids_number_each_family_without_gaps() -> None:
    numbers: dict[str, list[int]] = {}
    for member in ErrorId:
        numbers.setdefault(member.family, []).append(int(member.name[-3:]))
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())


def test_docs_page_is_current() -> None:
    assert (ROOT / "docs" / "errors.md").read_text() == docs.page(), (
        "run `python -m shapejit.docs_gen.errors docs/errors.md`"
    )


def test_quoting_and_lists_of_names() -> None:
    assert quote("ids") == '"ids"'
    assert quote('batch["ids"]') == '`batch["ids"]`'
    assert join_names([]) == ""
    assert join_names(["a"]) == '"a"'
    assert join_names(["a", "b", "c"], "or") == '"a", "b" or "c"'
