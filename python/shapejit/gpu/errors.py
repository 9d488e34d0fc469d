# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the launch runtime raises.

The native library returns a status and keeps a text that names the kernel, the value and the rule.
Each status has an exception class of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

from shapejit import errors
from shapejit.errors import ErrorId


class CudaError(errors.CudaError):
    """Base of what goes wrong with NVIDIA GPUs at run time.

    Args:
        reason: what happened, naming the thing and the rule, without a full stop.

    Attributes:
        status: the native library's ``ShapejitRtCudaStatus``.
        error_id: the entry of the catalogue.
    """

    status: ClassVar[int]
    error_id: ClassVar[ErrorId]

    def __init__(self, reason: str) -> None:
        super().__init__(self.error_id, {"reason": reason})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.fields["reason"],)


class NoDriverError(CudaError):
    """There is no usable CUDA driver, or no such device."""

    status = 1
    error_id = ErrorId.SJ_CUDA_001


class DriverCallError(CudaError):
    """A call of the CUDA driver failed."""

    status = 2
    error_id = ErrorId.SJ_CUDA_002


class KernelInterfaceError(CudaError):
    """The description of a kernel's call is wrong, or does not fit its code or the device."""

    status = 3
    error_id = ErrorId.SJ_CUDA_003


class LaunchError(CudaError):
    """An operand or a size of a launch breaks a rule."""

    status = 4
    error_id = ErrorId.SJ_CUDA_004


_CLASSES: dict[int, type[CudaError]] = {
    kind.status: kind
    for kind in (NoDriverError, DriverCallError, KernelInterfaceError, LaunchError)
}


def error_for(status: int, text: str) -> CudaError:
    """The exception for a status of the native library.

    Raises:
        ValueError: there is no such status.
    """
    if status not in _CLASSES:
        raise ValueError(f"no status of a failure: {status}")
    return _CLASSES[status](text)
