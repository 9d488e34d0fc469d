# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""GPUs, and what they can do."""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass, field

from shapejit.gpu.bindings import DeviceInfo, Runtime

# From this compute capability on, code may use what only that very one has (the suffix "a").
_FIRST_WITH_OWN_FEATURES = (9, 0)


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        number: by which CUDA knows it in this process.
        name: what NVIDIA calls it.
        compute_capability: ``(9, 0)`` for an H200.
        multiprocessors: how many this process may use.
        shared_bytes_per_block: the most shared memory of a CTA.
        shared_bytes_per_multiprocessor: shared memory, of which each CTA takes 1 KiB for itself.
        cache_bytes: of the second-level cache.
        memory_bytes: device memory.
    """

    number: int
    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    cache_bytes: int
    memory_bytes: int
    runtime: Runtime = field(repr=False, compare=False)

    @property
    def arch(self) -> str:
        """The architecture to assemble for: ``sm_90a``, ``sm_80``."""
        major, minor = self.compute_capability
        suffix = "a" if self.compute_capability >= _FIRST_WITH_OWN_FEATURES else ""
        return f"sm_{major}{minor}{suffix}"

    @staticmethod
    def describe(runtime: Runtime, number: int) -> Device:
        """The device of that number; `Driver.device` is the way to it.

        Raises:
            NoDriverError: there is no such device.
        """
        info = DeviceInfo()
        runtime.call("DeviceInfo", number, byref(info))
        return Device(
            number=number,
            name=info.name.decode(errors="replace"),
            compute_capability=(info.major, info.minor),
            multiprocessors=info.multiprocessors,
            shared_bytes_per_block=info.shared_bytes_per_block,
            shared_bytes_per_multiprocessor=info.shared_bytes_per_multiprocessor,
            cache_bytes=info.cache_bytes,
            memory_bytes=info.memory_bytes,
            runtime=runtime,
        )
