# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs for a GPU on a fake driver: what they launch, with what, where."""

from __future__ import annotations

import gc
import hashlib
import json
import re
import threading
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import shapejit
from shapejit import archive, execution
from shapejit.artefacts import Artefacts
from shapejit.errors import LoadError, TargetError
from shapejit.gpu.driver import Driver
from shapejit.gpu.errors import DriverCallError, NoDriverError
from shapejit.gpu.program_run import GpuExecution, usable_gpu
from shapejit.symbolic import Expr
from unit.fake_cuda import Fake
from unit.gpu_programs import (
    CPU,
    FakeProgram,
    FakeStreams,
    Residual,
    build,
    on_fake,
    residual,
    rows,
    with_fake_code,
)

WIDTH = 64


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    fake = Fake(tmp_path_factory.mktemp("fake"))
    yield fake
    gc.collect()
    fake.check()


@pytest.fixture(scope="module")
def shared(fake: Fake) -> FakeProgram:
    """`Residual` with up to 8192 rows of 64."""
    return on_fake(*residual(), fake)


@pytest.fixture
def mine(fake: Fake) -> FakeProgram:
    """The same program for one test alone."""
    return on_fake(*residual(), fake)


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def parts(launch: Any) -> tuple[Any, ...]:
    """What a launch gives the device, but for its stream."""
    used = launch.offsets[launch.parameters - 1] + 128
    return (
        launch.entry,
        tuple(launch.grid),
        tuple(launch.block),
        launch.shared_bytes,
        launch.cluster,
        launch.programmatic,
        launch.parameters,
        bytes(launch.bytes[:used]),
    )


def expected(one: FakeProgram, number: int, operands: list[int], count: int) -> tuple[Any, ...]:
    """The launch of kernel `number` for that many rows, by way of the Python launcher.

    The variant, the values and the operands are found here, apart from the host program.
    """
    code = one.program.artefacts.gpu
    assert code is not None
    kernel = code.kernels[number]
    fitting = [b for b in kernel.buckets if b.lower[0] <= count <= (b.upper[0] or count)]
    assert len(fitting) == 1
    variant = code.variants[fitting[0].variant]
    values = [Expr.parse(v).evaluate(symbols=[count]) for v in variant.entry.interface.values]
    execution_ = one.program._execution
    assert isinstance(execution_, GpuExecution)
    loaded = execution_.kernels[fitting[0].variant]
    assert loaded.interface.entry == variant.name
    [launch] = one.launches(lambda: loaded.launch(operands, values, one.streams.handle))
    return parts(launch)


def check_call(one: FakeProgram, x: Tensor) -> None:
    """A call launches both kernels in order, from the input over the arena to the output."""
    result: list[Tensor] = []
    up, down = one.launches(lambda: result.append(one.program(x)))
    [y] = result
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    up_weight, up_bias, down_weight, down_bias = one.program.all_weights()
    execution_ = one.program._execution
    assert isinstance(execution_, GpuExecution)
    arena = execution_._arenas._arenas[one.streams.handle]
    addresses = [t.data_ptr() for t in (x, up_weight, up_bias)]
    middle = arena.address
    count = x.shape[0]
    assert parts(up) == expected(one, 0, [*addresses, middle], count)
    addresses = [middle, *(t.data_ptr() for t in (down_weight, down_bias, x, y))]
    assert parts(down) == expected(one, 1, addresses, count)


# Calls --------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8192))
def test_launches_at_any_size(shared: FakeProgram, count: int) -> None:
    check_call(shared, torch.zeros(count, WIDTH, dtype=torch.bfloat16))


def test_launches_at_the_ends_of_buckets(shared: FakeProgram) -> None:
    code = shared.program.artefacts.gpu
    assert code is not None
    ends = {
        end
        for kernel in code.kernels
        for bucket in kernel.buckets
        for end in (bucket.lower[0], bucket.upper[0])
    }
    assert len(ends) > 2, "one variant serves everything"
    for end in ends:
        assert end is not None
        check_call(shared, torch.zeros(end, WIDTH, dtype=torch.bfloat16))


def test_inputs_that_cannot_be_read_are_copied(mine: FakeProgram) -> None:
    odd = torch.zeros(8 * WIDTH + 1, dtype=torch.bfloat16)[1:].view(8, WIDTH)
    assert odd.data_ptr() % 16
    for x in (odd, rows(WIDTH, 8).mT, rows(16)[::2]):
        up, _ = mine.launches(lambda x=x: mine.program(x))
        maps = [int.from_bytes(up.parameter(n, 8), "little") for n in range(up.parameters)]
        assert x.data_ptr() not in maps
    assert mine.program.stats().input_copies == 3


