# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What all tests on a GPU share: the device, or why there is none."""

from __future__ import annotations

import pytest

from shapejit.gpu.device import Device
from shapejit.gpu.driver import driver
from shapejit.gpu.errors import CudaError


@pytest.fixture(scope="session")
def device() -> Device:
    """The first GPU; skips the test where there is none of compute capability 9.0."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that torch can use")
    try:
        device = driver().device(0)
    except (CudaError, ImportError) as error:
        pytest.skip(str(error))
    if device.compute_capability < (9, 0):
        pytest.skip(f"needs compute capability 9.0, {device.name} has {device.arch}")
    torch.cuda.init()
    return device
