# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Threads of compiled code: the pool, its entry points, and the code that MLIR emits for them."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import signal
import subprocess
import threading

import mlir.ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shapejit import threads
from shapejit.codegen import LLVM_PIPELINE, HostTarget, JitLibrary, LLVMError, compile_object
from shapejit.pass_host import run_pipeline
from unit.cpu_kernels import examples
from unit.native_runtime import PROGRAMS, run_native_test

# Programs in the form of shapejit_run: y[i] = 3 * x[i] for i < n, and sum(x), where symbols = [n],
# buffers = [x, y] of int64.
_LOAD = """
func.func private @x(%buffers: !llvm.ptr, %i: index) -> i64 {
  %p = llvm.load %buffers : !llvm.ptr -> !llvm.ptr
  %at = arith.index_cast %i : index to i64
  %q = llvm.getelementptr %p[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %v = llvm.load %q : !llvm.ptr -> i64
  return %v : i64
}
func.func private @y(%buffers: !llvm.ptr, %i: index, %v: i64) {
  %slot = llvm.getelementptr %buffers[1] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr
  %p = llvm.load %slot : !llvm.ptr -> !llvm.ptr
  %at = arith.index_cast %i : index to i64
  %q = llvm.getelementptr %p[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  llvm.store %v, %q : i64, !llvm.ptr
  return
}
func.func private @triple(%buffers: !llvm.ptr, %i: index) {
  %three = arith.constant 3 : i64
  %v = func.call @x(%buffers, %i) : (!llvm.ptr, index) -> i64
  %w = arith.muli %v, %three : i64
  func.call @y(%buffers, %i, %w) : (!llvm.ptr, index, i64) -> ()
  return
}
"""
_TRIPLE = "func.call @triple(%buffers, %i) : (!llvm.ptr, index) -> ()"
_LOOP_NEST = f"omp.loop_nest (%i) : index = (%c0) to (%n) step (%c1) {{ {_TRIPLE} omp.yield }}"
BODIES = {
    "scf.parallel": f"scf.parallel (%i) = (%c0) to (%n) step (%c1) {{ {_TRIPLE} }}",
    "static": f"omp.parallel {{ omp.wsloop {{ {_LOOP_NEST} }} omp.terminator }}",
    "static chunks": f"""
        %chunk = arith.constant 5 : i64
        omp.parallel {{
          omp.wsloop schedule(static = %chunk : i64) {{ {_LOOP_NEST} }}
          omp.terminator
        }}""",
    "dynamic": f"""
        %chunk = arith.constant 7 : i64
        omp.parallel {{
          omp.wsloop nowait schedule(dynamic = %chunk : i64) {{ {_LOOP_NEST} }}
          omp.terminator
        }}""",
    "guided, after a barrier": f"""
        omp.parallel {{
          omp.barrier
          omp.wsloop schedule(guided) {{ {_LOOP_NEST} }}
          omp.terminator
        }}""",
    "auto, of a number of threads, if": f"""
        %two = arith.constant 2 : i32
        %many = arith.cmpi ugt, %n, %c1 : index
        omp.parallel if(%many) num_threads(%two : i32) {{
          omp.wsloop schedule(auto) {{ {_LOOP_NEST} }}
          omp.terminator
        }}""",
    "nested": f"""
        %c4 = arith.constant 4 : index
        scf.parallel (%start) = (%c0) to (%n) step (%c4) {{
          %past = arith.addi %start, %c4 : index
          %end = arith.minui %past, %n : index
          %used = arith.index_cast %start : index to i64
          scf.parallel (%i) = (%start) to (%end) step (%c1) {{ {_TRIPLE} }}
          func.call @y(%buffers, %start, %used) : (!llvm.ptr, index, i64) -> ()
          {_TRIPLE.replace("%i)", "%start)")}
        }}""",
    "sum": """
        %zero = arith.constant 0 : i64
        %total = scf.parallel (%i) = (%c0) to (%n) step (%c1) init (%zero) -> i64 {
          %v = func.call @x(%buffers, %i) : (!llvm.ptr, index) -> i64
          scf.reduce(%v : i64) {
          ^bb0(%a: i64, %b: i64):
            %s = arith.addi %a, %b : i64
            scf.reduce.return %s : i64
          }
        }
        func.call @y(%buffers, %c0, %total) : (!llvm.ptr, index, i64) -> ()""",
}
_PIPELINE = (
    "convert-scf-to-openmp",
    *LLVM_PIPELINE,
    "convert-openmp-to-llvm",
    "reconcile-unrealized-casts",
)


