# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""One spelling for equal sizes: merged symbols, expressions simplified within their ranges."""

from __future__ import annotations

from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.analysis.accesses import accesses, set_access
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.canonical.spaces import make_view
from shapejit.symbolic import Expr, map_exprs


class Respeller:
    """Rewrites the shapes and maps of a function; see the module's docstring.

    Args:
      facts: about the module's symbols.
    """

    def __init__(self, facts: SymbolFacts) -> None:
        self._facts = facts
        self._types: dict[Any, Any] = {}

    def run(self, function: Any) -> None:
        """Rewrites all but the types of the function's arguments and results."""
        for op in list(sir.walk(function)):
            self._respell_results(op)
            for name in ("space", "image"):
                if name in op.attributes:
                    sizes = map(self._size, sir.attr_sizes(op.attributes[name]))
                    op.attributes[name] = sir.shape_attr(sizes)
            for name in ("expr", "causal"):
                if name in op.attributes:
                    sizes = map(self._size, map_exprs(op.attributes[name].value))
                    op.attributes[name] = ir.AffineMapAttr.get(sir.make_map(0, sizes))
            for access in accesses(op):
                simplify = self._facts.over(access.space).simplify
                exprs = [simplify(self._facts.resolve(e)) for e in access.exprs]
                set_access(op, access, access.value, exprs)

    def _size(self, expr: Expr) -> Expr:
        return self._facts.over(()).simplify(self._facts.resolve(expr))

    def _type(self, type_: Any) -> Any:
        found = self._types.get(type_)
        if found is None:
            sizes = [self._size(size) for size in sir.shape_of(type_)]
            found = self._types[type_] = sir.tensor_type(sizes, type_.element_type)
        return found

    def _respell_results(self, op: Any) -> None:
        for result in op.results:
            old = result.type
            if not sir.has_shape(old) or (new := self._type(old)) == old:
                continue
            result.set_type(new)
            for user, operand in sir.users(result):
                if user.name == "func.return":
                    with ir.InsertionPoint(user), user.location:
                        sizes = sir.shape_of(old)
                        view = make_view(result, sizes, [Expr.dim(i) for i in range(len(sizes))])
                    view.set_type(old)
                    user.operands[operand] = view
