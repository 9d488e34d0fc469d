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
from collections.abc import Callable, Collection, Mapping
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
    "padding",
    "pointwise",
    "pointwise_math",
    "pooling",
    "reductions",
    "resize",
    "scalars",
    "scans",
    "sorts",
    "updates",
    "views",
)


def rule(*names: str, replace: bool = False) -> Callable[[_RuleT], _RuleT]:
    """Registers a rule for operators such as ``aten.add.Tensor`` (no ``.default``).

    A module that is run again, as in a notebook, replaces its own rules.

    Args:
        names: operators; those of one's own are ``<namespace>.<name>``.
        replace: whether the rule takes the place of another one's.

    Raises:
        ValueError: an operator has a rule, and `replace` is not given.
    """

    def register(function: _RuleT) -> _RuleT:
        table = _RULES if is_builtin(function) else rule_table()
        for name in names:
            known = table.get(name)
            if known is not None and not replace and not _same_place(known, function):
                raise ValueError(
                    f"{name} has a rule in {known.__module__} already; pass replace=True to "
                    "rule() to put this one in its place"
                )
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def is_builtin(rule: Rule) -> bool:
    """Whether a rule is one of this package's."""
    return rule.__module__.startswith(f"{__package__}.")


def _same_place(known: Rule, function: Rule) -> bool:
    return not is_builtin(known) and (known.__module__, known.__qualname__) == (
        function.__module__,
        function.__qualname__,
    )


@functools.cache
def rule_table() -> Mapping[str, Rule]:
    """All rules by operator name."""
    for module in _MODULES:
        importlib.import_module(f"shapejit.importer.rules.{module}")
    return _RULES


def foreign_rules(libraries: Collection[str]) -> list[str]:
    """Operators of these libraries, ``aten`` say, that have a rule which is not of this package."""
    return [
        name
        for name, made in _RULES.items()
        if name.partition(".")[0] in libraries and not made.__module__.startswith("shapejit.")
    ]


def target_name(target: Any) -> str:
    """The name under which an FX node's target would be registered."""
    return str(target).removesuffix(".default")
