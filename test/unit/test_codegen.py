# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

from __future__ import annotations

import ctypes
import gc
import math
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlir.ir as ir
import pytest

from shapejit.codegen import (
    HostTarget,
    JitLibrary,
    LLVMError,
    compile_llvm_ir,
    compile_object,
    to_llvm_dialect,
)

UNARY = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)
INTEGER = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def build(text: str, target: HostTarget | None = None) -> bytes:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        to_llvm_dialect(module)
        return compile_object(module, target or HostTarget.host())


def unary(op: str) -> str:
    return f"""
    func.func @f(%x: f32) -> f32 {{
      %y = {op} %x : f32
      return %y : f32
    }}"""


def test_host_is_a_target_of_this_machine() -> None:
    host = HostTarget.host()
    assert host.triple.startswith("x86_64")
    assert host.vector_bytes in (16, 32, 64)
    assert host.panel * 4 == 2 * host.vector_bytes
    assert host is HostTarget.host()
    assert HostTarget.from_name("native") is host


@pytest.mark.parametrize(
    ("name", "vector_bytes"),
    [("x86-64", 16), ("x86-64-v2", 16), ("x86-64-v3", 32), ("x86-64-v4", 64)],
)
def test_levels(name: str, vector_bytes: int) -> None:
    target = HostTarget.from_name(name)
    assert (target.cpu, target.features, target.vector_bytes) == (name, "", vector_bytes)
    assert build(unary("math.sqrt"), target)


def test_unknown_level_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown CPU target 'pentium'.*x86-64-v3"):
        HostTarget.from_name("pentium")


def test_bad_vector_width() -> None:
    with pytest.raises(ValueError, match="vector_bytes to be 16, 32 or 64, got 48"):
        HostTarget("x86_64-unknown-linux-gnu", "x86-64", "", 48)


def test_objects_are_reproducible_and_elf() -> None:
    first = build(unary("math.exp"))
    assert first[:4] == b"\x7fELF"
    assert first == build(unary("math.exp"))


@pytest.mark.parametrize("op", ["exp", "tanh", "erf", "sin", "cos", "log", "sqrt"])
def test_math(op: str) -> None:
    with JitLibrary([build(unary(f"math.{op}"))]) as library:
        f = UNARY(library.lookup("f"))
        for x in (0.0, 0.25, 1.0, 3.5, 11.0):
            if op == "log" and x == 0:
                continue
            assert f(x) == pytest.approx(getattr(math, op)(x), rel=2e-6, abs=1e-7)
        assert math.isnan(f(math.nan))


def test_exp_at_the_ends_of_its_range() -> None:
    with JitLibrary([build(unary("math.exp"))]) as library:
        f = UNARY(library.lookup("f"))
        assert f(-math.inf) == 0.0
        assert f(-200.0) == 0.0
        assert f(math.inf) == math.inf
        assert f(100.0) == math.inf


def test_large_angles_keep_their_digits() -> None:
    with JitLibrary([build(unary("math.cos"))]) as library:
        assert UNARY(library.lookup("f"))(4999.5) == pytest.approx(math.cos(4999.5), abs=1e-6)


def test_memory_and_loops() -> None:
    text = """
    func.func @f(%n: i64) -> i64 {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %zero = arith.constant 0 : i64
      %size = arith.index_cast %n : i64 to index
      %m = memref.alloca() {alignment = 64} : memref<8xi64>
      memref.store %n, %m[%c1] : memref<8xi64>
      %sum = scf.for %i = %c0 to %size step %c1 iter_args(%a = %zero) -> (i64) {
        %v = memref.load %m[%c1] : memref<8xi64>
        %s = arith.addi %a, %v : i64
        scf.yield %s : i64
      }
      return %sum : i64
    }"""
    with JitLibrary([build(text)]) as library:
        assert INTEGER(library.lookup("f"))(12) == 144


