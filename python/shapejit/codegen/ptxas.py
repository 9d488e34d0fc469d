# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""PTX to machine code by NVIDIA's assembler, which runs as a child process.

``ptxas`` ends well and says in passing that a kernel will be slow or needs repair: what it calls
(C7510) and so on means that warpgroup products run one after the other, or that it had to put in
waits of its own. Our kernels are written so that none of this happens; when it does, the emitter is
at fault, and the assembly fails.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shapejit import logs
from shapejit.codegen.cuda_tools import Tool, ToolError, examine_tool, find_tools
from shapejit.knobs import Knobs, knobs

LEAST_VERSION = (12, 8)
"""Oldest ``ptxas`` that assembles our PTX."""

REMEDY = "pip install 'shapejit[cuda]'"

_LOG = logs.logger("codegen")
_SECONDS = 600.0  # what takes longer hangs; our slowest kernels take one second
_CONTEXT = 2  # lines of PTX shown before and after the one at fault
_SHOWN = 4  # places of PTX shown


class PtxasError(RuntimeError):
    """There is no usable ``ptxas``, or it cannot be run; the text says what to do."""


class AssemblyError(PtxasError):
    """``ptxas`` refused PTX, or warned of code that no kernel of ours may have.

    Attributes:
        reason: what it said.
        ptx: the file in which the PTX is kept.
        command: the call that repeats the failure.
    """

    def __init__(self, heading: str, reason: str, excerpt: str, ptx: Path, command: str) -> None:
        parts = [heading, _indented(reason), excerpt, f"To run it again:\n  {command}"]
        super().__init__("\n".join(part for part in parts if part))
        self.reason = reason
        self.ptx = ptx
        self.command = command


