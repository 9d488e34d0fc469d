# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where NVIDIA's command-line tools are, and which version each has.

None of them needs a CUDA toolkit: NVIDIA publishes each as a wheel. A tool is looked for in the
wheels first, so that an environment decides for itself; then on PATH; then in Triton, whose wheel
carries both.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_VERSION_SECONDS = 30.0


@dataclass(frozen=True)
class Tool:
    """A program and its version.

    Attributes:
        path: the program.
        version: as it prints it: ``13.0.88``.
    """

    path: Path
    version: str

    @property
    def order(self) -> tuple[int, ...]:
        """The version as numbers, for comparisons."""
        return tuple(map(int, self.version.split(".")))


class ToolError(RuntimeError):
    """A program does not say its version: it is not what it should be, or does not run."""


def find_tools(name: str) -> list[Path]:
    """Programs of NVIDIA's by name (``ptxas``, ``nvdisasm``): of wheels, PATH and Triton."""
    wheels = [path for root in _roots("nvidia") for path in sorted(root.glob(f"*/bin/{name}"))]
    on_path = shutil.which(name)
    triton = [root / "backends" / "nvidia" / "bin" / name for root in _roots("triton")]
    found = [*wheels, *([Path(on_path)] if on_path else []), *triton]
    return [path for path in found if path.is_file()]


def examine_tool(path: Path) -> Tool:
    """The program at a path, after asking it for its version. Asked once for each state of a file.

    Raises:
        ToolError: it does not run, or does not print a version as NVIDIA's programs do.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise ToolError(f"{path} cannot be read ({error.strerror})") from error
    return _examined(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=16)
def _examined(path: Path, _changed: int, _size: int) -> Tool:
    try:
        run = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{path} does not run: {error}") from error
    match = re.search(r"\bV(\d+(?:\.\d+)+)", run.stdout)
    if match is None:
        raise ToolError(f"{path} does not print its version, as NVIDIA's programs do")
    return Tool(path, match[1])


def _roots(package: str) -> list[Path]:
    """Folders of a package, which is not imported."""
    spec = importlib.util.find_spec(package)
    return [] if spec is None else [Path(root) for root in spec.submodule_search_locations or ()]


__all__ = ["Tool", "ToolError", "examine_tool", "find_tools"]
