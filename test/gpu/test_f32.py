# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products of float32 on a GPU: every schedule, in the arithmetic that was asked for."""

from __future__ import annotations

import copy
import functools
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from torch import Tensor, nn  # noqa: E402
from torch.export import Dim  # noqa: E402
from torch.nn import functional  # noqa: E402

import shapejit  # noqa: E402
from gpu import products  # noqa: E402
from gpu.products import launch, poisoned, relative_error  # noqa: E402
from shapejit import ops  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from shapejit.ops.gemm_operands import Operands  # noqa: E402
from shapejit.passes.nvgpu.schedule import SIMT_CANDIDATES, GemmSchedule  # noqa: E402

SHAPES = [
    (1, 8, 8), (1, 4096, 4096), (7, 264, 1000), (16, 128, 64), (77, 4104, 72), (128, 256, 64),
    (129, 1000, 4104), (333, 4096, 520), (1000, 1032, 520), (64, 5025, 255), (5, 3, 16),
    (300, 70, 40), (2, 4096, 14336), (128, 256, 0),
]  # fmt: skip

#: Of a product of normal numbers of which both factors are rounded to 11 bits: half an ulp, 2^-11,
#: over sqrt(3) for each, relative to numbers of 1.5 in the mean.
TF32_ERROR = 2.0**-11 * (2 / 3) ** 0.5 / 1.35


def ieee_bound(k: int) -> float:
    """The relative error of sums of so many products: that of rounding grows with the root."""
    return 2e-6 * max(1.0, k / 4096) ** 0.5


@pytest.fixture(autouse=True)
def restored() -> Any:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


noise = functools.partial(products.noise, dtype=torch.float32)


def linear(m: int, n: int, k: int) -> Operands:
    return Operands(noise(m, k), noise(n, k, seed=1).mT, None, None, None, None, None)


@pytest.mark.parametrize("schedule", SIMT_CANDIDATES, ids=str)
def test_schedule_at_all_sizes(device: Device, schedule: GemmSchedule) -> None:
    wrong = []
    for m, n, k in SHAPES:
        operands = linear(m, n, k)
        out, behind = poisoned(m, n, dtype=torch.float32)
        launch(schedule, operands, out)
        reference = operands.a.double() @ operands.b.double()
        error = relative_error(out, reference)
        if not (error < ieee_bound(k) and behind.isnan().all()):
            wrong.append(((m, n, k), error, bool(behind.isnan().all())))
    assert not wrong


@pytest.mark.parametrize("schedule", SIMT_CANDIDATES, ids=str)
def test_schedule_gives_the_same_bits_again(device: Device, schedule: GemmSchedule) -> None:
    for m, n, k in [(333, 1032, 2048), (3, 4096, 4096)]:
        operands = linear(m, n, k)
        first, out = torch.empty(2, m, n, device="cuda")
        launch(schedule, operands, first)
        different = torch.zeros((), device="cuda", dtype=torch.int64)
        for _ in range(50):
            out.fill_(float("nan"))
            launch(schedule, operands, out)
            different += (out != first).any()
        assert different.item() == 0, (m, n, k)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dispatched(device: Device, shape: tuple[int, int, int]) -> None:
    """No worse than cuBLAS in the same arithmetic, against float64.

    With tf32 allowed, cuBLAS computes some shapes in IEEE arithmetic.
    """
    for precision, rounding in (("ieee", 0.0), ("tf32", TF32_ERROR)):
        torch.backends.cuda.matmul.fp32_precision = precision
        operands = linear(*shape)
        reference = operands.a.double() @ operands.b.double()
        theirs = relative_error(operands.a @ operands.b, reference)
        for asked in ("auto", precision):
            result = ops.gemm(operands.a, operands.b, deterministic=True, float32_precision=asked)
            assert relative_error(result, reference) <= 1.2 * max(theirs, rounding) + 1e-6


