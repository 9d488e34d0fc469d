# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rules for operators that are not PyTorch's: the example, its page, and what goes wrong."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import shapejit
from shapejit.importer import registry
from shapejit.rules import Context, Expr, Tensor, rule

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "custom_op.py"
ROWS = ({0: Dim("rows", min=1, max=64)},)


@torch.library.custom_op("shapejit_test::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halve.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Halving(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return halve(x)


@pytest.fixture(autouse=True)
def _rules() -> Iterator[None]:
    """Takes back the rules that a test registers."""
    before = dict(registry.rule_table())
    yield
    registry._RULES.clear()
    registry._RULES.update(before)


def compiled(function: Callable[..., Any]) -> shapejit.Program:
    rule("shapejit_test.halve")(function)
    return shapejit.compile(Halving().eval(), (torch.randn(4, 8),), dynamic_shapes=ROWS)


def test_the_example_is_right_and_fuses(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    differences = [float(text) for text in re.findall(r"largest difference (\S+)", printed)]
    assert len(differences) == 3
    assert max(differences) < 5e-6
    assert "3 kernels, 3 launches" in printed
    assert "snake" in printed
    assert "power_norm" in printed


def test_the_page_shows_the_examples_rules() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs/custom-ops.md").read_text(), re.DOTALL)
    source = EXAMPLE.read_text()
    assert len(shown) == 3
    assert all(block.strip() in source for block in shown)


def test_without_a_rule_the_operator_is_named() -> None:
    with pytest.raises(shapejit.ShapeJitError, match=r"SJ-OP-001(.|\n)*shapejit_test.halve"):
        shapejit.compile(Halving().eval(), (torch.randn(4, 8),), dynamic_shapes=ROWS)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_a_rule_is_used(rows: int) -> None:
    def half(ctx: Context, x: Tensor) -> Tensor:
        return ctx.pointwise(lambda v: ctx.ops.mul(v, ctx.ops.const(0.5, v.dtype)), x)

    x = torch.randn(rows, 8)
    assert torch.equal(compiled(half)(x), x / 2)


def test_an_exception_in_a_rule_is_the_rules() -> None:
    def broken(ctx: Context, x: Tensor) -> Tensor:
        return ctx.ops.no_such_thing(x)  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(NotImplementedError) as caught:
        compiled(broken)
    text = str(caught.value)
    line = broken.__code__.co_firstlineno + 1
    assert "SJ-OP-002" in text
    assert "broken for shapejit_test.halve failed: AttributeError" in text
    assert f"Mend the rule at test_custom_rules.py:{line}" in text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda ctx, x: ctx.cast(x, torch.float64), "torch.float64.*torch.float32"),
        (lambda ctx, x: ctx.builder.view(x, x.shape[:1], [Expr.dim(0), Expr.const(0)]), "gives"),
    ],
    ids=["dtype", "shape"],
)
def test_a_result_of_another_type_is_the_rules_fault(wrong: Any, said: str) -> None:
    with pytest.raises(NotImplementedError, match=f"SJ-OP-002(.|\n)*{said}"):
        compiled(wrong)


def test_a_second_rule_is_refused_unless_it_replaces() -> None:
    def mine(ctx: Context, x: Tensor) -> Tensor:
        return x

    with pytest.raises(ValueError, match=r"aten\.relu has a rule in shapejit.importer.rules"):
        rule("aten.relu")(mine)
    rule("aten.relu", replace=True)(mine)
    program = shapejit.compile(nn.ReLU().eval(), (-torch.ones(4, 8),), dynamic_shapes=ROWS)
    assert torch.equal(program(-torch.ones(2, 8)), -torch.ones(2, 8))


def test_a_module_that_runs_again_replaces_its_rules() -> None:
    for factor in (0.5, 0.25):

        def mine(ctx: Context, x: Tensor, factor: float = factor) -> Tensor:
            return ctx.pointwise(lambda v: ctx.ops.mul(v, ctx.ops.const(factor, v.dtype)), x)

        program = compiled(mine)
    assert torch.equal(program(torch.ones(2, 8)), torch.full((2, 8), 0.25))