@functools.cache
def compiled(name: str) -> bytes:
    """Object code of one of `BODIES`."""
    text = f"""
    module {{
      {_LOAD}
      func.func @shapejit_run(%symbols: !llvm.ptr, %buffers: !llvm.ptr, %arena: !llvm.ptr) {{
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %s0 = llvm.load %symbols : !llvm.ptr -> i64
        %n = arith.index_cast %s0 : i64 to index
        {BODIES[name]}
        return
      }}
    }}"""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        run_pipeline(module, ",".join(_PIPELINE), stage="test")
        return compile_object(module, HostTarget.host())


class Program:
    """A loaded program of `BODIES`."""

    def __init__(self, name: str) -> None:
        self._sums = name == "sum"
        self._library = JitLibrary([compiled(name)], symbols=threads.symbols())
        self._run = threads.entry_point(self._library.lookup("shapejit_run"))

    def check(self, count: int, most_threads: int) -> None:
        """Runs it on new data and checks what it wrote."""
        x = torch.randint(-1000, 1000, (count,))
        y = torch.full((max(count, 1),), -1)
        buffers = (ctypes.c_void_p * 2)(x.data_ptr(), y.data_ptr())
        self._run((ctypes.c_int64 * 1)(count), buffers, None, most_threads)
        if self._sums:
            assert y[0] == x.sum()
        else:
            assert torch.equal(y[:count], 3 * x)


@functools.cache
def program(name: str) -> Program:
    return Program(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_native(name: str) -> None:
    run_native_test(name)


def test_library_needs_libc_only_and_exports_no_openmp() -> None:
    library = threads.library()
    needed = subprocess.run(["ldd", library._name], capture_output=True, text=True, check=True)
    names = re.findall(r"(\S+?)\.so", needed.stdout)
    assert {os.path.basename(name) for name in names} == {"linux-vdso", "libc", "ld-linux-x86-64"}
    assert all(address for address in threads.symbols().values())
    for name in threads.symbols():
        assert hasattr(library, name) == name.startswith("shapejitRt")


@pytest.mark.parametrize("name", BODIES)
@examples(25)
@given(count=st.one_of(st.sampled_from([0, 1, 2]), st.integers(3, 300)), most=st.integers(1, 6))
def test_emitted_code(name: str, count: int, most: int) -> None:
    program(name).check(count, most)


def test_without_symbols_the_code_does_not_load() -> None:
    with (
        JitLibrary([compiled("scf.parallel")]) as library,
        pytest.raises(LLVMError, match="__kmpc_fork_call"),
    ):
        library.lookup("shapejit_run")


def test_setting_belongs_to_a_thread_and_to_a_call() -> None:
    seen: list[int] = []

    def other() -> None:
        seen.append(threads.get_threads())
        threads.set_threads(5)
        program("dynamic").check(100, 2)
        seen.append(threads.get_threads())

    before = threads.get_threads()
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [1, 5]
    assert threads.get_threads() == before
    try:
        threads.set_threads(0)
        assert threads.get_threads() == 1
    finally:
        threads.set_threads(before)


def test_workers_are_as_many_as_the_largest_call_needs() -> None:
    program("dynamic").check(100, 7)
    assert threads.workers() >= 6
    started = threads.workers()
    for most in (2, 3, 7, 1):
        program("dynamic").check(100, most)
    assert threads.workers() == started


def test_beside_the_threads_of_torch() -> None:
    before = torch.get_num_threads()
    try:
        for most in (2, 3, 1):
            torch.set_num_threads(most)
            for _ in range(20):
                values = torch.arange(200_000, dtype=torch.float64)
                program("dynamic").check(1000, torch.get_num_threads())
                assert values.add(1).sum() == 200_000 * 200_001 / 2
    finally:
        torch.set_num_threads(before)


def test_child_of_a_fork_has_threads_of_its_own() -> None:
    program("static").check(100, 3)
    child = os.fork()
    if child == 0:
        # No assertion may unwind into pytest's copy here.
        signal.alarm(30)
        failed = threads.workers() != 0
        try:
            for _ in range(20):
                program("static").check(100, 3)
            failed |= threads.workers() != 2
        except BaseException:
            failed = True
        os._exit(failed)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    program("static").check(100, 3)
