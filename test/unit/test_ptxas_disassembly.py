# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Disassembly, and what tests of kernels read off it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference import sass
from shapejit.codegen import nvdisasm
from shapejit.codegen.ptxas import assemble
from unit.ptx_samples import HEADER, SCALE, needs_ptxas, with_nop

# A listing as nvdisasm prints it, with few columns: UR5 is the upper half of a descriptor that is
# never written, R3 is written under a predicate only, R2 only by an instruction that reads it.
LISTING = """\
\t.target\tsm_90a

//--------------------- .text.gemm                --------------------------
\t.section\t.text.gemm,"ax",@progbits
\t.align\t128
                                              // +----------+--------+------------+
                                              // |   GPR    |  PRED  |    UGPR    |
                                              // |  # 01234 |  # 012 |  # 0123456 |
                                              // +----------+--------+------------+
        .global         gemm                  // |          |        |            |
gemm:                                         // |  2   : : |        |  1      :  |
.text.gemm:                                   // |  2   : : |        |  1      :  |
        /*0000*/    LDC R1, c[0x0][0x28] ;    // |  3  ^: : |        |  1      :  |
        /*0010*/    ULDC UR4, c[0x0][0x210] ; // |  3  :: : |        |  2     ^:  |
        /*0020*/    ISETP.NE.AND P0, PT, R1, RZ, PT ; // |  3  v: : |  1 ^   |  2     ::  |
        /*0030*/    VIADD R2, R2, 0x1 ;       // |  2   x : |  1 :   |  2     ::  |
        /*0040*/ @P0 IMAD.MOV.U32 R3, RZ, RZ, R2 ; // |  2   v^: |  1 v   |  2     ::  |
.L_x_0:                                       // |  2    :: |  1 :   |  2     ::  |
        /*0050*/ @!P0 HGMMA.64x8x16 R3, gdesc[UR4], R3 ; // |  2    xx |  1 v   |  2     vv  |
        /*0060*/    STL.64 [R1], R3 ;         // |  2    vv |        |            |
        /*0070*/    EXIT ;                    // |          |        |            |
.L_x_1:                                       // |          |        |            |
                                              // +----------+--------+------------+
//--------------------- .text.empty               --------------------------
\t.section\t.text.empty,"ax",@progbits
                                              // +---------+
                                              // |   GPR   |
                                              // |  # 01   |
        /*0000*/    LDL.LU R1, [R0] ;         // |  2 v^   |
        /*0010*/    BRA `(.L_x_1) ;           // |         |
"""


def test_instructions_of_a_listing() -> None:
    functions = sass.parse(LISTING)
    assert list(functions) == ["gemm", "empty"]
    gemm = functions["gemm"]
    assert [i.address for i in gemm.instructions] == list(range(0, 0x80, 0x10))
    product = gemm.instructions[5]
    assert (product.guard, product.mnemonic) == ("@!P0", "HGMMA")
    assert product.operands == "R3, gdesc[UR4], R3"
    assert product.reads == {"R3", "R4", "P0", "UR4", "UR5"}
    assert product.writes == {"R3", "R4"}
    assert str(gemm.instructions[0]) == "0x0000: LDC R1, c[0x0][0x28]"


def test_selection_is_by_whole_modifiers() -> None:
    gemm = sass.parse(LISTING)["gemm"]
    assert gemm.count("HGMMA") == gemm.count("HGMMA.64x8x16") == 1
    assert gemm.count("HGMMA.64x8") == 0
    assert gemm.count("LD") == 0


def test_local_memory() -> None:
    functions = sass.parse(LISTING)
    assert [i.opcode for i in functions["gemm"].local_memory] == ["STL.64"]
    assert [i.opcode for i in functions["empty"].local_memory] == ["LDL.LU"]


def test_registers_that_are_never_written() -> None:
    functions = sass.parse(LISTING)
    # R2 and R4 are written by instructions that read them; R3 is written by another.
    assert functions["gemm"].read_never_written == {"UR5", "R2", "R4"}
    assert functions["gemm"].live_at_entry == {"R2", "R4", "UR5"}
    assert functions["empty"].read_never_written == {"R0"}


@sass.needs_nvdisasm
@needs_ptxas
def test_of_a_kernel() -> None:
    functions = sass.disassemble(assemble(SCALE, "sm_90a").data)
    kernel = functions["scale"]
    assert kernel.count("STG") == kernel.count("STG.E") == 1
    assert kernel.count("EXIT") == 1
    assert not kernel.local_memory
    assert not kernel.read_never_written
    assert not kernel.live_at_entry


@sass.needs_nvdisasm
@needs_ptxas
def test_half_of_a_pair_that_nobody_writes() -> None:
    """As in the miscompile of ptxas 13.0, the lower half is written elsewhere for another use."""
    cubin = assemble(SCALE, "sm_90a").data
    kernel = sass.disassemble(cubin)["scale"]
    (pair,) = kernel.select("ULDC.64")
    (store,) = kernel.select("STG")
    assert pair.writes <= store.reads
    upper = max(pair.writes, key=lambda name: int(name.removeprefix("UR")))
    assert any(pair.writes - {upper} == other.writes for other in kernel.select("ULDC"))

    broken = sass.disassemble(with_nop(cubin, "scale", pair.address))["scale"]
    assert broken.count("NOP") == kernel.count("NOP") + 1
    assert broken.read_never_written == {upper}


@sass.needs_nvdisasm
@needs_ptxas
def test_spills_show() -> None:
    """An array with a computed index lies in local memory."""
    ptx = (
        HEADER
        + """
.visible .entry pick(.param .u64 target, .param .u32 index)
{
  .local .align 4 .b8 table[64];
  .reg .b32 %r<4>;
  .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [target];
  ld.param.u32 %r1, [index];
  mov.u64 %rd2, table;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd2, %rd3;
  st.local.u32 [%rd4], %r1;
  ld.local.u32 %r2, [table+8];
  st.global.u32 [%rd1], %r2;
  ret;
}
"""
    )
    kernel = sass.disassemble(assemble(ptx, "sm_90a").data)["pick"]
    assert {i.mnemonic for i in kernel.local_memory} == {"LDL", "STL"}


@sass.needs_nvdisasm
def test_what_is_no_cubin() -> None:
    with pytest.raises(nvdisasm.DisassemblyError, match="nvdisasm"):
        nvdisasm.disassemble(b"no ELF file")


def test_without_nvdisasm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvdisasm, "find_tools", lambda _: list[Path]())
    with pytest.raises(FileNotFoundError, match="pip install nvidia-cuda-nvdisasm"):
        nvdisasm.disassemble(b"")
