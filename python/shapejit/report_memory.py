# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What reports say about memory: parts of `shapejit.report`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from shapejit.artefacts import Artefacts, Sizes, TensorOutput
from shapejit.diagnosis import named
from shapejit.symbolic import product


@dataclass(frozen=True)
class MemoryRow:
    """A piece of memory.

    Attributes:
        what: its name: ``working memory``, ``slot 0``, ``output 0``, ``weights``.
        formula: its bytes over the user's dims; empty for what does not depend on sizes.
        bytes: for the sizes at hand.
        part: whether it is a part of the row that came before the first such one.
    """

    what: str
    formula: str
    bytes: int
    part: bool = False


def memory_rows(
    artefacts: Artefacts, values: Sequence[int], plan: Sequence[int], held: Mapping[str, int]
) -> tuple[MemoryRow, ...]:
    """What a call needs and what the program holds.

    Args:
        artefacts: of the program.
        values: of all symbols, derived ones included.
        plan: what ``shapejit_plan`` gave for them.
        held: bytes that do not depend on sizes, by what they are for.
    """
    return (
        MemoryRow("working memory", " + ".join(_slot_names(artefacts)), plan[0]),
        *_slots(artefacts, values),
        *_outputs(artefacts, values),
        *(MemoryRow(what, "", count) for what, count in held.items()),
    )


def total_bytes(rows: Sequence[MemoryRow]) -> int:
    """The bytes of all rows, parts of others left out."""
    return sum(row.bytes for row in rows if not row.part)


def _slot_names(artefacts: Artefacts) -> Iterator[str]:
    yield from (f"slot {number}" for number in range(len(artefacts.arena)))
    if artefacts.arena:
        yield "alignment"


def _slots(artefacts: Artefacts, values: Sequence[int]) -> Iterator[MemoryRow]:
    for number, sizes in enumerate(artefacts.arena):
        bytes_ = max(size.evaluate(symbols=values) for size in sizes)
        yield MemoryRow(f"slot {number}", _largest(artefacts, sizes), bytes_, part=True)


def _largest(artefacts: Artefacts, sizes: Sizes) -> str:
    texts = [named(size, artefacts.symbols) for size in sizes]
    return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"


def _outputs(artefacts: Artefacts, values: Sequence[int]) -> Iterator[MemoryRow]:
    tensors = [spec for spec in artefacts.outputs if isinstance(spec, TensorOutput)]
    for number, spec in enumerate(tensors):
        size = product(spec.dims) * getattr(torch, spec.dtype).itemsize
        formula = named(size, artefacts.symbols)
        yield MemoryRow(f"output {number}", formula, size.evaluate(symbols=values))


__all__ = ["MemoryRow", "memory_rows", "total_bytes"]
