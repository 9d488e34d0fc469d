# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The C++ tests of the thread pool under the compiler's sanitizers."""

from __future__ import annotations

import pytest

from unit.native_runtime import PROGRAMS, run_native_test


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_native(name: str, sanitizers: str) -> None:
    run_native_test(name, sanitizers)
