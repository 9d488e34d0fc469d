# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of every family under ``compute-sanitizer``.

    python -m gpu.sanitize [memcheck synccheck racecheck initcheck]   # with ``test`` on PYTHONPATH

Prints what each tool found. Tensors get allocations of their own, so that one byte too far is seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu.kernel_samples import Sample, prepare, samples

TOOLS = ("memcheck", "synccheck", "racecheck", "initcheck")
_SECONDS = 120
_REFUSED = ("Device not supported", "Unable to", "not supported on")


@dataclass(frozen=True)
class Findings:
    """What a tool said.

    Attributes:
        tool: its name.
        works: whether it can check programs on this machine.
        clean: whether it found nothing, and all results are right.
        text: its output.
    """

    tool: str
    works: bool
    clean: bool
    text: str


def find_sanitizer() -> Path | None:
    """The program, on PATH or in a usual place of the CUDA toolkit."""
    places = [shutil.which("compute-sanitizer")]
    homes = filter(None, (os.environ.get("CUDA_HOME"), "/usr/local/cuda"))
    places += [
        str(Path(home, folder, "compute-sanitizer"))
        for home in homes
        for folder in ("bin", "compute-sanitizer")
    ]
    return next((Path(place) for place in places if place and Path(place).is_file()), None)


def small_samples() -> list[Sample]:
    """One kernel of each way of working by value, in block form, and with an epilogue; small ones,
    since a checked kernel takes hundreds of times longer."""
    found = samples()
    shown = {sample.schedule for sample in found if sample.block}
    kept = [sample for sample in found if sample.epilogue or sample.schedule in shown]
    return [replace(sample, shape=(140, 264, 200)) for sample in kept]


def sanitize(program: Path, tool: str, folder: Path, names: Sequence[str]) -> Findings:
    """Runs saved kernels under a tool."""
    test = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (test, os.environ.get("PYTHONPATH"))))
    command = [str(program), "--tool", tool, "--error-exitcode", "9", "--print-limit", "20"]
    if tool == "memcheck":
        # The runtime finds out what a function takes by asking for one parameter too many.
        command += ["--report-api-errors", "no"]
    if tool == "racecheck":
        command += ["--racecheck-report", "analysis"]
    command += [sys.executable, "-m", "gpu.kernel_samples", str(folder), *names]
    environment = {**os.environ, "PYTHONPATH": path, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        return Findings(tool, False, False, f"{text}\nit did not end within {_SECONDS} s")
    works = not any(words in done.stdout for words in _REFUSED)
    return Findings(tool, works, done.returncode == 0, done.stdout)


def main() -> None:
    program = find_sanitizer()
    if program is None:
        print("compute-sanitizer: not available")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = small_samples()
        prepare(folder, wanted)
        for tool in sys.argv[1:] or TOOLS:
            found = sanitize(program, tool, folder, [sample.name for sample in wanted])
            state = "clean" if found.clean else "FINDINGS" if found.works else "not available"
            print(f"== {tool}: {state}\n{found.text if not found.clean else ''}", flush=True)


if __name__ == "__main__":
    main()
