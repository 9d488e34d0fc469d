# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""How operations read and write tensors: one `Access` for each index map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mlir import ir

from shapejit import ir as sir
from shapejit.symbolic import Expr, map_exprs

Sizes: TypeAlias = tuple[Expr, ...]


@dataclass(frozen=True)
class Access:
    """A tensor that an operation reads or writes through an index map.

    Attributes:
      name: the operand or result in the words of the dialect: "input 0", "lhs", "mask".
      value: the tensor, an ir.Value.
      operand: the operand's number; None for a result.
      position: of the map in the op's `maps`; None for a view's only map.
      exprs: the index of each dim of the tensor, over the dims of `space`.
      space: sizes of the map's dims.
    """

    name: str
    value: Any
    operand: int | None
    position: int | None
    exprs: tuple[Expr, ...]
    space: Sizes


def accesses(op: Any) -> list[Access]:
    """Every access of an op in the order of its maps; none of an op without maps."""
    rule = _RULES.get(op.name)
    return rule(op) if rule is not None else []


def set_access(op: Any, access: Access, value: Any, exprs: Sequence[Expr]) -> None:
    """Makes `op` read `value` at `exprs` (or write there, for a result; `value` is not used)."""
    if access.operand is not None:
        op.operands[access.operand] = value
    affine_map = sir.make_map(len(access.space), exprs)
    if access.position is None:
        op.attributes["map"] = ir.AffineMapAttr.get(affine_map)
        return
    maps = sir.op_maps(op)
    maps[access.position] = affine_map
    op.attributes["maps"] = sir.maps_attr(maps)


def space_of(op: Any) -> Sizes:
    """Sizes of the iteration space of a loop, gemm, conv or attention."""
    return sir.attr_sizes(op.attributes["space"])


def weight_count(gemm: Any) -> int:
    """The number of weights of a gemm: 1, or 2 for a gated pair."""
    segments: Sequence[int] = ir.DenseI32ArrayAttr(gemm.attributes["operandSegmentSizes"])
    return segments[1]


def _view(op: Any) -> list[Access]:
    exprs = map_exprs(op.attributes["map"].value)
    return [Access("source", op.operands[0], 0, None, exprs, sir.shape_of(op.results[0]))]


def _loop(op: Any) -> list[Access]:
    space, inputs = space_of(op), len(op.operands)
    names = [f"input {i}" for i in range(inputs)] + [f"result {i}" for i in range(len(op.results))]
    return _mapped(op, names, [space] * len(names))


def _gemm(op: Any) -> list[Access]:
    space, weights = space_of(op), weight_count(op)
    extras = len(op.operands) - 1 - weights
    names = [
        "lhs",
        *(f"weight {i}" for i in range(weights)),
        *(f"extra {i}" for i in range(extras)),
    ]
    return _mapped(op, names, [space] * (1 + weights) + [space[:-1]] * extras)


def _conv(op: Any) -> list[Access]:
    spaces = conv_spaces(space_of(op), sir.attr_sizes(op.attributes["image"]))
    extras = len(op.operands) - 2
    names = ["input", "weight", *(f"extra {i}" for i in range(extras)), "result"]
    return _mapped(op, names, [*spaces[:2], *[spaces[2]] * (extras + 1)])


def conv_spaces(space: Sizes, image: Sizes) -> tuple[Sizes, Sizes, Sizes]:
    """What the maps of a conv's input, of its weight, and of its extras and result are over."""
    spatial = len(image)
    n, g, *pixels = space[: 2 + spatial]
    f, c, *taps = space[2 + spatial :]
    return (n, g, *image, c), (g, f, c, *taps), (n, g, *pixels, f)


def _attention(op: Any) -> list[Access]:
    b, h, m, n, d, dv = space_of(op)
    names = ["q", "k", "v"]
    spaces: list[Sizes] = [(b, h, m, d), (b, h, n, d), (b, h, n, dv)]
    has_lengths, is_ragged = (name in op.attributes for name in ("has_lengths", "is_ragged"))
    if len(op.operands) > len(names) + has_lengths + 2 * is_ragged:
        names.append("mask")
        spaces.append((b, h, m, n))
    if has_lengths:
        names.append("lengths")
        spaces.append((b, h))
    if is_ragged:
        names += ["query_starts", "key_starts"]
        spaces += [(b + 1,), (b + 1,)]
    return _mapped(op, [*names, "result"], [*spaces, (b, h, m, dv)])


def _rows(op: Any) -> list[Access]:
    return _mapped(op, ["input"], [space_of(op)])


def _scatter(op: Any) -> list[Access]:
    """Dest's map is over the space and then over what the positions hold, which is bounded by the
    dim that it is an index of."""
    space, positions = space_of(op), len(op.operands) - 2
    sizes = dict(enumerate(sir.shape_of(op.results[0])))
    held = dict.fromkeys(range(len(space), len(space) + positions), Expr.const(1))
    for dim, index in enumerate(map_exprs(sir.op_maps(op)[-1])):
        held |= {number: sizes[dim] for number in index.dims() if number in held}
    names = ["source", *(f"position {i}" for i in range(positions)), "dest"]
    return _mapped(op, names, [space] * (1 + positions) + [(*space, *held.values())])


def _mapped(op: Any, names: Sequence[str], spaces: Sequence[Sizes]) -> list[Access]:
    values = [*op.operands, *op.results]
    operands = len(op.operands)
    return [
        Access(name, value, i if i < operands else None, i, map_exprs(affine_map), space)
        for i, (name, value, affine_map, space) in enumerate(
            zip(names, values, sir.op_maps(op), spaces, strict=False)
        )
    ]


_RULES: dict[str, Callable[[Any], list[Access]]] = {
    "shapejit.view": _view,
    "shapejit.loop": _loop,
    "shapejit.gemm": _gemm,
    "shapejit.conv": _conv,
    "shapejit.attention": _attention,
    "shapejit.scan": _rows,
    "shapejit.scatter": _scatter,
    "shapejit.sort": _rows,
}
