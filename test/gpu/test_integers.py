# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products and convolutions of integers on a GPU: exact, as PyTorch computes them on a CPU."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

from torch.export import Dim  # noqa: E402

import shapejit  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from unit import test_multiply_integers as simulated  # noqa: E402


@pytest.mark.parametrize("depth", [16, 1000, 1024, 4096, 1031])
@pytest.mark.parametrize("columns", [24, 256])
def test_products(device: Device, depth: int, columns: int) -> None:
    """Sums of pieces are 2^24 where all factors are -128: the largest that has to be exact."""
    torch.manual_seed(depth)
    weight = simulated.small(depth, columns)
    model = simulated.Model(torch._int_mm, weight).eval()
    shapes = ({0: Dim("m", min=17, max=4096)},)
    with torch.no_grad():
        program = shapejit.compile(
            copy.deepcopy(model).cuda(), (simulated.small(32, depth).cuda(),),
            dynamic_shapes=shapes, max_regions=4,
        )  # fmt: skip
        for rows in (17, 100, 1024, 4096):
            x = simulated.small(rows, depth)
            expected = (x.double() @ weight.double()).int()
            assert torch.equal(program(x.cuda()).cpu(), expected), f"{rows} rows"
        lowest = torch.full((300, depth), -128, dtype=torch.int8)
        expected = (lowest.double() @ weight.double()).int()
        assert torch.equal(program(lowest.cuda()).cpu(), expected)


@pytest.mark.parametrize("depth", [1024, 3072])
def test_the_largest_sums(device: Device, depth: int) -> None:
    lowest = torch.full((depth, 64), -128, dtype=torch.int8)
    model = simulated.Model(torch._int_mm, lowest).eval().cuda()
    shapes = ({0: Dim("m", min=17, max=512)},)
    x = lowest.t().contiguous().cuda()
    with torch.no_grad():
        program = shapejit.compile(model, (x,), dynamic_shapes=shapes)
        for rows in (17, 64, 300):
            many = x[:1].expand(rows, depth).contiguous()
            assert bool((program(many) == depth * 2**14).all())


@pytest.mark.parametrize("name", simulated.CONVOLUTIONS)
def test_convolutions(device: Device, name: str) -> None:
    model, channels, _ = simulated.convolution(name)
    n, h, w = (Dim(each, min=least, max=64) for each, least in (("n", 0), ("h", 2), ("w", 2)))
    with torch.no_grad():
        program = shapejit.compile(
            copy.deepcopy(model).cuda(), (simulated.image(name, 2, 17, 19).cuda(),),
            dynamic_shapes=({0: n, 2: h, 3: w},), max_regions=4,
        )  # fmt: skip
        for sizes in ((1, 2, 2), (2, 33, 64), (3, 40, 7), (16, 56, 56), (0, 8, 8)):
            x = simulated.image(name, *sizes)
            assert x.shape[1] == channels
            assert torch.equal(program(x.cuda()).cpu(), model(x)), f"{name} at {sizes}"
