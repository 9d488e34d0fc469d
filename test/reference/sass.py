# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What machine code for NVIDIA GPUs does, read off its disassembly, for tests of kernels.

::

    kernel = sass.disassemble(cubin)["gemm"]
    assert kernel.count("HGMMA") == 8
    assert not kernel.local_memory                 # no spills, no arrays in local memory
    assert not kernel.read_never_written           # ptxas 13.0 miscompiles descriptor arithmetic

Which registers an instruction reads and writes is taken from ``nvdisasm``, which prints a table of
one column a register beside the code, not guessed from operands: ``HGMMA R24, gdesc[UR8], R24``
reads four uniform registers and reads and writes as many as its shape says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from shapejit.codegen import nvdisasm

needs_nvdisasm = pytest.mark.skipif(
    nvdisasm.find_nvdisasm() is None, reason=f"there is no nvdisasm: {nvdisasm.REMEDY}"
)

#: Letters of registers, by the heading of their columns.
_CLASSES = {"GPR": "R", "PRED": "P", "UGPR": "UR", "UPRED": "UP"}

_READS, _WRITES = "vx", "^x"

_SECTION = re.compile(r"\s*\.section\s+\.text\.(\S+?),")
_INSTRUCTION = re.compile(
    r"\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<guard>@!?U?P\w+ )?\s*"
    r"(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>[^;]*);"
)


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        address: bytes from the start of the function.
        guard: predicate under which it runs (``@!P0``); empty for always.
        opcode: with its modifiers: ``HGMMA.64x256x16.F32.BF16``.
        operands: as printed.
        reads, writes: registers, also those that the operands do not name: ``R3``, ``UR8``, ``P0``.
        live: registers with a value that is still needed, before or after it.
    """

    address: int
    guard: str
    opcode: str
    operands: str
    reads: frozenset[str]
    writes: frozenset[str]
    live: frozenset[str]

    @property
    def mnemonic(self) -> str:
        """The opcode without modifiers: ``HGMMA``."""
        return self.opcode.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.address:#06x}: {self.guard} {self.opcode} {self.operands}".replace("  ", " ")


@dataclass(frozen=True)
class Function:
    """One function of a cubin.

    Attributes:
        name: its name.
        instructions: in order of their addresses.
    """

    name: str
    instructions: tuple[Instruction, ...]

    def select(self, opcode: str) -> list[Instruction]:
        """The instructions whose opcode starts with `opcode`, at a dot: ``HGMMA.64x256x16``."""
        return [i for i in self.instructions if f"{i.opcode}.".startswith(f"{opcode}.")]

    def count(self, opcode: str) -> int:
        """How many instructions `select` gives."""
        return len(self.select(opcode))

    @property
    def local_memory(self) -> list[Instruction]:
        """Loads and stores of local memory: spills, and arrays with a computed index."""
        return self.select("LDL") + self.select("STL")

    @property
    def read_never_written(self) -> frozenset[str]:
        """Registers that some instruction reads and none writes: the code is wrong.

        What an instruction both reads and writes does not count as written, unless it sets single
        bits of it: ptxas keeps predicates in the bits of a register, and reads no others.
        """
        read = frozenset[str]().union(*(i.reads for i in self.instructions))
        written = frozenset[str]().union(
            *(i.writes if _sets_bits(i) else i.writes - i.reads for i in self.instructions)
        )
        return read - written

    @property
    def live_at_entry(self) -> frozenset[str]:
        """Registers that may be read before they are written, on paths that may never be taken.

        Finds more than `read_never_written`, but also code that writes and reads under one
        predicate.
        """
        first = self.instructions[0]
        return (first.live | first.reads) - (first.writes - first.reads)


def _sets_bits(instruction: Instruction) -> bool:
    """Whether it sets bits of a register by a mask: ``LOP3.LUT R9, R9, 0x10, RZ, ..``."""
    if not instruction.opcode.startswith("LOP3"):
        return False
    target, source, mask, *_ = (operand.strip() for operand in instruction.operands.split(","))
    return target == source and mask.startswith("0x")


def disassemble(cubin: bytes) -> dict[str, Function]:
    """The functions of a cubin by name."""
    return parse(nvdisasm.disassemble(cubin, life_ranges=True))


def parse(listing: str) -> dict[str, Function]:
    """The functions of a listing of ``nvdisasm -c -lrm narrow`` by name."""
    found: dict[str, list[Instruction]] = {}
    name = ""
    columns: list[tuple[str, int]] = []
    header: list[str] = []
    for line in listing.splitlines():
        if section := _SECTION.match(line):
            name = section[1]
            found[name] = []
        text, separator, table = line.rpartition("// |")
        if not separator:
            continue
        if match := _INSTRUCTION.match(text):
            columns = columns or _columns(header)
            found[name].append(_instruction(match, _marks(table, columns)))
        elif "GPR" in table or "#" in table:
            # The heading of a section: names of classes, then numbers from top to bottom.
            header = [table] if "GPR" in table else [*header, table]
            columns = []
    return {name: Function(name, tuple(code)) for name, code in found.items() if code}


def _columns(header: list[str]) -> list[tuple[str, int]]:
    """The class of every cell of a row, and where in the cell register 0 has its column."""
    names = [cell.strip() for cell in _cells(header[0])]
    starts = [cell.index("#") + 2 for cell in _cells(header[-1])]
    return [(_CLASSES[name], start) for name, start in zip(names, starts, strict=True)]


def _cells(table: str) -> list[str]:
    """The cells of a row that ends with a bar."""
    return table.split("|")[:-1]


def _marks(table: str, columns: list[tuple[str, int]]) -> Iterator[tuple[str, str]]:
    """Registers of a row with their marks."""
    for cell, (letter, start) in zip(_cells(table), columns, strict=True):
        for number, mark in enumerate(cell[start:]):
            if mark != " ":
                yield f"{letter}{number}", mark


def _instruction(match: re.Match[str], marks: Iterator[tuple[str, str]]) -> Instruction:
    unused = _unused(match["opcode"], match["operands"])
    found = [(name, mark) for name, mark in marks if name not in unused]
    return Instruction(
        address=int(match["address"], 16),
        guard=(match["guard"] or "").strip(),
        opcode=match["opcode"],
        operands=match["operands"].strip(),
        reads=frozenset(name for name, mark in found if mark in _READS),
        writes=frozenset(name for name, mark in found if mark in _WRITES),
        live=frozenset(name for name, mark in found if mark in _READS or mark == ":"),
    )


# A product whose first factor is in registers: ``HGMMA.64x64x8.. R24, R80, gdesc[UR28], ..``.
_FACTOR_IN_REGISTERS = re.compile(r"R\d+, R\d+, gdesc\[UR(\d+)\]")


def _unused(opcode: str, operands: str) -> frozenset[str]:
    """Registers that the listing marks as read, though they are not: where the first factor is in
    registers, the first two of the four that hold descriptors are its descriptor's."""
    match = _FACTOR_IN_REGISTERS.match(operands) if opcode.startswith("HGMMA") else None
    if match is None:
        return frozenset()
    first = int(match[1])
    return frozenset((f"UR{first}", f"UR{first + 1}"))
