# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The kernels of ``runtime.ptx``, and how they are called."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from shapejit.gpu.device import Device
from shapejit.gpu.interface import Grid, KernelInterface, Pointer, Size, TensorMap, Workspace
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module

PTX = Path(__file__).parent / "runtime.ptx"

_MAPS = (
    TensorMap(0, "bf16", dims=(1, 2), strides=(3,), box=(64, 32)),
    TensorMap(1, "bf16", dims=(1, 0), strides=(4,), box=(64, 32), offset=128),
)
COPY = KernelInterface(
    entry="copy",
    threads=32,
    shared_bytes=0,
    cluster=1,
    grid=Grid(tiles=((0, 32), (1, 64)), ctas_per_sm=2),
    values=("rows", "columns", "rows of source", "stride of source", "stride of target"),
    parameters=(*_MAPS, Size(0, offset=256), Size(1, offset=260)),
)
"""Copies a bf16 matrix; rows that the source lacks are zero."""

COPY_BLOCK = KernelInterface(
    entry="copy_block",
    threads=32,
    shared_bytes=0,
    cluster=1,
    grid=COPY.grid,
    values=COPY.values,
    parameters=COPY.parameters,
    block=True,
    block_bytes=320,
)

DUMP_BLOCK = KernelInterface(
    entry="dump_block",
    threads=32,
    shared_bytes=0,
    cluster=1,
    grid=Grid(tiles=((0, 1),), ctas_per_sm=1),
    values=("bytes",),
    parameters=(Pointer(0), Size(0, offset=8)),
    block=True,
    block_bytes=128,
)
"""Copies its own entry; parameters that come after those two do not matter to it."""

SUM = KernelInterface(
    entry="sum",
    threads=32,
    shared_bytes=0,
    cluster=1,
    grid=Grid(tiles=((1, 1),), ctas_per_sm=0),
    values=("first", "CTAs"),
    parameters=(Pointer(0), Size(0, bytes=8), Workspace(bytes_per_cta=8, zeroed=128)),
)
"""Adds up ``first .. first + CTAs - 1`` through a workspace."""

CLUSTER = KernelInterface(
    entry="cluster",
    threads=32,
    shared_bytes=0,
    cluster=2,
    grid=Grid(tiles=((0, 1),), ctas_per_sm=0),
    values=("clusters",),
    parameters=(Pointer(0),),
)

PAIRS = replace(CLUSTER, entry="pairs", grid=replace(CLUSTER.grid, ctas_per_sm=1))
"""The same; its code asks for clusters of 2, and its grid is persistent."""

CHAIN = KernelInterface(
    entry="chain",
    threads=32,
    shared_bytes=0,
    cluster=1,
    grid=Grid(tiles=((0, 1),), ctas_per_sm=0),
    values=("1",),
    parameters=(Pointer(0),),
    programmatic=True,
)

PICKY = replace(CHAIN, entry="picky", programmatic=False)
"""A kernel that the driver does not launch with these 32 threads."""

SPIN = KernelInterface(
    entry="spin",
    threads=32,
    shared_bytes=0,
    cluster=1,
    grid=Grid(tiles=((1, 1),), ctas_per_sm=0),
    values=("nanoseconds", "1"),
    parameters=(Pointer(0), Size(0, bytes=8)),
)


@functools.cache
def image(arch: str) -> bytes:
    """Machine code of ``runtime.ptx``; the PTX itself where there is no ``ptxas``."""
    from shapejit.codegen.ptxas import PtxasError, assemble, find_ptxas

    text = PTX.read_text()
    try:
        find_ptxas()
    except PtxasError:
        return text.encode()
    return assemble(text, arch).data


def make(interface: KernelInterface, device: Device) -> Kernel:
    """A kernel with a module of its own."""
    return Kernel(interface, Module(image(device.arch), device))
