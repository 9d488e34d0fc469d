# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Keys of kernels and host programs, made from their IR before it is lowered.

An object file defines a symbol, and the host program calls it. For a kernel to be shared by models
that name it differently, its name must not depend on the model: it is made from the key, and the
launches are changed to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlir.ir as ir

from shapejit import ir as sir
from shapejit.cache import fingerprint
from shapejit.cache.key import Items, TargetKey, VariantKey, sorted_items, split_features
from shapejit.cache.key import text_digest as digest_of
from shapejit.codegen import HostTarget

#: Stands for a kernel's name in the text that is hashed.
_PLACEHOLDER = "kernel"
_NAME_DIGITS = 32  # of the digest: 128 bits

_CONTRACTIONS = ("shapejit.gemm", "shapejit.attention")

#: Element alignment is all that the CPU's code assumes of the buffers that it is given.
_ALIGNMENT = 1
_INDEX_BITS = 64


@dataclass(frozen=True)
class Unit:
    """What becomes one object file.

    Attributes:
        key: its key.
        text: the IR that the key covers, without names and locations.
        symbol: the name that its entry point gets.
    """

    key: VariantKey
    text: str
    symbol: str


def name_kernels(module: Any, target: HostTarget, opt_level: int) -> dict[str, Unit]:
    """Gives every ``shapejit.kernel`` of a module the name that its key determines, in place.

    Launches are changed to the new names, and of kernels that are the same one is left.

    Args:
        module: the module after ``shapejit-form-kernels``.
        target: the CPU that it is compiled for.
        opt_level: LLVM's optimisation level.

    Returns:
        The units by their new names, in program order.
    """
    names: dict[str, str] = {}
    units: dict[str, Unit] = {}
    for name, op in sir.kernels(module).items():
        unit = kernel_unit(op, target, opt_level)
        names[name] = unit.symbol
        if unit.symbol in units:
            op.erase()
            continue
        units[unit.symbol] = unit
        op.attributes["sym_name"] = ir.StringAttr.get(unit.symbol, op.context)
    for op in sir.walk(module.operation):
        if op.name == "shapejit.launch":
            name = ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
            op.attributes["kernel"] = ir.FlatSymbolRefAttr.get(names[name], op.context)
    return units


def kernel_unit(op: Any, target: HostTarget, opt_level: int) -> Unit:
    """The unit of a ``shapejit.kernel``, which is left as it is."""
    name = op.attributes["sym_name"]
    op.attributes["sym_name"] = ir.StringAttr.get(_PLACEHOLDER, op.context)
    try:
        text = _text(op)
    finally:
        op.attributes["sym_name"] = name
    body = sir.body(op)
    *ops, terminator = sir.operations(body)
    leader = _leader(ops)
    key = _key(
        kind=leader.name.removeprefix("shapejit."),
        dtypes=_dtypes([*body.arguments, *terminator.operands]),
        layouts=tuple(map(str, sir.op_maps(leader))) if "maps" in leader.attributes else (),
        epilogue=_epilogue(leader),
        text=text,
        schedule={"panel": target.panel},
        target=target,
        opt_level=opt_level,
    )
    return Unit(key, text, f"sj_{key.kind}_{key.digest[:_NAME_DIGITS]}")


def host_unit(module: Any, target: HostTarget, opt_level: int) -> Unit:
    """The unit of the module ``@shapejit_host`` after ``shapejit-lower-to-host``.

    Its text holds the names of the kernels; they are made from the kernels' keys, so that two host
    programs with one key call the same kernels.
    """
    text = _text(module.operation)
    key = _key(
        kind="host",
        dtypes=(),
        layouts=(),
        epilogue="",
        text=text,
        schedule={},
        target=target,
        opt_level=opt_level,
    )
    return Unit(key, text, ir.StringAttr(module.operation.attributes["sym_name"]).value)


def _key(
    *,
    kind: str,
    dtypes: tuple[str, ...],
    layouts: tuple[str, ...],
    epilogue: str,
    text: str,
    schedule: Mapping[str, int],
    target: HostTarget,
    opt_level: int,
) -> VariantKey:
    schedule_items: Items = sorted_items(schedule)
    return VariantKey(
        kind=kind,
        dtypes=dtypes,
        layouts=layouts,
        math_mode="ieee",
        epilogue=epilogue,
        text=digest_of(text),
        schedule=schedule_items,
        alignment=_ALIGNMENT,
        parameters="by-value",
        index_bits=_INDEX_BITS,
        target=TargetKey(
            target.triple, target.cpu, split_features(target.features), target.vector_bytes
        ),
        opt_level=opt_level,
        toolchain=fingerprint.toolchain(),
        passes=fingerprint.pass_digest(),
    )


def _text(op: Any) -> str:
    """The IR without locations; names of values are numbers, and nothing is abbreviated."""
    text: str = op.get_asm(enable_debug_info=False, use_local_scope=True)
    return text


def _leader(ops: list[Any]) -> Any:
    """The op that a kernel is about: its contraction, else its last loop, else its last op."""
    contractions = [op for op in ops if op.name in _CONTRACTIONS]
    loops = [op for op in ops if op.name == "shapejit.loop"]
    return (contractions or loops or ops)[-1]


def _dtypes(values: list[Any]) -> tuple[str, ...]:
    return tuple(str(ir.ShapedType(value.type).element_type) for value in values)


def _epilogue(leader: Any) -> str:
    """Digest of the region that a contraction applies to its accumulators; empty if none."""
    if leader.name not in _CONTRACTIONS or not any(len(r.blocks) for r in leader.regions):
        return ""
    ops = (str(op) for region in leader.regions for block in region.blocks for op in block)
    return digest_of("\n".join(ops))
