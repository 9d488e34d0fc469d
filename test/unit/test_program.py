# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs: results, outputs of every kind, weights that change, threads, memory, modules."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shapejit import report
from shapejit.arena import ArenaError, ArenaPool, StreamArenas
from shapejit.artefacts import (
    ConstantOutput,
    Derivation,
    InputOutput,
    PackSpec,
    SizeOutput,
    SymbolSpec,
    TensorOutput,
)
from shapejit.errors import (
    ArgumentError,
    GradError,
    InternalError,
    LoadError,
    ShapeError,
    TrainError,
)
from shapejit.execution import CpuExecution
from shapejit.program import Program
from shapejit.symbolic import Expr
from shapejit.weights import pack_panels, unpack_panels
from unit.sample_program import (
    BATCH,
    SEQ,
    N,
    compile_c,
    reference,
    sample_artefacts,
    sample_inputs,
    sample_program,
    sample_weights,
    structure_of,
)
from unit.tensors_without_memory import KINDS

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def check(program: Program, weights: list[Tensor], x: Tensor, mask: Tensor) -> None:
    """Compare a call with torch in float64."""
    result = program(x, mask)
    for name, expected in reference(weights, x, mask).items():
        torch.testing.assert_close(result[name].double(), expected, rtol=1e-5, atol=1e-5)


# Calls.


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 99))
def test_results_at_any_size(batch: int, seq: int, seed: int) -> None:
    check(SHARED, sample_weights(), *sample_inputs(batch, seq, seed))


SHARED = sample_program()


@pytest.mark.parametrize(("batch", "seq"), [(1, 0), (1, 1), (64, 1), (2, 2048), (64, 64)])
def test_results_at_the_ends_of_the_ranges(batch: int, seq: int) -> None:
    check(SHARED, sample_weights(), *sample_inputs(batch, seq))


def test_inputs_that_are_not_contiguous_are_copied_and_counted() -> None:
    program = sample_program()
    x, mask = sample_inputs(4, 6)
    check(program, sample_weights(), x.transpose(0, 1)[:3, :2], mask.t()[:3, :2])
    assert program.stats().input_copies == 2
    check(program, sample_weights(), x, mask[::2].repeat_interleave(2, 0))
    assert program.stats().input_copies == 2
    negative = torch.complex(mask, -mask).conj().imag
    assert negative.is_neg()
    check(program, sample_weights(), x, negative)
    assert program.stats().input_copies == 3


def test_outputs_belong_to_the_caller() -> None:
    x, mask = sample_inputs()
    first = SHARED(x, mask)["y"].clone()
    kept = SHARED(x, mask)["y"]
    SHARED(*sample_inputs(seed=7))
    assert torch.equal(kept, first)
    assert kept.is_contiguous()


def test_outputs_of_every_kind() -> None:
    half = SymbolSpec("half", derived=Derivation("ceildiv", SEQ, Expr.const(2)))
    artefacts = sample_artefacts(
        symbols=(*sample_artefacts().symbols, half),
        outputs=(
            ConstantOutput(None),
            TensorOutput("float32", (BATCH, SEQ, Expr.const(N))),
            InputOutput(1),
            SizeOutput(BATCH * SEQ),
            TensorOutput("float32", (BATCH,)),
            SizeOutput(Expr.symbol(2)),
            ConstantOutput("last"),
        ),
        output_tree=structure_of((None, [0, 0, 0], {"t": 0, "h": 0}, 0)),
    )
    program = Program(artefacts, sample_weights())
    x, mask = sample_inputs(2, 5)
    none, (y, same, product), rest, last = program(x, mask)
    assert (none, product, rest["h"], last) == (None, 10, 3, "last")
    assert same is mask
    torch.testing.assert_close(rest["t"], mask.sum(1))
    assert y.shape == (2, 5, N)


