# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs that are called while the rest of their code is built, on a fake driver."""

from __future__ import annotations

import functools
import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import shapejit
from gpu.waiting import eventually
from shapejit import api, background, importer, pipeline
from shapejit.artefacts import Artefacts
from shapejit.errors import ErrorId
from shapejit.gpu.program_run import GpuExecution
from shapejit.options import CompileOptions
from shapejit.progress import Progress
from unit.fake_cuda import Fake
from unit.gpu_programs import (
    CPU,
    TARGET,
    Deep,
    FakeProgram,
    FakeStreams,
    Residual,
    deep,
    on_fake,
    rows,
    tokens,
    with_fake_code,
)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    fake = Fake(tmp_path)
    yield fake
    gc.collect()
    fake.check()


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@functools.cache
def in_steps() -> tuple[Artefacts, Artefacts, list[torch.Tensor]]:
    """`Deep`, compiled in two steps: the first program, the whole one, and the weights."""
    torch.manual_seed(0)
    model = importer.import_model(Deep().eval(), (rows(7),), None, dynamic_shapes=tokens())
    with Progress() as progress:
        first, rest = pipeline.build_first(model, CompileOptions(), progress, TARGET)
    return first, rest(Progress()), list(model.tensors)


def test_the_first_program_has_a_variant_of_each_kernel() -> None:
    first, whole, _ = in_steps()
    assert first.gpu is not None and whole.gpu is not None
    assert all(len(kernel.variants) == 1 for kernel in first.gpu.kernels)
    assert len(first.gpu.variants) < len(whole.gpu.variants)
    for kernel in first.gpu.kernels:
        assert all(low <= 1 for bucket in kernel.buckets for low in bucket.lower), "all sizes"
    for name in ("symbols", "inputs", "weights", "packs", "outputs", "constraints"):
        assert getattr(first, name) == getattr(whole, name)


def test_the_second_step_gives_what_one_step_gives() -> None:
    _, whole, _ = in_steps()
    expected, _ = deep()
    assert whole.gpu is not None and expected.gpu is not None
    assert whole.gpu.kernels == expected.gpu.kernels
    assert whole.objects == expected.objects


class Paused:
    """A program on the fake driver whose second step waits until it may go on."""

    def __init__(self, fake: Fake) -> None:
        first, whole, weights = in_steps()
        self.one: FakeProgram = on_fake(first, weights, fake)
        self.whole = with_fake_code(whole)
        self.may_build = threading.Event()
        self.kept: list[Artefacts] = []
        self.program = self.one.program
        self.program.complete_with(background.complete(self.program, self._build, self.kept.append))

    def _build(self, progress: Progress) -> Artefacts:
        assert self.may_build.wait(60)
        return self.whole

    def names(self, count: int) -> list[str]:
        """The kernels that a call runs."""
        return [
            launch.entry.decode() for launch in self.one.launches(lambda: self.program(rows(count)))
        ]

    def finish(self) -> None:
        self.may_build.set()
        assert self.program.wait(60)


def test_code_is_replaced_between_calls(fake: Fake) -> None:
    paused = Paused(fake)
    program = paused.program
    first = {count: paused.names(count) for count in (1, 77, 8192)}
    assert len({tuple(names) for names in first.values()}) == 1, "one variant serves all"
    stats = program.stats()
    assert (stats.replacements, stats.is_complete) == (0, False)
    assert "on its way" in str(stats)
    assert not program.wait(0.01)
    paused.finish()
    assert (program.stats().replacements, program.stats().is_complete) == (1, True)
    after = {count: paused.names(count) for count in (1, 77, 8192)}
    assert len({tuple(names) for names in after.values()}) > 1
    assert program.stats().calls == 6
    graphs = program.stats().graphs
    assert graphs is not None and graphs.graphs == len(paused.whole.gpu.graph.order)  # type: ignore[union-attr]
    assert program.artefacts.gpu is paused.whole.gpu
    assert "in the background" not in program.stats().compile_seconds, "the test's step has none"
    eventually(lambda: bool(paused.kept))  # by the thread, after calls have the code
    assert paused.kept == [paused.whole]


def test_a_call_ends_with_what_it_began_with(fake: Fake) -> None:
    """The code before goes when no call has it any more."""
    paused = Paused(fake)
    paused.program(rows(5))
    held: Any = paused.program._execution  # as a call in another thread has it
    gone = weakref.ref(held)
    paused.finish()
    assert paused.program._execution is not held
    stream = paused.one.streams.current()
    tables = paused.program._tables.borrow()
    x, y = rows(5), rows(5)
    tables[0], tables[len(tables) - 1] = x.data_ptr(), y.data_ptr()
    symbols = paused.program._symbols_type(5)
    held.run(symbols, tables, paused.program._planned(held, symbols, [5])[0], stream)
    assert not paused.kept, "the thread waits for the call, then goes on"
    del held
    for _ in range(2000):
        if gone() is None:
            break
        threading.Event().wait(0.005)
    assert gone() is None


