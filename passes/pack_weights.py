# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-pack-weights: weights of products in the layout that the micro-kernel streams.

Why: a micro-kernel reads, for each k, one row of a panel of columns. Stored that way a weight is
read front to back with nothing to copy per call, at any number of rows. Weights do not change
between calls, so the copy is made once, when a program is bound to its weights; panels are padded
with zeros, so the kernel never masks the last one.

Before::

    func.func @main(.., %w: tensor<384x1536xf32, ..> {shapejit.kind = "weight"}) {
      shapejit.gemm over [s0, 384, 1536] lhs(..)
          rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<384x1536xf32, ..>) ..

After, with ``panel=32``::

      %p = shapejit.pack %w {dim = 0, panel = 32}
          : tensor<384x1536xf32, ..> -> tensor<12x1536x32xf32, #shapejit.shape<[12, 1536, 32]>>
      shapejit.gemm over [s0, 384, 1536] lhs(..)
          rhs(%p at affine_map<(d0, d1, d2) -> (d1 floordiv 32, d2, d1 mod 32)> : ..) ..

A weight that several products read alike is packed once. One that is read through any other map
(a batch of weights, a slice) stays as it is: the kernel packs such operands on the fly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, option, register_pass
from shapejit.symbolic import Expr, map_exprs


def _packed_dim(op: Any, operand: int) -> int | None:
    """The weight's dim that runs with n, if it is read as a plain matrix of constant sizes."""
    space = sir.attr_sizes(op.attributes["space"])
    n, k = len(space) - 2, len(space) - 1
    indices = [index.dim_index for index in map_exprs(sir.op_maps(op)[operand])]
    if indices not in ([n, k], [k, n]):
        return None
    dim = indices.index(n)
    sizes = sir.shape_of(op.operands[operand])
    whole = sizes[dim] == space[n] and sizes[1 - dim] == space[k]
    return dim if whole and all(size.constant is not None for size in sizes) else None


class _Packer:
    """Packs the weights of one function; equal packs are made once."""

    def __init__(self, function: Any, panel: int) -> None:
        self._function, self._panel = function, panel
        self._packed: dict[tuple[Any, int], Any] = {}

    def run(self) -> None:
        arguments = sir.body(self._function).arguments
        weights = {
            argument
            for number, argument in enumerate(arguments)
            if sir.argument_kind(self._function, number) == "weight"
        }
        for op in sir.operations(sir.body(self._function)):
            if op.name != "shapejit.gemm":
                continue
            count = op.attributes["operandSegmentSizes"][1]
            for operand in range(1, 1 + count):
                dim = _packed_dim(op, operand) if op.operands[operand] in weights else None
                if dim is not None:
                    self._pack_operand(op, operand, dim)

    def _pack_operand(self, op: Any, operand: int, dim: int) -> None:
        rank = len(sir.attr_sizes(op.attributes["space"]))
        n, k = Expr.dim(rank - 2), Expr.dim(rank - 1)
        maps = sir.op_maps(op)
        maps[operand] = sir.make_map(rank, [n // self._panel, k, n % self._panel])
        op.operands[operand] = self._pack(op, op.operands[operand], dim)
        op.attributes["maps"] = sir.maps_attr(maps)

    def _pack(self, user: Any, weight: Any, dim: int) -> Any:
        """The packed weight, made just before its first user."""
        if (weight, dim) not in self._packed:
            sizes = sir.shape_of(weight)
            shape: list[Expr | int] = [sizes[dim].ceildiv(self._panel), sizes[1 - dim], self._panel]
            i64 = ir.IntegerType.get_signless(64)
            with ir.InsertionPoint(user):
                pack = ir.Operation.create(
                    "shapejit.pack",
                    results=[sir.tensor_type(shape, weight.type.element_type)],
                    operands=[weight],
                    attributes={
                        "dim": ir.IntegerAttr.get(i64, dim),
                        "panel": ir.IntegerAttr.get(i64, self._panel),
                    },
                    loc=user.location,
                )
            self._packed[weight, dim] = pack.results[0]
        return self._packed[weight, dim]


@register_pass("shapejit-pack-weights")
@dataclass(frozen=True)
class PackWeights(Pass):
    """Pack the weights of matrix products into panels of columns."""

    panel: int = option(32, help="columns of a panel")

    def run(self, module: Any) -> None:
        if self.panel < 1:
            raise PassFailure(module, f"panel must be at least 1, got {self.panel}")
        for function in sir.functions(module):
            _Packer(function, self.panel).run()
