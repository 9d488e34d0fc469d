# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A whole model on a GPU: MiniLM's encoder in bfloat16, with random weights."""

from __future__ import annotations

import copy
import math
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")
transformers = pytest.importorskip("transformers")

from torch import Tensor  # noqa: E402
from torch.export import Dim  # noqa: E402

import shapejit  # noqa: E402
from shapejit.demo.encoder import SentenceEncoder  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402

WORDS = 30522
BATCH, LENGTH = 32, 256

#: How much worse than torch's own result in bfloat16 a result may be.
_SLACK = 1.2


class Compiled:
    """The encoder beside its program and its double in float64.

    Attributes:
        cases: calls of many sizes, sizes 1 and ends of ranges among them.
        results: of the program for each of them.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=WORDS,
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
        )
        config._attn_implementation = "sdpa"
        encoder = SentenceEncoder(transformers.BertModel(config))
        self.model = encoder.to("cuda", torch.bfloat16).eval()
        self.exact = copy.deepcopy(self.model).double()
        batch, length = Dim("batch", min=1, max=BATCH), Dim("tokens", min=1, max=LENGTH)
        shapes = ({0: batch, 1: length}, {0: batch, 1: length})
        with torch.no_grad():
            self.program = shapejit.compile(self.model, texts(3, 17), dynamic_shapes=shapes)
            rng = random.Random(0)
            sizes = [(1, 1), (BATCH, 1), (1, LENGTH), (BATCH, LENGTH), (31, 255), (3, 17), (5, 129)]
            while len(sizes) < 100:
                octaves = rng.uniform(0, math.log2(BATCH)), rng.uniform(0, math.log2(LENGTH))
                sizes.append((round(2 ** octaves[0]), round(2 ** octaves[1])))
            self.cases = [texts(*size, seed=number) for number, size in enumerate(sizes)]
            self.results = [self.program(*case).clone() for case in self.cases]


def texts(batch: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random ids, and masks of texts of several lengths, the last of which is whole."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, WORDS, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    lengths[-1] = length
    return ids.cuda(), (torch.arange(length) < lengths).long().cuda()


@pytest.fixture(scope="module")
def compiled(device: Device) -> Compiled:
    return Compiled()


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def same(result: Tensor, expected: Tensor) -> bool:
    return torch.equal(result, expected)


def test_results(compiled: Compiled) -> None:
    """Each is as near to float64 as torch's, by the norm: the worst element is a matter of luck."""
    for case, result in zip(compiled.cases, compiled.results, strict=True):
        exact = compiled.exact(*case)
        ours, torchs = (
            ((each.double() - exact).norm() / exact.norm()).item()
            for each in (result, compiled.model(*case))
        )
        assert ours <= _SLACK * torchs, case[0].shape


def test_calls_at_other_sizes_do_not_disturb_each_other(compiled: Compiled) -> None:
    """2000 calls, each at another size than the one before, many queued at a time."""
    rng = random.Random(1)
    for _ in range(40):
        chosen = rng.choices(range(len(compiled.cases)), k=50)
        results = [compiled.program(*compiled.cases[number]) for number in chosen]
        expected = [compiled.results[number] for number in chosen]
        assert all(map(same, results, expected))


def test_all_calls_were_launches_of_graphs(compiled: Compiled) -> None:
    graphs = compiled.program.stats().graphs
    assert graphs is not None
    assert graphs.graph_calls > 0
    assert graphs.stream_calls == 0


def test_regions_that_are_reached_are_known(compiled: Compiled) -> None:
    code = compiled.program.artefacts.gpu
    assert code is not None
    assert code.graph is not None
    before = compiled.program.stats().graphs
    assert before is not None
    assert before.regions == len(code.graph.order) <= 16


def test_captured_calls(compiled: Compiled) -> None:
    for number in (0, 3, 5):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled.program(*compiled.cases[number])
        result.fill_(math.nan)
        # At other sizes, between the capture and the replay.
        compiled.program(*compiled.cases[number + 1])
        graph.replay()
        assert torch.equal(result, compiled.results[number])


def test_streams_and_threads(compiled: Compiled) -> None:
    torch.cuda.synchronize()
    failures: list[int] = []

    def work(seed: int, stream: Any) -> None:
        rng = random.Random(seed)
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(60):
                number = rng.randrange(len(compiled.cases))
                result = compiled.program(*compiled.cases[number])
                if not torch.equal(result, compiled.results[number]):
                    failures.append(number)

    own = [torch.cuda.Stream() for _ in range(4)]
    streams = [*own, own[0], own[0]]  # two threads more in the first one
    threads = [threading.Thread(target=work, args=each) for each in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_more_streams_than_instances(compiled: Compiled) -> None:
    """All queued at once: an instance goes from stream to stream while it is in use."""
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(12)]
    for first in range(0, 84, 12):
        results = []
        for number, stream in enumerate(streams, first):
            with torch.cuda.stream(stream):
                results.append(compiled.program(*compiled.cases[number]))
        torch.cuda.synchronize()
        assert all(map(same, results, compiled.results[first : first + 12]))
    graphs = compiled.program.stats().graphs
    assert graphs is not None
    assert graphs.instances <= 9


def test_a_capture_after_a_weight_has_moved(compiled: Compiled) -> None:
    """The graph holds one run, with the weight as it is now."""
    weight = compiled.model.transformer.encoder.layer[0].attention.output.dense.weight
    saved = weight.data
    case, expected = compiled.cases[5], compiled.results[5]
    before = compiled.program.stats().graphs
    assert before is not None
    try:
        weight.data = weight.data.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled.program(*case)
        after = compiled.program.stats().graphs
        assert after is not None
        assert after.captured_calls == before.captured_calls + 1
        saved.mul_(-1)  # which nothing reads any more
        graph.replay()
        assert torch.equal(result, expected)
    finally:
        saved.copy_(weight.data)
        weight.data = saved


@pytest.mark.alone
def test_memory_stays_flat(compiled: Compiled) -> None:
    def run(seed: int) -> int:
        rng = random.Random(seed)
        for _ in range(300):
            compiled.program(*rng.choice(compiled.cases))
        torch.cuda.synchronize()
        return int(torch.cuda.mem_get_info()[0])

    run(0)
    before = run(1)
    assert run(2) >= before


def test_saved_programs(compiled: Compiled, tmp_path: Path) -> None:
    path = tmp_path / "encoder.sj"
    compiled.program.save(path)
    loaded = shapejit.load(path)
    for number in range(0, len(compiled.cases), 7):
        result = loaded(*compiled.cases[number])
        assert torch.equal(result, compiled.results[number])


def test_weights_written_in_place(compiled: Compiled) -> None:
    """Of a layer of its own, and of a joined product; then all as before."""
    attention = compiled.model.transformer.encoder.layer[0].attention
    for weight in (attention.output.dense.weight, attention.self.key.weight):
        saved = weight.clone()
        weight.mul_(-1)
        result = compiled.program(*compiled.cases[5])
        assert not torch.equal(result, compiled.results[5])
        theirs = compiled.model(*compiled.cases[5])
        assert ((result - theirs).norm() / theirs.norm()).item() < 0.1
        weight.copy_(saved)
        assert torch.equal(compiled.program(*compiled.cases[5]), compiled.results[5])