def test_calls_of_other_threads_go_on(fake: Fake) -> None:
    paused = Paused(fake)
    failures: list[BaseException] = []
    over = threading.Event()

    def call() -> None:
        count = 1
        try:
            with torch.no_grad():
                while not over.is_set():
                    assert paused.program(rows(count)).shape == (count, 64)
                    count = count * 7 % 509
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    paused.finish()
    calls = paused.program.stats().calls
    while paused.program.stats().calls < calls + 50 and not failures:
        threading.Event().wait(0.005)
    over.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_failed_build_leaves_the_program_as_it_is(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    first, _, weights = in_steps()
    one = on_fake(first, weights, fake)

    def build(progress: Progress) -> Artefacts:
        raise ErrorId.SJ_INTERNAL_002.error(kernel="gemm1", reason="no", reproduction="nothing")

    logging.getLogger("shapejit").propagate = True
    with caplog.at_level(logging.WARNING, "shapejit"):
        completion = background.complete(one.program, build, pytest.fail)
        one.program.complete_with(completion)
        assert one.program.wait(60)
    [record] = [r for r in caplog.records if "keeps what it has" in r.getMessage()]
    assert "gemm1" in record.getMessage()
    assert completion.failure is not None and "gemm1" in completion.failure
    one.program(rows(9))
    stats = one.program.stats()
    assert (stats.calls, stats.replacements, stats.is_complete) == (1, 0, True)


def test_a_program_that_cannot_be_kept_for_others_is_complete(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    first, whole, weights = in_steps()
    one, whole = on_fake(first, weights, fake), with_fake_code(whole)

    def keep(artefacts: Artefacts) -> None:
        raise OSError("no space")

    logging.getLogger("shapejit").propagate = True
    with caplog.at_level(logging.WARNING, "shapejit"):
        completion = background.complete(one.program, lambda _: whole, keep)
        one.program.complete_with(completion)
        assert one.program.wait(60)
        background.complete(one.program, lambda _: whole, lambda _: None).wait(60)
    assert completion.failure is None
    texts = [record.getMessage() for record in caplog.records]
    assert any("not kept for other processes: no space" in text for text in texts)
    assert not any("keeps what it has" in text for text in texts)


def test_a_program_that_is_gone_is_not_completed(fake: Fake) -> None:
    first, _, weights = in_steps()
    program = on_fake(first, weights, fake).program
    started, gate = threading.Event(), threading.Event()
    other = on_fake(first, weights, fake).program

    def slow(progress: Progress) -> Artefacts:
        started.set()
        gate.wait(60)
        raise ValueError("gone")

    before = background.complete(other, slow, pytest.fail)
    assert started.wait(60)
    completion = background.complete(program, pytest.fail, pytest.fail)
    del program
    gc.collect()
    gate.set()
    assert before.wait(60) and completion.wait(60)
    assert completion.failure is None


def compiled(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[shapejit.Program, list[str]]:
    """`Residual` by `compile`, on the fake driver; and which ways of building were taken."""
    taken: list[str] = []
    build, build_first = pipeline.build, pipeline.build_first

    def whole(*given: Any) -> Artefacts:
        taken.append("whole")
        return with_fake_code(build(*given))

    def steps(*given: Any) -> tuple[Artefacts, Callable[[Progress], Artefacts]]:
        taken.append("first")
        first, rest = build_first(*given)
        return with_fake_code(first), lambda progress: with_fake_code(rest(progress))

    def execution(artefacts: Artefacts, device: torch.device) -> GpuExecution:
        return GpuExecution.of(artefacts, fake.driver.device(0), CPU, FakeStreams())

    monkeypatch.setattr(pipeline, "build", whole)
    monkeypatch.setattr(pipeline, "build_first", steps)
    monkeypatch.setattr(api, "_gpu_target", lambda device: TARGET)
    monkeypatch.setattr(api, "execution_for", execution)
    torch.manual_seed(1)
    model = Residual(96).eval()
    arguments = (model, (rows(7, 96),), None, tokens(4096), CompileOptions(**options))
    program = api._compile(*arguments, torch.device("cuda"))
    monkeypatch.undo()
    return program, taken


def test_a_forked_child_has_a_thread_of_its_own() -> None:
    assert background._thread().submit(int).result() == 0
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = background._thread().submit(int).result(timeout=10)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_compile_in_the_background(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    program, taken = compiled(fake, monkeypatch, background=True)
    assert taken == ["first"]
    program(rows(3, 96))
    assert program.wait(120)
    assert program.stats().replacements == 1
    assert program.stats().compile_seconds["in the background"] > 0
    program(rows(3, 96))
    background._thread().submit(lambda: None).result(120)  # it is done with the program
    # What was completed is in the cache: the next one has all of it at once.
    again, taken = compiled(fake, monkeypatch, background=True)
    assert taken == []
    assert again.stats().is_complete and again.stats().replacements == 0
    assert again.artefacts.gpu is not None and program.artefacts.gpu is not None
    assert again.artefacts.gpu.kernels == program.artefacts.gpu.kernels


def test_deterministic_programs_are_compiled_at_once(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, taken = compiled(fake, monkeypatch, background=True, deterministic=True, max_regions=3)
    assert taken == ["whole"]
    assert program.stats().is_complete and program.stats().replacements == 0
