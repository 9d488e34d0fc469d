# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiled modules on a GPU: right at all sizes, captured, in threads, saved and loaded."""

from __future__ import annotations

import copy
import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

from torch import Tensor, nn  # noqa: E402
from torch.export import Dim  # noqa: E402
from torch.nn import functional  # noqa: E402

import shapejit  # noqa: E402
from gpu.products import noise, relative_error  # noqa: E402
from shapejit.errors import DeviceError, ShapeError, TargetError  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from unit.gpu_programs import Deep, Gated, Residual, Scores, tokens  # noqa: E402

#: How much worse than torch's own result in that type a result may be, against float64.
_SLACK = 1.2


@pytest.fixture(autouse=True)
def _on_the_gpu(device: Device) -> Iterator[None]:
    with torch.no_grad():
        yield


class Compiled:
    """A model beside its program and its double in float64."""

    def __init__(self, model: nn.Module, args: Sequence[Tensor], dynamic_shapes: Any) -> None:
        self.model = model.cuda().eval()
        self.exact = copy.deepcopy(self.model).double()
        self.program = shapejit.compile(self.model, tuple(args), dynamic_shapes=dynamic_shapes)

    def check(self, *args: Tensor) -> None:
        """Compares a call with torch: right shape and dtype, and as close to float64."""
        result, theirs = self.program(*args), self.model(*args)
        assert (result.shape, result.dtype) == (theirs.shape, theirs.dtype)
        assert result.device == theirs.device
        exact = self.exact(*(arg.double() for arg in args))
        ours, torchs = relative_error(result, exact), relative_error(theirs, exact)
        # A few elements can be right by luck, where rounding alone may be off by `unit`.
        unit = torch.finfo(result.dtype).eps / 2
        least = unit if result.numel() < 64 else unit / 4
        assert ours <= _SLACK * max(torchs, least), f"{ours} against {torchs} at {args[0].shape}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [Residual, Gated, Deep])
def test_feed_forward_at_any_number_of_rows(kind: Callable[..., nn.Module], dtype: Any) -> None:
    width = 512
    compiled = Compiled(
        kind(width, dtype).cuda(), (noise(7, width, dtype=dtype),), tokens(most=8192)
    )
    rng = random.Random(0)
    sizes = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 4096, 8191, 8192]
    sizes += [int(2 ** rng.uniform(0, 13)) for _ in range(85)]
    for size in sizes:
        compiled.check(noise(size, width, dtype=dtype))
    stats = compiled.program.stats()
    assert stats.compiles == 1
    assert stats.calls == len(sizes)
    assert stats.input_copies == 0


def test_two_dynamic_dims_that_become_one_axis() -> None:
    width = 256
    shapes = {"x": {0: Dim("batch", min=1, max=64), 1: Dim("seq", min=1, max=512)}}
    compiled = Compiled(Residual(width).cuda(), (noise(3, 5, width),), shapes)
    rng = random.Random(1)
    pairs = [(1, 1), (64, 512), (1, 512), (64, 1), (3, 7)]
    pairs += [(rng.randint(1, 64), rng.randint(1, 512)) for _ in range(60)]
    for batch, seq in pairs:
        compiled.check(noise(batch, seq, width))


def test_products_of_two_inputs() -> None:
    """Batched, with n free: rows of the result are of any length, aligned or not."""
    shapes = {
        "q": {0: Dim("batch", min=1, max=32), 1: Dim("m", min=1, max=512)},
        "k": {0: Dim("batch", min=1, max=32), 1: Dim("n", min=1, max=512)},
    }
    compiled = Compiled(Scores(), (noise(2, 5, 64), noise(2, 9, 64)), shapes)
    rng = random.Random(2)
    sizes = [(1, 1, 1), (2, 8, 8), (3, 100, 104), (3, 100, 101), (32, 512, 512), (5, 1, 512)]
    sizes += [(rng.randint(1, 32), rng.randint(1, 512), rng.randint(1, 512)) for _ in range(60)]
    for batch, m, n in sizes:
        compiled.check(noise(batch, m, 64), noise(batch, n, 64, seed=1))


class Product(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b)


@pytest.mark.parametrize("multiple", [1, 8])
def test_products_over_a_free_dim(multiple: int) -> None:
    """K free: known to be a multiple of 8, by which tensor maps can be used, or anything."""
    most = 512 // multiple
    inner = Dim("k", min=1, max=most)
    k = multiple * inner if multiple != 1 else inner
    shapes = {"a": {1: Dim("m", min=1, max=300), 2: k}, "b": {1: k}}
    compiled = Compiled(Product(), (noise(4, 6, 16), noise(4, 16, 96)), shapes)
    rng = random.Random(3)
    for _ in range(60):
        m, k = rng.randint(1, 300), multiple * rng.randint(1, most)
        compiled.check(noise(4, m, k), noise(4, k, 96, seed=1))