def test_a_single_output_comes_bare() -> None:
    source = (
        "#include <stdint.h>\n"
        "void shapejit_plan(const int64_t *s, int64_t *out) {\n"
        "  out[0] = 0; out[1] = s[0]; out[2] = 0;\n"
        "}\n"
        "void shapejit_run(const int64_t *s, void **b, void *arena) {\n"
        "  for (int64_t i = 0; i < s[0]; ++i) ((long *)b[1])[i] = 2 * ((long *)b[0])[i];\n"
        "}\n"
    )
    base = sample_artefacts()
    artefacts = sample_artefacts(
        objects=(compile_c(source),),
        symbols=(SymbolSpec("n"),),
        parameters=base.parameters[:1],
        inputs=(type(base.inputs[0])("ids", "int64", (BATCH,)),),  # type: ignore[call-arg]
        weights=(),
        packs=(),
        outputs=(TensorOutput("int64", (BATCH,)),),
        output_tree=structure_of(0),
    )
    program = Program(artefacts, [])
    assert program(torch.arange(5)).tolist() == [0, 2, 4, 6, 8]
    assert program(torch.arange(0)).tolist() == []
    assert program.stats().arena_bytes == 0


def test_a_rule_between_sizes_is_checked() -> None:
    with pytest.raises(ShapeError) as raised:
        SHARED(*sample_inputs(64, 65))
    assert str(raised.value) == (
        "SJ-SHAPE-008 the sizes batch = 64, seq = 65 break the rule 4096 - batch*seq >= 0 that "
        "the model sets. Pass sizes that keep 4096 - batch*seq >= 0. (model.py:3)"
    )


def test_a_code_that_the_program_does_not_know_is_a_fault_of_ours() -> None:
    with pytest.raises(InternalError) as raised:
        SHARED(*sample_inputs(13, 2))
    assert str(raised.value) == (
        "SJ-INTERNAL-004 the host program rejects the sizes batch = 13, seq = 2 (code 9). This "
        "is a fault of shapejit. Please report it with the model and those sizes."
    )


@pytest.mark.parametrize("what", ["arena", "outputs"])
def test_memory_that_cannot_be_allocated(what: str) -> None:
    huge = "1LL << 62" if what == "arena" else "4"
    width = "1LL << 60" if what == "outputs" else "5"
    source = (
        "#include <stdint.h>\n"
        "void shapejit_plan(const int64_t *s, int64_t *out) {\n"
        f"  out[0] = {huge}; out[1] = s[0]; out[2] = s[1]; out[3] = {width};\n"
        "  out[4] = 1; out[5] = 0;\n"
        "}\n"
        "void shapejit_run(const int64_t *s, void **b, void *arena) {}\n"
    )
    program = sample_program(objects=(compile_c(source),))
    with pytest.raises(ShapeError) as raised:
        program(*sample_inputs(1, 3))
    what_text = {
        "arena": "4611686018427387904 bytes of working memory",
        "outputs": "outputs of sizes [[1, 3, 1152921504606846976], [1]]",
    }[what]
    assert str(raised.value).startswith(
        f"SJ-SHAPE-010 the sizes batch = 1, seq = 3 need {what_text}, which cannot be allocated: "
    )
    assert str(raised.value).endswith(". Pass smaller inputs or free memory.")


# Grad mode and train mode.


def test_inputs_and_weights_that_require_grad() -> None:
    x, mask = sample_inputs()
    weights = [nn.Parameter(tensor) for tensor in sample_weights()]
    program = Program(sample_artefacts(), weights)
    check(program, weights, x, mask.requires_grad_())
    with torch.enable_grad():
        with pytest.raises(GradError) as raised:
            program(x, mask)
        assert str(raised.value).startswith('SJ-GRAD-001 argument "mask" requires grad')
        with pytest.raises(GradError) as raised:
            program(x, mask.detach())
        assert str(raised.value) == (
            'SJ-GRAD-001 weight "fc.weight" requires grad and grad mode is on, but the program '
            "computes no gradients. Call it under torch.no_grad() or torch.inference_mode()."
        )
        weights[0].requires_grad_(False)
        weights[1].requires_grad_(False)
        assert not program(x, mask.detach())["y"].requires_grad


