# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Object files loaded into this process through LLVM's LLJIT."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Mapping, Sequence
from ctypes import byref, c_uint64, c_void_p
from types import TracebackType

from shapejit.codegen import _libllvm
from shapejit.codegen._libllvm import LLVMError, check, library, memory_buffer, take_error


class JitLibrary:
    """Object files linked together and loaded, as a shared library would be.

    A name that the objects do not define is taken from ``symbols``, else from the process (libm,
    libc). Addresses are valid until `close`, which also happens when the object is collected.
    Usable as a context manager; lookups are thread-safe.

    Args:
        objects: ELF objects, as made by `shapejit.codegen.compile_object`.
        symbols: addresses of further symbols that the objects refer to, by name.

    Raises:
        LLVMError: an object is malformed, or two define the same symbol.
    """

    def __init__(self, objects: Sequence[bytes], symbols: Mapping[str, int] | None = None) -> None:
        self._lock = threading.Lock()
        self._errors: list[str] = []
        lib = library()
        jit = c_void_p()
        check(lib.LLVMOrcCreateLLJIT(byref(jit), None), "LLJIT")
        assert jit.value is not None
        self._jit = jit.value
        # ORC reports through the callback why symbols could not be resolved; it must live as long
        # as the session. At exit the code stays: other threads may still run it.
        reporter = _error_reporter(self._errors)
        self._dispose = weakref.finalize(self, _dispose, self._jit, reporter)
        self._dispose.atexit = False
        session = lib.LLVMOrcLLJITGetExecutionSession(self._jit)
        lib.LLVMOrcExecutionSessionSetErrorReporter(session, reporter, None)
        try:
            self._define(symbols or {})
            self._search_process()
            for data in objects:
                self._add(data)
        except BaseException:
            self.close()
            raise

    def lookup(self, name: str) -> int:
        """The address of a symbol; the first lookup links the objects.

        Raises:
            LLVMError: no such symbol, or one that an object needs is missing.
            ValueError: the library was closed.
        """
        with self._lock:
            if not self._dispose.alive:
                raise ValueError(f"lookup of {name!r} in a JitLibrary that was closed")
            address = c_uint64()
            error = library().LLVMOrcLLJITLookup(self._jit, byref(address), name.encode())
            reported = "; ".join([f"lookup of {name!r}", *self._errors])
            self._errors.clear()
            check(error, reported)
            return address.value

    def close(self) -> None:
        """Unloads the code. Addresses from `lookup` must not be used any more."""
        with self._lock:
            self._dispose()

    def __enter__(self) -> JitLibrary:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _define(self, symbols: Mapping[str, int]) -> None:
        if not symbols:
            return
        lib = library()
        flags = _libllvm.SymbolFlags(_libllvm.SYMBOL_EXPORTED | _libllvm.SYMBOL_CALLABLE, 0)
        pairs = (_libllvm.SymbolMapPair * len(symbols))()
        for pair, (name, address) in zip(pairs, symbols.items(), strict=True):
            pair.name = lib.LLVMOrcLLJITMangleAndIntern(self._jit, name.encode())
            pair.symbol = _libllvm.EvaluatedSymbol(address, flags)
        unit = lib.LLVMOrcAbsoluteSymbols(pairs, len(symbols))
        error = lib.LLVMOrcJITDylibDefine(lib.LLVMOrcLLJITGetMainJITDylib(self._jit), unit)
        if error:
            lib.LLVMOrcDisposeMaterializationUnit(unit)
        check(error, "defining symbols")

    def _search_process(self) -> None:
        lib = library()
        generator = c_void_p()
        prefix = lib.LLVMOrcLLJITGetGlobalPrefix(self._jit)
        check(
            lib.LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess(
                byref(generator), prefix, None, None
            ),
            "process symbols",
        )
        dylib = lib.LLVMOrcLLJITGetMainJITDylib(self._jit)
        lib.LLVMOrcJITDylibAddGenerator(dylib, generator)

    def _add(self, data: bytes) -> None:
        lib = library()
        dylib = lib.LLVMOrcLLJITGetMainJITDylib(self._jit)
        buffer = memory_buffer(data, "object")  # owned by the JIT from here on
        check(lib.LLVMOrcLLJITAddObjectFile(self._jit, dylib, buffer), "adding an object file")


def _dispose(jit: int, _reporter: object) -> None:
    check(library().LLVMOrcDisposeLLJIT(jit), "closing a JitLibrary")


def _error_reporter(errors: list[str]) -> ctypes._FuncPointer:
    """A callback that appends the text of each error; it holds no reference to the library."""

    def report(_context: int, error: int) -> None:
        errors.append(take_error(error))

    return _libllvm.Callback(report)


__all__ = ["JitLibrary", "LLVMError"]
