# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where in the user's sources an operator comes from."""

from __future__ import annotations

import os
import re
import traceback
from dataclasses import dataclass

import torch

_TORCH_ROOT = os.path.join(os.path.dirname(torch.__file__), "")
_MODULES_ROOT = os.path.join(_TORCH_ROOT, "nn", "")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class SourceLine:
    """A line of a source file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


def model_line(stack_trace: str | None) -> SourceLine | None:
    """The innermost line outside torch of a stack trace as torch.fx records it.

    A model made of torch's own modules only has none; then it is the innermost line of those.
    """
    frames = [SourceLine(file, int(line)) for file, line in _FRAME.findall(stack_trace or "")]
    own = [frame for frame in frames if not is_torch_file(frame.file)]
    modules = [frame for frame in frames if frame.file.startswith(_MODULES_ROOT)]
    found = own or modules
    return found[-1] if found else None


def error_line(error: BaseException) -> SourceLine | None:
    """The innermost line outside torch and this package where `error` was raised, if any."""
    package = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
    own = [
        SourceLine(frame.filename, frame.lineno or 0)
        for frame in traceback.extract_tb(error.__traceback__)
        if not is_torch_file(frame.filename) and not frame.filename.startswith(package)
    ]
    return own[-1] if own else None


def is_torch_file(file: str) -> bool:
    """Whether a file belongs to PyTorch itself."""
    return file.startswith((_TORCH_ROOT, "<"))