def test_inference_mode() -> None:
    with torch.inference_mode():
        program = Program(sample_artefacts(), sample_weights())
        check(program, sample_weights(), *sample_inputs())


def test_there_is_no_training_mode() -> None:
    program = sample_program()
    assert program.eval() is program
    assert program.training is False
    with pytest.raises(TrainError) as raised:
        nn.Sequential(program).train()
    assert str(raised.value) == (
        "SJ-TRAIN-003 train() was called on a compiled program, which is for inference only. "
        "Keep the program out of the module that trains, and compile again afterwards."
    )


# Weights.


def test_weights_changed_in_place_are_seen_and_only_they_are_packed_again() -> None:
    weights = sample_weights()
    program = Program(sample_artefacts(), weights)
    inputs = sample_inputs()
    check(program, weights, *inputs)
    before = program._weights.current()
    weights[1].add_(1)
    check(program, weights, *inputs)
    assert program._weights.current() is before, "the bias is read in place"
    weights[0].mul_(2)
    check(program, weights, *inputs)
    assert program._weights.current() is not before
    weights[0].data = torch.ones_like(weights[0])
    weights[1].data = torch.ones_like(weights[1])
    check(program, weights, *inputs)


def test_a_weight_that_is_not_contiguous_is_copied_and_followed() -> None:
    wide = torch.randn(N, 2)
    weights = [sample_weights()[0], wide[:, 1]]
    program = Program(sample_artefacts(), weights)
    packed = program.stats().packed_bytes
    assert packed == 4 * (8 * 4 + N)
    check(program, weights, *sample_inputs())
    wide.zero_()
    check(program, weights, *sample_inputs())


def test_a_weight_that_changes_its_dtype_is_an_error() -> None:
    module = nn.Linear(4, N)
    program = Program(sample_artefacts(), [module.weight, module.bias])
    module.half()
    with pytest.raises(LoadError) as raised:
        program(*sample_inputs())
    assert str(raised.value) == (
        'SJ-LOAD-008 weight "fc.weight" is torch.float16 [5, 4] on cpu, but the program needs '
        "torch.float32 [5, 4] on cpu. Pass weights of the model that was compiled."
    )


def test_a_weight_of_another_shape_or_layout_is_an_error() -> None:
    weights = sample_weights()
    with pytest.raises(LoadError, match=r'"fc.bias" is torch.float32 \[1, 5\] on cpu, but'):
        Program(sample_artefacts(), [weights[0], weights[1][None]])
    with pytest.raises(LoadError, match=r"\[5, 4\] on cpu with layout torch.sparse_coo, but"):
        Program(sample_artefacts(), [weights[0].to_sparse(), weights[1]])


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_without_memory_is_an_error(kind: str) -> None:
    weights = sample_weights()
    with pytest.raises(LoadError, match=r"on cpu without memory, but"):
        Program(sample_artefacts(), [KINDS[kind](weights[0]), weights[1]])


def test_a_weight_that_loses_its_memory_is_an_error() -> None:
    module = nn.Linear(4, N)
    program = Program(sample_artefacts(), [module.weight, module.bias])
    program(*sample_inputs())
    module.bias.untyped_storage().resize_(0)
    with pytest.raises(LoadError, match=r'"fc.bias" .* without memory'):
        program(*sample_inputs())


def test_results_that_torch_gives_no_memory_are_an_error() -> None:
    program = Program(sample_artefacts(), sample_weights())
    inputs = sample_inputs()
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(ArgumentError, match="result"):
        program(*inputs)
    program(*inputs)


