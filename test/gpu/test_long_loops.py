# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Long rows in shared memory and long columns that all CTAs share, on a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from gpu.test_loops import check, column_sum, layer_norm, softmax  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from shapejit.passes.gpu_loops.schedule import LoopSchedule  # noqa: E402
from unit.simulated_loops import GpuKernel  # noqa: E402

#: Elements of a vector of 16 bytes.
VECTORS = {"bf16": 8, "f16": 8, "f32": 4, "f64": 2}
FORMS = ("w8_k13_t256_c4", "w16_k13_t512_c2", "w16_k13_t512_c2_x2", "w16_k28_t512_c1_x16")
SIZES = ((1, 1), (3, 7), (1000, 4097), (700, 13000), (300, 26624), (3, 50257), (2, 1000003))


@pytest.mark.parametrize("element", VECTORS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", SIZES)
def test_softmax(device: Device, element: str, form: str, sizes: tuple[int, int]) -> None:
    """Of rows that have room and that have none, at multiples of 16 bytes or not."""
    ctas = "_c1" if element == "f64" else ""
    form = form if not ctas else form.replace("_c4", ctas).replace("_c2", ctas)
    variant = f"loops_v{VECTORS[element]}_{form}_shared"
    check(element, softmax(element), device, *sizes, variant=variant)


@pytest.mark.parametrize("element", ["bf16", "f32"])
@pytest.mark.parametrize("width", [16384, 50257, 65536])
@pytest.mark.parametrize("rows", [0, 1, 40, 1000])
def test_layer_norm(device: Device, element: str, width: int, rows: int) -> None:
    """As chosen for any number of rows."""
    sample = layer_norm(element, width, residual=True)
    kernel = GpuKernel(sample.text, sizes={0: (0, 5000), 1: (0, 0)})
    assert LoopSchedule.parse(kernel.variants[-1]).shared
    for variant in dict.fromkeys(kernel.variants):
        check(element, sample, device, rows, 0, variant=variant)


@pytest.mark.parametrize("element", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("width", [1, 64, 100, 768])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 20000), (4, 30011), (0, 5), (300, 33)])
def test_column_sums(device: Device, element: str, width: int, sizes: tuple[int, int]) -> None:
    bounds = ((1, 4), (1, 1 << 18), (0, 0))
    kernel = GpuKernel(column_sum(element, width).text, sizes=dict(enumerate(bounds)))
    for variant in dict.fromkeys(kernel.variants):
        check("f32", column_sum(element, width), device, *sizes, 0, variant=variant)


@pytest.mark.parametrize("seed", range(2))
def test_many_launches_in_a_row(device: Device, seed: int) -> None:
    """Counters are at zero again after each, whatever the sizes of the one before."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(30):
        tokens = int(torch.randint(1, 40000, (), generator=generator))
        check(
            "f32", column_sum("bf16", 64), device, 2, tokens, 0,
            variant="loops_v8_w1_k264_t512_c2_l8_units",
        )  # fmt: skip
