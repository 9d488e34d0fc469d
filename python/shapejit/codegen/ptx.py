# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""``gpu.module`` to PTX, by the NVPTX back end of the LLVM that MLIR's bindings carry.

A kernel is lowered in a context of its own. Contexts share nothing, so kernels are lowered side by
side in threads; LLVM's part, which takes most of the time, runs without the interpreter lock.
Diagnostics too belong to a context: what one kernel's passes say is not taken for another's. ::

    with private_context():
        module = ir.Module.parse(text)
        run_pipeline(module, ...)             # to the LLVM and NVVM dialects
        (code,) = translate(module)
    assemble(code.ptx, code.arch)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlir.ir as ir
from mlir.dialects import gpu

from shapejit.gpu.interface import KernelInterface
from shapejit.pass_host import run_pipeline

INTERFACE = "shapejit.interface"
"""Attribute of a ``gpu.module``: how its kernel is called, as JSON."""

_PIPELINE = "gpu-module-to-binary{format=isa}"

#: What kernels are made of, on the way from their IR to LLVM's. To load all the dialects that there
#: are takes longer than many a kernel's emission.
_DIALECTS = (
    "affine", "arith", "cf", "gpu", "llvm", "math", "memref", "nvgpu", "nvvm", "scf", "shapejit",
    "tensor", "vector",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceCode:
    """PTX of one ``gpu.module``.

    Attributes:
        name: of the module.
        arch: what it is for: ``sm_90a``.
        ptx: the text.
        interface: how its kernel is called.
    """

    name: str
    arch: str
    ptx: str
    interface: KernelInterface


@contextmanager
def private_context() -> Iterator[Any]:
    """A new MLIR context, in effect until the end. Several may be in use, each by one thread."""
    with ir.Context(load_on_create_dialects=_DIALECTS) as context, ir.Location.unknown():
        # Threads of its own would multiply with those that lower other kernels.
        context.enable_multithreading(False)
        yield context


def translate(module: Any) -> tuple[DeviceCode, ...]:
    """PTX of every ``gpu.module`` of a module, which is left as it is.

    Args:
        module: an ``ir.Module`` (or its operation); every ``gpu.module`` in it has one
            ``#nvvm.target``, the attribute `INTERFACE`, and holds the LLVM and NVVM dialects only.

    Raises:
        PipelineError: LLVM cannot translate the module; holds the command that repeats it.
        ValueError: a ``gpu.module`` is not as described.
    """
    wanted = [op for op in _top_level(module.operation) if op.name == "gpu.module"]
    described = [(_name(op), _arch(op), _interface(op)) for op in wanted]
    with module.operation.context:
        translated = module.operation.clone()
        run_pipeline(translated, _PIPELINE, stage="translate-to-ptx")
        texts = {_name(op): _text(op) for op in _top_level(translated) if op.name == "gpu.binary"}
    return tuple(
        DeviceCode(name, arch, _checked(texts[name], interface, name), interface)
        for name, arch, interface in described
    )


def _top_level(operation: Any) -> list[Any]:
    return [op.operation for op in operation.regions[0].blocks[0].operations]


def _name(op: Any) -> str:
    name: str = ir.StringAttr(op.attributes["sym_name"]).value
    return name


def _arch(op: Any) -> str:
    targets = list(ir.ArrayAttr(op.attributes["targets"])) if "targets" in op.attributes else []
    if len(targets) != 1:
        raise ValueError(f"gpu.module @{_name(op)} requires one #nvvm.target, got {len(targets)}")
    # The bindings have no class for this attribute; its text is a dict in angle brackets.
    text = str(targets[0])
    _, found, rest = text.partition('chip = "')
    if not text.startswith("#nvvm.target") or not found:
        raise ValueError(f"gpu.module @{_name(op)} requires an #nvvm.target with a chip: {text}")
    return rest.partition('"')[0]


def _interface(op: Any) -> KernelInterface:
    if INTERFACE not in op.attributes:
        raise ValueError(f"gpu.module @{_name(op)} requires the attribute {INTERFACE}")
    return KernelInterface.from_json(ir.StringAttr(op.attributes[INTERFACE]).value)


def _text(op: Any) -> str:
    (compiled,) = ir.ArrayAttr(op.attributes["objects"])
    data: bytes = gpu.ObjectAttr(compiled).object
    return data.decode().rstrip("\0")


def _checked(ptx: str, interface: KernelInterface, name: str) -> str:
    if f".entry {interface.entry}(" not in ptx:
        raise ValueError(f"gpu.module @{name} has no kernel {interface.entry!r}, as it says it has")
    return ptx


__all__ = ["INTERFACE", "DeviceCode", "private_context", "translate"]