@dataclass(frozen=True)
class Resources:
    """What one kernel takes, as ``ptxas`` reports it.

    Attributes:
        registers: 32-bit registers a thread, at launch.
        barriers: named barriers.
        shared_bytes: static shared memory of a CTA.
        stack_bytes: local memory of a thread, spills included.
        spill_store_bytes, spill_load_bytes: of the instructions that spill registers and fetch
            them back.
    """

    registers: int
    barriers: int
    shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture.

    Attributes:
        data: the ELF file.
        resources: of every kernel in it, by name.
        warnings: what ``ptxas`` warned of, one text a warning.
    """

    data: bytes
    resources: dict[str, Resources]
    warnings: tuple[str, ...] = ()


# Finding it.


def find_ptxas() -> Tool:
    """The assembler: of the knob `ptxas`, else the first new enough one of a wheel, PATH, Triton.

    Raises:
        PtxasError: there is none.
        KnobError: the environment variable has a bad value (SJ-KNOB-001).
    """
    least = ".".join(map(str, LEAST_VERSION))
    variable = Knobs.ptxas.variable
    if knobs.ptxas is not None:
        tool = _usable(Path(knobs.ptxas).expanduser())
        if isinstance(tool, Tool):
            return tool
        raise PtxasError(
            f"{variable} names no usable ptxas: {tool}. Version {least} or newer is needed: set it "
            f"to the path of one, or unset it and {REMEDY}."
        )
    refused = []
    for path in _candidates(os.environ.get("PATH", "")):
        tool = _usable(path)
        if isinstance(tool, Tool):
            return tool
        refused.append(tool)
    found = "; ".join(refused) if refused else "none was found in wheels, on PATH or in Triton"
    raise PtxasError(
        f"NVIDIA's assembler ptxas of version {least} or newer is needed, but {found}. To get it: "
        f"{REMEDY}. One that is elsewhere is named by {variable}."
    )


@functools.lru_cache(maxsize=4)
def _candidates(_path: str) -> tuple[Path, ...]:
    """Places of ``ptxas``, looked for again only when PATH changes."""
    return tuple(find_tools("ptxas"))


def _usable(path: Path) -> Tool | str:
    """The tool at a path, or why it is not usable."""
    try:
        tool = examine_tool(path)
    except ToolError as error:
        return str(error)
    return tool if tool.order >= LEAST_VERSION else f"{path} has version {tool.version}"


# Running it.


def assemble(ptx: str, arch: str, *, tool: Tool | None = None, opt_level: int = 3) -> Cubin:
    """Machine code of PTX. Safe to call from several threads; equal arguments give equal bytes.

    Args:
        ptx: the PTX of a module.
        arch: the architecture: ``sm_90a``.
        tool: the assembler; None for the one of `find_ptxas`.
        opt_level: 0 to 3, as in ``-O3``.

    Raises:
        AssemblyError: ``ptxas`` refused the PTX, or warned of code that no kernel may have. The PTX
            is kept in a file.
        PtxasError: there is no usable ``ptxas``, or it does not run.
        ValueError: `arch` or `opt_level` is not one.
    """
    if re.fullmatch(r"sm_\d+[a-z]?", arch) is None:
        raise ValueError(f"assemble requires an arch such as sm_90a, got {arch!r}")
    if opt_level not in (0, 1, 2, 3):
        raise ValueError(f"assemble requires an opt_level of 0 to 3, got {opt_level}")
    tool = find_ptxas() if tool is None else tool
    options = [f"-arch={arch}", f"-O{opt_level}", "-v"]
    start = time.perf_counter()
    # The folder is new and ours alone, so that names in it can be neither guessed nor taken.
    with tempfile.TemporaryDirectory(prefix="shapejit-ptxas-") as folder:
        source, result = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        status, said = _run([str(tool.path), *options, str(source), "-o", str(result)])
        said = said.replace(str(source), "kernel.ptx")
        faults = _faults(said)
        if status or faults:
            heading = f"ptxas {tool.version} " + (
                f"refused PTX for {arch} ({_status_text(status)}):"
                if status
                else f"warned of code for {arch} that no kernel may have:"
            )
            reason = said.strip() if status else "\n".join(faults)
            kept = _keep(ptx)
            command = shlex.join([str(tool.path), *options, str(kept), "-o", "/dev/null"])
            raise AssemblyError(heading, reason, _excerpt(ptx, reason), kept, command)
        data = result.read_bytes()
    _LOG.debug("ptxas: %d bytes in %.3f s", len(data), time.perf_counter() - start)
    return Cubin(data, _resources(said), _warnings(said))


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Exit status and output of a call."""
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except OSError as error:
        raise PtxasError(f"{command[0]} cannot be run: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise PtxasError(f"{command[0]} did not end within {_SECONDS:.0f} s") from error
    return run.returncode, run.stdout


def _status_text(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"it ended with status {status}"
    if -status == signal.SIGKILL:
        return "it was killed, which is what a system does that is short of memory"
    return f"it was ended by {signal.Signals(-status).name}"


def _keep(ptx: str) -> Path:
    """Writes PTX where the user can find it: in the folder of dumps, else in a new one."""
    name = f"ptxas-{hashlib.sha256(ptx.encode()).hexdigest()[:12]}.ptx"
    if knobs.dump_to is not None:
        with suppress(OSError):  # a folder that cannot be written must not hide the failure
            folder = Path(knobs.dump_to, "reproducers")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(ptx)
            return folder / name
    path = Path(tempfile.mkdtemp(prefix="shapejit-failed-"), name)
    path.write_text(ptx)
    return path


# What it says.

_FAULT = re.compile(r"\(C7[56]\d\d\)")
_LINE = re.compile(r"\bline (\d+)\b")
_KERNEL = re.compile(
    r"Function properties for (?P<name>\S+)\s+(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\s+"
    r"ptxas info\s*: Used (?P<registers>\d+) registers(?P<others>.*)"
)


def _faults(said: str) -> list[str]:
    """What it warns of that no kernel may have."""
    return [line.strip() for line in said.splitlines() if _FAULT.search(line)]


def _warnings(said: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in said.splitlines() if line.startswith("ptxas warning"))


def _resources(said: str) -> dict[str, Resources]:
    found = {}
    for match in _KERNEL.finditer(said):
        others = match["others"]
        found[match["name"]] = Resources(
            registers=int(match["registers"]),
            barriers=_amount(r"used (\d+) barriers", others),
            shared_bytes=_amount(r"(\d+) bytes smem", others),
            stack_bytes=int(match["stack"]),
            spill_store_bytes=int(match["stores"]),
            spill_load_bytes=int(match["loads"]),
        )
    return found


def _amount(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def _excerpt(ptx: str, reason: str) -> str:
    """The lines of PTX that a message names, with their neighbours."""
    numbers = dict.fromkeys(int(number) for number in _LINE.findall(reason))
    lines = ptx.splitlines()
    places = [number for number in numbers if 1 <= number <= len(lines)]
    return "\n".join(_around(lines, number) for number in places[:_SHOWN])


def _around(lines: Sequence[str], at: int) -> str:
    def shown() -> Iterator[str]:
        for number in range(max(1, at - _CONTEXT), min(len(lines), at + _CONTEXT) + 1):
            mark = ">" if number == at else " "
            yield f"  {mark} {number:5d} | {lines[number - 1]}"

    return "\n".join(shown())


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


__all__ = [
    "LEAST_VERSION",
    "REMEDY",
    "AssemblyError",
    "Cubin",
    "PtxasError",
    "Resources",
    "assemble",
    "find_ptxas",
]
