# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""The passes, one file a pass; the file's name is the pass's without its prefix."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import re

_NAME = re.compile(r"\bshapejit-([a-z0-9]+(?:-[a-z0-9]+)*)")


def register_all() -> None:
    """Imports every pass file, which registers its pass."""
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg):
        importlib.import_module(f"{__name__}.{module}")


def register_in(pipeline: str) -> None:
    """Imports the files of the passes that a textual pipeline names; with what they need, all of
    them take half a second. A pass without a file here was registered by whoever made it."""
    for name in _NAME.findall(pipeline):
        _register(name)


@functools.cache
def _register(name: str) -> None:
    module = f"{__name__}.{name.replace('-', '_')}"
    if importlib.util.find_spec(module) is not None:
        importlib.import_module(module)
