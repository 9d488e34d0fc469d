# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scratch memory of kernels.

Kernels that divide a tile's work among CTAs keep partial results in a workspace. Every stream has
one buffer, made by the first launch that needs it and shared by all launches after it, since they
run in turn. A captured launch gets one that belongs to the graph. Making one is the only thing a
launch may have to allocate; `Kernel.reserve` does it ahead of time.

Buffers of streams stay within a limit on each device: those that were not used for longest are
freed, and so are those of streams that are gone. A graph's buffer goes with the graph. Freeing
waits for the launches that use the buffer.
"""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass

from shapejit.gpu import bindings
from shapejit.gpu.device import Device

_MOST_BYTES = (1 << 63) - 1


@dataclass(frozen=True)
class WorkspaceUse:
    """What the workspaces of a device take.

    Attributes:
        bytes: of all buffers.
        graph_bytes: of those that belong to graphs; the limit does not apply to them.
        buffers: how many there are.
    """

    bytes: int
    graph_bytes: int
    buffers: int


def workspaces(device: Device) -> WorkspaceUse:
    """What the workspaces of a device take now.

    Raises:
        DriverCallError: a call of the driver failed.
    """
    use = bindings.WorkspaceUse()
    device.runtime.call("WorkspaceUse", device.number, byref(use))
    return WorkspaceUse(use.bytes, use.graph_bytes, use.buffers)


def release_workspaces(device: Device) -> None:
    """Frees the buffers of all streams of a device; launches make them anew.

    Raises:
        DriverCallError: a call of the driver failed.
    """
    device.runtime.call("WorkspaceRelease", device.number)


def limit_workspaces(runtime: bindings.Runtime, most: int) -> None:
    """Sets how many bytes the buffers of streams may take on each device, 1 GiB at first.

    It holds from the next buffer on.

    Raises:
        ValueError: it is negative or no number of bytes.
    """
    if not 0 <= most <= _MOST_BYTES:
        raise ValueError(f"the limit of workspaces must be within 0..2^63-1 bytes, not {most}")
    runtime.functions["WorkspaceLimit"](most)
