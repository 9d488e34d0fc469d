# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`shapejit.ops.attention` on a GPU: layouts, lengths, ragged batches; graphs, streams, threads."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from torch import Tensor  # noqa: E402

from shapejit import ops  # noqa: E402
from unit.test_ops_attention import CASES, expected, operands_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("device")


def on_gpu(value: Any) -> Any:
    """A tensor on the GPU with the strides that it has here."""
    if not isinstance(value, Tensor):
        return value
    room = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    return room.copy_(value)


def keywords(case: Any) -> dict[str, Any]:
    return {name: on_gpu(value) for name, value in case._asdict().items()}


def wrong(got: Tensor, case: Any) -> bool:
    reference = expected(case)
    largest = case.v.abs().max().double()
    error = (got.cpu().double() - reference).abs()
    return bool((error > 2.0**-8 * (reference.abs() + largest)).any())


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    given = keywords(CASES[name])
    first = ops.attention(**given, deterministic=True)
    assert not wrong(first, CASES[name])
    assert torch.equal(first, ops.attention(**given))
    torch.cuda.synchronize()


def decode(batch: int, queries: int, keys: int) -> Any:
    cache = torch.randn(2, batch, 4096, 2, 64).bfloat16().transpose(2, 3)
    q = torch.randn(batch, queries, 8, 64).bfloat16().transpose(1, 2)
    return operands_of(q, cache[0, :, :, :keys], cache[1, :, :, :keys], causal=True)


def test_any_sizes() -> None:
    """While kernels are built in the background, and after that."""
    generator = random.Random(0)
    for number in range(40):
        queries = generator.choice([1, 1, 2, 16, 17, 100, 700])
        keys = max(queries, generator.choice([1, 64, 500, 4096]) - generator.randint(0, 60))
        torch.manual_seed(number)
        case = decode(generator.randint(1, 5), queries, min(keys, 4096))
        assert not wrong(ops.attention(**keywords(case)), case), case.q.shape


def test_no_compile_after_all_are_built() -> None:
    case = keywords(decode(1, 1, 100))
    tensors = {name: case[name] for name in ("q", "k", "v")}
    names = ops.compile_attention(**tensors, causal=True)
    assert any(name.startswith("split") for name in names)
    assert ops.compile_attention(**tensors, causal=True) == names


def test_captured() -> None:
    """A decode step in a graph, over scratch memory of the graph's own."""
    case = keywords(decode(3, 1, 2000))
    expected_result = ops.attention(**case, deterministic=True).clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = ops.attention(**case)
    for _ in range(3):
        result.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, expected_result)


def test_threads_and_streams() -> None:
    """Streams do not share scratch memory."""
    cases = [decode(2, 1, 1000 + 700 * number) for number in range(4)]
    given = [keywords(case) for case in cases]
    references = [ops.attention(**each, deterministic=True) for each in given]
    torch.cuda.synchronize()
    faults: list[int] = []

    def call(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                if not torch.equal(ops.attention(**given[number]), references[number]):
                    faults.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_out() -> None:
    case = keywords(decode(2, 1, 300))
    room = torch.full((2, 1, 8, 64), float("nan"), device="cuda").bfloat16().transpose(1, 2)
    assert ops.attention(**case, out=room, deterministic=True) is room
    assert torch.equal(room, ops.attention(**case))
