# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions of three taps by Winograd's algorithm: matrices, choice, rewriting."""
