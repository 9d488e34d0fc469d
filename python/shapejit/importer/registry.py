# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The table of rules, one for each torch operator that the importer understands.

A rule is a small function ``rule(ctx, *operands)`` that builds the operator in our dialect and
returns its results. Operands arrive as `Tensor`, `Expr` (sizes), Python numbers, strings, None and
lists of them, in the order of the operator's schema, defaults filled in.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

Rule = Callable[..., Any]
_RuleT = TypeVar("_RuleT", bound=Rule)

_RULES: Final[dict[str, Rule]] = {}

_MODULES: Final = (
    "attention",
    "contractions",
    "convolutions",
    "creation",
    "gather_index",
    "normalizations",
    "pointwise",
    "pointwise_math",
    "reductions",
    "scalars",
    "scans",
    "views",
)


def rule(*names: str) -> Callable[[_RuleT], _RuleT]:
    """Registers a rule for operators such as ``aten.add.Tensor`` (no ``.default``)."""

    def register(function: _RuleT) -> _RuleT:
        for name in names:
            if name in _RULES:
                raise ValueError(f"two rules for {name}")
            _RULES[name] = function
        return function

    return register


@functools.cache
def rule_table() -> Mapping[str, Rule]:
    """All rules by operator name."""
    for module in _MODULES:
        importlib.import_module(f"shapejit.importer.rules.{module}")
    return _RULES


def target_name(target: Any) -> str:
    """The name under which an FX node's target would be registered."""
    return str(target).removesuffix(".default")
