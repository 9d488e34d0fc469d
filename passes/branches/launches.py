# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The launches of a function: what memory they touch, and in which sections they run side by side.

The decision is an attribute of the function, which `shapejit-plan-branches` writes, and
`shapejit-plan-memory` and `shapejit-lower-to-host` follow::

    shapejit.branches = [[array<i64: 3, 8>, array<i64: 0, 1>, "2 branches at 1, 16: 61.0 us .."]]

Launches 3 to 8 run side by side in regions 0 and 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.gpu.interface import KernelInterface, Workspace
from shapejit.passes.branches.order import Accesses, Order, chain, order_with
from shapejit.passes.host.dispatches import dispatches, interfaces
from shapejit.passes.plan_memory import memory_owners, source_of

BRANCHES: Final = "shapejit.branches"

# Memory beside that of values: scratch memory is shared by all kernels that take some; inputs that
# a launch changes may be the same memory as others, as callers please.
_SCRATCH: Final = "scratch"
_INPUTS: Final = "inputs"


@dataclass(frozen=True)
class Section:
    """Launches that run side by side in some regions.

    Attributes:
        launches: their numbers.
        regions: numbers of the regions.
        reason: why they do.
    """

    launches: range
    regions: tuple[int, ...]
    reason: str


def launches_of(function: Any) -> list[Any]:
    """The launches of a function in order."""
    return [op for op in sir.operations(sir.body(function)) if op.name == "shapejit.launch"]


def kernel_name(launch: Any) -> str:
    """The name of the kernel that a launch launches."""
    name: str = ir.FlatSymbolRefAttr(launch.attributes["kernel"]).value
    return name


def accesses_of(module: Any, function: Any) -> list[Accesses]:
    """The memory that each launch of a function touches, apart from what a plan lets values share.

    Args:
        module: with the interfaces of the kernels' variants.
        function: of launches.
    """
    owners = memory_owners(sir.operations(sir.body(function)))
    arguments = {argument: i for i, argument in enumerate(sir.body(function).arguments)}
    scratching = _kernels_with_scratch(module)

    def memory(value: Any) -> Any:
        source = source_of(value)
        return owners.get(source, source)

    def is_input(owner: Any) -> bool:
        return owner in arguments and sir.argument_kind(function, arguments[owner]) == "input"

    found = []
    for op in launches_of(function):
        reads: set[Hashable] = set(map(memory, op.operands))
        writes: set[Hashable] = set(map(memory, op.results))
        if any(map(is_input, reads)):
            reads.add(_INPUTS)
        if any(map(is_input, writes)):
            writes.add(_INPUTS)
        if kernel_name(op) in scratching:
            writes.add(_SCRATCH)
        found.append(Accesses(frozenset(reads), frozenset(writes)))
    return found


def planned_accesses(
    operands: Sequence[Sequence[Hashable]], written: Sequence[int]
) -> list[Accesses]:
    """The same from the buffers that launches were given.

    Args:
        operands: the buffers of each launch, its results last.
        written: how many results each has.
    """
    return [
        Accesses(frozenset(each[: len(each) - count]), frozenset(each[len(each) - count :]))
        for each, count in zip(operands, written, strict=True)
    ]


def _kernels_with_scratch(module: Any) -> set[str]:
    known: Mapping[str, KernelInterface] = interfaces(module)
    return {
        name
        for name, dispatch in dispatches(module).items()
        if any(
            isinstance(parameter, Workspace)
            for variant in dispatch.variants
            if (interface := known.get(dispatch.module_name(variant))) is not None
            for parameter in interface.parameters
        )
    }


# The attribute ------------------------------------------------------------------------------------


def write_sections(function: Any, sections: Sequence[Section]) -> None:
    """Notes a decision; nothing where no launches run side by side."""
    if not sections:
        return
    function.attributes[BRANCHES] = ir.ArrayAttr.get(
        [
            ir.ArrayAttr.get(
                [
                    ir.DenseI64ArrayAttr.get([s.launches.start, s.launches.stop - 1]),
                    ir.DenseI64ArrayAttr.get(list(s.regions)),
                    ir.StringAttr.get(s.reason),
                ]
            )
            for s in sections
        ]
    )


def sections_in(function: Any) -> list[Section]:
    """The decision that is noted."""
    if BRANCHES not in function.attributes:
        return []
    found = []
    for each in ir.ArrayAttr(function.attributes[BRANCHES]):
        bounds, regions, reason = ir.ArrayAttr(each)
        first, last = ir.DenseI64ArrayAttr(bounds)
        numbers = tuple(ir.DenseI64ArrayAttr(regions))
        found.append(Section(range(first, last + 1), numbers, ir.StringAttr(reason).value))
    return found


def order_of(module: Any, function: Any, region: int | None = None) -> Order:
    """The order of the launches of a function.

    Args:
        module: see `accesses_of`.
        function: of launches.
        region: number of a region; None for what holds in all of them.
    """
    sections = [
        section.launches
        for section in sections_in(function)
        if region is None or region in section.regions
    ]
    if not sections:
        return chain(len(launches_of(function)))
    return order_with(accesses_of(module, function), sections)
