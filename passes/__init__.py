# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""The passes, one file a pass; the file's name is the pass's without its prefix."""

from __future__ import annotations

import importlib
import pkgutil


def register_all() -> None:
    """Imports every pass file, which registers its pass."""
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg):
        importlib.import_module(f"{__name__}.{module}")
