# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The native table of an operator's plans, with a function of Python's as the runtime's launch."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, c_int32, c_int64, c_void_p
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shapejit.native_calls import Calls, Inputs, Plan, Prepared, Sizes, has_memory
from unit.tensors_without_memory import KINDS

HANDLE = 0x5A5A
STREAM = 77

_LAUNCH = CFUNCTYPE(c_int32, c_void_p, POINTER(c_void_p), POINTER(c_int64), c_void_p, c_void_p)


class Kernel:
    """Stands for a kernel in device memory."""

    def check(self, status: int) -> None:
        if status == 5:
            raise MemoryError(f"status {status}")


class Loaded:
    """A kernel that can be evicted."""

    def __init__(self) -> None:
        self.kernel: Kernel | None = Kernel()
        self.used = 0


class Table:
    """A table of plans, and what is launched through it.

    Attributes:
        launched: kernel, addresses, values and stream of every launch.
        asked: rows and whether to wait, of every call that a plan's owner was asked for.
        status: what launches return.
    """

    def __init__(self, most: int = 8) -> None:
        self.calls = Calls(most, self.stream_of, self.uses_tf32, lambda: OverflowError("shared"))
        self.launched: list[tuple[int, list[int], list[int], int]] = []
        self.asked: list[tuple[int, bool]] = []
        self.status = 0
        self.operands = 3
        self._native = _LAUNCH(self._launch)
        self.address = ctypes.cast(self._native, c_void_p).value or 0
        self.clock = itertools.count(1)

    @staticmethod
    def stream_of(device: int) -> int:
        assert device == 3
        return STREAM

    @staticmethod
    def uses_tf32(precision: str) -> bool:
        if precision == "wrong":
            raise KeyError(precision)
        return precision == "tf32"

    def _launch(self, kernel: int, operands: Any, values: Any, workspace: Any, stream: int) -> int:
        assert workspace is None
        self.launched.append((kernel, operands[: self.operands], values[:3], stream or 0))
        return self.status

    def add(self, plan: Plan, *arguments: Any) -> Tensor:
        """Adds a plan, and makes the call."""
        self.calls.add(plan, *arguments)
        result = self.calls.run(*arguments)
        assert result is not None
        return result

    def prepared(self, loaded: Loaded) -> Prepared:
        """Values 10, rows + 1, 2 * rows."""
        return Prepared(loaded, HANDLE, self.address, [10, -1, -1], [1, 1, 1, 2, 0, 2])

    def plan(self, size: tuple[int, ...], *, rows: int = 0) -> Plan:
        def owner(plan: Plan, addresses: list[int], rows: int, stream: int, final: bool) -> None:
            assert stream == STREAM
            assert len(addresses) == self.operands
            self.asked.append((rows, final))

        def allocate(size: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
            return torch.empty_strided(size, strides, dtype=dtype)

        strides = torch.empty(size).stride()
        return Plan(owner, self.clock, allocate, size, strides, torch.bfloat16, 3, rows)


def arguments(a: Any, b: Any, **others: Any) -> tuple[Any, ...]:
    names = ("gate", "bias", "residual", "out", "activation", "out_dtype")
    given = [others.pop(name, None) for name in names]
    precision, final = others.pop("precision", "auto"), others.pop("final", False)
    assert not others
    return (a, b, *given, precision, final)


def halves(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


X, W = halves(9, 8), halves(8, 16)


def test_a_plan_serves_any_number_of_rows() -> None:
    table = Table()
    assert table.calls.run(*arguments(X, W)) is None
    plan, loaded = table.plan((9, 16)), [Loaded(), Loaded()]
    first, second = map(table.prepared, loaded)
    plan.choose([0, 4, 7], (first, second, None))
    result = table.add(plan, *arguments(X, W))
    assert (result.shape, result.dtype) == ((9, 16), torch.bfloat16)
    assert (table.asked, table.launched) == ([(9, False)], [])
    for m, used in ((3, 0), (4, 1), (6, 1), (2, 0)):
        result = table.calls.run(*arguments(X[:m], W))
        assert result is not None
        assert result.shape == (m, 16)
        addresses = [X.data_ptr(), W.data_ptr(), result.data_ptr()]
        assert table.launched.pop() == (HANDLE, addresses, [10, m + 1, 2 * m], STREAM)
        assert loaded[used].used > loaded[1 - used].used
    assert table.calls.run(*arguments(X[:8], W, final=True)) is not None
    assert table.asked.pop() == (8, True)
    assert len(table.calls) == 1


def test_an_evicted_kernel_is_asked_for() -> None:
    table, loaded = Table(), Loaded()
    plan = table.plan((9, 16))
    plan.choose([0], (table.prepared(loaded),))
    table.add(plan, *arguments(X, W))
    loaded.kernel = None
    table.calls.run(*arguments(X, W))
    assert (len(table.launched), table.asked) == (1, [(9, False)])


def test_one_row_has_a_plan_of_its_own() -> None:
    """Its strides say nothing."""
    table = Table()
    plan = table.plan((1, 16), rows=1)
    plan.choose([0], (table.prepared(Loaded()),))
    table.add(plan, *arguments(X[:1], W))
    assert table.launched.pop()[2] == [10, 2, 2]
    assert table.calls.run(*arguments(X[:2], W)) is None


@pytest.mark.parametrize("columns", [16, 1])
def test_a_bias_with_rows_fits_calls_with_as_many_only(columns: int) -> None:
    """Other calls are none that are taken: kernels would read beyond it."""
    table = Table()
    table.operands = 4
    bias = halves(9, columns)
    table.add(table.plan((9, 16), rows=9), *arguments(X, W, bias=bias))
    assert table.calls.run(*arguments(X, W, bias=bias)) is not None
    for rows in (8, 10):
        assert table.calls.run(*arguments(halves(rows, 8), W, bias=bias)) is None
    table.add(table.plan((9, 16)), *arguments(X, W, bias=bias[:1]))
    assert table.calls.run(*arguments(halves(10, 8), W, bias=bias[:1])) is not None


def test_failed_launches_raise_what_the_kernel_says() -> None:
    table = Table()
    plan = table.plan((9, 16))
    plan.choose([0], (table.prepared(Loaded()),))
    table.add(plan, *arguments(X, W))
    for status, error in ((5, MemoryError), (6, RuntimeError)):
        table.status = status
        with pytest.raises(error):
            table.calls.run(*arguments(X, W))


def test_errors_of_functions_come_through() -> None:
    table = Table()
    floats = torch.zeros(9, 8), torch.zeros(8, 16)
    with pytest.raises(KeyError, match="wrong"):
        table.calls.run(*arguments(*floats, precision="wrong"))
    assert table.calls.run(*arguments(X, W, precision="wrong")) is None  # does not matter there

    def fail(*_: Any) -> Any:
        raise OSError("no memory")

    plan = Plan(fail, table.clock, fail, (9, 16), (16, 1), torch.bfloat16, 3, 0)
    with pytest.raises(OSError, match="no memory"):
        table.add(plan, *arguments(X, W))
    with pytest.raises(OSError, match="no memory"):  # of the owner
        table.calls.run(*arguments(X, W, out=None))
    assert not table.launched


def test_results_that_share_memory() -> None:
    table = Table()
    memory = halves(400)
    x, w, out = memory[:72].view(9, 8), memory[72:200].view(8, 16), memory[200:344].view(9, 16)
    plan = table.plan((9, 16))
    plan.choose([0], (table.prepared(Loaded()),))
    assert table.add(plan, *arguments(x, w, out=out)) is out
    for start in (199, 56):
        shared = memory[start:][:144].view(9, 16)
        with pytest.raises(OverflowError, match="shared"):
            table.add(table.plan((9, 16)), *arguments(x, w, out=shared))
    assert len(table.launched) == 1


def test_an_empty_result_launches_nothing() -> None:
    table = Table()
    result = table.add(table.plan((0, 16)), *arguments(X[:0], W))
    assert result.shape == (0, 16)
    assert table.calls.run(*arguments(X[:0], W)) is not None
    assert not table.launched and not table.asked


@pytest.mark.parametrize("changed", [
    {"a": X.mT.contiguous().mT}, {"a": halves(9, 8, 1)[..., 0]}, {"a": halves(1, 9, 8)},
    {"a": halves(73)[1:].view(9, 8)}, {"a": X.half()}, {"b": halves(8, 17)[:, :16]},
    {"b": halves(8, 17)}, {"bias": halves(16)}, {"bias": torch.zeros(16)},
    {"bias": halves(17)[1:]}, {"gate": W}, {"residual": halves(9, 16)}, {"residual": halves(1, 16)},
    {"out": halves(9, 16)}, {"activation": "relu"}, {"activation": "gelu"},
    {"activation": "gelu_tanh"}, {"out_dtype": torch.float32}, {"out_dtype": torch.bfloat16},
])  # fmt: skip
def test_what_makes_another_kind_of_call(changed: dict[str, Any]) -> None:
    table = Table()
    table.operands = 2 + len({"gate", "bias", "residual"} & changed.keys()) + 1
    plain = arguments(X, W)
    other = arguments(changed.pop("a", X), changed.pop("b", W), **changed)
    table.add(table.plan((9, 16)), *other)
    assert table.calls.run(*other) is not None
    strides = other[0].stride() == X.stride() and other[0].data_ptr() % 16 == 0
    same = strides and not changed and other[1] is W and other[0].dtype is X.dtype
    assert (table.calls.run(*plain) is not None) == (same and other[0].shape == X.shape)


def test_precisions_of_float32() -> None:
    table = Table()
    floats = torch.zeros(9, 8), torch.zeros(8, 16)
    table.add(table.plan((9, 16)), *arguments(*floats, precision="tf32"))
    assert table.calls.run(*arguments(*floats, precision="tf32")) is not None
    assert table.calls.run(*arguments(*floats, precision="ieee")) is None


def test_what_is_left_to_python() -> None:
    table = Table()
    grown = halves(9, 8).requires_grad_()
    table.add(table.plan((9, 16)), *arguments(X, W))
    sparse = X.to_sparse()
    for wrong in (None, "x", object(), sparse, torch._neg_view(X), grown):
        assert table.calls.run(*arguments(wrong, W)) is None
        with pytest.raises(TypeError, match="cannot be read"):
            table.calls.add(table.plan((9, 16)), *arguments(wrong, W))
    assert table.calls.run(*arguments(X, W, activation=3)) is None
    assert table.calls.run(*arguments(X, W, activation="a" * 17)) is None
    with torch.no_grad():
        assert table.calls.run(*arguments(grown, nn.Parameter(W))) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_without_memory_are_left_to_python(kind: str) -> None:
    table = Table()
    table.add(table.plan((9, 16)), *arguments(X, W))
    missing = KINDS[kind](X)
    assert not has_memory(missing)
    assert table.calls.run(*arguments(missing, W)) is None
    assert table.calls.run(*arguments(X, W, out=KINDS[kind](halves(9, 16)))) is None
    assert sizes_of(9, 8, dtype=torch.bfloat16).read([missing]) is None
    assert len(table.launched) == 0
    ran = Ran(1)
    assert Inputs([], 1, 0xE0).run([], b"", [missing], ran.address, 0, 0, 0, 0) is None
    assert not ran.calls


def test_a_place_in_a_storage_may_be_a_symbol() -> None:
    class Symbolic(Tensor):
        def storage_offset(self) -> Any:
            return torch.SymInt(None)

    missing = KINDS["part of emptied"](X).as_subclass(Symbolic)
    assert sizes_of(9, 8, dtype=torch.bfloat16).read([missing]) is None
    assert Table().calls.run(*arguments(missing, W)) is None


def test_empty_tensors_need_no_memory() -> None:
    for kind in ("fake", "wrapper", "emptied"):
        assert has_memory(KINDS[kind](X[:0]))
        assert sizes_of(0, 8, dtype=torch.bfloat16).read([KINDS[kind](X[:0])]) == (0, 8)


def test_tensors_inside_of_transforms_have_no_memory() -> None:
    def body(x: Tensor) -> Tensor:
        assert not has_memory(x)
        assert sizes_of(8, dtype=torch.bfloat16).read([x]) is None
        return x

    torch.func.vmap(body)(X)


def test_a_result_without_memory_is_an_error() -> None:
    """What allocates it may be told by torch to make fake ones."""
    table = Table()
    with FakeTensorMode(), pytest.raises(RuntimeError, match="outside of it"):
        table.add(table.plan((9, 16)), *arguments(X, W))
    assert not table.asked


def test_tensors_of_subclasses_are_tensors() -> None:
    class Named(Tensor):
        pass

    table = Table()
    table.add(table.plan((9, 16)), *arguments(X, W))
    assert table.calls.run(*arguments(X.as_subclass(Named), nn.Parameter(W, False))) is not None


def test_the_oldest_plans_go() -> None:
    table = Table(most=3)
    weights = [halves(8, 16 + n) for n in range(5)]
    for w in weights:
        table.add(table.plan((9, w.shape[1])), *arguments(X, w))
    assert len(table.calls) == 3
    known = [table.calls.run(*arguments(X, w)) is not None for w in weights]
    assert known == [False, False, True, True, True]
    table.calls.clear()
    assert len(table.calls) == 0
    assert table.calls.run(*arguments(X, weights[4])) is None


def test_a_plan_that_goes_while_its_call_runs() -> None:
    table = Table(most=1)

    def owner(plan: Plan, addresses: Any, rows: int, stream: int, final: bool) -> None:
        table.calls.clear()
        plan.choose([0], (None,))

    def allocate(*_: Any) -> Tensor:
        table.calls.clear()
        return halves(9, 16)

    plan = Plan(owner, table.clock, allocate, (9, 16), (16, 1), torch.bfloat16, 3, 9)
    plan.choose([0], (None,))
    table.add(plan, *arguments(X, W))
    del plan
    assert table.calls.run(*arguments(X, W)) is None


def test_of_several_plans_for_a_kind_the_first_stays_with_what_the_last_chooses() -> None:
    table = Table()
    first, second = table.plan((9, 16)), table.plan((9, 16))
    table.add(first, *arguments(X, W))
    assert len(table.asked) == 1
    second.choose([0], (table.prepared(Loaded()),))
    table.add(second, *arguments(X, W))
    assert (len(table.calls), len(table.launched), len(table.asked)) == (1, 1, 1)
    with pytest.raises(ValueError, match="other calls"):
        table.calls.add(first, *arguments(X[:1], W))


@pytest.mark.parametrize("wrong", [
    lambda plan: plan.choose([], ()), lambda plan: plan.choose([0, 3], (None,)),
    lambda plan: plan.choose([3], (None,)), lambda plan: plan.choose([0, 5, 4], (None,) * 3),
    lambda plan: plan.choose([0], ("x",)), lambda plan: plan.choose(["x"], (None,)),
    lambda plan: plan.choose([0], [None]),
    lambda plan: Prepared(None, 1, 1, [0] * 257, []),
    lambda plan: Prepared(None, 1, 1, [0], [0, 1]),
    lambda plan: Prepared(None, 1, 1, [0], [1, 1, 1]),
    lambda plan: Prepared(None, 1, 1, [0], [-1, 1, 1]),
    lambda plan: Calls(0, id, id, id), lambda plan: Calls(1, id, id, id).run(1, 2),
    lambda plan: Calls(1, id, id, id).add(), lambda plan: Calls(1, id, id, id).add(plan, 1),
    lambda plan: Calls(1, id, id, id).add(X, *arguments(X, W)),
])  # fmt: skip
def test_wrong_uses_are_errors(wrong: Callable[[Plan], object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        wrong(Table().plan((9, 16)))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_choices_are_those_of_a_bisection(data: Any) -> None:
    table = Table()
    rest = data.draw(st.lists(st.integers(1, 40), max_size=6))
    starts = [0, *sorted(rest)]
    loaded = [Loaded() for _ in starts]
    plan = table.plan((2, 16))
    plan.choose(starts, tuple(map(table.prepared, loaded)))
    x = halves(50, 8)
    table.add(plan, *arguments(x[:2], W))
    m = data.draw(st.integers(2, 50))
    table.calls.run(*arguments(x[:m], W))
    last = max(range(len(starts)), key=lambda n: loaded[n].used)
    assert last == max(n for n, start in enumerate(starts) if start <= m)


# Programs -----------------------------------------------------------------------------------------

_RUN = CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(c_void_p), c_void_p, c_void_p)

DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


def sizes_of(*dims: int, dtype: torch.dtype = torch.float32, place: int = 0) -> Sizes:
    return Sizes([(place, torch.empty(0, dtype=dtype), len(dims))], 1, 0)


def test_sizes_of_several_tensors() -> None:
    expected = [(2, torch.empty(0), 3), (0, torch.empty(0, dtype=torch.int64), 1)]
    expected.append((3, torch.empty(0), 0))
    sizes = Sizes(expected, 1, 0)
    leaves = [torch.arange(7), "no tensor", torch.zeros(0, 2, 3).mT, torch.zeros(())]
    assert sizes.read(leaves) == sizes.read(tuple(leaves)) == (0, 3, 2, 7)
    assert Sizes([], 1, 0).read([]) == ()
    with pytest.raises(IndexError):
        sizes.read(leaves[:2])
    for wrong in (leaves[:0], 3, "abcd"):
        with pytest.raises((IndexError, TypeError, SystemError)):
            sizes.read(wrong)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_of_every_element_type(dtype: torch.dtype) -> None:
    sizes = sizes_of(2, 3, dtype=dtype)
    for other in DTYPES:
        found = sizes.read([torch.zeros(2, 3, dtype=other)])
        assert found == ((2, 3) if other is dtype else None)


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_tensors_that_are_not_as_expected() -> None:
    sizes = sizes_of(2, 3)
    right = torch.zeros(2, 3)
    nested = torch.nested.nested_tensor([right, right])
    for wrong in (
        right[0], right[None], right.to_sparse(), nested, right.to("meta"), 3, None, right.numpy(),
    ):  # fmt: skip
        assert sizes.read([wrong]) is None
    assert Sizes([(0, right, 2)], 2, 0).read([right]) is None
    assert sizes.read([nn.Parameter(right)]) == (2, 3)
    with pytest.raises(TypeError):
        Sizes([(0, 3, 2)], 1, 0)  # type: ignore[list-item]


class Ran:
    """A function that queues a program.

    Attributes:
        calls: handle, symbols, buffers, arena and stream of every call.
        status: what it returns.
    """

    def __init__(self, count: int) -> None:
        self.calls: list[tuple[int, int, list[int], int, int]] = []
        self.status = 0
        self._count = count
        self._native = _RUN(self._run)
        self.address = ctypes.cast(self._native, c_void_p).value or 0

    def _run(self, handle: int, symbols: int, buffers: Any, arena: int, stream: int) -> int:
        found = [address or 0 for address in buffers[: self._count]]
        self.calls.append((handle, symbols, found, arena, stream or 0))
        return self.status


WORDS = (ctypes.c_uint64 * 2)(1 << 63, 5)


def test_a_program_gets_the_addresses_of_its_tensors() -> None:
    ran = Ran(6)
    inputs = Inputs([(1, True), (0, False)], 16, 0xE0)
    leaves, outputs = [torch.arange(4), halves(3, 1, 5)], [halves(2), halves(0)]
    for status in (0, 7):
        ran.status = status
        given: Any
        for given in (leaves, tuple(leaves)):
            assert inputs.run(given, bytes(WORDS), outputs, ran.address, 1, 2, 3, 4) == status
            buffers = [leaves[1].data_ptr(), leaves[0].data_ptr(), *WORDS, outputs[0].data_ptr()]
            assert ran.calls.pop() == (1, 2, [*buffers, 0xE0], 3, 4)


def test_inputs_that_cannot_be_read_in_place() -> None:
    ran = Ran(1)
    inputs, any_address = Inputs([(0, True)], 16, 0xE0), Inputs([(0, True)], 1, 0xE0)
    base = halves(64)
    assert base.data_ptr() % 16 == 0

    def run(one: Inputs, tensor: Tensor) -> bool:
        return one.run([tensor], b"", [], ran.address, 0, 0, 0, 0) == 0

    for contiguous in (base[8:], base.view(1, 64).mT, base[:0].view(0, 3).mT, base.view(8, 1, 8)):
        assert run(inputs, contiguous)
        assert ran.calls.pop()[2] == [contiguous.data_ptr() or 0xE0]
    for unusual in (base.view(8, 8).mT, base[::2], base[:1].expand(4), torch._neg_view(base)):
        assert not run(inputs, unusual)
        assert not run(any_address, unusual)
    assert not run(inputs, base[1:])
    assert run(any_address, base[1:])
    assert len(ran.calls) == 1


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_is_contiguous_is_what_torch_says(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(0, 3), max_size=4))
    strides = data.draw(st.lists(st.integers(0, 9), min_size=len(shape), max_size=len(shape)))
    tensor = torch.zeros(100).as_strided(shape, strides)
    status = Inputs([(0, True)], 1, 0xE0).run([tensor], b"", [], Ran(1).address, 0, 0, 0, 0)
    assert (status == 0) == tensor.is_contiguous()


def test_wrong_arguments_of_a_program() -> None:
    ran = Ran(1)
    inputs = Inputs([(0, True)], 16, 0xE0)
    good = ([halves(8)], b"", [], ran.address, 0, 0, 0, 0)
    for place, wrong in ((0, []), (1, "x"), (2, 3), (2, [3]), (3, "x"), (7, -1)):
        arguments: list[Any] = list(good)
        arguments[place] = wrong
        with pytest.raises((IndexError, RuntimeError, TypeError, OverflowError, SystemError)):
            inputs.run(*arguments)
    with pytest.raises(TypeError):
        inputs.run(*good[:7])  # type: ignore[call-arg]
    assert not ran.calls
