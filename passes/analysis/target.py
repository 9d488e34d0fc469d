# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""What a module says about where it will run."""

from __future__ import annotations

from typing import Any

from mlir import ir


def is_for_gpu(module: Any) -> bool:
    """Whether a module is compiled for a GPU: its ``shapejit.target`` is ``cuda:..``."""
    attributes = module.operation.attributes
    if "shapejit.target" not in attributes:
        return False
    return str(ir.StringAttr(attributes["shapejit.target"]).value).startswith("cuda")
