# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs that write into tensors of the caller's: ``program(x, out=y)``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

import shapejit
from shapejit.errors import ArgumentError
from unit.fake_cuda import Fake
from unit.gpu_programs import FakeProgram, deep, on_fake, residual, rows
from unit.tensors_without_memory import KINDS


class Two(nn.Module):
    """Two tensors and a size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, int, Tensor]:
        return self.linear(x), x.shape[0], x.sum(0)


def compiled(model: nn.Module, least: int = 1) -> shapejit.Program:
    shapes = ({0: Dim("rows", min=least, max=64)},)
    return shapejit.compile(model.eval(), (torch.zeros(3, 8),), dynamic_shapes=shapes)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def two() -> shapejit.Program:
    with torch.no_grad():
        return compiled(Two(), least=0)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 64))
def test_results_are_written_where_the_caller_wants(two: shapejit.Program, count: int) -> None:
    with torch.no_grad():
        x = torch.randn(count, 8, generator=torch.Generator().manual_seed(count))
        whole = torch.full((count * 4 + 8,), -7.0)
        out = [whole[4:-4].view(count, 4), torch.empty(8)]
        versions = [tensor._version for tensor in out]
        first, size, second = two(x, out=out)
        assert first is out[0]
        assert second is out[1]
        assert size == count
        for got, expected in zip((first, second), two(x)[::2], strict=True):
            assert torch.equal(got, expected)
        assert bool((whole[:4] == -7).all())
        assert bool((whole[-4:] == -7).all())
        assert all(t._version > v for t, v in zip(out, versions, strict=True))


def test_a_lone_result_is_a_tensor() -> None:
    program = compiled(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    x, y = torch.randn(5, 8), torch.empty(5, 8)
    assert program(x, out=y) is y
    assert program(x, out=(y,)) is y
    assert torch.equal(y, program(x))
    with torch.inference_mode():
        inferred = torch.empty(5, 8)
        program(x, out=inferred)
    assert torch.equal(y, inferred)


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ArgumentError) as raised:
        call(*args, **kwargs)
    return str(raised.value)


def test_what_cannot_receive_results(two: shapejit.Program) -> None:
    x, good = torch.randn(3, 8), torch.empty(8)
    assert 'SJ-ARG-011 "out" is 1, but it must be 2 tensors.' in refusal(two, x, out=(good,))
    assert '"out" is dict, but it must be 2 tensors' in refusal(two, x, out={})
    text = refusal(two, x, out=(torch.empty(4, 4), good))
    rule = "torch.float32 [4, 4] on cpu, but the result is torch.float32 [3, 4] on cpu."
    assert f'SJ-ARG-011 "out[0]" is {rule}' in text
    assert "torch.float64" in refusal(two, x, out=(torch.empty(3, 4).double(), good))
    assert "on meta" in refusal(two, x, out=(torch.empty(3, 4, device="meta"), good))
    assert "is a list" in refusal(two, x, out=([], good))
    for make in KINDS.values():
        assert "without memory" in refusal(two, x, out=(make(torch.empty(3, 4)), good))
    strided = torch.empty(4, 3).mT
    assert "not contiguous" in refusal(two, x, out=(strided, good))
    with torch.enable_grad():
        asked = torch.empty(3, 4, requires_grad=True)
        program = compiled(nn.ReLU())
        text = refusal(program, x, out=torch.empty(3, 8, requires_grad=True))
    assert "requires grad" in text
    two(x, out=(asked, good))  # nobody asks for gradients here


def test_results_lie_apart_from_all_that_is_read(two: shapejit.Program) -> None:
    x = torch.randn(8, 8)
    first = torch.empty(8, 4)
    apart = "it must share no memory with another tensor of the call"
    for out in (
        (x.view(-1)[:32].view(8, 4), torch.empty(8)),
        (first, x[7]),
        (first, first.view(-1)[24:]),
    ):
        assert apart in refusal(two, x, out=out)
    bias = two.named_weights()["linear.bias"]
    assert apart in refusal(two, x[:1], out=(bias.detach().view(1, 4), torch.empty(8)))


def test_an_argument_of_that_name_is_the_models() -> None:
    class Takes(nn.Module):
        def forward(self, x: Tensor, out: Tensor) -> Tensor:
            return x + out

    x = torch.randn(3, 8)
    dim = Dim("rows", min=1, max=64)
    program = shapejit.compile(
        Takes().eval(), (x,), {"out": x.clone()}, dynamic_shapes={"x": {0: dim}, "out": {0: dim}}
    )
    assert torch.equal(program(x, out=x), x + x)


# On a GPU, as far as the fake driver shows --------------------------------------------------------


@pytest.fixture(params=[residual, deep], ids=["queued", "graph"])
def one(request: pytest.FixtureRequest, tmp_path: Path) -> FakeProgram:
    return on_fake(*request.param(), Fake(tmp_path))


def test_kernels_get_the_address_of_the_callers_tensor(one: FakeProgram) -> None:
    y = torch.empty(5, 64, dtype=torch.bfloat16)
    addresses: list[int] = []
    execution: Any = one.program._execution
    run, run_tensors = execution.run, execution.run_tensors

    def spy(symbols: Any, table: Any, arena_bytes: int, place: Any) -> None:
        addresses.append(table[len(table) - 1])
        run(symbols, table, arena_bytes, place)

    def spy_tensors(inputs: Any, leaves: Any, weights: Any, outputs: Any, *others: Any) -> bool:
        done: bool = run_tensors(inputs, leaves, weights, outputs, *others)
        addresses.extend([outputs[-1].data_ptr()] * done)
        return done

    execution.run, execution.run_tensors = spy, spy_tensors
    assert one.program(rows(5), out=y) is y
    assert addresses == [y.data_ptr()]
    odd = torch.empty(5 * 64 + 1, dtype=torch.bfloat16)[1:].view(5, 64)
    assert "a multiple of 16" in refusal(one.program, rows(5), out=odd)


def test_a_captured_call_allocates_no_outputs(one: FakeProgram) -> None:
    controls = one.fake.controls
    one.program(rows(5))
    one.streams.handle = controls.fakeStreamCreate(0)
    one.streams.captured = True
    controls.fakeBeginCapture(one.streams.handle, 0)
    y = torch.empty(5, 64, dtype=torch.bfloat16)
    assert one.program(rows(5), out=y) is y
    graph = controls.fakeEndCapture(one.streams.handle)
    assert graph
    controls.fakeGraphDestroy(graph)
    one.fake.check()
