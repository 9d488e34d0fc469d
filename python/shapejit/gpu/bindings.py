# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The binding of the CUDA part of libshapejit_rt.so.

Its C interface is ``runtime/include/shapejit_rt/cuda.h`` and ``graph.h``; the structures and
prototypes here are those of these files. Every function is called without the interpreter lock,
launches too: they wait while a stream's queue is full, and what the queue waits for may be a host
function that needs the lock. What this costs is not measurable beside the microsecond that ctypes
takes for a call.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, c_char, c_char_p, c_int32, c_int64, c_void_p
from typing import Any

from shapejit.gpu.errors import error_for


class DeviceInfo(Structure):
    """``ShapejitRtCudaDeviceInfo``"""

    _fields_ = (
        ("name", c_char * 256),
        ("major", c_int32),
        ("minor", c_int32),
        ("multiprocessors", c_int32),
        ("shared_bytes_per_block", c_int32),
        ("shared_bytes_per_multiprocessor", c_int32),
        ("cache_bytes", c_int32),
        ("memory_bytes", c_int64),
    )


class NativeParameter(Structure):
    """``ShapejitRtCudaParameter``"""

    _fields_ = (
        ("kind", c_int32),
        ("operand", c_int32),
        ("offset", c_int64),
        ("value", c_int32),
        ("bytes", c_int32),
        ("element", c_int32),
        ("rank", c_int32),
        ("dims", c_int32 * 5),
        ("strides", c_int32 * 4),
        ("box", c_int32 * 5),
        ("swizzle", c_int32),
        ("promotion", c_int32),
        ("zeroed", c_int64),
        ("bytes_per_cta", c_int64),
        ("least_ctas", c_int64),
        ("lower", c_int32 * 3),
        ("upper", c_int32 * 3),
        ("steps", c_int32 * 3),
    )


class NativeTile(Structure):
    """``ShapejitRtCudaTile``"""

    _fields_ = (("value", c_int32), ("tile", c_int32))


class NativeInterface(Structure):
    """``ShapejitRtCudaInterface``"""

    _fields_ = (
        ("entry", c_char_p),
        ("threads", c_int32),
        ("shared_bytes", c_int32),
        ("cluster", c_int32),
        ("ctas_per_sm", c_int32),
        ("block", c_int32),
        ("programmatic", c_int32),
        ("block_bytes", c_int64),
        ("values", POINTER(c_char_p)),
        ("value_count", c_int32),
        ("tile_count", c_int32),
        ("tiles", POINTER(NativeTile)),
        ("parameter_count", c_int32),
        ("parameters", POINTER(NativeParameter)),
    )


class KernelInfo(Structure):
    """``ShapejitRtCudaKernelInfo``"""

    _fields_ = (
        ("registers", c_int32),
        ("local_bytes", c_int32),
        ("shared_bytes", c_int32),
        ("resident_ctas", c_int32),
        ("workspace_bytes", c_int64),
    )


class WorkspaceUse(Structure):
    """``ShapejitRtCudaWorkspaceUse``"""

    _fields_ = (("bytes", c_int64), ("graph_bytes", c_int64), ("buffers", c_int32))


#: ``ShapejitRtCudaRegionOf``, ``ShapejitRtCudaWordsOf``: functions of a host program, by address.
_FUNCTION = c_void_p


class NativeProgram(Structure):
    """``ShapejitRtCudaProgramDescription``"""

    _fields_ = (
        ("head", c_void_p),
        ("head_entry", c_char_p),
        ("head_threads", c_int32),
        ("head_words", c_int32),
        ("call_words", c_int32),
        ("word_count", c_int32),
        ("max_instances", c_int32),
        ("region_of", _FUNCTION),
        ("words_of", _FUNCTION),
    )


class NativeProgramLaunch(Structure):
    """``ShapejitRtCudaProgramLaunch``"""

    _fields_ = (
        ("kernel", c_void_p),
        ("operands", POINTER(c_int32)),
        ("values", POINTER(c_int32)),
        ("operand_count", c_int32),
        ("value_count", c_int32),
        ("ctas", c_int32),
        ("waits", POINTER(c_int32)),
        ("wait_count", c_int32),
    )


