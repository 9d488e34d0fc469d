# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention kernels whose batches differ in how many queries or keys they have: lengths of keys,
ragged batches; on a simulated GPU against float64."""

from __future__ import annotations

import mlir.ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import sass
from shapejit import ir as sir
from shapejit.passes.nvgpu.attention.lowering import lower
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.target import HOPPER
from unit.cpu_kernels import examples
from unit.simulated_attention import check, lowered
from unit.simulated_spans import SpanAttention

TILES = "tiles_64x32_s3_w2_c1"
TWO_BLOCKS = "tiles_128x32_g2_c1"
SPLIT = "split_64x32_s3_c2"

VARIANTS = {
    "lengths": SpanAttention(2, 1, lengths="i32"),
    "long lengths": SpanAttention(1, lengths="i64"),
    "lengths, causal": SpanAttention(2, 1, lengths="i32", causal="-1", from_end=True),
    "one length": SpanAttention(2, 1, lengths="i64", shared=True, causal="0", from_end=True),
    "one length and a mask of keys": SpanAttention(
        2,
        1,
        lengths="i32",
        shared=True,
        causal="0",
        from_end=True,
        mask="i1",
        mask_shape="s0, 1, 1, s2",
    ),
    "ragged": SpanAttention(2, 1, starts="i32"),
    "ragged, causal from the start": SpanAttention(2, 1, starts="i64", causal="0"),
    "ragged, causal to the end": SpanAttention(4, 1, starts="i32", causal="0", from_end=True),
    "ragged with lengths": SpanAttention(1, starts="i32", lengths="i32"),
    "rows that start anywhere": SpanAttention(1, d=7, dv=5, starts="i32"),
}


@pytest.mark.parametrize("name", VARIANTS)
@given(
    schedule=st.sampled_from([SPLIT, TILES, TWO_BLOCKS]),
    b=st.sampled_from([3, 1, 4, 0]),
    m=st.one_of(st.sampled_from([1, 0, 70]), st.integers(0, 20)),
    n=st.one_of(st.sampled_from([0, 1, 33]), st.integers(0, 100)),
    block=st.booleans(),
)
@examples(2)
def test_any_sizes(name: str, schedule: str, b: int, m: int, n: int, block: bool) -> None:
    check(VARIANTS[name], schedule, b, m, n, block=block, programmatic=block)


@sass.needs_nvdisasm
@pytest.mark.parametrize(
    ("schedule", "starts", "d"),
    [
        ("tiles_64x64_w2_c1", "i32", 64),
        ("split_64x64_g2_s6_c1", "i32", 64),
        ("flash_128x128_s8_c1", None, 64),
        ("flash_128x128_s5_c1", None, 128),
        ("flash_192x80_s6_c1", None, 128),
    ],
)
def test_machine_code(schedule: str, starts: str | None, d: int) -> None:
    """Assembled without a warning; no spills; no register read unset."""
    attention = SpanAttention(
        8, 2, d=d, lengths="i32", starts=starts, initialized=True, causal="0", from_end=True
    )
    cubin = lowered(attention, schedule, True, True).assemble()
    [function] = sass.disassemble(cubin.data).values()
    assert not function.local_memory
    assert not function.read_never_written


FLASH = {
    "lengths": (SpanAttention(2, 1, d=64, lengths="i32", initialized=True), "flash_64x128_s6_c2"),
    "lengths and a mask of keys": (
        SpanAttention(
            2, d=64, lengths="i64", initialized=True, mask="i1", mask_shape="s0, 1, 1, s2"
        ),
        "flash_128x128_s5_c1",
    ),
    "one length, causal": (
        SpanAttention(
            2, 1, d=64, lengths="i32", shared=True, initialized=True, causal="0", from_end=True
        ),
        "flash_128x128_s5_c1",
    ),
    "lengths, causal, less one": (
        SpanAttention(
            1,
            d=64,
            lengths="i32",
            initialized=True,
            causal="-1",
            from_end=True,
            element="f16",
        ),
        "flash_192x128_s4_c1",
    ),
}


@pytest.mark.parametrize("name", FLASH)
@given(
    b=st.sampled_from([3, 1]),
    m=st.sampled_from([1, 70, 150]),
    n=st.sampled_from([0, 1, 40, 129, 200]),
    block=st.booleans(),
)
@examples(2)
def test_flash_kernels_take_lengths(name: str, b: int, m: int, n: int, block: bool) -> None:
    attention, schedule = FLASH[name]
    check(attention, schedule, b, m, n, block=block, programmatic=block)


@pytest.mark.parametrize("schedule", [SPLIT, TILES])
@pytest.mark.parametrize("shared", [False, True])
def test_keys_beyond_are_not_read(schedule: str, shared: bool) -> None:
    """They need not be numbers."""
    attention = SpanAttention(2, 1, lengths="i32", shared=shared, causal="0", from_end=True)
    inputs = attention.inputs(2, 3, 90)
    expected = attention.reference(inputs, 2, 3, 90)
    for batch, seen in enumerate(attention.spans(2, 3, 90)[1]):
        for operand in inputs[1:3]:
            operand[batch, seen:] = torch.nan
    got = lowered(attention, schedule).run(inputs, 2, 3, 90)
    torch.testing.assert_close(got.double(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (SpanAttention(2, d=64, starts="i32"), "batches that differ"),
        (SpanAttention(2, d=64, lengths="i32"), "keys beyond its lengths that may not be read"),
    ],
)
def test_what_tensor_maps_do_not_know(spans: SpanAttention, message: str) -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(spans.text)
        with pytest.raises(LoweringError, match=message):
            lower(sir.kernels(module)["k"], "flash_128x128_s5_c1", HOPPER)
