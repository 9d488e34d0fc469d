# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a kernel computes, as keys state it: its IR without what names and places it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shapejit.cache.key import text_digest

_CONTRACTIONS = ("shapejit.gemm", "shapejit.conv", "shapejit.attention")
_ROW_OPS = ("shapejit.scan", "shapejit.sort")


@dataclass(frozen=True)
class Problem:
    """What a ``shapejit.kernel`` computes.

    Two kernels compute the same if their texts are equal; the rest is there for readers of keys.

    Attributes:
        kind: what the kernel is about: ``gemm``, ``attention``, ``loop``.
        text: its IR, under the name `kind`, without locations.
        dtypes: element types of its operands, then of its results.
        layouts: index maps of what it is about, if that has any.
        epilogue: digest of what is applied to the results of a contraction; may be empty.
    """

    kind: str
    text: str
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    epilogue: str


def problem_of(op: Any) -> Problem:
    """What a ``shapejit.kernel`` computes; it is left as it is."""
    # They bring MLIR, which keys that are made from texts do without.
    import mlir.ir as ir

    from shapejit import ir as sir

    block = sir.body(op)
    *ops, terminator = sir.operations(block)
    leader = _leader(ops)
    kind = leader.name.removeprefix("shapejit.")
    name = op.attributes["sym_name"]
    op.attributes["sym_name"] = ir.StringAttr.get(kind, op.context)
    try:
        text = text_of(op)
    finally:
        op.attributes["sym_name"] = name
    return Problem(
        kind,
        text,
        dtypes=_dtypes([*block.arguments, *terminator.operands]),
        layouts=tuple(map(str, sir.op_maps(leader))) if "maps" in leader.attributes else (),
        epilogue=_epilogue(leader),
    )


def text_of(op: Any) -> str:
    """The IR without locations; names of values are numbers, and nothing is abbreviated."""
    text: str = op.get_asm(enable_debug_info=False, use_local_scope=True)
    return text


def _leader(ops: list[Any]) -> Any:
    """The op that a kernel is about: its contraction, scan or sort, else its last loop or op."""
    contractions = [op for op in ops if op.name in (*_CONTRACTIONS, *_ROW_OPS)]
    loops = [op for op in ops if op.name == "shapejit.loop"]
    return (contractions or loops or ops)[-1]


def _dtypes(values: list[Any]) -> tuple[str, ...]:
    import mlir.ir as ir

    return tuple(str(ir.ShapedType(value.type).element_type) for value in values)


def _epilogue(leader: Any) -> str:
    """Digest of the region that a contraction applies to its accumulators; empty if none."""
    if leader.name not in _CONTRACTIONS or not any(len(r.blocks) for r in leader.regions):
        return ""
    ops = (str(op) for region in leader.regions for block in region.blocks for op in block)
    return text_digest("\n".join(ops))