def test_weights_that_cannot_be_read_are_copied_and_followed(fake: Fake) -> None:
    artefacts, weights = residual()
    buffer = torch.zeros(weights[0].numel() + 1, dtype=torch.bfloat16)
    shifted = buffer[1:].view(weights[0].shape)
    one = on_fake(artefacts, [shifted, *weights[1:]], fake)
    assert one.program.stats().packed_bytes == shifted.nbytes
    first = one.program._weights.current().in_place[0]
    assert first is not None
    assert first.data_ptr() % 16 == 0
    shifted.fill_(2)
    one.program(rows(3))
    second = one.program._weights.current().in_place[0]
    assert second is not None
    assert bool((second == 2).all())


def test_a_weight_at_another_address_is_seen(mine: FakeProgram) -> None:
    mine.program(rows(3))
    weight = mine.program._weights.tensors[0]
    old = weight.data_ptr()
    try:
        saved = weight.data
        weight.data = weight.data.clone()
        assert weight.data_ptr() != old
        held = mine.program._weights.last.storages
        assert old in {storage.data_ptr() for storage in held}, (
            "what is queued at first may read it"
        )
        launches = mine.launches(lambda: mine.program(rows(3)))
        assert [launch.entry for launch in launches[:2]] == [x.entry for x in launches[2:]]
        assert old not in {storage.data_ptr() for storage in mine.program._weights.last.storages}
        check_call(mine, rows(3))
    finally:
        weight.data = saved


def test_empty_inputs_launch_nothing(fake: Fake) -> None:
    shapes = {"x": {0: torch.export.Dim("tokens", min=0, max=64)}}
    one = on_fake(*build(Residual(), (rows(7),), shapes), fake)
    result: list[Tensor] = []
    assert one.launches(lambda: result.append(one.program(rows(0)))) == []
    assert result[0].shape == (0, WIDTH)
    check_call(one, rows(1))


def test_a_failed_launch_ends_the_call(mine: FakeProgram) -> None:
    mine.program(rows(3))
    mine.fake.controls.fakeFail(b"cuLaunchKernelEx", 700, 1)
    before = mine.fake.launches
    with pytest.raises(DriverCallError, match=r"ILLEGAL_ADDRESS.*gemm1__") as raised:
        mine.program(rows(3))
    assert "3" in str(raised.value)
    assert mine.fake.launches == before + 1, "the kernel before it was queued"
    assert mine.program._execution.arena_bytes == 4096
    check_call(mine, rows(3))


# Streams, graphs, threads -------------------------------------------------------------------------


def test_each_stream_has_an_arena_of_its_own(mine: FakeProgram) -> None:
    fake, execution_ = mine.fake, mine.program._execution
    streams = [fake.controls.fakeStreamCreate(0) for _ in range(2)]
    assert isinstance(execution_, GpuExecution)
    for handle in (*streams, *streams):
        mine.streams.handle = handle
        launches = mine.launches(lambda: mine.program(rows(5)))
        assert [launch.stream for launch in launches] == [handle] * 2
    assert list(execution_._arenas._arenas) == streams
    assert execution_.arena_bytes == 2 * 4096
    mine.streams.handle = 0
    for handle in streams:
        fake.controls.fakeStreamDestroy(handle)


def test_a_captured_call_takes_no_arena_from_the_pool(mine: FakeProgram) -> None:
    fake = mine.fake
    mine.program(rows(5))
    before = mine.program._execution.arena_bytes
    mine.streams.handle = fake.controls.fakeStreamCreate(0)
    mine.streams.captured = True
    fake.controls.fakeBeginCapture(mine.streams.handle, 0)
    launches = mine.launches(lambda: mine.program(rows(5)))
    graph = fake.controls.fakeEndCapture(mine.streams.handle)
    assert graph, "nothing in the call spoils a capture"
    assert [launch.graph for launch in launches] == [graph] * 2
    assert mine.program._execution.arena_bytes == before
    fake.controls.fakeGraphDestroy(graph)
    fake.controls.fakeStreamDestroy(mine.streams.handle)
    mine.streams.handle, mine.streams.captured = 0, False


