# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What all tests on a GPU share: the device, or why there is none; and what a test left there."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator

import pytest

from gpu.waiting import eventually
from shapejit.gpu import memory
from shapejit.gpu.device import Device
from shapejit.gpu.driver import driver
from shapejit.gpu.errors import CudaError


@pytest.fixture(scope="session", autouse=True)
def cores() -> None:
    """Each of several workers gets its share of the cores for torch's references on the CPU: with
    a thread for every core in every worker they take turns, and some run into time-outs."""
    torch = pytest.importorskip("torch")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(len(os.sched_getaffinity(0)) // workers, 1))


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


@pytest.fixture
def modules(device: Device) -> Callable[[], int]:
    """How many modules were loaded since the test began and are so still.

    Kernels that other tests keep for later do not count.
    """
    gc.collect()
    before = device.runtime.modules()
    return lambda: device.runtime.modules() - before


@pytest.fixture
def everything_is_given_back(
    device: Device, modules: Callable[[], int], request: pytest.FixtureRequest
) -> Iterator[None]:
    """No test leaves modules, workspaces or a broken context behind."""
    import torch

    failed = request.session.testsfailed
    memory.release_workspaces(device)
    eventually(lambda: memory.workspaces(device).buffers == 0)
    yield
    if request.session.testsfailed != failed:
        return  # the traceback of a failure holds what its test made
    torch.cuda.synchronize()
    gc.collect()
    eventually(lambda: modules() == 0)
    memory.release_workspaces(device)
    eventually(lambda: memory.workspaces(device).buffers == 0)
