# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The CUDA driver of this machine.

It is found and opened when something first asks for it; importing this needs no GPU::

    from shapejit.gpu.driver import driver

    device = driver().device(0)
    kernel = Kernel(interface, Module(cubin, device))
    kernel.launch(operands, values, torch.cuda.current_stream().cuda_stream)
"""

from __future__ import annotations

import functools
from ctypes import byref, c_int32
from pathlib import Path

from shapejit.gpu.bindings import Runtime, runtime
from shapejit.gpu.device import Device

_SYSTEM_LIBRARY = "libcuda.so.1"


class Driver:
    """An open driver.

    Attributes:
        path: of its library, or the name by which the system found it.
        runtime: the native library that calls it.

    Raises:
        NoDriverError: there is none, it is too old, or another one was opened before.
        ImportError: the package is not installed with its native library.
    """

    def __init__(self, path: str = _SYSTEM_LIBRARY, calls: Runtime | None = None) -> None:
        self.path = path
        self.runtime = calls or runtime()
        self.runtime.call("Open", path.encode())

    @property
    def version(self) -> tuple[int, int]:
        """The newest CUDA version that it supports."""
        version = c_int32()
        self.runtime.call("DriverVersion", byref(version))
        return version.value // 1000, version.value % 1000 // 10

    @property
    def location(self) -> Path | None:
        """The file of its library, if the system tells; a name may stand for any."""
        name = Path(self.path).name
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = Path(line.split(maxsplit=5)[-1])
            if path.name.startswith(name):
                return path
        return None

    @property
    def device_count(self) -> int:
        """Devices that this process may use."""
        count = c_int32()
        self.runtime.call("DeviceCount", byref(count))
        return count.value

    def device(self, number: int = 0) -> Device:
        """A device, by the number that CUDA gives it in this process.

        Raises:
            NoDriverError: there is no such device.
        """
        return Device.describe(self.runtime, number)

    def devices(self) -> list[Device]:
        """All devices that this process may use."""
        return [self.device(number) for number in range(self.device_count)]


@functools.cache
def driver() -> Driver:
    """The driver of the process: that of the knob ``SHAPEJIT_LIBCUDA``, or the system's.

    Raises:
        NoDriverError: there is none. The next call looks again.
    """
    from shapejit.knobs import knobs

    return Driver(knobs.libcuda or _SYSTEM_LIBRARY)
