# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Extras of the size of the result that come through the ring: on a simulated GPU, and code."""

from __future__ import annotations

from dataclasses import replace

import mlir.ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import sass
from reference.hopper.launch import kernel_function, simulate
from shapejit import ir as sir
from shapejit.gpu.interface import KernelInterface, TensorMap
from shapejit.passes.nvgpu.lowering import lower_variant
from shapejit.passes.nvgpu.ring_rule import brings_extras
from shapejit.passes.nvgpu.schedule import CANDIDATES, GemmSchedule
from shapejit.passes.nvgpu.target import HOPPER
from unit.cpu_convs import Layer
from unit.cpu_kernels import Size, examples
from unit.simulated_convs import check as check_conv
from unit.simulated_convs import lowered as lowered_conv
from unit.simulated_gemms import Gemm, check, lowered
from unit.test_nvgpu_epilogues import kernel_text

GELU = Gemm(epilogue="bias, gelu, residual")
_RESIDUAL = 3  # the number of its operand: behind lhs, weight and bias

# Rings of two stages, of which the extra takes as many or more; boxes of two stages' two operands.
SCHEDULES = [
    "persistent_64x64x64_s2_w1",
    "persistent_64x128x64_s3_w1",
    "persistent_128x64x64_s2_w2",
    "persistent_128x256x32_s3_w2",
    "persistent_64x64x64_s2_w1_c2",
    "swapped_64x16x64_s3_w1",
    "swapped_64x72x64_s2_w1",
    "swapped_128x24x64_s2_w2",
    "swapped_256x40x64_s3_w2",
    "swapped_64x16x64_s2_w1_c2",
]

ROWS = st.one_of(st.sampled_from([0, 1, 63, 64, 65, 129]), st.integers(0, 200))
EIGHTS = st.one_of(st.sampled_from([0, 8, 64, 72, 136]), st.integers(0, 24).map(lambda i: 8 * i))
DEPTHS = st.one_of(st.sampled_from([0, 8, 64, 136]), st.integers(0, 40).map(lambda i: 8 * i))


def comes_through_the_ring(interface: KernelInterface, operand: int) -> bool:
    return any(isinstance(p, TensorMap) and p.operand == operand for p in interface.parameters)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(
    m=ROWS,
    n=EIGHTS,
    k=DEPTHS,
    block=st.booleans(),
    ahead=st.booleans(),
    multiprocessors=st.integers(2, 4),
    seed=st.integers(0, 1000),
)
@examples(5)
def test_any_sizes(
    schedule: str,
    m: int,
    n: int,
    k: int,
    block: bool,
    ahead: bool,
    multiprocessors: int,
    seed: int,
) -> None:
    """Several tiles a CTA, and edges in any box; a slot is not written before it was read."""
    options = {"multiprocessors": multiprocessors, "seed": seed}
    check(GELU, schedule, m, n, k, block=block, ahead=ahead, **options)
    assert comes_through_the_ring(lowered(GELU, schedule, block, ahead).interface, _RESIDUAL)


@pytest.mark.parametrize("schedule", ["persistent_64x64x64_s2_w1", "swapped_64x72x64_s2_w1"])
@pytest.mark.parametrize(
    "gemm",
    [
        replace(GELU, element="f16", out="f16"),
        replace(GELU, sizes=(("m", 128), ("n", 144))),  # tiles of which no box is outside
        replace(GELU, lhs="bmk", rhs="bnk", result="bmn"),  # the same for all of a batch
        replace(GELU, lhs="km", rhs="kn"),
    ],
)
def test_kinds_of_products(schedule: str, gemm: Gemm) -> None:
    check(gemm, schedule, 136, 72, 136, b=2, multiprocessors=2)
    assert comes_through_the_ring(lowered(gemm, schedule).interface, _RESIDUAL)


# Index map and sizes of an extra, and whether it can come so, by name.
_LAYOUTS: dict[str, tuple[str, tuple[Size, ...], bool]] = {
    "rows": ("d0, d1", ("s0", "s1"), True),
    "the second of two": ("1, d0, d1", (2, "s0", "s1"), True),
    "columns of longer rows": ("d0, d1 + 5", ("s0", 152), True),
    "the same in each batch": ("d0, d1", ("s0 + 1", 136), True),
    "rows of no multiple of 16 bytes": ("d0, d1 + 1", ("s0", "s1 + 1"), False),
    "rows of any length": ("d0, d1", ("s0", "s1 + s2"), False),
    "columns": ("d1, d0", ("s1", "s0"), False),
    "every other": ("d0, d1 * 2", ("s0", "s1 * 2"), False),
    "one row": ("d1", ("s1",), False),
    "repeated": ("d0 floordiv 2, d1", ("s0", "s1"), False),
}

_SUM = """
    %0 = arith.extf %e0 : bf16 to f32
    %1 = arith.addf %a, %0 : f32
    %2 = arith.truncf %1 : f32 to bf16
    shapejit.yield %2 : bf16"""


