# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What reports say about constant graphs: parts of `shapejit.report`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shapejit.artefacts import Artefacts

if TYPE_CHECKING:
    from shapejit.gpu.graph import GraphUse


@dataclass(frozen=True)
class GraphStats:
    """The constant graphs of a program on a GPU, one for each region of sizes and stream.

    Attributes:
        regions: sets of sizes with their own choice of kernels, of those seen so far or expected.
        instances: streams that have a parameter block and graphs of their own.
        graphs: executable graphs, of all instances.
        patches: parameters that a call changes, in the region with most.
        block_bytes: device memory of parameter blocks and of scratch memory of kernels.
        table_bytes: device memory of the tables by which calls change parameters.
        graph_calls: calls that were one launch of a graph.
        stream_calls: calls that launched kernel by kernel, as their graph was not made yet.
        captured_calls: calls that the caller captured into a graph of its own.
        bindings: how often addresses of weights were set or changed.
    """

    regions: int
    instances: int
    graphs: int
    patches: int
    block_bytes: int
    table_bytes: int
    graph_calls: int
    stream_calls: int
    captured_calls: int
    bindings: int

    @staticmethod
    def of(use: GraphUse | None) -> GraphStats | None:
        """What the runtime says; None of a program without graphs."""
        if use is None:
            return None
        return GraphStats(**{name: getattr(use, name) for name in GraphStats.__dataclass_fields__})


@dataclass(frozen=True)
class RegionRow:
    """Sizes in which each launch has its fixed variant.

    Attributes:
        number: of the region.
        example: values of the dims in it; None if no sizes are known to lie in it.
        here: whether the call that is explained lies in it.
        variants: the variants that run in it and not in every region.
        branches: the launches that run side by side in its graph, and why.
    """

    number: int
    example: tuple[int, ...] | None
    here: bool
    variants: tuple[str, ...]
    branches: tuple[str, ...] = ()


def region_rows(artefacts: Artefacts, values: Sequence[int]) -> tuple[RegionRow, ...]:
    """The regions that calls are expected in, and that of a call; none without graphs.

    Args:
        artefacts: of the program.
        values: of all symbols, for the call.
    """
    code = artefacts.gpu
    if code is None or code.graph is None:
        return ()
    here = tuple(_variants(artefacts, values))
    shown = {
        number: region
        for number, region in enumerate(code.graph.regions)
        if region.symbols is not None or region.variants == here
    }
    everywhere = set[int].intersection(*(set(region.variants) for region in shown.values()))
    return tuple(
        RegionRow(
            number,
            region.symbols,
            region.variants == here,
            tuple(
                code.variants[variant].name
                for variant in dict.fromkeys(region.variants)
                if variant not in everywhere
            ),
            tuple(
                f"launches {each.first} to {each.last}: {each.reason}"
                for each in code.graph.branches
                if number in each.regions
            ),
        )
        for number, region in shown.items()
    )


def _variants(artefacts: Artefacts, values: Sequence[int]) -> Iterator[int]:
    """The variant of each launch, found through the kernels' buckets."""
    code = artefacts.gpu
    assert code is not None
    assert code.graph is not None
    launches = {kernel.name: iter(kernel.launches) for kernel in artefacts.kernels}
    for launch in code.graph.launches:
        sizes = [s.evaluate(symbols=values) for s in next(launches[launch.kernel]).symbols]
        yield code.kernel(launch.kernel).bucket(sizes).variant


__all__ = ["GraphStats", "RegionRow", "region_rows"]