class ProgramUse(Structure):
    """``ShapejitRtCudaProgramUse``"""

    _fields_ = (
        ("regions", c_int32),
        ("instances", c_int32),
        ("graphs", c_int32),
        ("patches", c_int32),
        ("block_bytes", c_int64),
        ("table_bytes", c_int64),
        ("graph_calls", c_int64),
        ("stream_calls", c_int64),
        ("captured_calls", c_int64),
        ("bindings", c_int64),
    )


_PREFIX = "shapejitRtCuda"

# Operands and values are packed into bytes objects, whose memory is handed over as it is.
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "Open": (c_char_p,),
    "DriverVersion": (POINTER(c_int32),),
    "DeviceCount": (POINTER(c_int32),),
    "DeviceInfo": (c_int32, POINTER(DeviceInfo)),
    "ModuleLoad": (c_int32, c_char_p, POINTER(c_void_p)),
    "KernelCreate": (c_void_p, POINTER(NativeInterface), POINTER(c_void_p)),
    "Launch": (c_void_p, c_char_p, c_char_p, c_void_p, c_void_p),
    "FillBlock": (c_void_p, c_char_p, c_char_p, c_void_p, c_void_p),
    "LaunchBlock": (c_void_p, c_void_p, c_void_p),
    "Reserve": (c_void_p, c_void_p),
    "WorkspaceUse": (c_int32, POINTER(WorkspaceUse)),
    "WorkspaceRelease": (c_int32,),
    "MemoryAllocate": (c_int32, c_int64, POINTER(c_void_p), POINTER(c_void_p)),
    "ProgramCreate": (POINTER(NativeProgram), POINTER(c_void_p)),
    "ProgramAddRegion": (c_void_p, c_int64, POINTER(NativeProgramLaunch), c_int32),
    "ProgramBind": (c_void_p, c_void_p, c_void_p),
    "ProgramPrepare": (c_void_p, POINTER(c_int32)),
    "ProgramRun": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
}
_WITHOUT_STATUS: dict[str, tuple[Any, ...]] = {
    "ModuleRelease": (c_void_p,),
    "KernelRelease": (c_void_p,),
    "KernelInfo": (c_void_p, POINTER(KernelInfo)),
    "WorkspaceLimit": (c_int64,),
    "MemoryRelease": (c_void_p,),
    "ProgramRelease": (c_void_p,),
    "ProgramUse": (c_void_p, POINTER(ProgramUse)),
}


class Runtime:
    """The native library, with one driver.

    Attributes:
        functions: those of the C interface by name, without its prefix. They return a status, which
            `check` takes, or nothing.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.functions: dict[str, Any] = {}
        for prototypes, result in ((_PROTOTYPES, c_int32), (_WITHOUT_STATUS, None)):
            for name, arguments in prototypes.items():
                function = getattr(library, _PREFIX + name)
                function.argtypes = arguments
                function.restype = result
                self.functions[name] = function
        self._error = library.shapejitRtCudaError
        self._error.argtypes = ()
        self._error.restype = c_char_p
        self._modules = library.shapejitRtCudaModules
        self._modules.argtypes = ()
        self._modules.restype = c_int32

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns a status.

        Raises:
            CudaError: it failed.
        """
        self.check(self.functions[name](*arguments))

    def check(self, status: int) -> None:
        """Raises the error of the calling thread's last call unless its status is 0.

        Raises:
            CudaError: it failed.
        """
        if status:
            raise error_for(status, self._error().decode(errors="replace"))

    def symbols(self) -> dict[str, int]:
        """Addresses of the functions that compiled host programs call, by their full names."""
        names = ("Launch", "FillBlock", "LaunchBlock")
        addresses = {n: ctypes.cast(self.functions[n], c_void_p).value or 0 for n in names}
        return {_PREFIX + name: address for name, address in addresses.items()}

    def modules(self) -> int:
        """Modules in the memory of all devices."""
        count: int = self._modules()
        return count


@functools.cache
def runtime() -> Runtime:
    """The library of this process.

    Raises:
        ImportError: it is not installed.
    """
    from shapejit import threads

    return Runtime(threads.library())
