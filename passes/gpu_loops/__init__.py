# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of loops for NVIDIA GPUs, on the CUDA cores.

From a kernel's IR (`problem`) come its phases (`phases`): points of a space, rows, columns. An
emitter for each (`points`, `rows`, `columns`) asks the `evaluate.Evaluator` for values; that emits
bodies (`bodies`, `functions`) and loads (`access`) where their indices are known (`indexing`). How
many elements a thread takes is said by the `schedule`, which `choice` chooses; `lowering` is what
the rest of the compiler calls.
"""
