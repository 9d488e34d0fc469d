# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of loops on a GPU: right at all sizes, in all variants and forms, and repeatable."""

from __future__ import annotations

import functools
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from torch import Tensor  # noqa: E402

from gpu.loop_kernels import DeviceKernel  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from unit import gpu_loop_samples as samples  # noqa: E402
from unit import test_gpu_loops as simulated  # noqa: E402
from unit import test_gpu_loops_functions as functions  # noqa: E402
from unit.cpu_kernels import DTYPES  # noqa: E402
from unit.gpu_loop_samples import FLOATS, Sample, assert_near  # noqa: E402
from unit.simulated_loops import GpuKernel, Ranges  # noqa: E402

ROWS = (0, 1, 2, 77, 1001, 8192)
LENGTHS = ((1, 1), (3, 0), (5, 100), (129, 33), (33, 1000), (7, 1031), (5, 8192), (3, 20000))


@functools.cache
def built(
    sample: Sample,
    device: Device,
    variant: str | None = None,
    block: bool = False,
    sizes: tuple[tuple[int, int | None], ...] = (),
) -> DeviceKernel:
    ranges: Ranges | None = dict(enumerate(sizes)) or None
    lowered = GpuKernel(sample.text, variant, sizes=ranges, block=block, programmatic=block)
    return DeviceKernel(lowered, device)


def check(
    element: str,
    sample: Sample,
    device: Device,
    *symbols: int,
    variant: str | None = None,
    sizes: tuple[tuple[int, int | None], ...] = (),
) -> None:
    """Both forms against float64; three times the same bits."""
    inputs = sample.inputs(*symbols)
    expected = sample.expected(*inputs)
    on_device = [each.cuda() for each in inputs]
    for block in (False, True):
        kernel = built(sample, device, variant, block, sizes)
        first = kernel(on_device, *symbols)
        for _ in range(2):
            for one, other in zip(first, kernel(on_device, *symbols), strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        assert_near(element, [each.cpu() for each in first], expected)


layer_norm = functools.cache(samples.layer_norm)
softmax = functools.cache(samples.softmax)
pointwise = functools.cache(samples.pointwise)
column_sum = functools.cache(samples.column_sum)
embedding = functools.cache(samples.embedding)


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("width", [1, 384, 1000])
@pytest.mark.parametrize("rows", ROWS)
def test_layer_norm(device: Device, element: str, width: int, rows: int) -> None:
    check(element, layer_norm(element, width), device, rows, 0)


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("width", [4096, 20000])
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_wide_layer_norm(device: Device, element: str, width: int, rows: int) -> None:
    """Several warps a row: in registers, and read again in every pass."""
    check(element, layer_norm(element, width, residual=True), device, rows, 0)


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("variant", [None, "loops_v4_w8_k4_t256_c2", "loops_v2_w1_k4_t64_c4"])
@pytest.mark.parametrize("sizes", LENGTHS)
def test_softmax(device: Device, element: str, variant: str | None, sizes: tuple[int, int]) -> None:
    """Every variant takes rows of any length, aligned or not."""
    check(element, softmax(element), device, *sizes, variant=variant)
    check(element, softmax(element), device, *sizes, sizes=((0, None), (0, None)))


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 1000, 100001, 1 << 22])
def test_points(device: Device, element: str, count: int) -> None:
    check(element, pointwise(element), device, count, 0)