def test_a_capture_sees_a_weight_that_has_just_moved(mine: FakeProgram) -> None:
    """Weights are looked at first, or the graph would hold what was queued before as well."""
    fake = mine.fake
    mine.program(rows(5))
    weight = mine.program._weights.tensors[0]
    saved = weight.data
    try:
        weight.data = weight.data.clone()
        mine.streams.handle = fake.controls.fakeStreamCreate(0)
        mine.streams.captured = True
        fake.controls.fakeBeginCapture(mine.streams.handle, 0)
        up, down = mine.launches(lambda: mine.program(rows(5)))
        graph = fake.controls.fakeEndCapture(mine.streams.handle)
        addresses = [
            int.from_bytes(launch.parameter(number, 8), "little")
            for launch in (up, down)
            for number in range(launch.parameters)
        ]
        assert weight.data_ptr() in addresses
        assert saved.data_ptr() not in addresses
        fake.controls.fakeGraphDestroy(graph)
        fake.controls.fakeStreamDestroy(mine.streams.handle)
    finally:
        weight.data = saved
        mine.streams.handle, mine.streams.captured = 0, False


def test_a_captured_call_keeps_the_copies_that_it_reads(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may see meanwhile that a weight has moved, and make other ones."""
    artefacts, weights = residual()
    buffer = torch.zeros(weights[0].numel() + 1, dtype=torch.bfloat16)
    weight = buffer[1:].view(weights[0].shape)
    one = on_fake(artefacts, [weight, *weights[1:]], fake)
    [copied] = one.program._weights.copies()
    kept: list[Tensor] = []
    running = one.program._execution
    run = running.run

    def run_while_it_moves(*arguments: Any) -> None:
        run(*arguments)
        weight.data = weight.data.clone()
        assert one.program._weights.current().in_place[0] is weight

    monkeypatch.setattr(running, "run", run_while_it_moves)
    monkeypatch.setattr(running, "keep", kept.extend)
    one.streams.handle, one.streams.captured = fake.controls.fakeStreamCreate(0), True
    fake.controls.fakeBeginCapture(one.streams.handle, 0)
    one.program(rows(5))
    fake.controls.fakeGraphDestroy(fake.controls.fakeEndCapture(one.streams.handle))
    fake.controls.fakeStreamDestroy(one.streams.handle)
    assert any(tensor is copied for tensor in kept)


def test_copies_of_weights_outlive_a_program_that_was_captured(fake: Fake) -> None:
    artefacts, weights = residual()
    buffer = torch.zeros(weights[0].numel() + 1, dtype=torch.bfloat16)
    shifted = buffer[1:].view(weights[0].shape)
    one = on_fake(artefacts, [shifted, *weights[1:]], fake)
    [copied] = one.program._weights.copies()
    kept = weakref.ref(copied)
    del copied
    one.streams.handle = fake.controls.fakeStreamCreate(0)
    one.streams.captured = True
    fake.controls.fakeBeginCapture(one.streams.handle, 0)
    one.program(rows(5))
    graph = fake.controls.fakeEndCapture(one.streams.handle)
    stream = one.streams.handle
    del one
    gc.collect()
    assert kept() is not None
    fake.controls.fakeGraphDestroy(graph)
    fake.controls.fakeStreamDestroy(stream)


def test_threads(mine: FakeProgram) -> None:
    sizes = (1, 40, 300, 3000)
    calls = 50
    failures: list[Exception] = []

    def work(count: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(calls):
                    assert mine.program(rows(count)).shape == (count, WIDTH)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(count,)) for count in sizes]
    before = mine.fake.launches
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert mine.fake.launches == before + 2 * calls * len(sizes)
    stats = mine.program.stats()
    assert (stats.calls, stats.distinct_shapes) == (calls * len(sizes), len(sizes))


def test_programs_share_kernels(mine: FakeProgram) -> None:
    before = mine.fake.modules
    other = on_fake(*residual(), mine.fake)
    assert mine.fake.modules == before
    execution_, others = mine.program._execution, other.program._execution
    assert isinstance(execution_, GpuExecution)
    assert isinstance(others, GpuExecution)
    assert execution_.kernels == others.kernels
    del other, others
    gc.collect()
    check_call(mine, rows(9))


# Reports ------------------------------------------------------------------------------------------


def test_stats_and_explanation(shared: FakeProgram) -> None:
    stats = shared.program.stats()
    code = shared.program.artefacts.gpu
    assert code is not None
    assert stats.code_bytes == sum(len(variant.entry.cubin) for variant in code.variants)
    explanation = shared.program.explain(rows(5))
    for row, kernel in zip(explanation.kernels, code.kernels, strict=True):
        assert row.axes == ("tokens",)
        assert [bucket.launches for bucket in row.buckets] == [1] + [0] * (len(row.buckets) - 1)
        assert [bucket.reason for bucket in row.buckets] == [b.reason for b in kernel.buckets]
        assert all(bucket.registers > 0 for bucket in row.buckets)
    last = shared.program.explain(torch.zeros(8192, WIDTH, dtype=torch.bfloat16)).kernels[0]
    assert [bucket.launches for bucket in last.buckets][-1] == 1
    text = str(explanation)
    assert "Variants of gemm0 by tokens" in text
    assert re.search(r"1\.\.\d+ .*_s\d+_w\d+.*0 B .* us", text)
    assert repr(shared.program) == (
        "Program(x) for cuda (sm_90a): tokens=1..8192; 2 kernels, 2 launches"
    )


# Saving and loading -------------------------------------------------------------------------------


def load(path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> FakeProgram:
    """`shapejit.load` on the fake driver."""
    streams = FakeStreams()

    def on(artefacts: Artefacts, device: torch.device | None = None) -> execution.Execution:
        return GpuExecution.of(with_fake_code(artefacts), fake.driver.device(0), CPU, streams)

    monkeypatch.setattr(archive, "execution_for", on)
    return FakeProgram(fake, shapejit.load(path), streams)


def test_saved_programs(
    mine: FakeProgram, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.sj"
    mine.program.save(path)
    loaded = load(path, fake, monkeypatch)
    assert loaded.program.artefacts.gpu == mine.program.artefacts.gpu
    for name, weight in mine.program.named_weights().items():
        assert torch.equal(loaded.program.named_weights()[name], weight)
    assert loaded.program.stats().compiles == 0
    # The code is the fake driver's in both, so the names of variants are, too.
    check_call(loaded, rows(77))


def test_a_saved_program_needs_a_gpu_of_its_architecture(
    mine: FakeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.sj"
    mine.program.save(path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(LoadError) as raised:
        shapejit.load(path)
    assert str(raised.value) == (
        f'SJ-LOAD-014 "{path}" was built for NVIDIA GPUs of architecture sm_90a: this torch is a '
        "build without CUDA. Load it on a machine with such a GPU, or compile the model for the "
        "one at hand."
    )


def without(path: Path, member: str, instead: bytes | None) -> None:
    """Changes a member of a saved program, or leaves it out, as the manifest says then, too."""
    with zipfile.ZipFile(path) as saved:
        members = {name: saved.read(name) for name in saved.namelist()}
    manifest = json.loads(members["manifest.json"])
    if instead is None:
        del members[member], manifest["members"][member]
    else:
        members[member] = instead
        manifest["members"][member] = hashlib.sha256(instead).hexdigest()
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as saved:
        for name, data in members.items():
            saved.writestr(name, data)


@pytest.mark.parametrize(
    ("member", "instead", "message"),
    [
        ("gpu/code.json", None, "SJ-LOAD-005 .*gpu/code.json.* is missing"),
        ("gpu/code.json", b"{}", "SJ-LOAD-002 .*gpu/code.json cannot be understood"),
        ("gpu/0000.kernel", None, "SJ-LOAD-002 .*gpu/code.json cannot be understood"),
        ("gpu/0000.kernel", b"code", "SJ-LOAD-002 .*does not begin as the entry of a kernel"),
    ],
)
def test_damaged_programs(
    mine: FakeProgram, tmp_path: Path, member: str, instead: bytes | None, message: str
) -> None:
    path = tmp_path / "model.sj"
    mine.program.save(path)
    without(path, member, instead)
    with pytest.raises(LoadError, match=message):
        shapejit.load(path)


def test_gpus_that_cannot_be_used(fake: Fake) -> None:
    find = lambda: fake.driver  # noqa: E731
    assert usable_gpu(0, ("sm_90a",), find).number == 0
    with pytest.raises(TargetError, match=r"SJ-TARGET-006 .*sm_80: device 0, Fake 0, has sm_90a"):
        usable_gpu(0, ("sm_80",), find)
    with pytest.raises(TargetError, match=r"SJ-TARGET-006 .*no CUDA device 7"):
        usable_gpu(7, ("sm_90a",), find)

    def nothing() -> Driver:
        raise NoDriverError("there is no driver")

    with pytest.raises(TargetError, match="there is no driver"):
        usable_gpu(0, ("sm_90a",), nothing)
