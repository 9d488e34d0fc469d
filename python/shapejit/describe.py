# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""What the compiler can say about the kernels it formed, for ``explain``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import mlir.ir as ir

from . import ir as sir
from .artefacts import KernelInfo, LaunchInfo
from .symbolic import Expr, map_exprs

#: Ops that can lead a kernel, the most telling first.
_LEADERS = (
    "shapejit.gemm",
    "shapejit.conv",
    "shapejit.attention",
    "shapejit.scatter",
    "shapejit.scan",
    "shapejit.sort",
    "shapejit.loop",
    "shapejit.view",
)


def describe_kernels(module: Any) -> tuple[KernelInfo, ...]:
    """The kernels of a module of launches, in the order of their first launch."""
    launches: dict[str, list[Any]] = {}
    for function in sir.functions(module):
        for op in sir.operations(sir.body(function)):
            if op.name == "shapejit.launch":
                name = ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
                launches.setdefault(name, []).append(op)
    kernels = sir.kernels(module)
    return tuple(_describe(name, kernels[name], ops) for name, ops in launches.items())


def _describe(name: str, kernel: Any, launches: list[Any]) -> KernelInfo:
    ops = sir.operations(sir.body(kernel))
    leader = min((op for op in ops if op.name in _LEADERS), key=lambda op: _LEADERS.index(op.name))
    fused = dict.fromkeys(name for name, _ in operators(launches[0].location))
    return KernelInfo(
        name=name,
        kind=leader.name.removeprefix("shapejit."),
        why=_why(ops, leader),
        fuses=tuple(_short(operator) for operator in fused),
        sizes=_space(leader),
        launches=tuple(_launch_info(op) for op in launches),
    )


def _launch_info(op: Any) -> LaunchInfo:
    sources = dict.fromkeys(
        f"{operator} {line}" if line else operator for operator, line in operators(op.location)
    )
    return LaunchInfo(map_exprs(op.attributes["sizes"].value), tuple(sources))


def _space(op: Any) -> tuple[Expr, ...]:
    """The iteration space of a kernel's leading op over the kernel's symbols."""
    if "space" in op.attributes:
        return sir.attr_sizes(op.attributes["space"])
    return sir.shape_of(op.results[0])


def _why(ops: list[Any], leader: Any) -> str:
    if leader.name == "shapejit.gemm":
        weights = list(leader.attributes["operandSegmentSizes"])[1]
        pair = "two products of one input" if weights == 2 else "a contraction"
        if len(leader.regions[0].blocks):
            return f"{pair}; what follows is applied to the accumulator"
        return pair
    if leader.name == "shapejit.conv":
        if len(leader.regions[0].blocks):
            return "a convolution; what follows is applied to the accumulator"
        return "a convolution"
    if leader.name == "shapejit.attention":
        return "scores, mask, softmax and values in one pass; the scores are never stored"
    if leader.name == "shapejit.scan":
        return "running combinations along rows"
    if leader.name == "shapejit.sort":
        return "rows sorted by records of value and place, or the head of that"
    if leader.name == "shapejit.scatter":
        return "elements written in place; what makes them is computed on the way"
    loops = [op for op in ops if op.name == "shapejit.loop"]
    if any(kind != "none" for op in loops for kind in sir.kinds(op)):
        if len(loops) > 1:
            return "loops over the same rows, which stay in cache from one to the next"
        return "a reduction with what it reads"
    return "one pass over the elements"


def _short(operator: str) -> str:
    """``layer_norm`` of ``aten.layer_norm.default``, ``snake`` of ``mylib.snake``."""
    namespace, _, name = operator.partition(".")
    return name.split(".")[0] or namespace


def operators(location: Any) -> Iterator[tuple[str, str | None]]:
    """(torch operator, ``file.py:41`` or None) of every operator in a location.

    The importer gives each op a name location around a file location; passes fuse them.
    """
    if location.is_a_fused():
        for part in location.locations:
            yield from operators(part)
    elif location.is_a_name():
        yield location.name_str, _line(location.child_loc)


def _line(location: Any) -> str | None:
    if not location.is_a_file():
        return None
    return f"{os.path.basename(location.filename)}:{location.start_line}"
