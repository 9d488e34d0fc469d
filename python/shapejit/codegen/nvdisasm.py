# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Cubins back to text, for dumps and tests. No compilation needs it.

``nvdisasm`` knows which registers each instruction reads and writes, also where one name stands for
many (the accumulators of a wgmma, the halves of an address); `life_ranges` prints that knowledge.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from shapejit.codegen.cuda_tools import find_tools

REMEDY = "pip install nvidia-cuda-nvdisasm"

_SECONDS = 120.0


class DisassemblyError(RuntimeError):
    """``nvdisasm`` refused a cubin, or does not run; the text says why."""


def find_nvdisasm() -> Path | None:
    """The disassembler, if there is one."""
    return next(iter(find_tools("nvdisasm")), None)


def disassemble(cubin: bytes, *, life_ranges: bool = False) -> str:
    """The SASS of every function of a cubin.

    Args:
        cubin: the ELF file.
        life_ranges: put a column for each register beside the code: ``^`` where an instruction
            writes it, ``v`` where it reads it, ``x`` where it does both, ``:`` where it is live.

    Raises:
        FileNotFoundError: there is no ``nvdisasm``; the text says how to get it.
        DisassemblyError: it is no cubin, or ``nvdisasm`` does not run.
    """
    path = find_nvdisasm()
    if path is None:
        raise FileNotFoundError(f"nvdisasm was not found. To get it: {REMEDY}")
    options = ["-lrm", "narrow"] if life_ranges else []
    with tempfile.TemporaryDirectory(prefix="shapejit-nvdisasm-") as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        try:
            run = subprocess.run(
                [path, "-c", *options, file],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DisassemblyError(f"{path} does not run: {error}") from error
    if run.returncode != 0:
        raise DisassemblyError(run.stderr.strip() or f"{path} ended with {run.returncode}")
    return run.stdout


__all__ = ["REMEDY", "DisassemblyError", "disassemble", "find_nvdisasm"]
