# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs under constant graphs on a fake driver: what their kernels find in the block."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import threading
from collections.abc import Iterator, Sequence
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
from shapejit.errors import LoadError
from shapejit.gpu import graph
from shapejit.gpu.errors import DriverCallError
from shapejit.gpu.interface import KernelInterface, Size, TensorMap
from shapejit.gpu.program_code import GpuCode, GpuVariant
from shapejit.gpu.program_graphs_run import GraphExecution
from shapejit.gpu.program_run import GpuExecution
from shapejit.symbolic import Expr
from unit.fake_cuda import Fake
from unit.gpu_programs import (
    CPU,
    Deep,
    FakeProgram,
    FakeStreams,
    build,
    deep,
    on_fake,
    rows,
    with_fake_code,
)
from unit.test_cuda_program import without

WIDTH = 64
LAUNCHES = 4


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    fake = Fake(tmp_path_factory.mktemp("fake"))
    yield fake
    gc.collect()
    fake.check()


@pytest.fixture(scope="module")
def shared(fake: Fake) -> FakeProgram:
    """`Deep` with up to 8192 rows of 64."""
    return on_fake(*deep(), fake)


@pytest.fixture
def mine(fake: Fake) -> FakeProgram:
    """The same program for one test alone."""
    return on_fake(*deep(), fake)


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def graphs(one: FakeProgram) -> GraphExecution:
    """The execution of a program under graphs."""
    execution_ = one.program._execution
    assert isinstance(execution_, GraphExecution)
    return execution_


def parameters(interface: KernelInterface, entry: bytes) -> list[bytes]:
    """The parameters in an entry of a block."""
    found = []
    for parameter in interface.parameters:
        size = 128 if isinstance(parameter, TensorMap) else 8
        if isinstance(parameter, Size):
            size = parameter.bytes
        found.append(entry[parameter.offset : parameter.offset + size])
    return found


def variant_at(one: FakeProgram, number: int, count: int) -> tuple[int, GpuVariant]:
    """The variant of kernel `number` for that many rows, found apart from the host program."""
    code = one.program.artefacts.gpu
    assert code is not None
    fitting = [
        bucket
        for bucket in code.kernels[number].buckets
        if bucket.lower[0] <= count <= (bucket.upper[0] or count)
    ]
    assert len(fitting) == 1
    return fitting[0].variant, code.variants[fitting[0].variant]