CALLS_G = """
func.func private @g(f32) -> f32
func.func @f(%x: f32) -> f32 {
  %y = func.call @g(%x) : (f32) -> f32
  return %y : f32
}"""


def test_objects_see_each_other() -> None:
    other = build(unary("math.absf").replace("@f", "@g"))
    with JitLibrary([build(CALLS_G), other]) as library:
        assert UNARY(library.lookup("f"))(-3.0) == 3.0
        assert library.lookup("f") == library.lookup("f")


def test_symbols_that_are_given() -> None:
    double = UNARY(lambda x: 2 * x)
    address = ctypes.cast(double, ctypes.c_void_p).value
    assert address is not None
    with JitLibrary([build(CALLS_G)], {"g": address}) as library:
        assert UNARY(library.lookup("f"))(4.0) == 8.0


def test_missing_symbols_are_named() -> None:
    with JitLibrary([build(CALLS_G)]) as library, pytest.raises(LLVMError, match=r"\[ g \]"):
        library.lookup("f")
    with (
        JitLibrary([build(unary("math.absf"))]) as library,
        pytest.raises(LLVMError, match=r"lookup of 'h'.*not found"),
    ):
        library.lookup("h")


def test_malformed_and_duplicate_objects() -> None:
    with pytest.raises(LLVMError, match="not recognized as a valid object"):
        JitLibrary([b"not an object"])
    data = build(unary("math.absf"))
    with pytest.raises(LLVMError, match="duplicate definition of symbol 'f'"):
        JitLibrary([data, data])


def test_closed_library() -> None:
    library = JitLibrary([build(unary("math.absf"))])
    library.lookup("f")
    library.close()
    library.close()
    with pytest.raises(ValueError, match="lookup of 'f' in a JitLibrary that was closed"):
        library.lookup("f")


def test_a_dropped_library_is_unloaded_at_once() -> None:
    gc.disable()
    try:
        library = JitLibrary([build(unary("math.absf"))])
        watched = weakref.ref(library)
        del library
        assert watched() is None, "a reference cycle keeps the library"
    finally:
        gc.enable()


def test_errors_of_llvm_are_exceptions() -> None:
    with pytest.raises(LLVMError, match="expected type"):
        compile_llvm_ir("define", HostTarget.host())
    with pytest.raises(ValueError, match="opt_level of 0 to 3, got 7"):
        compile_object(None, HostTarget.host(), 7)
    with pytest.raises(LLVMError, match="No available targets"):
        compile_llvm_ir("", HostTarget("riscv64", "generic", "", 16))


def test_back_end_errors_do_not_end_the_process() -> None:
    text = """
    define void @f() {
      call void asm sideeffect "no_such_instruction", ""()
      ret void
    }"""
    with pytest.raises(LLVMError, match=r"no_such_instruction|invalid instruction"):
        compile_llvm_ir(text, HostTarget.host())


def test_threads() -> None:
    """Compiling from several threads at once gives what one thread gives."""
    texts = [unary("math.exp").replace("@f", f"@f{i}") for i in range(8)]
    with ir.Context(), ir.Location.unknown():
        modules = [ir.Module.parse(text) for text in texts]

        def work(module: Any) -> bytes:
            to_llvm_dialect(module)
            return compile_object(module, HostTarget.host())

        with ThreadPoolExecutor(4) as pool:
            objects = list(pool.map(work, modules))
    assert objects == [build(text) for text in texts]
    with JitLibrary(objects) as library, ThreadPoolExecutor(4) as pool:
        addresses = list(pool.map(library.lookup, [f"f{i}" for i in range(8)]))
    assert len(set(addresses)) == 8


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
def test_optimisation_levels(opt_level: int) -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(unary("math.sqrt"))
        to_llvm_dialect(module)
        data = compile_object(module, HostTarget.host(), opt_level)
    with JitLibrary([data]) as library:
        assert UNARY(library.lookup("f"))(9.0) == 3.0
