# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The ``shapejit`` command, one module a subcommand.

Modules here import torch, MLIR and the compiler inside functions only, so that ``--help`` is quick.
"""
