# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models that change buffers and inputs in place: compiled ones do what eager ones do."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import shapejit
from shapejit import errors
from shapejit.changes import Changes
from shapejit.program import Program

Write = Callable[[Tensor, Tensor, Tensor], Any]
"""Of a tensor [rows, 6], a source [n, 6] and positions [n]."""


def _nested(x: Tensor, source: Tensor, at: Tensor) -> None:
    x.view(2, -1, 6)[1].index_copy_(0, at % (x.shape[0] // 2), source)


def _rows_of_themselves(x: Tensor, source: Tensor, at: Tensor) -> None:
    x[1:].copy_(x[:-1].clone())


def _shift(x: Tensor, source: Tensor, at: Tensor) -> None:
    x.copy_(torch.cat((x[1:], source[:1])))


def _twice(x: Tensor, source: Tensor, at: Tensor) -> Tensor:
    before = x * 2
    x.index_copy_(0, at, source)
    between = x.sum(0)
    x[0] = between
    return before + x


WRITES: dict[str, Write] = {
    "index_copy": lambda x, source, at: x.index_copy_(0, at, source),
    "index_put": lambda x, source, at: x.__setitem__(at, source),
    "index_put of columns": lambda x, source, at: x.__setitem__((at, slice(1, 4)), source[:, 1:4]),
    "index_put from the end": lambda x, source, at: x.__setitem__(at - x.shape[0], source),
    "index_put of elements": lambda x, source, at: x.__setitem__((at, at % 6), source[:, 0]),
    "scatter": lambda x, source, at: x.scatter_(0, at[:, None].expand(-1, 6), source),
    "rows from the start": lambda x, source, at: x.__setitem__(slice(0, source.shape[0]), source),
    "rows to the end": lambda x, source, at: x.__setitem__(
        slice(x.shape[0] - source.shape[0], None), source
    ),
    "every other column": lambda x, source, at: x.__setitem__(
        (slice(None), slice(0, None, 2)), 1.5
    ),
    "one row": lambda x, source, at: x.__setitem__(-2, source[0]),
    "part of a column": lambda x, source, at: x[:, 3][: source.shape[0]].copy_(source[:, 0]),
    "a part of a view": _nested,
    "all": lambda x, source, at: x.copy_(source[:1].expand_as(x)),
    "zeros": lambda x, source, at: x.zero_(),
    "arithmetic": lambda x, source, at: x.add_(1).mul_(source[0]),
    "where a mask is": lambda x, source, at: x.masked_fill_(x > 0, 2.0),
    "a mask's elements": lambda x, source, at: x.__setitem__(x > 0, 2.0),
    "where a mask of the last dim is": lambda x, source, at: x.__setitem__(
        (slice(None), x[0] > 0), 2.0
    ),
    "its own rows": _rows_of_themselves,
    "a shift": _shift,
    "twice, with reads between": _twice,
}


GROUPS = [sorted(WRITES)[number::3] for number in range(3)]
"""The writes of one program each: compiling takes the time."""


class Writer(nn.Module):
    """Changes buffers of 10 rows and inputs of any number in the same ways, one pair a way."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        for number in range(len(names)):
            self.register_buffer(f"state{number}", torch.arange(60.0).reshape(10, 6) - 30)

    def forward(self, inputs: list[Tensor], source: Tensor, at: Tensor) -> list[Tensor]:
        found = []
        for number, (name, x) in enumerate(zip(self.names, inputs, strict=True)):
            state = getattr(self, f"state{number}")
            old = x[0] * 1
            of_input = WRITES[name](x, source, at)
            of_state = WRITES[name](state, source, at)
            if isinstance(of_input, Tensor) and of_input is not x:
                old = old + of_input.sum() + of_state.sum()
            found += [old, x.sum(1), state * 2]
        return found


def example(rows: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=generator)
    source = torch.randn(count, 6, generator=generator)
    return x, source, torch.randperm(min(rows, 10), generator=generator)[:count]


def shapes() -> dict[str, Any]:
    rows, count = Dim("rows", min=4, max=40), Dim("count", min=1, max=4)
    return {"x": {0: 2 * rows}, "source": {0: count}, "at": {0: count}}


@pytest.mark.parametrize("names", GROUPS)
@torch.no_grad()
def test_writes(names: list[str]) -> None:
    eager = Writer(names).eval()
    model = copy.deepcopy(eager)
    x, source, at = example(12, 3)
    sizes = shapes()
    inputs = {"inputs": [sizes.pop("x")] * len(names)}
    program = shapejit.compile(
        model,
        ([x.clone() for _ in names], source, at),
        dynamic_shapes=inputs | sizes,
        verify_each=True,
    )
    for rows, count in ((8, 1), (10, 4), (80, 3), (12, 4)):
        x, source, at = example(rows, count, rows)
        ours, theirs = ([x.clone() for _ in names] for _ in range(2))
        expected, got = eager(theirs, source, at), program(ours, source, at)
        for number, name in enumerate(names):
            part = slice(3 * number, 3 * number + 3)
            states = [getattr(each, f"state{number}") for each in (model, eager)]
            torch.testing.assert_close(ours[number], theirs[number], msg=name)
            torch.testing.assert_close(*states, msg=name)
            torch.testing.assert_close(got[part], expected[part], msg=name)


class Functional(nn.Module):
    """Operators that give a tensor with elements replaced, of what must not change."""

    def forward(self, x: Tensor, source: Tensor, at: Tensor) -> list[Tensor]:
        zeros = torch.zeros_like(x)
        return [
            torch.index_copy(x, 0, at, source),
            torch.scatter(x.t(), 1, at[None].expand(6, -1), source.t()),
            torch.scatter(x, 1, (at % 6)[:, None], 3.0),
            torch.index_put(zeros, (at,), source),
            torch.index_put(x, (at, at % 6), source[0, 0]),
            torch.slice_scatter(zeros, source, 0, 1, 1 + source.shape[0]),
            torch.slice_scatter(x, x[:, :3] * 2, 1, 0, 6, 2),
            torch.where(x > 0, torch.index_copy(zeros, 0, at, source), x),
        ]


@torch.no_grad()
def test_operators_without_a_change() -> None:
    program = shapejit.compile(Functional().eval(), example(12, 3), dynamic_shapes=shapes())
    for rows, count in ((8, 1), (10, 4), (80, 3)):
        x, source, at = example(rows, count, rows)
        before = x.clone()
        torch.testing.assert_close(program(x, source, at), Functional()(x, source, at))
        assert torch.equal(x, before)


class Cache(nn.Module):
    """Keys that are kept, in a buffer that no state dict has, and a count of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 8, 16))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(1, at, self.linear(x))
        self.calls.add_(1)
        return torch.softmax(x @ self.keys.mT, -1) @ self.keys, self.keys


