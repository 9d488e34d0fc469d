# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""PTX for tests of the assembler, and cubins that are made wrong on purpose."""

from __future__ import annotations

import struct

import pytest

from shapejit.codegen.ptxas import PtxasError, find_ptxas
from shapejit.knobs import knobs

HEADER = """\
.version 8.3
.target sm_90a
.address_size 64
"""

#: A kernel in which the same product of two registers goes to every thread's word.
SCALE = (
    HEADER
    + """
.visible .entry scale(.param .u64 target, .param .u32 factor)
{
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [target];
  ld.param.u32 %r1, [factor];
  mov.u32 %r2, %tid.x;
  mul.lo.s32 %r3, %r2, %r1;
  mul.wide.u32 %rd2, %r2, 4;
  cvta.to.global.u64 %rd1, %rd1;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r3;
  ret;
}
"""
)

#: A warpgroup product whose accumulators are touched before it is waited for: ptxas makes it right
#: by serialising, and says so (C7514, C7517).
SERIALISED = (
    HEADER
    + """
.visible .entry product(.param .u64 target, .param .u32 count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<2>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [target];
  ld.param.u32 %r1, [count];
  mov.f32 %f0, 0f00000000;
  mov.f32 %f1, %f0;
  mov.f32 %f2, %f0;
  mov.f32 %f3, %f0;
  mov.u64 %rd2, 4611686293305294848;
again:
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16
      {%f0, %f1, %f2, %f3}, %rd2, %rd2, 1, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  add.f32 %f0, %f0, %f1;
  wgmma.wait_group.sync.aligned 0;
  add.s32 %r1, %r1, -1;
  setp.ne.s32 %p1, %r1, 0;
  @%p1 bra again;
  st.global.f32 [%rd1], %f0;
  ret;
}
"""
)


def _has_ptxas() -> bool:
    with knobs.scope(ptxas=None):
        try:
            find_ptxas()
        except PtxasError:
            return False
    return True


needs_ptxas = pytest.mark.skipif(
    not _has_ptxas(), reason="there is no ptxas: pip install nvidia-cuda-nvcc"
)


def with_nop(cubin: bytes, function: str, address: int) -> bytes:
    """A cubin with one instruction of a function replaced by one that does nothing."""
    nop = bytes.fromhex("18790000000000000000000000c00f00")
    at = _section_offset(cubin, f".text.{function}") + address
    return cubin[:at] + nop + cubin[at + len(nop) :]


def _section_offset(elf: bytes, name: str) -> int:
    """Where a section of a 64-bit little-endian ELF file begins."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<3H", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    strings = headers[names][4]
    for header in headers:
        start = strings + header[0]
        if elf[start : elf.index(b"\0", start)] == name.encode():
            return int(header[4])
    raise AssertionError(f"no section {name}")
