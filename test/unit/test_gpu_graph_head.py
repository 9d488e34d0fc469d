# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The head kernel: as it is emitted, on a simulated GPU, with the tables that the runtime makes."""

from __future__ import annotations

import ctypes
import functools
import random
import struct
from collections.abc import Iterator, Sequence
from ctypes import CFUNCTYPE, POINTER, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest

import reference.hopper.tensor_maps  # noqa: F401 (registers what head kernels do)
import shapejit.passes.add_gpu_head  # noqa: F401 (registers the pass)
from reference import sass
from reference.hopper.interpreter import Function
from reference.hopper.launch import kernel_function
from reference.hopper.machine import Cta, Machine, Warp
from reference.hopper.memory import GlobalMemory, TiledMap
from shapejit import ir as sir
from shapejit.codegen.ptx import private_context, translate
from shapejit.codegen.ptxas import Cubin, PtxasError, assemble, find_ptxas
from shapejit.gpu.errors import LaunchError
from shapejit.gpu.graph import RECORDS, GraphLaunch, GraphProgram, Head
from shapejit.gpu.interface import (
    Grid,
    Im2colMap,
    KernelInterface,
    Parameter,
    Pointer,
    Size,
    TensorMap,
)
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.pass_host import run_pipeline
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.head import (
    CAPACITIES,
    MAP_WORDS,
    RECORD_BYTES,
    TENSOR_MAP,
    THREADS,
    capacity,
    emit_head,
)
from shapejit.passes.nvgpu.pipeline import NVVM_PIPELINE, finish
from shapejit.passes.nvgpu.target import HOPPER
from unit.fake_cuda import Fake


def test_capacities() -> None:
    assert [capacity(words) for words in (0, 32, 33, 500, 2048)] == [32, 32, 128, 512, 2048]
    with pytest.raises(ValueError, match=r"4081 words .* there can be 4080"):
        capacity(4081)


# The kernel ---------------------------------------------------------------------------------------


@functools.cache
def _emitted(words: int) -> tuple[Any, Any]:
    """The context and the ``gpu.module`` of a head kernel."""
    context = ir.Context()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            interface = emit_head(words, HOPPER)
        assert (interface.threads, interface.entry) == (THREADS, f"head_{RECORDS}_{words}")
        module.operation.verify()
    return context, module


def test_other_capacities_are_refused() -> None:
    with (
        ir.Context(),
        ir.Location.unknown(),
        ir.InsertionPoint(ir.Module.create().body),
        pytest.raises(LoweringError, match="has 33 words"),
    ):
        emit_head(33, HOPPER)


def _assembled(words: int) -> Cubin:
    with private_context():
        module = ir.Module.parse('module attributes {shapejit.target = "cuda:sm_90a"} {}')
        run_pipeline(module, f"shapejit-add-gpu-head{{words={words}}}", stage="test")
        run_pipeline(module, NVVM_PIPELINE, stage="test")
        finish(module)
        [code] = translate(module)
    return assemble(code.ptx, code.arch)


@pytest.mark.parametrize("words", CAPACITIES)
def test_machine_code(words: int) -> None:
    try:
        find_ptxas()
    except PtxasError as error:
        pytest.skip(str(error))
    made = _assembled(words)
    resources = made.resources[f"head_{RECORDS}_{words}"]
    assert resources.registers <= 64
    assert resources.stack_bytes == resources.spill_load_bytes == 0
    assert not made.warnings


@sass.needs_nvdisasm
def test_disassembly() -> None:
    [function] = sass.disassemble(_assembled(128).data).values()
    assert not function.local_memory
    assert not function.read_never_written
    assert function.count("MEMBAR") == 1  # what releases maps


# What it writes -----------------------------------------------------------------------------------

_FAKE_MAP = struct.Struct("<Q4B4x5Q4Q5H6x24x")


@dataclass
class _Map:
    """A tensor map as the fake driver encodes it."""

    address: int
    rank: int
    dims: list[int]
    pitches: list[int]
    box: list[int]

    @staticmethod
    def of(data: bytes) -> _Map:
        address, _, rank, _, _, *rest = _FAKE_MAP.unpack(data)
        return _Map(address, rank, rest[:rank], rest[5 : 4 + rank], rest[9 : 9 + rank])

    def tiled(self) -> TiledMap:
        return TiledMap(
            self.address, 2, tuple(self.dims), (2, *self.pitches), tuple(self.box), swizzle=0
        )