@settings(deadline=None)
@given(st.integers(0, 9), st.integers(0, 5), st.sampled_from([1, 4, 8]), st.sampled_from([0, 1]))
def test_packing(n: int, k: int, panel: int, dim: int) -> None:
    weight = torch.randn((n, k) if dim == 0 else (k, n))
    pack = PackSpec(0, dim, panel)
    packed = pack_panels(weight, pack)
    assert packed.shape == (-(-n // panel), k, panel)
    for index in range(packed.shape[0] * panel):
        column = packed[index // panel, :, index % panel]
        expected = weight.select(dim, index) if index < n else torch.zeros(k)
        assert torch.equal(column, expected)
    assert torch.equal(unpack_panels(packed, pack, weight.shape), weight)


def test_free_original_empties_weights_of_which_only_copies_are_read() -> None:
    weights = sample_weights()
    kept = [tensor.clone() for tensor in weights]
    program = Program(sample_artefacts(), weights, free_original=True)
    assert [tuple(tensor.shape) for tensor in weights] == [(0,), (N,)]
    check(program, kept, *sample_inputs())
    weights[1].add_(1)
    check(program, [kept[0], weights[1]], *sample_inputs())
    assert program.stats().weight_bytes == 4 * N
    torch.testing.assert_close(program.named_weights()["fc.weight"], kept[0])


def test_free_original_spares_a_tensor_that_is_also_read_in_place() -> None:
    specs = sample_artefacts().weights
    twice = (*specs, type(specs[0])("tied.weight", "float32", specs[0].shape))
    source_weights = sample_weights()
    weights = [*source_weights, source_weights[0]]
    artefacts = sample_artefacts(weights=twice)
    Program(artefacts, weights, free_original=True)
    assert weights[0].shape == (N, 4)


def test_a_program_is_a_submodule_with_the_weights_in_its_state() -> None:
    program = sample_program()
    outer = nn.Sequential(program)
    state = outer.state_dict()
    assert list(state) == ["0.fc.weight", "0.fc.bias"]
    other = sample_weights(seed=5)
    outer.load_state_dict({"0.fc.weight": other[0], "0.fc.bias": other[1]})
    check(program, other, *sample_inputs())
    with pytest.raises(RuntimeError, match=r'Missing key.*"0.fc.bias"'):
        outer.load_state_dict({"0.fc.weight": other[0]})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"0.fc.scale"'):
        outer.load_state_dict({**state, "0.fc.scale": other[1]})
    with pytest.raises(RuntimeError, match=r"size mismatch for fc.bias"):
        outer.load_state_dict({**state, "0.fc.bias": other[0]})
    freed = Program(sample_artefacts(), sample_weights(), free_original=True)
    with pytest.raises(RuntimeError, match=r"fc.weight was freed"):
        freed.load_state_dict(program.state_dict())


def test_programs_are_not_pickled_or_copied() -> None:
    for function in (pickle.dumps, copy.deepcopy):
        with pytest.raises(LoadError) as raised:
            function(sample_program())
        assert str(raised.value) == (
            'SJ-LOAD-012 the program cannot be saved to "a pickle": it holds native code. Use '
            "program.save(path) and shapejit.load(path)."
        )


# Threads and memory.


def test_threads_call_one_program_at_the_same_time() -> None:
    program = sample_program()
    calls, workers = 60, 6
    barrier = threading.Barrier(workers)

    def work(worker: int) -> None:
        barrier.wait()
        with torch.no_grad():
            for call in range(calls):
                batch, seq = 1 + (worker + call) % 9, (worker * 7 + call * 3) % 50
                check(program, sample_weights(), *sample_inputs(batch, seq, call))

    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(work, worker) for worker in range(workers)]:
            future.result()
    stats = program.stats()
    assert stats.calls == calls * workers
    assert stats.arena_bytes <= len(os.sched_getaffinity(0)) * 16384


def test_threads_see_a_weight_that_changed() -> None:
    weights = sample_weights()
    program = Program(sample_artefacts(), weights)

    def work(seed: int) -> None:
        with torch.no_grad():
            check(program, weights, *sample_inputs(seed=seed))

    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            weights[0].add_(1)
            list(pool.map(work, range(8)))


def test_a_call_keeps_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a weight changes meanwhile, and another thread makes its copies again."""
    weights = sample_weights()
    program = Program(sample_artefacts(), weights)
    seen: list[bool] = []
    run = program._execution.run

    def slow(*args: Any) -> None:
        old = weakref.ref(program._weights.last.packed[0])
        weights[0].add_(1)
        thread = threading.Thread(target=program._weights.current)
        thread.start()
        thread.join()
        gc.collect()
        assert program._weights.last.packed[0] is not old()
        seen.append(old() is not None)
        run(*args)

    monkeypatch.setattr(program._execution, "run", slow)
    program(*sample_inputs())
    assert seen == [True]


def test_weights_change_in_one_thread_while_others_look() -> None:
    weights = sample_weights()
    program = Program(sample_artefacts(), weights)
    failures: list[Exception] = []
    over = threading.Event()

    def look() -> None:
        try:
            while not over.is_set():
                program._weights.current()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    with torch.no_grad():
        for number in range(200):
            weights[0].add_(1)
            if number % 2:
                weights[1].data = weights[1].data.clone()
    over.set()
    for thread in threads:
        thread.join()
    assert not failures
    check(program, weights, *sample_inputs())


def test_arenas_are_reused_grown_and_bounded() -> None:
    pool = ArenaPool(limit=2)
    first = pool.acquire(100)
    assert (first.numel(), first.data_ptr() % 64) == (4096, 0)
    pool.release(first)
    assert pool.acquire(4000) is first
    pool.release(first)
    larger = pool.acquire(1_000_000)
    assert 1_000_000 <= larger.numel() <= 1_125_000
    assert pool.bytes == larger.numel(), "the smaller one is given back"
    others = [pool.acquire(10) for _ in range(3)]
    for arena in (*others, larger):
        pool.release(arena)
    assert pool.bytes == 2 * 4096, "only two idle arenas are kept"


def test_an_arena_comes_back_from_a_call_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    program = sample_program()

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    execution = program._execution
    assert isinstance(execution, CpuExecution)
    monkeypatch.setattr(execution, "_run", fail)
    with pytest.raises(KeyboardInterrupt):
        program(*sample_inputs())
    assert execution._arenas._lent == 0


def test_arenas_of_streams() -> None:
    arenas = StreamArenas(CPU, limit=2)
    first = arenas.of(1, 10)
    assert (first.size, first.address) == (4096, first.memory.data_ptr())
    assert arenas.of(1, 4096) is first, "a stream runs one call after the other"
    second = arenas.of(2, 10)
    assert second.address != first.address, "what another stream does may not be over"
    larger = arenas.of(1, 1_000_000)
    assert 1_000_000 <= larger.size <= 1_125_000
    assert arenas.of(1, 10) is larger
    assert arenas.bytes == larger.size + 4096, "the smaller one is given back"
    arenas.of(3, 10)
    assert arenas.bytes == larger.size + 4096
    assert arenas.of(1, 10) is larger
    assert arenas.of(2, 10) is not second, "the stream that came first gives its arena up"


@pytest.mark.parametrize("allocate", [ArenaPool().acquire, lambda n: StreamArenas(CPU, 2).of(0, n)])
def test_no_memory_for_an_arena(allocate: Callable[[int], Any]) -> None:
    with pytest.raises(ArenaError):
        allocate(1 << 60)


# Counting.


def test_counters() -> None:
    program = sample_program()
    for batch, seq in ((1, 2), (2, 1), (1, 2)):
        program(*sample_inputs(batch, seq))
    stats = program.stats()
    assert (stats.calls, stats.distinct_shapes, stats.compiles) == (3, 2, 1)
    assert stats.arena_bytes == 4096
    assert stats.weight_bytes == 4 * (N * 4 + N)
    assert stats.packed_bytes == 4 * 8 * 4


def test_distinct_shapes_are_counted_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_SHAPES", 3)
    program = sample_program()
    for seq in range(1, 9):
        program(*sample_inputs(1, seq))
    assert program.stats().distinct_shapes == 3
    assert program.stats().calls == 8


def test_repr() -> None:
    target = SHARED.artefacts.target
    assert repr(SHARED) == (
        f"Program(x, mask) for cpu ({target.cpu}): batch=1..64, seq=0..2048; 1 kernels, 3 launches"
    )
