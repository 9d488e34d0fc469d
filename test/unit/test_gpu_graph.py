# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs under constant graphs from Python, on a fake driver that runs their head kernels."""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from ctypes import CFUNCTYPE, POINTER, c_int64, c_void_p
from dataclasses import replace
from typing import Any

import pytest

from shapejit.cache.cubins import CubinEntry
from shapejit.codegen.ptxas import Resources
from shapejit.gpu.errors import DriverCallError, KernelInterfaceError, LaunchError
from shapejit.gpu.graph import RECORDS, GraphLaunch, GraphProgram, Head
from shapejit.gpu.interface import Grid, KernelInterface, Pointer, Size, TensorMap
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from unit.fake_cuda import Fake, FakeLaunch

IMAGE = b"fake\nadd 32 0 1024 8\nhead_32 43 0 1024 8 8 8 4 256\n"

ADD = KernelInterface(
    entry="add",
    threads=128,
    shared_bytes=0,
    cluster=1,
    grid=Grid(tiles=((0, 64),), ctas_per_sm=1),
    values=("s0", "64"),
    parameters=(
        TensorMap(operand=0, element="bf16", dims=(1, 0), strides=(1,), box=(64, 64)),
        Pointer(operand=1, offset=128),
        Size(value=0, bytes=4, offset=136),
    ),
    block=True,
    block_bytes=256,
    programmatic=True,
)

# Words: rows, input, output; fixed: columns, weight.
CALL_WORDS, WORD_COUNT = 3, 5
_SYMBOLS = c_int64 * 2


