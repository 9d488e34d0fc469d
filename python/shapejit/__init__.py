# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Compiles PyTorch models whose input shapes vary: one compile, any shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native  # noqa: F401 - first: libLLVM must be loaded before torch_mlir

if TYPE_CHECKING:
    from .api import compile, load
    from .errors import ShapeJitError
    from .options import CompileOptions
    from .program import Program

__version__ = "0.1.0"
__all__ = ["CompileOptions", "Program", "ShapeJitError", "compile", "load"]

# Imported on first use: they bring torch, which shapejit-opt does not need.
_LAZY = {
    "compile": "api",
    "load": "api",
    "CompileOptions": "options",
    "ShapeJitError": "errors",
    "Program": "program",
}


# Modules that are part of the interface.
_MODULES = ("cache", "logs", "ops", "rules")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
