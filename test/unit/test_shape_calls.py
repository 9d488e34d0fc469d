# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What programs keep of calls by their sizes: bounded, right whatever came before, of one code."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shapejit import allocation, shape_calls
from shapejit.errors import DeviceError, ShapeError
from shapejit.program import Program
from shapejit.shape_calls import OutputSpec, ShapeCalls
from shapejit.signature import Signature
from unit.sample_program import (
    reference,
    sample_artefacts,
    sample_inputs,
    sample_program,
    sample_weights,
)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def check(program: Program, batch: int, seq: int) -> dict[str, Tensor]:
    """A call that is right."""
    inputs = sample_inputs(batch, seq)
    result: dict[str, Tensor] = program(*inputs)
    for name, expected in reference(sample_weights(), *inputs).items():
        torch.testing.assert_close(result[name].double(), expected, rtol=1e-5, atol=1e-5)
    return result


def test_calls_in_any_order_are_right_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_calls, "_MOST_CALLS", 4)
    program = sample_program()
    shapes = [(batch, seq) for batch in (1, 2, 3) for seq in (0, 1, 2, 5)]
    order = random.Random(0).choices(shapes, k=200)
    for shape in order:
        check(program, *shape)
        assert len(program._calls) <= 4
    stats = program.stats()
    assert (stats.calls, stats.distinct_shapes) == (200, len(set(order)))


def test_sizes_that_are_refused_are_refused_again() -> None:
    program = sample_program()
    program(*sample_inputs(2, 3))
    for _ in range(2):
        with pytest.raises(ShapeError):
            program(*sample_inputs(65, 3))
    x, mask = sample_inputs(2, 3)
    for _ in range(2):
        with pytest.raises(ShapeError):
            program(x, mask[:1])
    assert len(program._calls) == 1


def test_other_code_has_calls_of_its_own() -> None:
    """Its plans may differ: what is kept of the first one's is not used."""
    program = sample_program()
    check(program, 2, 3)
    before = program._calls
    program.replace_code(sample_artefacts())
    assert program._calls is not before
    assert program._calls.execution is program._execution
    assert len(program._calls) == 0
    check(program, 2, 3)
    assert len(before) == len(program._calls) == 1
    assert program.stats().distinct_shapes == 1


def test_the_oldest_goes_first() -> None:
    calls = ShapeCalls(object())  # type: ignore[arg-type]
    most = shape_calls._MOST_CALLS
    for size in range(most + 3):
        calls.add((size,), object())  # type: ignore[arg-type]
    assert len(calls) == most
    assert [calls.find((size,)) is None for size in (0, 2, 3, most + 2)] == [
        True,
        True,
        False,
        False,
    ]


# Outputs ------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), max_size=5))
def test_outputs_are_contiguous(sizes: list[int]) -> None:
    plan = [4096, 7, *sizes, 0]
    spec = OutputSpec(torch.float16, 2, 2 + len(sizes), CPU)
    allocate, size, strides, dtype = spec.at(plan)
    like = torch.empty(sizes, dtype=torch.float16)
    assert (size, strides) == (tuple(sizes), like.stride())
    made = allocate(size, strides, dtype)
    assert (made.shape, made.stride(), made.dtype) == (like.shape, like.stride(), like.dtype)


def test_what_allocates_directly_gets_sizes_strides_and_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def direct(size: Any, strides: Any, dtype: torch.dtype) -> Tensor:
        asked.append((size, strides, dtype))
        return torch.empty_strided(size, strides, dtype=dtype)

    monkeypatch.setattr(shape_calls, "direct_allocator", lambda device: direct)
    program = sample_program()
    found = [check(program, 2, 3) for _ in range(2)]
    tensors = [tensor for result in found for tensor in result.values()]
    assert asked == [(tuple(t.shape), t.stride(), t.dtype) for t in tensors]


def test_nothing_allocates_directly_on_a_cpu() -> None:
    assert allocation.direct_allocator(CPU) is None
    made = allocation.allocator(CPU)((2, 3), (3, 1), torch.int32)
    assert (made.shape, made.stride(), made.dtype) == ((2, 3), (3, 1), torch.int32)


def test_a_tensor_elsewhere_than_on_the_gpu_of_a_program_is_refused() -> None:
    program = sample_program()
    given = program.signature
    signature = Signature(given.parameters, given.inputs, given.symbols, torch.device("cuda", 0))
    leaves = signature.flatten(sample_inputs(2, 3), {})
    with pytest.raises(DeviceError, match="cuda:0"):
        signature.sizes_of(leaves)
