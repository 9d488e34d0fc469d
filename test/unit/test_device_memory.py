# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Large arenas from the driver, on the fake one: what was outgrown goes back at once."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shapejit import arena as arena_module
from shapejit.arena import LARGE, ArenaError, StreamArenas
from shapejit.gpu.device import Device
from shapejit.gpu.device_memory import DeviceMemory, device_arena
from shapejit.gpu.errors import DriverCallError
from unit.fake_cuda import Fake
from unit.gpu_programs import CPU
from unit.test_cuda_concurrency import call_often, check_last, in_threads, on_streams

OUT_OF_MEMORY = 2


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    fake = Fake(tmp_path)
    yield fake
    gc.collect()
    fake.check()


@pytest.fixture
def device(fake: Fake) -> Device:
    return fake.driver.device(0)


def arenas_of(device: Device, limit: int = 4) -> StreamArenas:
    return StreamArenas(CPU, limit, functools.partial(device_arena, device))


def test_memory_goes_back_with_its_object(fake: Fake, device: Device) -> None:
    first, second = DeviceMemory(device, 1000), DeviceMemory(device, 5 << 30)
    before = fake.memory
    assert (first.size, second.size) == (1000, 5 << 30)
    assert first.address % 256 == second.address % 256 == 0
    assert first.address != second.address
    del second
    assert before - fake.memory == 5 << 30
    del first
    assert before - fake.memory == (5 << 30) + 1000


def test_memory_of_another_device(fake: Fake) -> None:
    """It is made and freed in that device's context; the caller's stays current."""
    fake.controls.fakeSetContext(0)
    memory = DeviceMemory(fake.driver.device(1), LARGE)
    assert fake.controls.fakeContext() == 0
    del memory
    assert fake.controls.fakeContext() == 0


def test_no_memory(fake: Fake, device: Device) -> None:
    DeviceMemory(device, 1)
    before = fake.memory
    fake.controls.fakeFail(b"cuMemAlloc", OUT_OF_MEMORY, 0)
    with pytest.raises(DriverCallError, match=r"cuMemAlloc failed.*12345 bytes"):
        DeviceMemory(device, 12345)
    fake.controls.fakeFail(b"cuMemAlloc", OUT_OF_MEMORY, 0)
    with pytest.raises(ArenaError, match="cuMemAlloc failed"):
        device_arena(device, 12345)
    assert fake.memory == before


def test_what_an_arena_outgrew_goes_back(fake: Fake, device: Device) -> None:
    DeviceMemory(device, 1)
    before, arenas = fake.memory, arenas_of(device)
    for size in (LARGE, 3 * LARGE, 50 * LARGE, 550 * LARGE):
        arena = arenas.of(7, size)
        assert fake.memory - before == arenas.bytes == arena.size
        assert size <= arena.size <= size * 9 // 8
    assert arenas.of(7, LARGE) is arena
    del arena
    arenas.release()
    assert (fake.memory, arenas.bytes) == (before, 0)


def test_small_arenas_are_torchs(fake: Fake, device: Device) -> None:
    DeviceMemory(device, 1)
    before, arenas = fake.memory, arenas_of(device)
    arena = arenas.of(7, LARGE // 2)
    assert isinstance(arena.memory, torch.Tensor)
    assert fake.memory == before


def test_a_call_that_is_being_queued_keeps_its_arena(fake: Fake, device: Device) -> None:
    arenas = arenas_of(device)
    mine = arenas.of(7, LARGE)
    before = fake.memory
    others = arenas.of(7, 4 * LARGE)
    assert fake.memory - before == others.size, "a call has not queued what uses the first one yet"
    del mine
    assert fake.memory - before == others.size - LARGE


def test_torch_is_asked_where_the_driver_has_no_room(fake: Fake, device: Device) -> None:
    """Its allocator gives back what it keeps before it fails, and says so in its own words."""
    arenas = arenas_of(device)
    fake.controls.fakeFail(b"cuMemAlloc", OUT_OF_MEMORY, 0)
    assert isinstance(arenas.of(7, LARGE).memory, torch.Tensor)
    assert isinstance(arenas.of(7, 2 * LARGE).memory, DeviceMemory)
    fake.controls.fakeFail(b"cuMemAlloc", OUT_OF_MEMORY, 0)
    with pytest.raises(ArenaError, match="llocate"):
        arenas.of(7, 1 << 60)
    assert arenas.bytes == 0
    assert isinstance(arenas.of(7, 2 * LARGE).memory, DeviceMemory)


def test_streams_that_take_turns_do_not_ask_the_driver(fake: Fake, device: Device) -> None:
    """It would wait for the device in every call."""
    arenas = arenas_of(device, limit=2)
    for stream in range(5):
        arenas.of(stream, LARGE)
    asked = fake.controls.fakeCalls(b"cuMemAlloc"), fake.controls.fakeCalls(b"cuMemFree")
    for stream in range(20):
        assert isinstance(arenas.of(stream % 5, LARGE).memory, torch.Tensor)
    assert asked == (fake.controls.fakeCalls(b"cuMemAlloc"), fake.controls.fakeCalls(b"cuMemFree"))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_arenas_grow_while_a_stream_is_captured(
    elsewhere: bool, fake: Fake, device: Device
) -> None:
    """In the capturing thread, or in another one; the mode forbids allocations in both."""
    arenas = arenas_of(device)
    arenas.of(7, LARGE)
    fake.controls.fakeSetContext(0)
    stream = fake.controls.fakeStreamCreate(0)
    fake.controls.fakeBeginCapture(stream, 0)

    def grow() -> None:
        fake.controls.fakeSetContext(0)
        assert isinstance(arenas.of(7, 3 * LARGE).memory, DeviceMemory)

    if elsewhere:
        thread = threading.Thread(target=grow)
        thread.start()
        thread.join()
    else:
        grow()
    graph = fake.controls.fakeEndCapture(stream)
    assert graph, "nothing spoils the capture"
    fake.controls.fakeGraphDestroy(graph)
    fake.controls.fakeStreamDestroy(stream)


def test_programs_in_threads_with_the_drivers_memory(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stream's calls are right while all arenas grow; none of them is left over."""
    monkeypatch.setattr(arena_module, "LARGE", 1)
    one = on_streams(fake)
    streams = [fake.controls.fakeStreamCreate(0) for _ in range(4)]
    last: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
    in_threads(
        *(
            functools.partial(call_often, one, stream, seed, last)
            for seed, stream in enumerate(streams)
        )
    )
    for stream, (x, y, address) in last.items():
        one.streams.handle = stream
        check_last(one, stream, x, y, address)
    held, before = one.program.stats().arena_bytes, fake.memory
    assert held > 0
    one.program._execution.release()
    assert before - fake.memory == held
    for stream in streams:
        fake.controls.fakeStreamDestroy(stream)
