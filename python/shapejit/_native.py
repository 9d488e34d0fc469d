# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Loads libshapejit.so and registers the dialect with MLIR's Python bindings.

The library is plain C at its surface and is called through ctypes, so that one wheel
serves every CPython version. ``mlir.ir`` is imported first: the library's needs are
then resolved to the copies of MLIR and LLVM that the bindings loaded, and libLLVM is in
place before ``torch_mlir`` can bring a table of run-time library names of its own.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import mlir._mlir_libs as mlir_libs
import mlir.ir as ir
from mlir._mlir_libs._mlir import globals as mlir_globals

_pythonapi = ctypes.pythonapi
_pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
_pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pythonapi.PyCapsule_GetName.restype = ctypes.c_char_p
_pythonapi.PyCapsule_GetName.argtypes = [ctypes.py_object]
_pythonapi.PyCapsule_New.restype = ctypes.py_object
_pythonapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def find_file(*parts: str) -> Path:
    """Path of an installed file of the package.

    An editable install spreads the package over several directories.
    """
    import shapejit

    for directory in shapejit.__path__:
        path = Path(directory, *parts)
        if path.exists():
            return path
    searched = ", ".join(shapejit.__path__)
    raise ImportError(
        f"shapejit's file {'/'.join(parts)} is not installed (searched {searched}). "
        "Install the package with pip."
    )


_path = str(find_file("_libs", "libshapejit.so"))
#: Keeps the interpreter lock during calls: they may call back into the bindings.
lib = ctypes.PyDLL(_path)
#: Drops the interpreter lock during calls: for what runs long.
lib_nogil = ctypes.CDLL(_path)

_p, _i, _s = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_char_p
lib.shapejitRegisterDialect.argtypes = [_p]
lib.shapejitRegisterDialect.restype = None
lib.shapejitShapeAttrGet.argtypes = [_p, ctypes.POINTER(_p), _i]
lib.shapejitShapeAttrGet.restype = _p
lib.shapejitShapeAttrRank.argtypes = [_p]
lib.shapejitShapeAttrRank.restype = _i
lib.shapejitShapeAttrDim.argtypes = [_p, _i]
lib.shapejitShapeAttrDim.restype = _p
lib.shapejitIntegerSetSize.argtypes = [_p]
lib.shapejitIntegerSetSize.restype = _i
lib.shapejitIntegerSetConstraint.argtypes = [_p, _i, ctypes.POINTER(ctypes.c_int)]
lib.shapejitIntegerSetConstraint.restype = _p
lib.shapejitEmitError.argtypes = [_p, _s]
lib.shapejitEmitError.restype = None
lib.shapejitRegisterMathPolynomials.argtypes = []
lib.shapejitRegisterMathPolynomials.restype = None
lib_nogil.shapejitRunPassManager.argtypes = [_p, _p, ctypes.POINTER(_p)]
lib_nogil.shapejitRunPassManager.restype = ctypes.c_int
lib_nogil.shapejitOptMain.argtypes = [ctypes.c_int, ctypes.POINTER(_s)]
lib_nogil.shapejitOptMain.restype = ctypes.c_int
_free = ctypes.CDLL(None).free
_free.argtypes = [_p]
_free.restype = None


def pointer(obj: Any) -> int:
    """The C pointer inside an object of MLIR's bindings."""
    capsule = obj._CAPIPtr
    address: int = _pythonapi.PyCapsule_GetPointer(capsule, _pythonapi.PyCapsule_GetName(capsule))
    return address


# "mlir.ir.DialectRegistry._CAPIPtr": the bindings may live under another package name.
_capsule_prefix = _pythonapi.PyCapsule_GetName(ir.DialectRegistry()._CAPIPtr).decode()
_capsule_package = _capsule_prefix.rsplit(".", 2)[0]
# A capsule keeps a pointer to its name, so names live as long as the process.
_capsule_names: dict[type, bytes] = {}


def wrap(cls: Any, address: int) -> Any:
    """An object of the bindings' class `cls` for a C pointer."""
    name = _capsule_names.get(cls)
    if name is None:
        name = f"{_capsule_package}.{cls.__name__}._CAPIPtr".encode()
        _capsule_names[cls] = name
    return cls._CAPICreate(_pythonapi.PyCapsule_New(address, name, None))


def take_string(address: int | None) -> str:
    """Text of a C string that the callee allocated; frees it."""
    if not address:
        return ""
    text = ctypes.string_at(address).decode()
    _free(address)
    return text


def register_dialect(registry: Any) -> None:
    """Adds the shapejit dialect to a registry (for contexts made before the import)."""
    lib.shapejitRegisterDialect(pointer(registry))


register_dialect(mlir_libs.get_dialect_registry())  # every context created from now on
mlir_globals.append_dialect_search_prefix("shapejit.dialects")
lib.shapejitRegisterMathPolynomials()