@functools.cache
def cache_model() -> Cache:
    torch.manual_seed(0)
    return Cache().eval()


def compiled_cache() -> tuple[Cache, Program]:
    model = copy.deepcopy(cache_model())
    count = Dim("count", min=1, max=8)
    args = (torch.zeros(2, 3, 16), torch.arange(3))
    program = shapejit.compile(model, args, dynamic_shapes=({1: count}, {0: count}))
    return model, program


@torch.no_grad()
def test_one_program_serves_a_cache_that_fills() -> None:
    eager, (model, program) = copy.deepcopy(cache_model()), compiled_cache()
    start = 0
    for count in (3, 1, 1, 2, 1):
        x, at = torch.randn(2, count, 16), torch.arange(start, start + count)
        got, keys = program(x, at)
        expected, _ = eager(x, at)
        torch.testing.assert_close(got, expected)
        assert keys is model.keys, "what is returned is the buffer itself, as in eager mode"
        start += count
    torch.testing.assert_close(model.keys, eager.keys)
    assert int(model.calls) == 5
    assert program.stats().compiles == 1


@torch.no_grad()
def test_only_the_new_rows_are_written() -> None:
    model, program = compiled_cache()
    model.keys.fill_(5.0)
    program(torch.randn(2, 1, 16), torch.tensor([4]))
    kept = torch.cat((model.keys[:, :4], model.keys[:, 5:]), 1)
    assert bool((kept == 5.0).all())
    arena = program.explain(torch.zeros(2, 1, 16), torch.tensor([4])).arena_bytes
    assert arena < model.keys.nbytes + 4096, "nothing has room for a copy of the cache"


@torch.no_grad()
def test_positions_out_of_range_leave_memory_alone() -> None:
    model, program = compiled_cache()
    program(torch.randn(2, 3, 16), torch.tensor([1 << 40, -1, 8]))
    assert not model.keys.any()


@torch.no_grad()
def test_a_saved_program_has_its_states(tmp_path: Path) -> None:
    model, program = compiled_cache()
    program(torch.randn(2, 2, 16), torch.arange(2))
    program.save(tmp_path / "cache.sj")
    loaded = shapejit.load(tmp_path / "cache.sj")
    x, at = torch.randn(2, 1, 16), torch.tensor([2])
    torch.testing.assert_close(loaded(x, at)[0], program(x, at)[0])
    assert set(loaded.state_dict()) == {"keys", "linear.weight", "linear.bias"}
    loaded.load_state_dict(cache_model().state_dict())
    assert not loaded.state_dict()["keys"].any()
    assert model.keys.any(), "the loaded program has states of its own"
    with pytest.raises(RuntimeError, match="size mismatch for keys"):
        loaded.load_state_dict({**cache_model().state_dict(), "keys": torch.zeros(3)})


@torch.no_grad()
def test_states_can_be_those_of_a_module(tmp_path: Path) -> None:
    _, program = compiled_cache()
    program.save(tmp_path / "cache.sj", weights=False)
    own = copy.deepcopy(cache_model())
    loaded = shapejit.load(tmp_path / "cache.sj", weights=own)
    loaded(torch.randn(2, 1, 16), torch.tensor([7]))
    assert own.keys[:, 7].any()