_KERNELS = 3
_IMAGE = "fake\n" + "".join(f"k{i} 32 0 1024 8\n" for i in range(_KERNELS))
_IMAGE += "head_512 43 0 1024 8 8 8 4 4096\n"
CALL_WORDS, WORD_COUNT, HEAD_WORDS = 14, 24, 512


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    fake = Fake(tmp_path_factory.mktemp("fake"))
    yield fake
    fake.check()


def _image_map(random_: random.Random, offset: int) -> Im2colMap:
    """A map in im2col mode, which calls encode."""
    spatial = random_.randint(1, 3)

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(random_.randint(low, high) for _ in range(spatial))

    return Im2colMap(
        random_.randrange(4),
        "bf16",
        tuple(random_.randrange(6) for _ in range(spatial + 2)),
        tuple(random_.randrange(6) for _ in range(spatial + 1)),
        channels=64,
        pixels=random_.randint(1, 1024),
        lower=each(-3, 0),
        upper=each(-4, 3),
        steps=each(1, 8),
        offset=offset,
    )


def _kernel(random_: random.Random, name: str, module: Module) -> Kernel:
    parameters: list[Parameter] = []
    offset = 0
    for _ in range(random_.randrange(3)):
        parameters.append(_image_map(random_, offset))
        offset += 128
    for _ in range(random_.randint(1, 3)):
        rank = random_.randint(1, 5)
        dims = tuple(random_.randrange(6) for _ in range(rank))
        strides = tuple(random_.randrange(6) for _ in range(rank - 1))
        operand = random_.randrange(4)
        parameters.append(
            TensorMap(operand, "bf16", dims, strides, (8,) * rank, swizzle=0, offset=offset)
        )
        offset += 128
    for _ in range(random_.randint(0, 4)):
        kind = random_.randrange(3)
        value = random_.randrange(6)
        if kind == 0:
            parameters.append(Pointer(random_.randrange(4), offset=offset))
        else:
            parameters.append(Size(value, bytes=4 * kind, offset=offset))
        offset += 8
    return Kernel(
        KernelInterface(
            entry=name,
            threads=32,
            shared_bytes=0,
            cluster=1,
            grid=Grid(((0, 1),), 1),
            values=tuple(f"v{i}" for i in range(6)),
            parameters=tuple(parameters),
            block=True,
            block_bytes=-(-offset // 128) * 128,
        ),
        module,
    )


class _Program:
    """A program of random kernels, whose symbols are its words."""

    def __init__(self, fake: Fake, random_: random.Random) -> None:
        self._fake = fake
        module = Module(_IMAGE.encode(), fake.driver.device(0))
        self.launches = launches = [
            GraphLaunch(
                _kernel(random_, f"k{i}", module),
                tuple(random_.randrange(WORD_COUNT) for _ in range(4)),
                tuple(random_.randrange(WORD_COUNT) for _ in range(6)),
            )
            for i in range(_KERNELS)
        ]
        self._region = CFUNCTYPE(c_int64, c_void_p)(lambda symbols: 0)
        words_type = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, POINTER(c_int64))
        self._words = words_type(
            lambda symbols, _, __, words: ctypes.memmove(words, symbols, 8 * WORD_COUNT) and None
        )
        self._graph = GraphProgram(
            Head(module, f"head_{HEAD_WORDS}", THREADS, HEAD_WORDS),
            call_words=CALL_WORDS,
            word_count=WORD_COUNT,
            region_of=ctypes.cast(self._region, c_void_p).value or 0,
            words_of=ctypes.cast(self._words, c_void_p).value or 0,
            launches=lambda region: launches,
        )

    def run(self, words: Sequence[int]) -> None:
        self._graph.run((c_int64 * WORD_COUNT)(*words), None, None, 0)
        self._graph.wait()

    @property
    def block_bytes(self) -> int:
        return self._graph.use().block_bytes

    def encoded_maps(self, words: Sequence[int]) -> dict[int, bytes]:
        """The maps in im2col mode of a call, by their offsets in the block, as launches by value
        would encode them."""
        found, start = {}, 0
        for launch in self.launches:
            interface = launch.kernel.interface
            buffer = ctypes.create_string_buffer(interface.block_bytes + 128)
            entry = -(-ctypes.addressof(buffer) // 128) * 128
            numbers = launch.operands[: launch.kernel.operand_count]
            operands, values = ([words[n] for n in ns] for ns in (numbers, launch.values))
            launch.kernel.fill_block(operands, values, entry, None)
            for parameter in interface.parameters:
                if isinstance(parameter, Im2colMap):
                    data = ctypes.string_at(entry + parameter.offset, 128)
                    found[start + parameter.offset] = data
            start += interface.block_bytes
        return found

    def _last(self) -> Any:
        return self._fake.controls.fakeLaunchAt(self._fake.launches - 1 - _KERNELS)[0]

    def last_words(self, count: int) -> list[int]:
        """The first words that the head kernel was given, as far as the fake driver keeps them."""
        return list(struct.unpack(f"<{count}q", self._last().parameter(4, 8 * count)))

    def last_head(self) -> list[int]:
        """Addresses of table, block and zeros, and number of records, of the last call."""
        head = self._last()
        assert head.entry == f"head_{HEAD_WORDS}".encode()
        assert head.grid[0] == max(
            1, -(-int.from_bytes(head.parameter(3, 4), "little") // (THREADS // 32))
        )
        sizes = (8, 8, 8, 4)
        return [int.from_bytes(head.parameter(i, n), "little") for i, n in enumerate(sizes)]


def _simulated(
    table: bytes, count: int, before: bytes, nothing: int, words: Sequence[int]
) -> tuple[bytes, dict[int, TiledMap]]:
    """What the kernel makes of a block: its bytes, and its tensor maps by their offsets."""
    context, module = _emitted(HEAD_WORDS)
    memory = GlobalMemory(1 << 20)
    machine = Machine(memory, seed=count)
    places = {}
    for name, data in {
        "table": table,
        "block": before,
        "words": struct.pack(f"<{len(words)}q", *words),
    }.items():
        places[name] = memory.allocate(max(len(data), 1))
        memory.write(places[name], np.frombuffer(data, np.uint8))
    maps = {}
    for record in range(count):
        offset, kind = struct.unpack_from("<IB", table, record * RECORD_BYTES)
        if kind == TENSOR_MAP:
            maps[offset] = places["block"] + offset
            tiled = _Map.of(before[offset : offset + 128]).tiled()
            machine.tensor_maps[maps[offset]] = tiled
    arguments = [
        np.uint64(places["table"]),
        np.uint64(places["block"]),
        np.uint64(nothing),
        np.uint32(count),
        np.uint64(places["words"]),
    ]
    with context:
        gpu_module = sir.operations(module.body)[0]
        function = Function(kernel_function(gpu_module))

        def start(cta: Cta, number: int) -> Warp:
            warp = Warp(cta, number, function.slots)
            warp.steps = function.start(warp, arguments)
            return warp

        machine.run(max(1, -(-count // (THREADS // 32))), 1, start, THREADS // 32)
    assert not machine.__dict__.get("unreleased_maps"), "a map that was changed and not released"
    after = memory.read(places["block"], len(before)).tobytes()
    return after, {offset: machine.tensor_maps[place] for offset, place in maps.items()}


def _words(random_: random.Random) -> list[int]:
    """Words of a call that fit whatever they are used for, but for two at most."""
    words = [16 * random_.randint(1, 1 << 20) for _ in range(CALL_WORDS)]
    for _ in range(random_.randrange(3)):
        words[random_.randrange(CALL_WORDS)] = random_.choice([0, 1, 3, 2**31 - 1])
    return words


@pytest.mark.parametrize("seed", range(12))
def test_the_kernel_does_what_the_records_say(fake: Fake, seed: int) -> None:
    """As the fake driver does, whose blocks are compared with launches in the tests of the runtime.

    Other tests show that for tables of all kinds; here is the kernel itself.
    """
    random_ = random.Random(seed)
    program = _Program(fake, random_)
    words = [16 * random_.randint(1, 1 << 20) for _ in range(WORD_COUNT)]
    program.run(words)
    compared = 0
    for _ in range(12):
        words[:CALL_WORDS] = _words(random_)
        table, block, nothing, count = program.last_head()
        before = ctypes.string_at(block, program.block_bytes)
        try:
            program.run(words)
        except LaunchError:
            continue
        assert program.last_head() == [table, block, nothing, count]
        after = ctypes.string_at(block, program.block_bytes)
        records = ctypes.string_at(table, count * RECORD_BYTES)
        encoded = program.encoded_maps(words)
        given = program.last_words(CALL_WORDS + MAP_WORDS * len(encoded))
        assert given[:CALL_WORDS] == words[:CALL_WORDS]
        for offset, data in encoded.items():
            assert after[offset : offset + 128] == data
        padded = [*given, *[0] * (HEAD_WORDS - len(given))]
        made, maps = _simulated(records, count, before, nothing, padded)
        expected = bytearray(after)
        for offset, tiled in maps.items():
            assert tiled == _Map.of(after[offset : offset + 128]).tiled()
            expected[offset : offset + 128] = before[offset : offset + 128]
        assert made == bytes(expected)
        compared += 1
    assert compared > 3
