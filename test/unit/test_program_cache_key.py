# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Keys of whole programs: any change of a program or of how it is compiled changes its key."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from shapejit import importer, program_cache
from shapejit.cache import fingerprint
from shapejit.importer.fingerprint import program_text
from shapejit.options import CompileOptions

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": functools.partial(nn.functional.gelu, approximate="tanh"),
    "clamp": lambda x: torch.clamp(x, min=0.5),
    "clamp_more": lambda x: torch.clamp(x, min=0.25),
    "power": lambda x: x**3,
}


@dataclasses.dataclass(frozen=True)
class Made:
    """What a program is made of; every field matters."""

    activation: str = "relu"
    width: int = 8
    bias: bool = True
    tied: bool = False
    persistent: bool = True
    literal: float = 1.0
    transposed: bool = False
    dtype: torch.dtype = torch.float32
    least: int = 1
    most: int = 64
    dim: str = "rows"
    name: str = "x"
    result: str = "tensor"
    strided: bool = False


_ALTERNATIVES: dict[str, tuple[Any, ...]] = {
    "activation": tuple(_ACTIVATIONS),
    "width": (8, 16),
    "bias": (True, False),
    "tied": (False, True),
    "persistent": (True, False),
    "literal": (1.0, 2.0, -0.0, 0.0),
    "transposed": (False, True),
    "dtype": (torch.float32, torch.float64),
    "least": (1, 0, 2),
    "most": (64, 65),
    "dim": ("rows", "tokens"),
    "name": ("x", "hidden"),
    "result": ("tensor", "tuple", "dict"),
    "strided": (False, True),
}
_FIELDS = {field: st.sampled_from(values) for field, values in _ALTERNATIVES.items()}


class Model(nn.Module):
    """A model made to order."""

    def __init__(self, made: Made) -> None:
        super().__init__()
        self.made = made
        self.first = nn.Linear(made.width, made.width, bias=made.bias, dtype=made.dtype)
        self.second = nn.Linear(made.width, made.width, bias=made.bias, dtype=made.dtype)
        if made.tied:
            self.second.weight = self.first.weight
        shift = torch.randn(made.width, dtype=made.dtype)
        self.register_buffer("shift", shift, persistent=made.persistent)

    def compute(self, x: Tensor) -> Any:
        y = self.second(_ACTIVATIONS[self.made.activation](self.first(x)))
        y = y * torch.tensor(self.made.literal, dtype=self.made.dtype) + self.shift
        y = y.mT if self.made.transposed else y
        return {"tensor": y, "tuple": (y,), "dict": {"y": y}}[self.made.result]


class OfX(Model):
    def forward(self, x: Tensor) -> Any:
        return self.compute(x)


class OfHidden(Model):
    def forward(self, hidden: Tensor) -> Any:
        return self.compute(hidden)


def captured(made: Made, seed: int = 0) -> importer.CapturedModel:
    """The program, exported."""
    torch.manual_seed(seed)
    model = (OfX if made.name == "x" else OfHidden)(made).eval()
    x = torch.zeros(made.width, 3, dtype=made.dtype).mT
    x = x if made.strided else x.contiguous()
    rows = Dim(made.dim, min=made.least, max=made.most)
    with torch.no_grad():
        return importer.capture(model, (x,), None, {made.name: {0: rows}})


@functools.cache
def text(made: Made) -> str:
    return program_text(captured(made))


@pytest.mark.parametrize("field", sorted(_FIELDS))
def test_a_change_of_one_thing_changes_the_text(field: str) -> None:
    old = getattr(Made(), field)
    other = next(new for new in _ALTERNATIVES[field] if repr(new) != repr(old))
    assert text(dataclasses.replace(Made(), **{field: other})) != text(Made())


@settings(deadline=None, max_examples=6)
@given(st.data(), st.builds(Made, **_FIELDS), st.sampled_from(sorted(_FIELDS)))
def test_a_change_of_the_program_changes_its_text(data: Any, made: Made, field: str) -> None:
    old = getattr(made, field)
    different = _FIELDS[field].filter(lambda new: repr(new) != repr(old))
    changed = dataclasses.replace(made, **{field: data.draw(different)})
    assert text(changed) != text(made)


@settings(deadline=None, max_examples=3)
@given(st.builds(Made, **_FIELDS), st.integers(1, 100))
def test_values_of_weights_do_not_matter(made: Made, seed: int) -> None:
    assert program_text(captured(made, seed)) == text(made)


def test_names_of_values_do_not_matter() -> None:
    class Local(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x) + 1

    one, other = (
        torch.export.export(
            Local().eval(), (torch.zeros(3, 8),), dynamic_shapes=({0: Dim("rows", max=64)},)
        )
        for _ in range(2)
    )
    for node in other.graph.nodes:
        if node.op == "call_function":
            node._rename(f"{node.name}_renamed")
    for spec in other.graph_signature.output_specs:
        spec.arg.name += "_renamed"
    texts = [program_text(importer.capture(each, None, None, None)) for each in (one, other)]
    assert texts[0] == texts[1]


def unit_key(
    captured: importer.CapturedModel, gpu: str | None = None, **options: Any
) -> program_cache.VariantKey:
    unit = program_cache.program_unit(captured, CompileOptions(**options), gpu)
    assert unit is not None
    return unit.key


def test_how_it_is_compiled_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "program_digest", lambda: "of the package")
    program = captured(Made())
    gpu = "cuda:sm_90a:h200"
    keys = [unit_key(program), unit_key(program, gpu), unit_key(program, "cuda:sm_90a")]
    changes: list[dict[str, Any]] = [
        {"opt_level": 1},
        {"deterministic": True},
        {"float32_precision": "tf32"},
        {"max_regions": 3},
        {"target_cpu": "x86-64-v3"},
    ]
    keys += [unit_key(program, **change) for change in changes]
    monkeypatch.setattr(fingerprint, "program_digest", lambda: "of another package")
    keys.append(unit_key(program))
    versions = dict(fingerprint.import_toolchain())
    for name in ("torch", "torch-mlir", "mlir", "llvm", "shapejit"):
        other = tuple((versions | {name: "another"}).items())
        monkeypatch.setattr(fingerprint, "import_toolchain", lambda other=other: other)
        keys.append(unit_key(program))
    assert len({key.digest for key in keys}) == len(keys)


def test_what_does_not_change_the_code_does_not_matter() -> None:
    program = captured(Made())
    assert unit_key(program).digest == unit_key(program, free_original=True).digest


def test_where_the_model_lies_does_not_matter_but_lines_do() -> None:
    """Reports show file names and lines, so these are part of the text; folders are not."""
    lines = text(Made()).splitlines()
    assert any(" at test_program_cache_key.py:" in line for line in lines)
    assert not any("/unit/" in line for line in lines)
