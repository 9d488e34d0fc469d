# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The C++ tests of libshapejit_rt: ``runtime/test/*.cpp``, linked with its sources."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[2] / "runtime"
PROGRAMS: dict[str, tuple[str, ...]] = {
    "entry_points": (),
    "callers": ("4", "1"),
    "fork": ("20",),
    "exit": (),
}
"""Each test program with its arguments."""


@functools.cache
def folder() -> Path:
    path = tempfile.mkdtemp(prefix="shapejit-runtime-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def compile_program(arguments: list[str], output: Path, sanitizers: str) -> None:
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-pthread", f"-I{RUNTIME / 'include'}"]
    if sanitizers:
        flags += [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    done = subprocess.run(
        ["g++", *flags, *arguments, "-o", str(output)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # no warnings


@functools.cache
def _objects(sanitizers: str) -> list[str]:
    objects = []
    for source in sorted((RUNTIME / "lib").glob("*.cpp")):
        target = folder() / f"{source.stem}-{sanitizers}.o"
        compile_program(["-c", str(source)], target, sanitizers)
        objects.append(str(target))
    return objects


@functools.cache
def has_sanitizers(sanitizers: str) -> bool:
    source, program = folder() / "empty.cpp", folder() / "empty"
    source.write_text("int main() {}")
    command = ["g++", f"-fsanitize={sanitizers}", str(source), "-o", str(program)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        return False
    return subprocess.run([program], capture_output=True).returncode == 0


def run_native_test(name: str, sanitizers: str = "") -> None:
    """Builds a test program, runs it, and fails with its output if it fails."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    if sanitizers and not has_sanitizers(sanitizers):
        pytest.skip(f"g++ has no -fsanitize={sanitizers} here")
    program = folder() / f"{name}-{sanitizers}"
    source = str(RUNTIME / "test" / f"{name}.cpp")
    compile_program([source, *_objects(sanitizers)], program, sanitizers)
    # Children of a process with threads start threads of their own, on purpose.
    environment = {**os.environ, "TSAN_OPTIONS": "die_after_fork=0"}
    done = subprocess.run(
        [program, *PROGRAMS[name]], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