@pytest.mark.parametrize("element", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("sizes", [(3, 24), (1000, 1001), (77, 8), (1, 1)])
def test_gelu(device: Device, element: str, sizes: tuple[int, int]) -> None:
    check(element, pointwise(element, "gelu", rank=2), device, *sizes)


@pytest.mark.parametrize("element", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("width", [384, "s2"])
@pytest.mark.parametrize("sizes", [(0, 3, 8), (1, 1, 1), (3, 0, 40), (32, 256, 384), (5, 77, 33)])
def test_column_sums(
    device: Device, element: str, width: int | str, sizes: tuple[int, int, int]
) -> None:
    check("f32", column_sum(element, width), device, *sizes)


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("sizes", [(0, 3), (1, 1), (3, 0), (32, 256), (5, 77)])
def test_embedding(device: Device, element: str, sizes: tuple[int, int]) -> None:
    check(element, embedding(element, 384), device, *sizes)


def test_random_shapes(device: Device) -> None:
    """One kernel, 200 shapes in random order: nothing of one call is left for the next."""
    draw = random.Random(0)
    for _ in range(200):
        rows, length = draw.randint(0, 500), draw.randint(0, 1200)
        check("bf16", softmax("bf16"), device, rows, length, sizes=((0, None), (0, None)))


def test_more_than_4_gib(device: Device) -> None:
    """Indices of 64 bits: 2^31 elements and some more, of which the last ones are looked at."""
    count = (1 << 31) + 4096
    if torch.cuda.mem_get_info()[0] < 5 * count:
        pytest.skip("needs 11 GB of free memory")
    kernel = built(pointwise("bf16"), device, sizes=((0, None), (0, None)))
    assert kernel.lowered.variant.endswith("_wide")
    x = torch.zeros(count, device="cuda", dtype=torch.bfloat16)
    x[-4096:] = torch.arange(4096, device="cuda") % 128
    [y] = kernel([x, x], count, 0)
    assert torch.equal(y[-4096:], 2 * x[-4096:])
    assert not y[:-4096].any()


# The reductions and functions of the simulated tests ----------------------------------------------


@pytest.mark.parametrize("where", simulated.REDUCED)
@pytest.mark.parametrize("kind", ["add", "max"])
@pytest.mark.parametrize("sizes", [(3, 5, 9), (64, 3, 65), (1, 1, 1), (0, 4, 3), (70, 33, 130)])
def test_reduced_dims(device: Device, kind: str, where: str, sizes: tuple[int, int, int]) -> None:
    kernel = DeviceKernel(GpuKernel(simulated.reduction("f32", kind, where)), device)
    x, dims = torch.rand(sizes), simulated.REDUCED[where][2]
    [y] = kernel([x.cuda()], *sizes)
    if kind == "max" and any(sizes[dim] == 0 for dim in dims):
        assert (y == -torch.inf).all()
        return
    expected = simulated.reduced_by_torch(kind, x.double(), dims)
    assert_near("f32", [y.cpu()], [expected])


@pytest.mark.parametrize("element", simulated.INTEGERS)
@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("where", ["last", "first"])
def test_reduced_integers(device: Device, element: str, kind: str, where: str) -> None:
    kernel = DeviceKernel(GpuKernel(simulated.reduction(element, kind, where)), device)
    x = samples.values(element, 3, 5, 9)
    [y] = kernel([x.cuda()], 3, 5, 9)
    assert torch.equal(y.cpu(), simulated.reduced_by_torch(kind, x, simulated.REDUCED[where][2]))


@pytest.mark.parametrize("kind", ["and", "or"])
@pytest.mark.parametrize("where", ["last", "first", "all"])
def test_reduced_bools(device: Device, kind: str, where: str) -> None:
    kernel = DeviceKernel(GpuKernel(simulated.reduction("i1", kind, where)), device)
    x = samples.values("i1", 4, 5, 9)
    [y] = kernel([x.cuda()], 4, 5, 9)
    assert torch.equal(y.cpu(), simulated.reduced_by_torch(kind, x, simulated.REDUCED[where][2]))


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("sizes", [(4, 3), (0, 3), (3, 0), (0, 0), (1000, 77)])
def test_concatenation(device: Device, outer: bool, sizes: tuple[int, int]) -> None:
    kernel = DeviceKernel(simulated.concatenation(outer), device)
    shapes = [(size, 512) if outer else (512, size) for size in sizes]
    x, y = (samples.values("bf16", *shape, seed=i) for i, shape in enumerate(shapes))
    [z] = kernel([x.cuda(), y.cuda()], *sizes)
    assert torch.equal(z.cpu(), torch.cat([x, y], 0 if outer else 1))


@pytest.mark.parametrize("sizes", [(0, 5), (1, 1), (70, 20), (1000, 333)])
def test_transposition(device: Device, sizes: tuple[int, int]) -> None:
    kernel = DeviceKernel(simulated.transposed("bf16"), device)
    x = samples.values("bf16", *sizes, 3)
    [y] = kernel([x.cuda()], *sizes)
    assert torch.equal(y.cpu(), x.permute(1, 2, 0))


def apply(device: Device, lowered: GpuKernel, *operands: Tensor) -> Tensor:
    [result] = DeviceKernel(lowered, device)([each.cuda() for each in operands], len(operands[0]))
    return result.cpu()


@pytest.mark.parametrize("name", functions.FUNCTIONS)
def test_function_of_f32(device: Device, name: str) -> None:
    """With the hardware's own approximations: `ex2.approx` and `rsqrt.approx` have 2 ulp."""
    function, low, high = functions.FUNCTIONS[name]
    x = functions.spread("f32", low, high, 100_000)
    y = apply(device, functions.unary("f32", name), x)
    functions.assert_ulps(y, function(x.double()), 6.0)


@pytest.mark.parametrize("name", functions.F64)
def test_function_of_f64(device: Device, name: str) -> None:
    function, low, high = functions.FUNCTIONS[name]
    x = functions.spread("f64", low, high, 100_000)
    functions.assert_ulps(apply(device, functions.unary("f64", name), x), function(x), 8.0)


@pytest.mark.parametrize("name", functions.BINARY)
def test_binary_function(device: Device, name: str) -> None:
    x = functions.spread("f32", -50, 50, 20_000)
    y = x.roll(777) / 8
    z = apply(device, functions.binary("f32", name), x, y)
    functions.assert_ulps(z, functions.BINARY[name](x.double(), y.double()), 2.0)


@pytest.mark.parametrize("name", ["math.sin", "math.cos", "math.tan"])
def test_large_angles(device: Device, name: str) -> None:
    bits = torch.randint(0x4D800000, 0x7F800000, (100_000,), dtype=torch.int32)
    x = bits.view(torch.float32)
    y = apply(device, functions.unary("f32", name), x)
    functions.assert_ulps(y, getattr(torch, name[5:])(x.double()), 2.0)


@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_all_halves_are_rounded_as_torch_does(device: Device, element: str) -> None:
    """Every value of the type through an addition that rounds."""
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(DTYPES[element])
    kernel = built(pointwise(element), device)
    y = x.roll(4321)
    [z] = kernel([x.cuda(), y.cuda()], len(x), 0)
    torch.testing.assert_close(z.cpu(), x + y, rtol=0, atol=0, equal_nan=True)
