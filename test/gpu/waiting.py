# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Waits for what happens soon, in a thread that is not ours."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool]) -> None:
    """Waits for what the driver does in a thread of its own after a graph is destroyed.

    Raises:
        AssertionError: it is not so after 10 s.
    """
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    assert condition()
