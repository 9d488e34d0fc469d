# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The demo: all-MiniLM-L6-v2 with its real weights, compiled once and run at hundreds of shapes.

``python -m shapejit.demo`` compares every embedding with PyTorch's, times both, and ends with a
semantic search: in bfloat16 on an NVIDIA GPU that shapejit has kernels for, beside
``torch.compile``, and elsewhere in float32 on the CPU. It needs the ``demo`` extra and the weights
(``make demo`` installs both).
"""
