# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kinds of attention calls, and their IR.

Sizes and strides are symbols of a kernel, so one kernel serves every call of its kind. What is part
of the kind is what the code depends on: element types, head sizes, how many heads share keys, the
scale, the sort of causal limit and mask, whether batches differ in length, and whether strides are
multiples of 16 bytes, as TMA wants them. Operands are flat, read at ``sum of index * stride``::

    shapejit.attention over [s0, s1 * 4, s2, s3, 128, 128]      // batch, heads, queries, keys
        q(%q at (d0, d1, d2, d3) -> (d0 * (s6 * 8) + d1 * (s7 * 8) + d2 * (s8 * 8) + d3) ..)
        k(%k at (d0, d1, d2, d3) -> (d0 * (s9 * 8) + (d1 floordiv 4) * (s10 * 8) + ..) ..)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_HEAD = 256
"""The most elements of a query, a key or a value."""

STRIDE_MULTIPLE = 8
"""Elements of 16 bits in 16 bytes."""

BATCH, KV_HEADS, QUERIES, KEYS, SPAN, OFFSET = range(6)
"""Symbols that every kernel has: sizes, elements that operands span, the causal offset."""

_FIRST_STRIDE = OFFSET + 1
_MAP_RANK = 4  # dims of the maps of q, k, v, result and mask


@dataclass(frozen=True)
class AttentionKind:
    """A kind of attention calls.

    Attributes:
        element: ``bf16`` or ``f16``.
        head, value: elements of a query and key, and of a value.
        group: heads of q that share one of k and v.
        scale: of the scores.
        causal: ``start`` or ``end``, which the offset counts from; None: no limit.
        mask: its element type (``i1``, ``f32``, ``f16``, ``bf16``) and along which of batch, head,
            query and key it moves; None: no mask.
        lengths: element type of the key lengths, if there are any.
        starts: element type of the cumulative lengths, if the call is ragged.
        dense: of q, k, v and the result, whether elements of a row are neighbours.
        aligned: whether all their addresses and other strides are multiples of 16 bytes.
    """

    element: str
    head: int
    value: int
    group: int
    scale: float
    causal: str | None = None
    mask: tuple[str, tuple[bool, bool, bool, bool]] | None = None
    lengths: str | None = None
    starts: str | None = None
    dense: tuple[bool, bool, bool, bool] = (True, True, True, True)
    aligned: bool = True

    def symbols(
        self, sizes: Sequence[int], offset: int, strides: Sequence[Sequence[int]]
    ) -> list[int]:
        """The values of the kernel's symbols.

        Args:
            sizes: batch, heads of k and v, queries, keys, elements that operands span.
            offset: of the causal limit.
            strides: of q, k, v and the result along batch, head, row and column; then of the mask,
                along the same; then of the lengths and the two starts, if there are any.
        """
        values = [*sizes, offset]
        for dense, (batch, head, row, column) in zip(self.dense, strides, strict=False):
            outer = [head, row] if self.starts else [batch, head, row]
            values += [each // STRIDE_MULTIPLE for each in outer] if self.aligned else outer
            if not dense:
                values.append(column)
        others = list(strides[len(self.dense) :])
        if self.mask is not None:
            moves = self.mask[1]
            values += [each for each, moved in zip(others.pop(0), moves, strict=True) if moved]
        values += [each for (each,) in others]
        return values


class KernelText:
    """Writes the ``shapejit.kernel`` of a kind."""

    def __init__(self, kind: AttentionKind) -> None:
        self._kind = kind
        self._symbols = _FIRST_STRIDE
        heads = f"(d1 floordiv {kind.group})" if kind.group > 1 else "d1"
        names = ("q", "k", "v", "y")
        self._indices = {
            name: self._rows("d1" if name in "qy" else heads, dense)
            for name, dense in zip(names, kind.dense, strict=True)
        }
        if kind.mask is not None:
            moved = [f"d{dim}" for dim, moves in enumerate(kind.mask[1]) if moves]
            self._indices["mask"] = self._sum([f"{dim} * {self._new()}" for dim in moved])
        for name in ("lengths", "query_starts", "key_starts"):
            if kind.lengths if name == "lengths" else kind.starts:
                self._indices[name] = f"d0 * {self._new()}"

    def _new(self) -> str:
        self._symbols += 1
        return f"s{self._symbols - 1}"

    @staticmethod
    def _sum(terms: Sequence[str]) -> str:
        return " + ".join(terms) or "0"

    def _rows(self, head: str, dense: bool) -> str:
        kind = self._kind
        dims = [head, "d2"] if kind.starts else ["d0", head, "d2"]
        factor = f" * {STRIDE_MULTIPLE}" if kind.aligned else ""
        terms = [f"{dim} * ({self._new()}{factor})" for dim in dims]
        return self._sum([*terms, "d3" if dense else f"d3 * {self._new()}"])

    def _element(self, name: str) -> str:
        kind = self._kind
        if name == "mask":
            assert kind.mask is not None
            return kind.mask[0]
        if name == "lengths":
            return str(kind.lengths)
        return str(kind.starts) if name.endswith("starts") else kind.element

    def _type(self, name: str) -> str:
        return f"tensor<?x{self._element(name)}, #shapejit.shape<[s{SPAN}]>>"

    def map(self, name: str) -> str:
        """The index map of an operand or of ``y``, the result."""
        rank = {"lengths": 2, "query_starts": 1, "key_starts": 1}.get(name, _MAP_RANK)
        dims = ", ".join(f"d{i}" for i in range(rank))
        symbols = ", ".join(f"s{i}" for i in range(self._symbols))
        return f"affine_map<({dims})[{symbols}] -> ({self._indices[name]})>"

    @property
    def operands(self) -> list[str]:
        """Names of the operands, in the order of the kernel's arguments."""
        return [name for name in self._indices if name != "y"]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types of the operands and the result."""
        return (*map(self._element, self.operands), self._kind.element)

    def _use(self, name: str) -> str:
        return f"%{name} at {self.map(name)} : {self._type(name)}"

    def text(self, name: str = "attention") -> str:
        """The kernel under a name."""
        kind, given = self._kind, self.operands
        arguments = ", ".join(f"%{each}: {self._type(each)}" for each in given)
        starts = [each for each in given if each.endswith("starts")]
        uses = [f"{each}({self._use(each)})" for each in given if each not in starts]
        if starts:
            uses.append(f"starts({', '.join(map(self._use, starts))})")
        attributes = [f"scale = {kind.scale!r} : f64"]
        if kind.causal is not None:
            symbols = ", ".join(f"s{i}" for i in range(_FIRST_STRIDE))
            attributes.append(f"causal = affine_map<()[{symbols}] -> (s{OFFSET})>")
        if kind.causal == "end":
            attributes.append("from_end")
        heads = f"s{KV_HEADS} * {kind.group}" if kind.group > 1 else f"s{KV_HEADS}"
        space = f"s{BATCH}, {heads}, s{QUERIES}, s{KEYS}, {kind.head}, {kind.value}"
        result = self._type("y")
        return f"""shapejit.kernel @{name} symbols {self._symbols} ({arguments}) {{
    %y = shapejit.attention over [{space}]
      {" ".join(uses)}
      {{{", ".join(attributes)}}} -> {self.map("y")} : {result}
    shapejit.yield %y : {result}
  }}"""
