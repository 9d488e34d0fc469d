# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The CUDA part of libshapejit_rt on a fake driver: C++ programs, and the library under Python.

See ``runtime/test/FakeCuda.h`` for what the fake driver does.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_ubyte,
    c_uint32,
    c_void_p,
)
from pathlib import Path

import pytest

from shapejit import threads
from shapejit.gpu.bindings import Runtime
from shapejit.gpu.driver import Driver
from unit.native_runtime import RUNTIME, compile_program, folder, has_sanitizers

PROGRAMS = ("cuda_launch", "cuda_workspace", "cuda_threads", "cuda_graph", "cuda_graph_threads")
"""The test programs, ``runtime/test/*.cpp``."""


class FakeLaunch(Structure):
    """``FakeLaunch``"""

    _fields_ = (
        ("entry", c_char * 64),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("shared_bytes", c_uint32),
        ("cluster", c_uint32),
        ("programmatic", c_uint32),
        ("parameters", c_uint32),
        ("carveout", c_int32),
        ("stream", c_void_p),
        ("graph", c_void_p),
        ("executable", c_void_p),
        ("offsets", c_uint32 * 512),
        ("bytes", c_ubyte * 4096),
        ("wait_count", c_uint32),
        ("waits", c_uint32 * 16),
    )

    def parameter(self, number: int, size: int) -> bytes:
        """The bytes of a parameter."""
        start = self.offsets[number]
        return bytes(self.bytes[start : start + size])


@functools.cache
def fake_driver(sanitizers: str = "") -> Path:
    """Builds the fake driver."""
    path = folder() / f"libfake_cuda-{sanitizers}.so"
    sources = map(str, sorted((RUNTIME / "test").glob("fake_*.cpp")))
    compile_program(["-fPIC", "-shared", *sources], path, sanitizers)
    return path


@functools.cache
def _objects(sanitizers: str) -> list[str]:
    objects = []
    for source in sorted((RUNTIME / "lib" / "cuda").glob("*.cpp")):
        target = folder() / f"cuda-{source.stem}-{sanitizers}.o"
        compile_program(["-c", str(source)], target, sanitizers)
        objects.append(str(target))
    return objects


def need_compiler(sanitizers: str = "") -> None:
    """Skips the test where it cannot be built."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    if sanitizers and not has_sanitizers(sanitizers):
        pytest.skip(f"g++ has no -fsanitize={sanitizers} here")


def run_program(name: str, sanitizers: str = "") -> None:
    """Builds a test program, runs it on the fake driver, and fails with its output if it fails."""
    need_compiler(sanitizers)
    program = folder() / f"{name}-{sanitizers}"
    driver = fake_driver(sanitizers)
    source = str(RUNTIME / "test" / f"{name}.cpp")
    linked = [*_objects(sanitizers), str(driver), f"-Wl,-rpath,{driver.parent}"]
    compile_program([source, *linked], program, sanitizers)
    done = subprocess.run([program, driver], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


class Fake:
    """The installed library on a fake driver, both apart from those of the process.

    Attributes:
        driver: as `shapejit.gpu.driver.driver` gives it.
        controls: the functions of ``FakeCuda.h``.
    """

    def __init__(self, folder: Path) -> None:
        need_compiler()
        library = folder / "libshapejit_rt.so"
        shutil.copyfile(threads.library()._name, library)
        path = folder / "libcuda.so"
        shutil.copyfile(fake_driver(), path)
        self.controls = ctypes.CDLL(str(path))
        self.controls.fakeLaunchAt.restype = POINTER(FakeLaunch)
        for name in ("fakeStreamCreate", "fakeEndCapture"):
            getattr(self.controls, name).restype = c_void_p
        for name in (
            "fakeStreamDestroy",
            "fakeEndCapture",
            "fakeGraphDestroy",
            "fakeGraphReplay",
        ):
            getattr(self.controls, name).argtypes = (c_void_p,)
        self.controls.fakeBeginCapture.argtypes = (c_void_p, c_int)
        self.controls.fakeFail.argtypes = (c_char_p, c_int, c_int)
        self.controls.fakeMemory.restype = c_int64
        self.controls.fakeViolations.restype = c_char_p
        self.runtime = Runtime(ctypes.CDLL(os.fspath(library)))
        self.driver = Driver(os.fspath(path), self.runtime)

    @property
    def launches(self) -> int:
        """Launches so far."""
        count: int = self.controls.fakeLaunches()
        return count

    @property
    def last(self) -> FakeLaunch:
        """The last launch."""
        launch: FakeLaunch = self.controls.fakeLaunchAt(self.launches - 1)[0]
        return launch

    @property
    def modules(self) -> int:
        """Modules that the driver has."""
        count: int = self.controls.fakeModules()
        return count

    @property
    def memory(self) -> int:
        """Bytes of device memory that are allocated."""
        count: int = self.controls.fakeMemory()
        return count

    def check(self) -> None:
        """Fails if the driver was used in a way that it must not be."""
        assert not self.controls.fakeViolations()