@pytest.mark.parametrize("schedule", ["persistent_64x64x64_s2_w1", "swapped_64x72x64_s2_w1"])
@pytest.mark.parametrize("name", _LAYOUTS)
def test_layouts(schedule: str, name: str) -> None:
    """What no tensor map is known to suit is loaded by the consumers."""
    map_, sizes, through_ring = _LAYOUTS[name]
    m, n, k = 70, 136, 72
    values = {"s0": m, "s1": n, "s2": k}
    extra = torch.randn([eval(str(size), values) for size in sizes]).bfloat16()
    lhs, rhs = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(kernel_text([(map_, "bf16", sizes)], _SUM, "s2", "bf16"))
        interface = lower_variant(sir.kernels(module)["k"], GemmSchedule.parse(schedule), HOPPER)
        [code] = (op for op in sir.operations(module.body) if op.name == "gpu.module")
        result = torch.empty(m, n, dtype=torch.bfloat16)
        inputs, symbols = [lhs, rhs, extra], [m, n, k]
        got = simulate(kernel_function(code), interface, inputs, result, symbols, multiprocessors=2)
    assert comes_through_the_ring(interface, 2) == through_ring
    rows, columns = torch.arange(m)[:, None], torch.arange(n)
    places = map_.replace("floordiv", "//").split(", ")
    index = [eval(place, {"d0": rows, "d1": columns}) for place in places]
    expected = lhs.double() @ rhs.double().T + extra.double()[tuple(index)]
    assert torch.allclose(got.double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("gemm", "schedule"),
    [
        (GELU, "persistent_64x64x64_s2_w1_stream"),  # CTAs hand sums over
        (GELU, "swapped_128x24x64_s2_w2_k2"),
        (GELU, "persistent_128x64x64_s2_w2_turns"),
        (GELU, "persistent_64x88x64_s3_w1"),  # stored from registers
        (replace(GELU, out="f32"), "swapped_64x16x64_s3_w1"),
        (GELU, "persistent_128x128x32_s2_w2"),  # no room for a chunk of both consumers
        (Gemm(epilogue="f32 residual"), "persistent_64x64x64_s2_w1"),
        (Gemm(), "persistent_64x64x64_s2_w1"),
    ],
)
def test_what_does_not_come_through_the_ring(gemm: Gemm, schedule: str) -> None:
    check(gemm, schedule, 70, 72, 600)
    operand = 2 if gemm.epilogue == "f32 residual" else _RESIDUAL
    assert not comes_through_the_ring(lowered(gemm, schedule).interface, operand)


def test_it_is_read_after_the_kernels_ahead() -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(GELU.text)
        options = {"programmatic": True, "constant_weights": True, "block": True}
        schedule = GemmSchedule.parse("persistent_128x64x64_s3_w2")
        interface = lower_variant(sir.kernels(module)["k"], schedule, HOPPER, **options)
        [code] = (op for op in sir.operations(module.body) if op.name == "gpu.module")
        producer = str(code).split("nvvm.setmaxregister")[1]
    before, after = producer.split("nvvm.griddepcontrol", 1)
    assert "tensor.prefetch" not in before
    assert after.count("tensor.prefetch") == 2  # one a consumer
    maps = sum(isinstance(each, TensorMap) for each in interface.parameters)
    assert before.count("nvvm.fence.proxy.acquire") == maps - 1  # all but the result's


_LAYER = Layer(
    (3, 3), inside=16, outside=72, padding=((1, 1), (1, 1)), element="bf16", panel=1, epilogue=True
)


@pytest.mark.parametrize("schedule", ["persistent_64x64x64_s2_w1", "swapped_128x24x64_s2_w2"])
@pytest.mark.parametrize(
    "layer",
    [
        _LAYER,
        replace(_LAYER, inside=64, outside=8, groups=3),
        replace(_LAYER, inside=8, outside=16, taps=(5,), padding=((2, 2),)),
    ],
)
def test_convolutions(schedule: str, layer: Layer) -> None:
    check_conv(layer, schedule, 3, (7, 13)[: layer.rank], multiprocessors=2)
    interface = lowered_conv(layer, schedule).interface
    assert comes_through_the_ring(interface, _RESIDUAL)


# Machine code -------------------------------------------------------------------------------------

_CODE = [
    *(str(s) for s in CANDIDATES if s.family in ("persistent", "swapped")),
    "persistent_128x256x64_s4_w2_c2",
    "persistent_192x128x64_s4_w3",
    "persistent_256x128x64_s4_w2",
]


@sass.needs_nvdisasm
@pytest.mark.parametrize("schedule", _CODE)
def test_machine_code(schedule: str) -> None:
    """No spills beside the sums, and nothing of the residual by threads, wherever it can be."""
    code = lowered(GELU, schedule, True, True)
    [function] = sass.disassemble(code.assemble().data).values()
    assert not function.local_memory
    assert not function.read_never_written
    parsed = GemmSchedule.parse(schedule)
    assert comes_through_the_ring(code.interface, _RESIDUAL) == brings_extras(parsed)
    if brings_extras(parsed):
        blocks = parsed.rows // (64 * parsed.consumers)
        assert function.count("LDSM") == blocks * -(-parsed.columns // 16)
        assert function.count("UTMAPF") >= parsed.consumers
        # Of the bias, of the words of the block, and of the element without products.
        assert function.count("LDG") <= 4 + (2 * blocks if parsed.swapped else parsed.columns // 8)
