# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Device memory from the driver itself, for large arenas.

torch's allocator keeps what it gets back, for later tensors of the same stream. That is right for
tensors, and wrong for an arena: the next call needs the larger one only, and what a program outgrew
while its sizes grew would add up to more than what it needs. Memory from here goes back to the
driver at once, for whoever asks next.

Giving it back waits for the work that is queued on the device by then, without the interpreter
lock. It may happen while streams are captured, in this thread or another.
"""

from __future__ import annotations

import weakref
from ctypes import byref, c_void_p

from shapejit.arena import ArenaError, StreamArena
from shapejit.gpu.device import Device
from shapejit.gpu.errors import CudaError


class DeviceMemory:
    """Bytes in the memory of a device, until nothing refers to this object any more.

    At the end of the process nothing is given back, since the driver may be gone by then.

    Attributes:
        size: in bytes.
        address: a multiple of 256 bytes.

    Raises:
        DriverCallError: there is not enough memory.
        NoDriverError: there is no such device any more.
    """

    def __init__(self, device: Device, size: int) -> None:
        handle, address = c_void_p(), c_void_p()
        calls = device.runtime
        calls.call("MemoryAllocate", device.number, size, byref(handle), byref(address))
        self.size = size
        self.address = address.value or 0
        release = weakref.finalize(self, calls.functions["MemoryRelease"], handle)
        release.atexit = False


def device_arena(device: Device, size: int) -> StreamArena:
    """An arena that goes back to the driver when nobody has it any more.

    Raises:
        ArenaError: the driver has no room for it.
    """
    try:
        memory = DeviceMemory(device, size)
    except CudaError as error:
        raise ArenaError(str(error)) from error
    return StreamArena(memory.size, memory.address, memory)