def test_strides_and_addresses_of_any_kind(device: Device) -> None:
    rng = random.Random(0)
    for number in range(60):
        m, n, k = rng.randint(1, 200), rng.randint(1, 300), rng.randint(0, 300)
        rows, columns = rng.choice([(m, k), (k, m)]), rng.choice([(k, n), (n, k)])
        a = noise(rows[0], rows[1] + rng.choice([0, 1, 4]))[:, : rows[1]]
        b = noise(columns[0], 2 * columns[1])[:, :: rng.choice([1, 2])][:, : columns[1]]
        a = a if rows == (m, k) else a.mT
        b = b if columns == (k, n) else b.mT
        precision = ("ieee", "tf32")[number % 2]
        result = ops.gemm(a, b, deterministic=True, float32_precision=precision)
        reference = a.double() @ b.double()
        bound = 2e-6 if precision == "ieee" else 2e-3
        assert relative_error(result, reference) < bound or not reference.any()


def test_epilogues(device: Device) -> None:
    for m, n, k in [(1, 264, 100), (130, 265, 64), (700, 512, 256)]:
        x, w, gate, residual = noise(m, k), noise(n, k), noise(n, k, seed=2), noise(m, n)
        bias = noise(n)
        result = ops.gemm(
            x, w.mT, bias=bias, activation="gelu", gate=gate.mT, residual=residual,
            deterministic=True,
        )  # fmt: skip
        x, w, gate, residual, bias = (t.double() for t in (x, w, gate, residual, bias))
        reference = functional.gelu(x @ w.mT + bias) * (x @ gate.mT) + residual
        assert relative_error(result, reference) < 3e-6


class Encoder(nn.Module):
    """A layer of a transformer with a padding mask."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, width = x.shape
        q, k, v = functional.linear(x, self.layer.in_proj_weight, self.layer.in_proj_bias).chunk(
            3, -1
        )
        heads = (each.view(b, s, 4, width // 4).transpose(1, 2) for each in (q, k, v))
        attended = functional.scaled_dot_product_attention(*heads)
        x = self.norm(x + attended.transpose(1, 2).reshape(b, s, width))
        return x + self.down(functional.gelu(self.up(x)))


@pytest.mark.parametrize(("precision", "rounding"), [("ieee", 0.0), ("tf32", TF32_ERROR)])
def test_a_model(device: Device, precision: str, rounding: float) -> None:
    torch.manual_seed(0)
    model = Encoder().cuda().eval()
    batch, length = Dim("batch", min=1, max=8), Dim("length", min=1, max=300)
    with torch.no_grad():
        program = shapejit.compile(
            model,
            (torch.randn(2, 7, 128, device="cuda"),),
            dynamic_shapes={"x": {0: batch, 1: length}},
            target="cuda",
            float32_precision=precision,
        )
        torch.backends.cuda.matmul.fp32_precision = precision
        for b, s in [(1, 1), (2, 7), (8, 300), (3, 129)]:
            x = noise(b, s, 128)
            exact = copy.deepcopy(model).double()(x.double())
            theirs = relative_error(model(x), exact)
            assert relative_error(program(x), exact) <= 1.2 * max(theirs, rounding) + 1e-6


@pytest.mark.parametrize(
    ("winograd", "bound"), [("off", 2e-6), ("force", 2e-6), ("force", 1e-5)], ids=str
)
def test_convolutions(device: Device, winograd: str, bound: float) -> None:
    """By gathered pixels, F(2x2,3x3) and F(4x4,3x3); odd sizes and 1 included."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(64, 96, 3, padding=1), nn.ReLU(), nn.Conv2d(96, 32, 3, stride=2)]
    model = nn.Sequential(*layers).cuda().eval()
    dims = {0: Dim("n", min=1, max=8), 2: Dim("h", min=3, max=64), 3: Dim("w", min=3, max=64)}
    with torch.no_grad():
        program = shapejit.compile(
            model,
            (torch.randn(2, 64, 9, 8, device="cuda"),),
            dynamic_shapes=(dims,),
            target="cuda",
            float32_precision="ieee",
            winograd=winograd,
            max_rel_error=bound,
        )
        for sizes in [(1, 64, 3, 3), (2, 64, 17, 30), (8, 64, 64, 61)]:
            x = noise(*sizes)
            exact = copy.deepcopy(model).double()(x.double())
            assert relative_error(program(x), exact) <= bound
