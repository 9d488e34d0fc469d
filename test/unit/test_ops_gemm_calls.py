# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`shapejit.ops.gemm` on a fake driver: what is built when, what is launched, what is evicted."""

from __future__ import annotations

import dataclasses
import gc
import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from shapejit import ops
from shapejit.codegen.ptxas import PtxasError
from shapejit.errors import ShapeJitError
from shapejit.gpu.interface import Grid, KernelInterface, Pointer, Size, Workspace
from shapejit.native_calls import Calls
from shapejit.ops import gemm_kernels, kernels
from shapejit.ops.gemm_kernels import MAX_VARIANTS, CodeMemory, KindKernels
from shapejit.ops.gemm_operands import shared_memory_error, uses_tf32
from shapejit.ops.gemm_spec import GemmKind
from shapejit.ops.tensors import as_tensor
from shapejit.passes.nvgpu.schedule import GENERIC, GemmSchedule
from unit.fake_cuda import Fake

calls: Any = sys.modules["shapejit.ops.gemm"]
STREAM = 0


class Builds:
    """Stands for the builder: builds end at once, or when they are told to.

    Attributes:
        asked: names of schedules, in the order in which they were asked for.
        fail: names of schedules that cannot be built.
        at_once: whether builds end at once.
        generic: name of the schedule whose urgent builds always do.
        scratch: whether kernels take scratch memory, each another amount.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fail: set[str] = set()
        self.waiting: dict[str, Future[Any]] = {}
        self.tensors: dict[str, int] = {}
        self.at_once, self.generic = True, str(GENERIC)
        self.scratch = False

    def __call__(self, unit: Any, urgent: bool) -> Future[Any]:
        name = str(dict(unit.key.schedule)["name"])
        self.asked.append(name)
        self.tensors[name] = len(unit.key.dtypes)
        future = self.waiting[name] = Future()
        if self.at_once or (urgent and name == self.generic):
            self.finish(name)
        return future

    def finish(self, name: str) -> None:
        """Ends a build."""
        future = self.waiting.pop(name)
        if name in self.fail:
            future.set_exception(RuntimeError(f"no code for {name}"))
        else:
            future.set_result(fake_cubin(name, self.tensors[name], self.scratch))


def code_of(schedule: GemmSchedule) -> str:
    """Name of a schedule's code, which does not know whether its launches start early."""
    return str(dataclasses.replace(schedule, early=False))


def fake_cubin(name: str, tensors: int, scratch: bool) -> Any:
    """A kernel that takes m and the addresses of operands and result, named after its schedule."""
    memory = (Workspace(1024 * (1 + sum(name.encode()) % 50), 0),) if scratch else ()
    interface = KernelInterface(
        entry=name,
        threads=128,
        shared_bytes=0,
        cluster=1,
        grid=Grid(((0, 64),), len(memory)),
        values=("s0",),
        parameters=(Size(0), *map(Pointer, range(tensors)), *memory),
    )
    pointers = " ".join(["8"] * (tensors + len(memory)))
    return SimpleNamespace(
        interface=interface, cubin=f"fake\n{name} 168 0 128 4 {pointers}\n".encode()
    )


