# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Host time of launches, as JSON: ``python test/gpu/launch_cost.py``, with ``test`` on PYTHONPATH.

Each figure is the median over bursts of launches that fit the stream's queue, in microseconds a
launch. "nothing to launch" is what Python and ctypes take, so the rest of a figure is the native
launch with the driver's own call in it; "cuLaunchKernel by ctypes" is that call alone, and "no
function" what calling anything by ctypes takes.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from gpu.runtime_kernels import CHAIN, CLUSTER, COPY, SUM, image, make
from shapejit.gpu.driver import driver

BURST = 200
BURSTS = 50


def microseconds(call: Callable[[], object]) -> float:
    """Median time of a call."""
    times = []
    for _ in range(BURSTS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(BURST):
            call()
        times.append((time.perf_counter() - start) / BURST)
    return round(statistics.median(times) * 1e6, 3)


def bare_launch(arch: str, number: int, stream: int) -> Callable[[], int]:
    """A call of the driver with everything prepared."""
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), image(arch)) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"chain") == 0
    argument = ctypes.c_uint64(number)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    launch, handle, keep = cuda.cuLaunchKernel, ctypes.c_void_p(stream), argument

    def call() -> int:
        assert keep
        status: int = launch(function, 1, 1, 1, 32, 1, 1, 0, handle, arguments, None)
        return status

    return call


def main() -> None:
    device = driver().device(0)
    stream = torch.cuda.Stream()
    memory = torch.zeros(1 << 16, dtype=torch.bfloat16, device="cuda")
    address, handle = memory.data_ptr(), stream.cuda_stream
    plain = make(replace(CHAIN, programmatic=False), device)
    chain, copy, scratch = make(CHAIN, device), make(COPY, device), make(SUM, device)
    pair = make(CLUSTER, device)
    copied = (address, address)
    version = ctypes.CDLL(None).getppid
    cases: dict[str, Callable[[], object]] = {
        "no function": lambda: version(),
        "nothing to launch": lambda: plain.launch((address,), (0,), handle),
        "one pointer": lambda: plain.launch((address,), (1,), handle),
        "programmatic": lambda: chain.launch((address,), (1,), handle),
        "cluster of 2": lambda: pair.launch((address,), (1,), handle),
        "two tensor maps": lambda: copy.launch(copied, (32, 64, 32, 64, 64), handle),
        "workspace": lambda: scratch.launch((address,), (1, 2), handle),
        "cuLaunchKernel by ctypes": bare_launch(device.arch, address, handle),
    }
    for call in cases.values():
        call()
    report = {name: microseconds(call) for name, call in cases.items()}
    print(json.dumps({"device": device.name, "driver": driver().version, "us": report}, indent=1))


if __name__ == "__main__":
    main()