@torch.no_grad()
def test_calls_from_threads_change_states_one_by_one() -> None:
    model, program = compiled_cache()
    x = torch.randn(2, 1, 16)

    @torch.no_grad()
    def run() -> None:
        for position in range(50):
            program(x, torch.tensor([position % 8]))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(model.calls) == 200


# Inputs -------------------------------------------------------------------------------------------


class Step(nn.Module):
    """A cache that the caller holds: keys and values as inputs."""

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        keys.index_copy_(1, at, x + 1)
        values.index_copy_(1, at, x * 2)
        return keys.sum(1) + values.sum(1), values


@functools.cache
def step() -> Program:
    count, length = Dim("count", min=1, max=8), Dim("length", min=4, max=64)
    args = (torch.zeros(2, 3, 5), torch.zeros(2, 9, 5), torch.zeros(2, 9, 5), torch.arange(3))
    sizes = ({1: count}, {1: length}, {1: length}, {0: count})
    return shapejit.compile(Step().eval(), args, dynamic_shapes=sizes)


@torch.no_grad()
@pytest.mark.parametrize("length", [4, 7, 64])
def test_inputs_are_changed_and_returned(length: int) -> None:
    x, at = torch.randn(2, 2, 5), torch.tensor([3, 0])
    keys, values = torch.randn(2, length, 5), torch.randn(2, length, 5)
    theirs = keys.clone(), values.clone()
    versions = keys._version, values._version
    got, returned = step()(x, keys, values, at)
    expected, _ = Step()(x, *theirs, at)
    torch.testing.assert_close((got, keys, values), (expected, *theirs))
    assert returned is values
    assert (keys._version, values._version) > versions


@torch.no_grad()
def test_strided_inputs_are_changed_where_they_lie() -> None:
    storage = torch.zeros(2, 5, 9)
    values = torch.zeros(2, 9, 5)
    step()(torch.ones(2, 1, 5), storage.mT, values, torch.tensor([4]))
    assert bool((storage[..., 4] == 2).all())
    assert int(storage.count_nonzero()) == 10


@torch.no_grad()
def test_a_change_of_shared_memory_is_refused() -> None:
    x, at, keys = torch.ones(2, 1, 5), torch.tensor([0]), torch.zeros(2, 9, 5)
    with pytest.raises(errors.ArgumentError, match=r"SJ-ARG-010.*shares memory"):
        step()(x, keys, keys, at)
    both = torch.zeros(36, 5)
    parts = both[:18].reshape(2, 9, 5), both[10:28].view(2, 9, 5)
    with pytest.raises(errors.ArgumentError, match=r"shares memory with \"(keys|values)\""):
        step()(x, *parts, at)
    with pytest.raises(errors.ArgumentError, match=r"with itself: it is expanded"):
        step()(x, torch.zeros(1, 9, 5).expand(2, 9, 5), torch.zeros(2, 9, 5), at)
    step()(x, both[:18].view(2, 9, 5), both[18:].view(2, 9, 5), at)


@torch.no_grad()
def test_a_state_that_lost_its_memory_is_refused() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(x)
            return x + 1

    model = Counter().eval()
    program = shapejit.compile(model, (torch.ones(3),))
    program(torch.ones(3))
    model.count.untyped_storage().resize_(0)
    with pytest.raises(errors.ArgumentError, match='SJ-ARG-012 "count" is a Tensor'):
        program(torch.ones(3))
    model.count = torch._efficientzerotensor([3])
    with pytest.raises(errors.LoadError, match=r'SJ-LOAD-008 weight "count".*without memory'):
        Changes(program.artefacts, [model.count], torch.device("cpu"))


@torch.no_grad()
def test_states_that_share_memory_are_refused() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("first", torch.zeros(3, 3))
            self.register_buffer("second", torch.zeros(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            self.first.add_(x)
            self.second.mul_(x)
            return x + 1

    model = Pair().eval()
    program = shapejit.compile(model, (torch.ones(3, 3),))
    with pytest.raises(errors.ArgumentError, match=r'SJ-ARG-010 "first".*with "x".* x.clone\(\)'):
        program(model.first)
    shared = torch.zeros(4, 3)
    with pytest.raises(errors.ExportError, match=r"SJ-EXPORT-014.*first.*second"):
        Program(program.artefacts, [shared[:3], shared[1:]])


@torch.no_grad()
def test_a_broadcast_value_is_written_everywhere() -> None:
    class Broadcast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            self.state.copy_(x[:1])
            return x + 1

    model = Broadcast().eval()
    shapejit.compile(model, (torch.ones(5, 3),), dynamic_shapes=({0: Dim("n", min=1)},))(
        torch.full((2, 3), 7.0)
    )
    assert bool((model.state == 7).all())


def test_a_parameter_that_changes_is_refused() -> None:
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            self.weight.add_(x)
            return x * self.weight

    with pytest.raises(errors.ExportError, match=r"SJ-EXPORT-013.*weight"), torch.no_grad():
        shapejit.compile(Trained().eval(), (torch.ones(3),))