class Weights(nn.Module):
    """Weights as GPT-2 has them, [k, n], and n no multiple of 8."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(noise(k, n) * k**-0.5)
        self.bias = nn.Parameter(noise(n))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.addmm(self.bias, x, self.weight))


@pytest.mark.parametrize("n", [768, 100, 33])
def test_weights_along_the_other_dim(n: int) -> None:
    compiled = Compiled(Weights(256, n), (noise(7, 256),), tokens(most=2048))
    for size in (1, 2, 17, 64, 100, 333, 1024, 2048):
        compiled.check(noise(size, 256))


def test_inputs_that_cannot_be_read_in_place() -> None:
    compiled = Compiled(Residual(256).cuda(), (noise(7, 256),), tokens())
    transposed = noise(256, 40).mT
    compiled.check(transposed)
    odd = noise(41 * 256 + 1)[1:].view(41, 256)
    assert odd.data_ptr() % 16
    compiled.check(odd)
    strided = noise(80, 256)[::2]
    compiled.check(strided)
    assert compiled.program.stats().input_copies == 3


def test_weights_changed_in_place_are_seen() -> None:
    compiled = Compiled(Residual(256).cuda(), (noise(7, 256),), tokens())
    compiled.check(noise(33, 256))
    compiled.model.up.weight.mul_(-2)
    compiled.exact.up.weight.copy_(compiled.model.up.weight)
    compiled.check(noise(33, 256))
    compiled.model.down.bias.data = noise(256)  # another address
    compiled.exact.down.bias.data = compiled.model.down.bias.double()
    compiled.check(noise(33, 256))


def test_weights_that_cannot_be_read_in_place() -> None:
    model = Residual(256).cuda()
    odd = torch.empty(512 * 256 + 1, device="cuda", dtype=torch.bfloat16)[1:].view(512, 256)
    odd.copy_(model.up.weight)
    model.up.weight.data = odd
    compiled = Compiled(model, (noise(7, 256),), tokens())
    assert compiled.program.stats().packed_bytes == odd.nbytes
    with torch.cuda.stream(torch.cuda.Stream()):
        compiled.check(noise(33, 256))
    torch.cuda.synchronize()
    compiled.model.up.weight.mul_(-2)
    compiled.exact.up.weight.copy_(compiled.model.up.weight)
    compiled.check(noise(33, 256))


def test_equal_calls_give_equal_bits() -> None:
    program = Compiled(Residual(512).cuda(), (noise(7, 512),), tokens()).program
    for size in (1, 100, 3000):
        x = noise(size, 512)
        first = program(x)
        assert all(torch.equal(first, program(x)) for _ in range(20))


def test_what_is_refused() -> None:
    program = Compiled(Residual(256).cuda(), (noise(7, 256),), tokens(most=64)).program
    with pytest.raises(ShapeError, match=r'"tokens" = 65 .* above its range 1\.\.64'):
        program(noise(65, 256))
    with pytest.raises(DeviceError, match="cpu"):
        program(noise(3, 256).cpu())
    with pytest.raises(TargetError, match="SJ-TARGET-003"):
        shapejit.compile(Residual(256).cuda(), (noise(7, 256),), target="cpu")


class Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(64, 64, 3, padding=1, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return functional.softmax(self.conv(x.mT[None]), -1)


def test_operators_without_kernels_are_all_named() -> None:
    with pytest.raises(TargetError, match=r"(?s)SJ-TARGET-007.*1 operator.*aten\.conv"):
        x = noise(7, 64, dtype=torch.float64)
        shapejit.compile(Strided().cuda().eval(), (x,), dynamic_shapes=tokens())


# Streams, graphs, threads -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Residual, Deep])
def test_capture_into_a_graph(kind: Callable[..., nn.Module]) -> None:
    compiled = Compiled(kind(512).cuda(), (noise(7, 512),), tokens())
    x = noise(100, 512)
    compiled.program(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled.program(x)
    # Calls in the stream that replays, at other sizes, use other working memory.
    for seed in range(5):
        x.copy_(noise(100, 512, seed=seed + 10))
        compiled.check(noise(77 * (seed + 1), 512))
        graph.replay()
        theirs = compiled.model(x)
        exact = compiled.exact(x.double())
        assert relative_error(result, exact) <= _SLACK * relative_error(theirs, exact)


@pytest.mark.parametrize("kind", [Residual, Deep])
def test_a_graph_outlives_its_program(kind: Callable[..., nn.Module]) -> None:
    compiled = Compiled(kind(512).cuda(), (noise(7, 512),), tokens())
    x = noise(100, 512)
    expected = compiled.program(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled.program(x)
    model = compiled.model  # whose weights the graph reads
    del compiled
    torch.cuda.synchronize()
    junk = [noise(1 << 20, seed=seed) for seed in range(20)]  # takes memory that was given back
    result.zero_()
    graph.replay()
    assert torch.equal(result, expected)
    del junk, model


@pytest.mark.parametrize("kind", [Residual, Deep])
def test_streams_and_threads(kind: Callable[..., nn.Module]) -> None:
    compiled = Compiled(kind(512).cuda(), (noise(7, 512),), tokens(most=2048))
    inputs = {size: noise(size, 512) for size in (1, 33, 100, 512, 777, 2048)}
    expected = {size: compiled.program(x) for size, x in inputs.items()}
    torch.cuda.synchronize()
    failures: list[int] = []

    def work(number: int, stream: Any) -> None:
        rng = random.Random(number)
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(100):
                size = rng.choice(list(inputs))
                if not torch.equal(compiled.program(inputs[size]), expected[size]):
                    failures.append(size)

    own = [torch.cuda.Stream() for _ in range(4)]
    streams = [*own, own[0], own[0]]  # two threads more in the first one
    threads = [threading.Thread(target=work, args=each) for each in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert compiled.program.stats().calls == 600 + len(inputs)


@pytest.mark.parametrize("kind", [Residual, Deep])
def test_memory_stays_flat(kind: Callable[..., nn.Module]) -> None:
    compiled = Compiled(kind(512).cuda(), (noise(7, 512),), tokens())
    rng = random.Random(5)

    def run(count: int) -> None:
        for _ in range(count):
            compiled.program(noise(int(2 ** rng.uniform(0, 13)), 512))

    compiled.program(noise(8192, 512))
    run(100)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    run(400)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


# Reports and saving -------------------------------------------------------------------------------


def test_explain_names_the_variant_of_each_size() -> None:
    program = Compiled(Residual(512).cuda(), (noise(7, 512),), tokens()).program
    used = set()
    for size in (1, 64, 512, 8192):
        explanation = program.explain(noise(size, 512))
        for kernel in explanation.kernels:
            assert kernel.axes == ("tokens",)
            assert sum(row.launches for row in kernel.buckets) == kernel.launches
            used |= {(kernel.name, row.schedule) for row in kernel.buckets if row.launches}
            assert all(row.registers > 0 and row.spill_bytes == 0 for row in kernel.buckets)
        assert "Variants of" in str(explanation)
    assert len(used) > len(explanation.kernels), "one variant serves all sizes"


@pytest.mark.parametrize("weights", [True, False])
def test_saved_programs(tmp_path: Path, weights: bool) -> None:
    compiled = Compiled(Gated(256).cuda(), (noise(7, 256),), tokens())
    path = tmp_path / "model.sj"
    compiled.program.save(path, weights=weights)
    loaded = shapejit.load(path, None if weights else compiled.model)
    for size in (1, 100, 8192):
        x = noise(size, 256)
        assert torch.equal(loaded(x), compiled.program(x))
    assert loaded.stats().compiles == 0
    again = shapejit.load(path, compiled.model)
    compiled.model.up.weight.mul_(2)
    x = noise(50, 256)
    assert torch.equal(again(x), compiled.program(x))
    assert torch.equal(loaded(x), compiled.program(x)) is not weights


def test_a_second_compilation_finds_its_kernels_in_the_cache() -> None:
    model = Gated(256).cuda().eval()
    for _ in range(2):
        program = shapejit.compile(model, (noise(7, 256),), dynamic_shapes=tokens())
    origins = {kernel.origin for kernel in program.artefacts.kernels}
    assert origins <= {"memory", "disk"}


def test_calls_allocate_nothing_from_the_driver() -> None:
    program = Compiled(Residual(512).cuda(), (noise(7, 512),), tokens()).program
    inputs = [noise(size, 512) for size in (1, 64, 300, 1024)]
    for x in inputs:
        program(x)
    allocations = torch.cuda.memory_stats()["num_device_alloc"]
    for x in itertools.islice(itertools.cycle(inputs), 400):
        program(x)
    assert torch.cuda.memory_stats()["num_device_alloc"] == allocations
