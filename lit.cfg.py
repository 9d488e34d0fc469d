# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""lit configuration: the IR tests under test/, run with `lit test` or `make lit`."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import lit.formats

config: Any = globals()["config"]  # lit puts it there

root = Path(__file__).resolve().parent


def tool_directories() -> list[Path]:
    """Where the tools of a RUN line are: those of this Python, and LLVM's from its wheel."""
    found = [Path(sys.executable).parent]
    llvm = importlib.util.find_spec("llvm")
    for package in (llvm.submodule_search_locations if llvm else None) or ():
        found.append(Path(package, "bin"))
    return found


config.name = "shapejit"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = str(root)
config.excludes = ["build", "dist", ".venv"]
config.test_exec_root = str(root / "build" / "lit")
config.environment["PATH"] = os.pathsep.join(
    [*map(str, tool_directories()), config.environment.get("PATH", os.defpath)]
)
# Variables of one test must not leak into the next CHECK-LABEL.
config.environment["FILECHECK_OPTS"] = "--enable-var-scope"
# lit ends a test that hangs with psutil's help only.
if importlib.util.find_spec("psutil") and not config.maxIndividualTestTime:
    config.maxIndividualTestTime = 60  # seconds
