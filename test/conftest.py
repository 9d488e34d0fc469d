# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What all tests share: a cache of their own, so that none finds what another run left, and the
same drawn examples in every run, for as long as they take, so that a failure means a change."""

from __future__ import annotations

import os
import tempfile

from hypothesis import settings

# Set before anything reads it, and inherited by the processes that tests start.
_cache = tempfile.TemporaryDirectory(prefix="shapejit-test-cache-")
os.environ["SHAPEJIT_CACHE_DIR"] = _cache.name

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