def check_launch(
    one: FakeProgram, launch: Any, number: int, operands: Sequence[int], count: int
) -> None:
    """A launch is that of kernel `number` for so many rows, and finds its parameters."""
    place, variant = variant_at(one, number, count)
    assert launch.entry.decode() == variant.name[:63]
    assert launch.parameters == 1
    interface = variant.entry.interface
    kernel = graphs(one).kernels[place]
    assert launch.grid[0] == grid_of(one, number, count) * interface.cluster
    address = int.from_bytes(launch.parameter(0, 8), "little")
    found = parameters(interface, ctypes.string_at(address, interface.block_bytes))
    space = ctypes.create_string_buffer(interface.block_bytes + 64)
    entry = -(-ctypes.addressof(space) // 64) * 64
    values = [Expr.parse(v).evaluate(symbols=[count]) for v in interface.values]
    kernel.fill_block(operands, values, entry, 256 if kernel.workspace_bytes else None)
    expected = parameters(interface, ctypes.string_at(entry, interface.block_bytes))
    assert found == expected


def grid_of(one: FakeProgram, number: int, count: int) -> int:
    """The clusters of a launch: no more than the region's largest size has work for."""
    code = one.program.artefacts.gpu
    assert code is not None
    starts = {bucket.lower[0] for kernel in code.kernels for bucket in kernel.buckets}
    following = [start for start in starts if start > count]
    most = min(following) - 1 if following else code.kernels[0].buckets[-1].upper[0]
    assert most is not None
    place, variant = variant_at(one, number, count)
    interface = variant.entry.interface
    values = [Expr.parse(v).evaluate(symbols=[most]) for v in interface.values]
    units = math.prod(-(-values[value] // tile) for value, tile in interface.grid.tiles)
    return min(units, graphs(one).kernels[place].resident_ctas // interface.cluster)


def check_call(one: FakeProgram, x: Tensor, *, graph: bool = True) -> None:
    """A call runs the head kernel and then four products, from the input to the output."""
    result: list[Tensor] = []
    head, *launches = one.launches(lambda: result.append(one.program(x)))
    [y] = result
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert head.entry.startswith(b"head_")
    assert head.programmatic == 0, "it waits for all that is queued before"
    assert [bool(launch.executable) for launch in (head, *launches)] == [graph] * (1 + LAUNCHES)
    assert {launch.stream for launch in (head, *launches)} == {one.streams.handle or None}
    # Full after the head kernel, then programmatic.
    assert [launch.programmatic for launch in launches] == [0] + [1] * (LAUNCHES - 1)
    weights = [weight.data_ptr() for weight in one.program.all_weights()]
    arena = arena_of(one)
    middle, between = arena, arena + -(-x.shape[0] * 2 * 2 * WIDTH // 256) * 256
    count = x.shape[0]
    check_launch(one, launches[2], 0, [between, *weights[4:6], middle], count)
    check_launch(one, launches[3], 1, [middle, *weights[6:8], between, y.data_ptr()], count)
    check_launch(one, launches[0], 0, [x.data_ptr(), *weights[0:2], middle], count)
    check_launch(one, launches[1], 1, [middle, *weights[2:4], x.data_ptr(), between], count)


def arena_of(one: FakeProgram) -> int:
    """The address of the arena that the stream's last call had."""
    return graphs(one)._arenas._arenas[one.streams.handle].address


# Calls --------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8192))
def test_blocks_at_any_size(shared: FakeProgram, count: int) -> None:
    check_call(shared, torch.zeros(count, WIDTH, dtype=torch.bfloat16))


def test_blocks_at_the_ends_of_buckets(shared: FakeProgram) -> None:
    code = shared.program.artefacts.gpu
    assert code is not None
    ends = {
        end
        for kernel in code.kernels
        for bucket in kernel.buckets
        for end in (bucket.lower[0], bucket.upper[0])
    }
    assert len(ends) > 4, "there are several regions"
    for end in ends:
        assert end is not None
        check_call(shared, torch.zeros(end, WIDTH, dtype=torch.bfloat16))


def test_all_graphs_are_made_before_the_first_call(mine: FakeProgram) -> None:
    code = mine.program.artefacts.gpu
    assert code is not None
    assert code.graph is not None
    stats = mine.program.stats().graphs
    assert stats is not None
    assert stats.regions == stats.graphs == len(code.graph.regions) > 2
    assert (stats.instances, stats.bindings) == (1, 1)
    assert (stats.graph_calls, stats.stream_calls) == (0, 0)
    created = mine.fake.controls.fakeCalls(b"cuGraphInstantiateWithFlags")
    for count in (1, 700, 1500, 3000, 8192):
        check_call(mine, rows(count))
    assert mine.fake.controls.fakeCalls(b"cuGraphInstantiateWithFlags") == created
    stats = mine.program.stats().graphs
    assert stats is not None
    assert (stats.graph_calls, stats.stream_calls) == (5, 0)


def test_static_sizes(fake: Fake) -> None:
    one = on_fake(*build(Deep(), (rows(7),), None), fake)
    launches = one.launches(lambda: one.program(rows(7)))
    assert len(launches) == 1 + LAUNCHES
    assert all(launch.executable for launch in launches)
    explanation = one.program.explain(rows(7))
    assert [(row.number, row.example, row.here) for row in explanation.regions] == [(0, (), True)]


def test_empty_inputs_run_all_the_same(fake: Fake) -> None:
    shapes = {"x": {0: torch.export.Dim("tokens", min=0, max=64)}}
    one = on_fake(*build(Deep(), (rows(7),), shapes), fake)
    result: list[Tensor] = []
    launches = one.launches(lambda: result.append(one.program(rows(0))))
    assert len(launches) == 1 + LAUNCHES, "the kernels find that there is nothing to do"
    assert result[0].shape == (0, WIDTH)
    check_call(one, rows(1))


# Weights ------------------------------------------------------------------------------------------


def test_a_weight_at_another_address_is_seen(mine: FakeProgram) -> None:
    check_call(mine, rows(3))
    weight = mine.program._weights.tensors[0]
    old = weight.data_ptr()
    saved = weight.data
    try:
        weight.data = weight.data.clone()
        assert weight.data_ptr() != old
        mine.program(rows(3))
        graphs(mine)._program.wait()
        check_call(mine, rows(3))
        stats = mine.program.stats().graphs
        assert stats is not None
        assert stats.bindings == 2
    finally:
        weight.data = saved
    mine.program(rows(3))
    graphs(mine)._program.wait()
    check_call(mine, rows(3))


def test_a_weight_written_in_place_changes_nothing(mine: FakeProgram) -> None:
    check_call(mine, rows(3))
    weight = mine.program._weights.tensors[0]
    weight.copy_(weight.clone())
    check_call(mine, rows(3))
    stats = mine.program.stats().graphs
    assert stats is not None
    assert stats.bindings == 1


# Streams, captures, threads -----------------------------------------------------------------------


def test_each_stream_has_graphs_of_its_own(mine: FakeProgram) -> None:
    fake = mine.fake
    check_call(mine, rows(5))
    mine.streams.handle = fake.controls.fakeStreamCreate(0)
    try:
        mine.program(rows(5))
        graphs(mine)._program.wait()
        check_call(mine, rows(5))
        stats = mine.program.stats().graphs
        assert stats is not None
        assert stats.instances >= 2
        assert mine.program._execution.arena_bytes == 2 * 4096
    finally:
        fake.controls.fakeStreamDestroy(mine.streams.handle)
        mine.streams.handle = 0


def test_a_captured_call_belongs_to_its_graph(mine: FakeProgram) -> None:
    fake = mine.fake
    check_call(mine, rows(5))
    before = mine.program._execution.arena_bytes
    mine.streams.handle = fake.controls.fakeStreamCreate(0)
    mine.streams.captured = True
    fake.controls.fakeBeginCapture(mine.streams.handle, 0)
    launches = mine.launches(lambda: mine.program(rows(5)))
    graph = fake.controls.fakeEndCapture(mine.streams.handle)
    assert graph, "nothing in the call spoils a capture"
    assert [launch.graph for launch in launches] == [graph] * (1 + LAUNCHES)
    assert mine.program._execution.arena_bytes == before
    entries = {launch.parameter(0, 8) for launch in launches[1:]}
    assert len(entries) == LAUNCHES
    mine.streams.handle, mine.streams.captured = 0, False
    again = mine.launches(lambda: mine.program(rows(5)))
    assert not entries & {launch.parameter(0, 8) for launch in again[1:]}, "blocks are shared"
    stats = mine.program.stats().graphs
    assert stats is not None
    assert stats.captured_calls == 1
    fake.controls.fakeGraphDestroy(graph)


def test_threads(mine: FakeProgram) -> None:
    sizes = (1, 40, 900, 5000)
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
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    stats = mine.program.stats()
    assert stats.graphs is not None
    assert (stats.calls, stats.distinct_shapes) == (calls * len(sizes), len(sizes))
    assert stats.graphs.graph_calls + stats.graphs.stream_calls == calls * len(sizes)


# Failures, memory ---------------------------------------------------------------------------------


def test_a_failed_call(mine: FakeProgram) -> None:
    check_call(mine, rows(3))
    mine.fake.controls.fakeFail(b"cuGraphLaunch", 700, 0)
    with pytest.raises(DriverCallError, match=r"ILLEGAL_ADDRESS"):
        mine.program(rows(3))
    assert mine.program._execution.arena_bytes == 4096
    check_call(mine, rows(3))


def test_graphs_that_cannot_be_made(fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    """Calls do without them, and it is said."""
    fake.controls.fakeFail(b"cuGraphInstantiateWithFlags", 2, 0)
    with caplog.at_level("WARNING", "shapejit"):
        one = on_fake(*deep(), fake)
    assert "a graph cannot be made, calls launch kernel by kernel: SJ-CUDA-002" in caplog.text
    for count in (1, 700, 8192):
        x = rows(count)
        assert len(one.launches(lambda x=x: one.program(x))) == 1 + LAUNCHES  # type: ignore[misc]


def test_nothing_is_left_of_a_program(fake: Fake) -> None:
    gc.collect()
    memory, executables = fake.controls.fakeMemory(), fake.controls.fakeExecutables()
    modules = fake.modules
    one = on_fake(*deep(), fake)
    check_call(one, rows(3))
    assert fake.controls.fakeExecutables() > executables
    del one
    gc.collect()
    assert fake.controls.fakeExecutables() == executables
    assert fake.modules == modules
    assert fake.controls.fakeMemory() == memory


# Reports ------------------------------------------------------------------------------------------


def test_regions_in_reports(shared: FakeProgram) -> None:
    code = shared.program.artefacts.gpu
    assert code is not None
    assert code.graph is not None
    for count in (1, 1500, 8192):
        explanation = shared.program.explain(rows(count))
        assert len(explanation.regions) == len(code.graph.regions)
        [here] = [row for row in explanation.regions if row.here]
        names = [variant_at(shared, kernel, count)[1].name for kernel in (0, 1)]
        assert set(here.variants) <= set(names)
        for row in explanation.regions:
            assert row.example is not None
            [size] = row.example
            ran = [variant_at(shared, kernel, size)[1].name for kernel in (0, 1)]
            assert set(row.variants) <= set(ran)
        text = str(explanation)
        assert "Regions, with one graph each" in text
        assert f"{here.number} (this call)" in text
    text = str(shared.program.stats())
    assert "Constant graphs" in text
    assert "captured calls" in text


# Saving and loading -------------------------------------------------------------------------------


def load(path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> FakeProgram:
    """`shapejit.load` on the fake driver."""
    streams = FakeStreams()

    def on(artefacts: Artefacts, device: torch.device | None = None) -> execution.Execution:
        return GpuExecution.of(with_fake_code(artefacts), fake.driver.device(0), CPU, streams)

    monkeypatch.setattr(archive, "execution_for", on)
    return FakeProgram(fake, shapejit.load(path), streams)


def saved(fake: Fake, folder: Path) -> Path:
    """A saved program, with real machine code."""
    artefacts, weights = deep()
    one = on_fake(artefacts, weights, fake)
    one.program.artefacts = artefacts
    path = folder / "model.sj"
    one.program.save(path)
    return path


def test_saved_programs(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(saved(fake, tmp_path), fake, monkeypatch)
    assert loaded.program.artefacts.gpu == deep()[0].gpu
    for count in (77, 5000):
        check_call(loaded, rows(count))


def test_a_head_kernel_of_another_version(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(fake, tmp_path)
    monkeypatch.setattr(graph, "RECORDS", 99)
    with pytest.raises(LoadError, match=r"SJ-LOAD-010 .*99: compile the program again"):
        load(path, fake, monkeypatch)


@pytest.mark.parametrize(
    ("member", "instead", "message"),
    [
        ("gpu/head.kernel", None, "SJ-LOAD-002 .*a head kernel belongs to a program under graphs"),
        ("gpu/head.kernel", b"code", "SJ-LOAD-002 .*does not begin as the entry of a kernel"),
        ("gpu/0001.kernel", None, "SJ-LOAD-002 .*gpu/code.json cannot be understood"),
    ],
)
def test_damaged_programs(
    fake: Fake, tmp_path: Path, member: str, instead: bytes | None, message: str
) -> None:
    path = saved(fake, tmp_path)
    without(path, member, instead)
    with pytest.raises(LoadError, match=message):
        shapejit.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g["words"].pop(), "has a word out of range"),
        (lambda g: g["launches"][0][2].pop(), "has other variants than that"),
        (lambda g: g["regions"][0][0].__setitem__(0, 99), "has no variant of gemm0"),
        (lambda g: g["regions"][0][0].pop(), "zip"),
        (lambda g: g["regions"][0][1].pop(), "zip"),
        (lambda g: g["regions"][0][1].__setitem__(0, -1), "has -1 units of gemm0"),
        (lambda g: g.__setitem__("call_words", 99), "not 99 of a call"),
        (lambda g: g["order"].append(99), "one that is not there"),
    ],
)
def test_damaged_records(change: Any, message: str) -> None:
    code = deep()[0].gpu
    assert code is not None
    assert code.graph is not None
    record = json.loads(json.dumps(code.to_json()))
    data = [variant.data for variant in code.variants]
    assert GpuCode.from_json(json.dumps(record), data, code.graph.head) == code
    change(record["graph"])
    with pytest.raises(ValueError, match=message):
        GpuCode.from_json(json.dumps(record), data, code.graph.head)
