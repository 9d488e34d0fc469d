# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Machine code in the memory of a device, and when it goes.

A module is unloaded when nothing refers to it any more:

- Python objects: the `Module` itself and every `Kernel` made from it;
- native kernels, so a host program may keep a bare handle as long as its `Kernel` lives;
- CUDA graphs that a launch was captured into, until the graph and the last executable made from it
  are gone. The driver says when; nobody has to keep anything alive for a graph.

So a cache evicts a module by dropping its own reference. Launches that are queued or running are no
reason to wait: the driver finishes them before it unloads. At the end of the process nothing is
unloaded, since the driver may be gone by then.
"""

from __future__ import annotations

import weakref
from ctypes import byref, c_void_p

from shapejit.gpu.device import Device


class Module:
    """A loaded cubin.

    Args:
        image: a cubin for the device's compute capability, or PTX text.
        device: where it is to run.

    Attributes:
        device: where it is.
        image_bytes: size of the image, which is about what it takes in device memory.

    Raises:
        DriverCallError: the driver does not take the image; the text says why.
        NoDriverError: there is no such device any more.
    """

    def __init__(self, image: bytes, device: Device) -> None:
        self.device = device
        self.image_bytes = len(image)
        handle = c_void_p()
        calls = device.runtime
        # A bytes object ends with a zero, as PTX must.
        calls.call("ModuleLoad", device.number, image, byref(handle))
        self.handle = handle
        release = weakref.finalize(self, calls.functions["ModuleRelease"], handle)
        release.atexit = False
