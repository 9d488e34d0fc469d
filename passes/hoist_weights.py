# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-hoist-weights: what depends on weights alone is computed once, when they are bound.

Why: models compute on their weights, and so do passes: filters of Winograd's algorithm, casts of
weights kept in another type, weight normalisation, products of two weights, scaled filters, copies
in another order of elements. Such launches give the same result in every call, as long as nobody
changes the weights.

Before::

    func.func @main(%x: .. {shapejit.kind = "input"}, %w: .. {shapejit.kind = "weight"},
                    %s: .. {shapejit.kind = "weight"}) -> .. {
      %u = shapejit.loop over [64, 32] ins(%w at #id, %s at #rows) outs(#id) { mul }
      %y = shapejit.gemm over [s0, 64, 32] lhs(%x ..) rhs(%u ..)
      return %y
    }

After::

    module @shapejit_bind {
      func.func @main(%w: .. {shapejit.kind = "input", shapejit.weight = 0}, %s: .. ) -> .. {
        %u = shapejit.loop over [64, 32] ins(%w at #id, %s at #rows) outs(#id) { mul }
        return %u
      }
    }
    func.func @main(%x: .., %w: .., %s: .., %u: .. {shapejit.hoisted, shapejit.kind = "weight"}) {
      %y = shapejit.gemm over [s0, 64, 32] lhs(%x ..) rhs(%u ..)
      return %y
    }

The *bind part* is a program of its own: the pipeline compiles it apart, with the same passes from
here on, and whoever binds weights to the program runs it. To the rest of the pipeline its results
are weights: they are packed and joined as such.

The pass comes after pointwise operations have moved into their readers, so what it finds would be
launches. Hoisted are results of operations

* that depend on weights and constants alone, not on a size of an input. A buffer that the model
  changes is an input. Of tables over positions, such as cosines of rotary embeddings, the size of
  an input is only the number of rows: they are computed up to its greatest value, and calls read
  their first rows, where all of them take at most ``tables`` bytes (`hoisting/tables.py`);
* that stay small: they take at most ``growth`` times the bytes of the weights that they are
  computed from, and ``slack`` bytes besides. That holds for each alone and for all together. What
  is larger, such as a table expanded to many rows, stays in calls, and what it is computed from is
  looked at instead. ``shapejit.kept`` of the function says which operations these are;
* whose absence calls feel: a view that only regroups dims costs nothing, and a pointwise result
  that is returned, or that calls write into, would be copied instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, option, register_pass
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.fusion.codec import Codec
from shapejit.passes.hoisting.plan import Limits, named, plan
from shapejit.passes.hoisting.split import BIND_MODULE, split
from shapejit.passes.hoisting.tables import extend_tables

KEPT: Final = "shapejit.kept"
"""Attribute of a function: operations on weights alone that stay in calls, with the reasons."""


@register_pass("shapejit-hoist-weights", dialects=("arith", "func", "tensor"))
@dataclass(frozen=True)
class HoistWeights(Pass):
    """Move what depends on weights alone into a part that runs when weights are bound."""

    growth: int = option(4, help="most bytes of results for each byte of their weights")
    slack: int = option(1 << 20, help="bytes that results may take besides")
    tables: int = option(8 << 20, help="most bytes of tables up to the greatest length")

    def run(self, module: Any) -> None:
        for name in ("growth", "slack", "tables"):
            if getattr(self, name) < 0:
                text = f"{name} must not be negative, got {getattr(self, name)}"
                raise PassFailure(module, text)
        facts, limits = SymbolFacts.of(module), Limits(self.growth, self.slack)
        bind = None
        for function in sir.functions(module):
            tables = extend_tables(function, facts, self.tables)
            found = plan(function, Codec(module), limits, tables.made)
            large = (
                f"{named(op)}: {size} bytes up to the greatest length" for op, size in tables.large
            )
            if kept := [*found.kept, *large]:
                texts = list(map(ir.StringAttr.get, kept))
                function.attributes[KEPT] = ir.ArrayAttr.get(texts)
            if found.hoisted:
                bind = bind or _bind_module(module, function)
                split(function, found.hoisted, bind)


def _bind_module(module: Any, before: Any) -> Any:
    """The block of a new module for the same target, in front of an operation."""
    target = "shapejit.target"
    attributes = {"sym_name": ir.StringAttr.get(BIND_MODULE)}
    if target in module.operation.attributes:
        attributes[target] = module.operation.attributes[target]
    made = ir.Operation.create(
        "builtin.module",
        attributes=attributes,
        regions=1,
        loc=before.location,
        ip=ir.InsertionPoint(before),
    )
    return made.regions[0].blocks.append()