class Program:
    """A program of two launches of `ADD`; a call's symbols are a region and rows."""

    def __init__(self, fake: Fake, **arguments: Any) -> None:
        self.fake = fake
        module = Module(IMAGE, fake.driver.device(0))
        self.kernel = Kernel(ADD, module)
        self.asked: list[int] = []
        self.weight = 0x30000
        self._region = CFUNCTYPE(c_int64, POINTER(c_int64))(lambda symbols: symbols[0])
        words_type = CFUNCTYPE(None, POINTER(c_int64), c_void_p, c_void_p, POINTER(c_int64))
        self._words = words_type(self._write)
        self.graph = GraphProgram(
            Head(module, "head_32", 64, 32),
            call_words=CALL_WORDS,
            word_count=WORD_COUNT,
            region_of=_address(self._region),
            words_of=_address(self._words),
            launches=self._launches,
            **arguments,
        )

    def _write(self, symbols: Any, buffers: Any, arena: Any, words: Any) -> None:
        given = (symbols[1], 0x10000, arena or 0x20000, 64, self.weight)
        for number, word in enumerate(given):
            words[number] = word

    def _launches(self, region: int) -> Sequence[GraphLaunch]:
        self.asked.append(region)
        return (
            GraphLaunch(self.kernel, (1, 2), (0, 3)),
            GraphLaunch(self.kernel, (2, 4), (0, 3)),
        )

    def run(self, rows: int, *, region: int = 0, arena: int = 0x20000, stream: int = 0) -> None:
        self.graph.run(_SYMBOLS(region, rows), None, arena, stream)

    def last(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """What the last two launches read: address of the map, pointer, size."""
        count = self.fake.launches
        first, second = (self.fake.controls.fakeLaunchAt(count - 2 + i)[0] for i in (0, 1))
        return _read(first), _read(second)


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


def _read(launch: FakeLaunch) -> tuple[int, int, int]:
    entry = int.from_bytes(launch.parameter(0, 8), "little")
    block = ctypes.string_at(entry, ADD.block_bytes)
    return (
        int.from_bytes(block[:8], "little"),
        int.from_bytes(block[128:136], "little"),
        int.from_bytes(block[136:140], "little"),
    )


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    fake = Fake(tmp_path_factory.mktemp("fake"))
    yield fake
    gc.collect()
    assert fake.runtime.modules() == 0
    assert fake.controls.fakeExecutables() == fake.controls.fakeGraphs() == 0
    fake.check()


@pytest.fixture
def program(fake: Fake) -> Iterator[Program]:
    program = Program(fake)
    yield program
    program.graph.wait()  # the next test's failures are not for this one's graphs


def test_a_region_is_asked_for_when_it_is_first_needed(fake: Fake, program: Program) -> None:
    for rows, region in ((5, 0), (0, 0), (7, 3), (8, 3)):
        program.run(rows, region=region)
        assert program.last()[1] == (0x20000 if rows else _nothing(program), 0x30000, rows)
    assert program.asked == [0, 3]
    program.graph.wait()
    assert program.graph.use().graphs == 2


def _nothing(program: Program) -> int:
    """Where the map of an empty tensor points: to zeros of the library's own."""
    address = program.last()[0][0]
    assert not any(ctypes.string_at(address, 256))
    return address


def test_calls_go_to_the_graph_once_it_is_there(fake: Fake, program: Program) -> None:
    program.run(5)
    assert fake.last.executable is None
    assert program.last() == ((0x10000, 0x20000, 5), (0x20000, 0x30000, 5))
    program.graph.wait()
    for rows, arena in ((9, 0x40000), (1, 0x50000)):
        program.run(rows, arena=arena)
        assert fake.last.executable
        assert program.last() == ((0x10000, arena, rows), (arena, 0x30000, rows))
    use = program.graph.use()
    assert (use.stream_calls, use.graph_calls, use.captured_calls) == (1, 2, 0)
    assert (use.regions, use.instances, use.graphs, use.bindings) == (1, 1, 1, 1)
    assert use.patches == 2 + 2 + 1  # maps, sizes, the pointer to the arena, not the weight's


def test_grids(fake: Fake, program: Program) -> None:
    """A region says how many CTAs its launches can have work for."""
    launches = [
        GraphLaunch(program.kernel, (1, 2), (0, 3), ctas=5),
        GraphLaunch(program.kernel, (2, 4), (0, 3), ctas=1000),
    ]
    program.graph._launches = lambda region: launches
    for _ in range(2):
        program.run(7)
        program.graph.wait()
        count = fake.launches
        grids = [fake.controls.fakeLaunchAt(count - 2 + i)[0].grid[0] for i in (0, 1)]
        assert grids == [5, program.kernel.resident_ctas]


def test_graphs_can_be_made_ahead(fake: Fake, program: Program) -> None:
    with pytest.raises(LaunchError, match="before its weights are bound"):
        program.graph.prepare()
    program.graph.add_regions((2, 1, 2))
    program.graph.bind(_SYMBOLS(0, 0), None)
    program.graph.prepare()
    assert program.asked == [2, 1]
    assert program.graph.use().graphs == 2
    program.run(5, region=1)
    assert fake.last.executable
    assert program.graph.use().stream_calls == 0


def test_a_weight_that_moves(fake: Fake, program: Program) -> None:
    program.graph.add_regions((0,))
    program.graph.bind(_SYMBOLS(0, 0), None)
    program.graph.prepare()
    program.weight = 0x70000
    program.run(5)
    assert program.last()[1] == (0x20000, 0x70000, 5)
    assert program.graph.use().bindings == 2
    program.graph.wait()
    program.run(6)
    assert fake.last.executable
    assert program.last()[1] == (0x20000, 0x70000, 6)


def test_streams_have_instances(fake: Fake) -> None:
    program = Program(fake, most_instances=2)
    streams = [fake.controls.fakeStreamCreate(0) for _ in range(3)]
    for rows, stream in enumerate([*streams, *streams]):
        program.run(rows, stream=stream)
        assert program.last()[1][2] == rows
    assert program.graph.use().instances == 2
    for stream in streams:
        fake.controls.fakeStreamDestroy(stream)


def test_capture(fake: Fake) -> None:
    gc.collect()
    memory = fake.memory
    program = Program(fake)
    stream = fake.controls.fakeStreamCreate(0)
    fake.controls.fakeBeginCapture(stream, 0)
    program.run(5, stream=stream)
    graph = fake.controls.fakeEndCapture(stream)
    assert graph
    del program
    gc.collect()
    before = fake.launches
    fake.controls.fakeGraphReplay(graph)
    assert fake.launches == before + 3
    assert _read(fake.last) == (0x20000, 0x30000, 5)
    fake.controls.fakeGraphDestroy(graph)
    fake.controls.fakeStreamDestroy(stream)
    assert fake.runtime.modules() == 0
    del graph
    Program(fake).graph.use()  # frees what the graph had
    gc.collect()
    assert fake.memory == memory


def test_errors(fake: Fake, program: Program) -> None:
    with pytest.raises(LaunchError, match=r"s0 = -1.*kernel add"):
        program.run(-1)
    with pytest.raises(LaunchError, match=r"multiple of 16 bytes.*operand 0"):
        program.run(5, arena=0x20008)
    program.run(5)
    fake.controls.fakeFail(b"cuStreamGetId", 999, 0)
    with pytest.raises(DriverCallError, match="cuStreamGetId"):
        program.run(5)
    head = replace(program.graph.head, words=64)
    with pytest.raises(KernelInterfaceError, match=r"head_32.*256 bytes.* 64 words"):
        GraphProgram(head, call_words=3, word_count=5, region_of=0, words_of=0, launches=_none)
    with pytest.raises(KernelInterfaceError, match=r"words of a call is 33; .* 0\.\.32"):
        GraphProgram(
            program.graph.head,
            call_words=33,
            word_count=40,
            region_of=0,
            words_of=0,
            launches=_none,
        )


def _none(region: int) -> Sequence[GraphLaunch]:
    return ()


def test_a_launch_that_does_not_fit(fake: Fake, program: Program) -> None:
    launches: Callable[[int], Sequence[GraphLaunch]] = lambda region: (  # noqa: E731
        GraphLaunch(program.kernel, (1,), (0, 3)),
    )
    program.graph._launches = launches
    for _ in range(2):
        with pytest.raises(KernelInterfaceError, match=r"launch 0, kernel add: .*operand"):
            program.run(5)


def test_a_head_kernel_of_another_version(fake: Fake) -> None:
    interface = replace(ADD, entry=f"head_{RECORDS + 1}_32", block=False, block_bytes=0)
    entry = CubinEntry("head", interface, Resources(32, 0, 0, 0, 0, 0), IMAGE)
    with pytest.raises(KernelInterfaceError, match=r"head_\d+_32 .*compile the program again"):
        Head.load(entry, fake.driver.device(0))
    interface = replace(interface, entry=f"head_{RECORDS}_32")
    head = Head.load(replace(entry, interface=interface), fake.driver.device(0))
    assert (head.words, head.threads, head.entry) == (32, 128, f"head_{RECORDS}_32")


def test_a_graph_that_cannot_be_made_ahead(
    fake: Fake, program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    program.graph.add_regions((0, 1))
    program.graph.bind(_SYMBOLS(0, 0), None)
    fake.controls.fakeFail(b"cuGraphCreate", 999, 0)
    with caplog.at_level(logging.WARNING, "shapejit.runtime"):
        program.graph.prepare()
    assert "cuGraphCreate" in caplog.text
    program.run(5)
    program.run(5, region=1)
    assert program.last()[1] == (0x20000, 0x30000, 5)


def test_whatever_goes_wrong_in_the_background_is_logged(
    program: Program, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: GraphProgram) -> int:
        raise MemoryError("no room")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "shapejit.runtime"):
        patch.setattr(GraphProgram, "_prepare_one", fail)
        program.run(5)
        program.graph.wait()
    assert "no room" in caplog.text
    program.run(5)
    program.graph.wait()
    assert program.graph.use().graphs == 1


def test_a_graph_that_cannot_be_made(
    fake: Fake, program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    fake.controls.fakeFail(b"cuGraphInstantiateWithFlags", 999, 0)
    with caplog.at_level(logging.WARNING, "shapejit.runtime"):
        program.run(5)
        program.graph.wait()
    assert "cuGraphInstantiateWithFlags" in caplog.text
    program.run(6)
    assert fake.last.executable is None
    assert program.last()[1] == (0x20000, 0x30000, 6)
    assert program.graph.use().stream_calls == 2


def test_threads(fake: Fake, program: Program) -> None:
    failures: list[BaseException] = []

    def call(number: int) -> None:
        stream = fake.controls.fakeStreamCreate(0)
        try:
            for rows in range(100):
                program.run(rows, region=(number + rows) % 3, stream=stream)
        except BaseException as error:
            failures.append(error)
        fake.controls.fakeStreamDestroy(stream)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    program.graph.wait()
    use = program.graph.use()
    assert use.stream_calls + use.graph_calls == 400
    assert (use.regions, use.instances) == (3, 4)
    assert sorted(program.asked) == [0, 1, 2]


def test_programs_go(fake: Fake) -> None:
    gc.collect()
    memory, modules = fake.memory, fake.modules
    program = Program(fake)
    program.run(5)
    program.graph.wait()
    assert fake.memory > memory
    assert fake.controls.fakeExecutables() == 1
    del program
    gc.collect()
    assert (fake.memory, fake.modules) == (memory, modules)
    assert fake.controls.fakeExecutables() == 0
