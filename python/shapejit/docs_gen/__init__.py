# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Generators of reference pages; ``python -m shapejit.docs_gen.<page> docs/<page>.md`` writes one.

A test compares each page in ``docs/`` with what its generator gives.
"""
