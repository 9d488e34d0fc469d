# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-opt: mlir-opt with the shapejit dialect and passes."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs MlirOptMain in this process, which it then ends.

    The process ends without the interpreter's shutdown: wrappers of MlirOptMain's
    context may be alive and must not be destroyed after it.
    """
    from shapejit import _native, pass_host, passes

    passes.register_all()
    pass_host.enter_driver()
    arguments = [os.fsencode(a) for a in (sys.argv if argv is None else argv)]
    array = (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None)
    code = _native.lib_nogil.shapejitOptMain(len(arguments), array)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