class Setting:
    """`ops.gemm` on the fake driver, with tensors of the CPU."""

    def __init__(self, fake: Fake) -> None:
        self.fake, self.builds, self.memory = fake, Builds(), CodeMemory()
        self.kinds: dict[GemmKind, KindKernels] = {}
        self.calls = Calls(8192, lambda device: STREAM, uses_tf32, shared_memory_error)
        self._lock = threading.Lock()

    def kernels(self, kind: GemmKind, device: int) -> KindKernels:
        with self._lock:
            if kind not in self.kinds:
                gpu = self.fake.driver.device(0)
                self.kinds[kind] = KindKernels(kind, gpu, self.memory, self.builds)
            return self.kinds[kind]

    def launched(self) -> tuple[str, int, int]:
        """Kernel, m and address of the result of the last launch."""
        launch = self.fake.last
        return (
            launch.entry.decode(),
            int.from_bytes(launch.parameter(0, 4), "little"),
            int.from_bytes(launch.parameter(launch.parameters - 1, 8), "little"),
        )


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    return Fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def setting(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    made = Setting(fake)
    monkeypatch.setattr(calls, "_calls", made.calls)
    monkeypatch.setattr(calls, "current_stream", lambda device: STREAM)
    monkeypatch.setattr(calls, "_kind_kernels", made.kernels)
    monkeypatch.setattr(calls, "check", lambda operands: None)  # of the device
    yield made
    fake.check()


def layer(m: int, n: int = 4096, k: int = 4096) -> tuple[Tensor, Tensor]:
    return torch.zeros(m, k).bfloat16(), torch.zeros(n, k).bfloat16().mT


def test_rows_that_were_never_seen_need_no_new_plan(setting: Setting) -> None:
    _, w = layer(1)
    x = torch.zeros(9000, 4096).bfloat16()
    ops.gemm(x[:2], w, deterministic=True)
    rng = random.Random(0)
    for m in [2, 8192, *(rng.randint(2, 8192) for _ in range(50))]:
        result = ops.gemm(x[:m], w, deterministic=True)
        assert result.shape == (m, 4096)
        [kernels] = setting.kinds.values()
        chosen = kernels.choose_rows(layout_of(x[:m], w), m)
        assert setting.launched() == (code_of(chosen), m, result.data_ptr())
    assert len(setting.calls) == 1
    assert len(setting.builds.asked) == len(set(setting.builds.asked))


def layout_of(a: Tensor, b: Tensor) -> Any:
    operands = calls.Operands(a, b, None, None, None, None, None)
    return calls.kernels_of(operands, calls.result_shape(operands), 0)[0]


def test_every_thing_that_changes_the_kernel_has_a_plan_of_its_own(setting: Setting) -> None:
    x, w = layer(16)
    for changes in (
        {},
        {"bias": torch.zeros(4096)},
        {"bias": torch.zeros(4096).bfloat16()},
        {"residual": torch.zeros(16, 4096)},
        {"residual": torch.zeros(1, 4096)},
        {"activation": "relu"},
        {"out_dtype": torch.float32},
        {"gate": w},
    ):
        ops.gemm(x, w, deterministic=True, **changes)
        ops.gemm(x, w, deterministic=True, **changes)
    assert len(setting.calls) == 8
    ops.gemm(x[:1], w, deterministic=True)
    ops.gemm(x.mT.contiguous().mT, w, deterministic=True)
    assert len(setting.calls) == 10


@pytest.mark.parametrize("compiled", [False, True])
def test_a_setting_that_changes_meanwhile_gives_no_plan_to_other_calls(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """Another thread sets torch to tf32 while a strict product is planned."""
    x, w = torch.zeros(16, 256), torch.zeros(256, 256).mT
    matmul, make = torch.backends.cuda.matmul, calls._new_plan
    before = matmul.fp32_precision

    def change(*arguments: Any) -> Any:
        matmul.fp32_precision = "tf32"
        return make(*arguments)

    monkeypatch.setattr(calls, "_new_plan", change)
    matmul.fp32_precision = "ieee"
    try:
        if compiled:
            ops.compile_gemm(x, w, rows=(2, 16))
        else:
            ops.gemm(x, w, deterministic=True)
    finally:
        matmul.fp32_precision = before
    rest = (None,) * 6
    assert setting.calls.run(x, w, *rest, "ieee", False) is not None
    assert setting.calls.run(x, w, *rest, "tf32", False) is None


def test_calls_take_the_generic_kernel_until_the_chosen_one_is_built(setting: Setting) -> None:
    x, w = layer(7)
    setting.builds.at_once = False
    ops.gemm(x, w)
    assert setting.launched()[0] == str(GENERIC)
    [chosen] = setting.builds.waiting
    assert chosen != str(GENERIC)
    ops.gemm(x, w)
    assert setting.launched()[0] == str(GENERIC)
    setting.builds.finish(chosen)
    ops.gemm(x, w)
    assert setting.launched()[0] == chosen
    assert setting.builds.asked == [chosen, str(GENERIC)]


def test_the_chosen_kernel_serves_when_the_generic_one_cannot_be_built(setting: Setting) -> None:
    x, w = layer(7)
    setting.builds.at_once = False
    setting.builds.fail.add(str(GENERIC))
    call = threading.Thread(target=ops.gemm, args=(x, w))
    before = setting.fake.launches
    call.start()
    while call.is_alive() and str(GENERIC) not in setting.builds.asked:
        call.join(0.01)
    [chosen] = [name for name in setting.builds.asked if name != str(GENERIC)]
    setting.builds.finish(chosen)
    call.join(60)
    assert setting.fake.launches == before + 1
    assert setting.launched()[0] == chosen


def test_a_kernel_that_cannot_be_built_is_left_out(setting: Setting) -> None:
    x, w = layer(7)
    ops.gemm(x, w, deterministic=True)
    best = setting.launched()[0]
    setting.kinds.clear()
    setting.calls.clear()
    setting.builds.fail.add(best)
    ops.gemm(x, w, deterministic=True)
    assert setting.launched()[0] not in (best, str(GENERIC))


def test_when_no_kernel_can_be_built_the_reason_is_raised(setting: Setting) -> None:
    x, w = layer(7)
    w = torch.zeros(4096 * 4096 + 1).bfloat16()[1:].view(4096, 4096)  # unaligned: one schedule
    setting.builds.fail.add("unaligned_128x128x64_s3_w2")
    with pytest.raises(RuntimeError, match="no code for unaligned"):
        ops.gemm(x, w)


def test_eviction_and_return(setting: Setting) -> None:
    x, w = layer(7)
    setting.memory.max_bytes = 60  # one kernel's code
    for _ in range(3):
        for activation in (None, "relu", "tanh"):
            ops.gemm(x, w, activation=activation, deterministic=True)
            assert setting.memory.bytes <= 60
    assert setting.memory.evictions == 8
    assert setting.fake.modules <= 3  # those of the last eviction may not be collected yet


def test_a_lower_bound_takes_effect_at_once(setting: Setting) -> None:
    x, w = layer(7)
    for activation in (None, "relu", "tanh"):
        ops.gemm(x, w, activation=activation, deterministic=True)
    size = setting.memory.bytes // 3
    setting.memory.max_bytes = 2 * size
    assert setting.memory.bytes == 2 * size
    assert setting.memory.evictions == 1
    ops.gemm(x, w, activation="tanh", deterministic=True)
    assert setting.memory.evictions == 1  # the one used longest ago went
    ops.gemm(x, w, deterministic=True)
    assert setting.memory.evictions == 2


def test_what_is_compiled_is_at_hand_for_every_call(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call is slower for being the first one of its kind, or with a kernel."""
    _, w = layer(1)
    x, residual = torch.zeros(8192, 4096).bfloat16(), torch.zeros(8192, 4096)
    ops.gemm(x[:2], w, deterministic=True)  # a plan that knows one kernel
    ops.compile_gemm(x[:2], w)
    ops.compile_gemm(x[:2], w, residual=residual[:2])
    monkeypatch.setattr(calls, "RowPlan", None)
    monkeypatch.setattr(KindKernels, "get", None)
    for m in (1, 3, 16, 77, 128, 500, 2048, 8192):
        ops.gemm(x[:m], w, deterministic=True)
        assert setting.launched()[1] == m
        ops.gemm(x[:m], w, residual=residual[:m], deterministic=True)
        assert setting.launched()[1] == m


def test_scratch_memory_is_allocated_ahead(setting: Setting) -> None:
    setting.builds.scratch = True
    _, w = layer(1)
    x = torch.zeros(8192, 4096).bfloat16()
    before = setting.fake.memory
    ops.compile_gemm(x[:2], w)
    allocated = setting.fake.memory
    assert allocated > before
    for m in (1, 3, 16, 77, 128, 500, 2048, 8192):
        ops.gemm(x[:m], w)
        assert setting.fake.memory == allocated


def test_what_a_call_runs(setting: Setting) -> None:
    """All of it is native code, also for a number of rows that was never seen."""
    _, w = layer(1)
    x = torch.zeros(8192, 4096).bfloat16()
    ops.compile_gemm(x[:2], w)
    ops.gemm(x[:2], w)
    rows = [x[:m] for m in (2, 3, 8000, 512)]
    functions: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            functions.append(frame.f_code.co_name)

    sys.setprofile(note)
    for each in rows:
        ops.gemm(each, w)
    sys.setprofile(None)
    assert [name for name in functions if name not in ("allocate", "<lambda>")] == ["gemm"] * 4


def test_calls_leave_nothing_behind(setting: Setting) -> None:
    """Neither memory nor objects that would bring a garbage collection about."""
    _, w = layer(1)
    x = torch.zeros(2048, 4096).bfloat16()
    out, bias = torch.empty(2048, 4096).bfloat16(), torch.zeros(4096)
    ops.compile_gemm(x[:2], w)
    ops.compile_gemm(x[:2], w, bias=bias)

    def call(first: int) -> None:
        for m in range(first, first + 500):
            ops.gemm(x[:m], w)
            ops.gemm(x[:m], w, bias=bias, out=out[:m])

    call(2)
    gc.collect()
    gc.disable()
    try:
        objects, blocks = gc.get_count()[0], sys.getallocatedblocks()
        counts = [sys.getrefcount(each) for each in (x, w, out)]
        call(1002)
        assert gc.get_count()[0] - objects < 20
        assert sys.getallocatedblocks() - blocks < 100
        assert [sys.getrefcount(each) for each in (x, w, out)] == counts
    finally:
        gc.enable()


def test_what_cannot_receive_a_result_is_refused_whatever_came_before(setting: Setting) -> None:
    x, w = layer(7)
    ops.gemm(x, w, out=torch.empty(7, 4096).bfloat16(), deterministic=True)
    for _ in range(2):
        with pytest.raises(ShapeJitError, match=r'"out" of gemm\(\) requires grad'):
            ops.gemm(x, w, out=torch.empty(7, 4096).bfloat16().requires_grad_())
        with pytest.raises(ShapeJitError, match=r"Pass out\.resolve_neg\(\)"):
            ops.gemm(x, w, out=torch._neg_view(torch.empty(7, 4096).bfloat16()))
    with torch.no_grad():
        ops.gemm(x, w, out=torch.empty(7, 4096).bfloat16().requires_grad_(), deterministic=True)


@pytest.mark.parametrize("name", ["bias", "residual"])
def test_what_has_rows_of_its_own_is_checked_whatever_came_before(
    setting: Setting, name: str
) -> None:
    x, w = layer(64, 512, 256)
    extra = {name: torch.zeros(64, 512).bfloat16()}
    ops.gemm(x, w, **extra)
    assert ops.gemm(x, w, **extra).shape == (64, 512)
    for m in (32, 128):
        with pytest.raises(ShapeJitError, match="SJ-SHAPE-011"):
            ops.gemm(layer(m, 512, 256)[0], w, **extra)


def test_operands_that_torch_negates_when_it_reads_them(setting: Setting) -> None:
    """Kernels read memory, where the values are others."""
    x, w = layer(7)
    negated = torch._neg_view(x)
    assert torch.equal(as_tensor(negated), -x)
    assert not as_tensor(negated).is_neg()
    for operands in ((negated, w), (x, torch._neg_view(w))):
        ops.gemm(*operands, bias=torch._neg_view(torch.ones(4096)), deterministic=True)
        launch = setting.fake.last
        addresses = [int.from_bytes(launch.parameter(n, 8), "little") for n in range(1, 4)]
        for number, given in enumerate(operands):
            assert (addresses[number] == given.data_ptr()) != given.is_neg()
    for given in (x, w):
        assert as_tensor(given) is given


def test_threads_get_the_values_of_their_own_calls(setting: Setting) -> None:
    x = torch.zeros(9000, 4096).bfloat16()
    _, w = layer(1)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(100):
                ops.gemm(x[: rng.randint(1, 8192)], w)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for number in range(setting.fake.launches - 400, setting.fake.launches):
        launch = setting.fake.controls.fakeLaunchAt(number)[0]
        m = int.from_bytes(launch.parameter(0, 4), "little")
        assert launch.grid[0] == -(-m // 64)


def test_threads_that_come_first_build_each_kernel_once(setting: Setting) -> None:
    x, w = layer(7)
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def work() -> None:
        barrier.wait()
        try:
            ops.gemm(x, w, deterministic=True)
        except BaseException as error:
            failures.append(error)

    for _ in range(10):
        setting.kinds.clear()
        setting.calls.clear()
        setting.builds.asked.clear()
        before = setting.fake.launches
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert setting.fake.launches == before + 8
        [kernels] = setting.kinds.values()
        assert not kernels.refused
        assert len(setting.builds.asked) == 1


def test_out(setting: Setting) -> None:
    x, w = layer(16)
    out = torch.empty(16, 4096).bfloat16()
    assert ops.gemm(x, w, out=out, deterministic=True) is out
    assert setting.launched()[2] == out.data_ptr()
    before = setting.fake.launches
    with pytest.raises(ShapeJitError, match="shares memory"):
        ops.gemm(x, w, out=x, deterministic=True)
    with pytest.raises(ShapeJitError, match="shape"):
        ops.gemm(x, w, out=torch.empty(17, 4096).bfloat16())
    with pytest.raises(ShapeJitError, match="contiguous"):
        ops.gemm(x, w, out=torch.empty(4096, 16).bfloat16().mT)
    assert setting.fake.launches == before


def test_out_beside_an_input(setting: Setting) -> None:
    """Memory is compared exactly, at every number of rows that a plan serves."""
    w = torch.zeros(64, 64).bfloat16()
    memory = torch.zeros(64 * 64).bfloat16()
    for m in (4, 16, 5):
        x, rest = memory[: m * 64].view(m, 64), memory[m * 64 :]
        ops.gemm(x, w, out=rest[: m * 64].view(m, 64), deterministic=True)
        ops.gemm(rest[: m * 64].view(m, 64), w, out=x, deterministic=True)
        for place in ((m - 1) * 64, 64):
            with pytest.raises(ShapeJitError, match="shares memory"):
                ops.gemm(x, w, out=memory[place:][: m * 64].view(m, 64), deterministic=True)
        with pytest.raises(ShapeJitError, match="shares memory"):
            ops.gemm(x, w, residual=rest[: m * 64].view(m, 64), out=rest[64:][: m * 64].view(m, 64))
    assert len(setting.calls) == 2


def test_empty_results_launch_nothing(setting: Setting) -> None:
    before = setting.fake.launches
    for m, n in ((0, 16), (3, 0)):
        assert ops.gemm(torch.zeros(m, 8).bfloat16(), torch.zeros(8, n).bfloat16()).shape == (m, n)
    assert setting.fake.launches == before


def test_tensors_that_would_record_gradients(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = layer(16)
    ops.gemm(x, w, deterministic=True)
    monkeypatch.undo()
    with pytest.raises(ShapeJitError):
        ops.gemm(x.requires_grad_(), w, deterministic=True)


def test_weights_with_many_columns_are_read_once(setting: Setting) -> None:
    """By kernels of the same schedules, which are told."""
    small, large = (layer(8, n) for n in (4096, 11008))
    assert not any("once" in name for name in ops.compile_gemm(*small, rows=(1, 32)))
    ops.gemm(*large, deterministic=True)
    assert setting.launched()[0].endswith("_once")
    assert setting.launched()[0] in ops.compile_gemm(*large, rows=(1, 32))


def test_compile_gemm_builds_what_calls_need(setting: Setting) -> None:
    x, w = layer(16)
    names = ops.compile_gemm(x, w, rows=(1, 8192))
    assert names == list(dict.fromkeys(names))
    codes = {code_of(GemmSchedule.parse(name)) for name in names}
    assert len(codes) <= MAX_VARIANTS
    asked = list(setting.builds.asked)
    assert set(asked) == codes
    tiles = map(GemmSchedule.parse, asked)
    sums = [tile.rows * tile.columns * (1 + tile.turns) for tile in tiles]
    assert sums == sorted(sums, reverse=True)  # what takes longest is begun first
    big = torch.zeros(8192, 4096).bfloat16()
    for m in (1, 2, 16, 77, 128, 500, 2048, 8192):
        ops.gemm(big[:m], w, deterministic=True)
    assert setting.builds.asked == asked


def test_a_missing_ptxas_is_reported(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the thread that needs it; the one that only asks ahead says nothing."""

    def missing() -> Any:
        raise PtxasError("there is none")

    for module in (gemm_kernels, kernels):
        monkeypatch.setattr(module, "find_ptxas", missing)
    with pytest.raises(PtxasError, match="there is none"):
        ops.compile_gemm(*layer(16))
    assert "shapejit-ptxas" not in {thread.name for thread in threading.enumerate()}
