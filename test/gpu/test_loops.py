# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of loops on a GPU: right at all sizes, in all variants and forms, and repeatable."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from torch import Tensor  # noqa: E402

from gpu.loop_kernels import DeviceKernel  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from unit import gpu_loop_samples as samples  # noqa: E402
from unit import row_kernels  # noqa: E402
from unit import test_gpu_loops as simulated  # noqa: E402
from unit import test_gpu_loops_functions as functions  # noqa: E402
from unit import test_gpu_loops_sharing as sharing  # noqa: E402
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
    """Both forms against float64, by torch on the GPU; three times the same bits."""
    on_device = [each.cuda() for each in sample.inputs(*symbols)]
    expected = sample.expected(*on_device)
    for block in (False, True):
        kernel = built(sample, device, variant, block, sizes)
        first = kernel(on_device, *symbols)
        for _ in range(2):
            for one, other in zip(first, kernel(on_device, *symbols), strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        assert_near(element, first, expected)


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


@pytest.mark.parametrize("seed", range(4))
def test_random_shapes(device: Device, seed: int) -> None:
    """One kernel, 50 shapes in random order: nothing of one call is left for the next."""
    draw = random.Random(seed)
    for _ in range(50):
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


# Rows and columns that clusters share, scans, sorts -----------------------------------------------


@functools.cache
def kernel_of(text: str, variant: str, device: Device, block: bool) -> DeviceKernel:
    return DeviceKernel(GpuKernel(text, variant, block=block, programmatic=block), device)


def run(text: str, device: Device, x: Tensor) -> list[Tensor]:
    """A kernel of [s0, s1], as chosen for up to twice its sizes; three times the same bits."""
    sizes: Ranges = {number: (0, 2 * size) for number, size in enumerate(x.shape)}
    [variant] = serving(text, sizes, x.shape)
    on_device = x.cuda()
    found: list[list[Tensor]] = []
    for block in (False, True):
        kernel = kernel_of(text, variant, device, block)
        found += [[y.cpu() for y in kernel([on_device], *x.shape)] for _ in range(3)]
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)
    return found[0]


def serving(text: str, sizes: Ranges, at: Sequence[int]) -> list[str]:
    """The variant that serves some sizes."""
    chosen = GpuKernel(text, sizes=sizes)
    values = [axis.evaluate(tuple(at)) for axis in chosen.axes]
    return [
        variant
        for lower, upper, variant, _ in chosen.buckets
        if all(
            low <= value and (high is None or value <= high)
            for low, value, high in zip(lower, values, upper, strict=True)
        )
    ]


LONG = ((1, 32000), (1, 128256), (3, 100001), (12, 20000), (40, 20000), (1, 3000000))


@pytest.mark.parametrize(("rows", "length"), LONG)
def test_softmax_of_few_long_rows(device: Device, rows: int, length: int) -> None:
    x = torch.randn(rows, length)
    [y] = run(softmax("f32").text, device, x)
    torch.testing.assert_close(y, x.double().softmax(-1).float(), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(("m", "n"), [(1000000, 3), (100003, 64), (20000, 700), (5000, 4000)])
def test_sums_of_few_long_columns(device: Device, m: int, n: int) -> None:
    x = torch.rand(m, n)
    [y] = run(samples.sums(0), device, x)
    torch.testing.assert_close(y, x.double().sum(0).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("element", ["f32", "bf16", "i64"])
@pytest.mark.parametrize(("rows", "length"), [(0, 5), (5, 0), (7, 1), (300, 100), (9, 5001), *LONG])
def test_running_sums(device: Device, element: str, rows: int, length: int) -> None:
    x = (torch.rand(rows, length) * 9).to(DTYPES[element])
    [y] = run(row_kernels.scan("add", element), device, x)
    if element == "i64":
        assert torch.equal(y, x.cumsum(1))
    else:
        bound = 1e-5 if element == "f32" else 1e-2
        torch.testing.assert_close(y.double(), x.double().cumsum(1), rtol=bound, atol=bound)


@pytest.mark.parametrize("element", ["f32", "i8"])
@pytest.mark.parametrize(("rows", "length"), [(300, 100), (9, 5001), (2, 40000)])
def test_running_extrema(device: Device, element: str, rows: int, length: int) -> None:
    x = row_kernels.random_rows(DTYPES[element], rows, length, nan=True)
    values, places = run(row_kernels.scan("max", element, indexed=True), device, x)
    torch.testing.assert_close(values, x.cummax(1)[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(places, x.cummax(1)[1])


SORTED = (
    *((0, 5), (5, 0), (7, 1), (300, 64), (50, 200), (9, 1000), (9, 4001), (3, 16384)),
    *((2, 30000), (1, 128256), (3, 262144), (1, 300001), (20, 270000)),
)


FEW_SORTED = ((0, 5), (300, 64), (9, 1000), (3, 30000), (1, 300001))


@pytest.mark.parametrize(
    ("element", "descending", "rows", "length"),
    [
        *(("f32", True, *sizes) for sizes in SORTED),
        *(("bf16", False, *sizes) for sizes in FEW_SORTED),
        *(("i8", True, *sizes) for sizes in FEW_SORTED),
        *(("f64", False, *sizes) for sizes in FEW_SORTED),
        *(("i64", True, *sizes) for sizes in FEW_SORTED),
    ],
)
def test_sorts(device: Device, element: str, descending: bool, rows: int, length: int) -> None:
    x = row_kernels.random_rows(DTYPES[element], rows, length, nan=True)
    values, places = run(row_kernels.sort(element, descending=descending), device, x)
    wanted, wanted_places = torch.sort(x, dim=1, descending=descending, stable=True)
    assert torch.equal(places, wanted_places)
    torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("head", [1, 50, 2048])
@pytest.mark.parametrize("order", ["random", "best last"])
@pytest.mark.parametrize(("rows", "length"), [(40, 3000), (1, 32000), (3, 128256), (64, 20001)])
def test_heads(device: Device, head: int, order: str, rows: int, length: int) -> None:
    x = torch.randn(rows, length)
    x = torch.sort(x, dim=1)[0] if order == "best last" else x
    text = row_kernels.sort("f32", descending=True, head=str(head))
    values, places = run(text, device, x)
    wanted, wanted_places = torch.sort(x, dim=1, descending=True, stable=True)
    assert torch.equal(places, wanted_places[:, :head])
    assert torch.equal(values, wanted[:, :head])


@pytest.mark.parametrize("elements", [1, 1000, (1 << 22) + 3, 1 << 26])
def test_large_additions(device: Device, elements: int) -> None:
    x, z = torch.randn(elements, device="cuda"), torch.randn(elements, device="cuda")
    lowered = GpuKernel(sharing.addition(), None, sizes={0: (0, 1 << 26)})
    for variant in lowered.variants:
        kernel = DeviceKernel(GpuKernel(sharing.addition(), variant), device)
        assert torch.equal(kernel([x, z], elements)[0], x + z)
