# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`shapejit.ops.attention`: its kernels on a simulated GPU against float64, what it refuses, and
what calls launch on a fake driver."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator
from typing import Any

import mlir.ir as ir
import pytest
import torch
from torch import Tensor

from reference.hopper.launch import kernel_function, simulate
from shapejit import ir as sir
from shapejit import ops
from shapejit.errors import ShapeJitError
from shapejit.gpu.interface import KernelInterface
from shapejit.ops import attention_kernels, attention_operands
from shapejit.ops.attention_kernels import GENERIC, KindKernels, choice_of, problem_of_kind
from shapejit.ops.attention_operands import Operands, layout, sizes_of
from shapejit.ops.attention_spec import MOST_HEAD, AttentionKind, KernelText
from shapejit.ops.kernels import CodeMemory
from shapejit.passes.nvgpu.attention.kinds import parse_schedule
from shapejit.passes.nvgpu.attention.lowering import lower
from shapejit.passes.nvgpu.attention.problem import HEAD_SIZES, attention_problem
from shapejit.passes.nvgpu.target import HOPPER
from unit.fake_cuda import Fake
from unit.tensors_without_memory import KINDS
from unit.test_ops_gemm_calls import Builds

calls: Any = sys.modules["shapejit.ops.attention"]
SPLIT, TILES = "split_64x32_s3_c2", "tiles_64x32_s3_w2_c1"


def operands_of(q: Tensor, k: Tensor, v: Tensor, **others: Any) -> Operands:
    names = Operands._fields[3:]
    given = {"causal": False, **others}
    return Operands(q, k, v, *(given.get(name) for name in names))


# Numerics -----------------------------------------------------------------------------------------


@functools.cache
def lowered(kind: AttentionKind, variant: str) -> tuple[ir.Context, Any, Any, KernelInterface]:
    """A kernel of a kind for a GPU: what holds its function, that, and how it is called."""
    context = ir.Context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(KernelText(kind).text())
        interface = lower(sir.kernels(module)["attention"], variant, HOPPER)
        gpu_module = next(op for op in sir.operations(module.body) if op.name == "gpu.module")
        return context, module, kernel_function(gpu_module), interface


def memory_of(tensor: Tensor) -> Tensor:
    """What a tensor spans in memory."""
    if not tensor.numel():
        return tensor.reshape(-1)
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in pairs)
    return torch.as_strided(tensor, (span,), (1,), tensor.storage_offset())


def computed(variant: str, operands: Operands) -> Tensor:
    """The result, by a simulated GPU."""
    sizes = sizes_of(operands)
    result = torch.empty((*operands.q.shape[:-1], sizes.value), dtype=operands.q.dtype)
    kind, symbols = layout(operands, sizes, result)
    context, _, function, interface = lowered(kind, variant)
    inputs = [tensor for _, tensor in operands.named()]
    shifts = [tensor.data_ptr() % 16 for tensor in inputs]
    with context:
        return simulate(
            function, interface, [memory_of(each) for each in inputs], result, symbols,
            shifts=[*shifts, 0], multiprocessors=2,
        )  # fmt: skip


def expected(operands: Operands) -> Tensor:
    """The result in float64."""
    if operands.is_ragged:
        assert operands.cu_seqlens_q is not None and operands.cu_seqlens_k is not None
        starts = [each.tolist() for each in (operands.cu_seqlens_q, operands.cu_seqlens_k)]
        parts = []
        for b in range(len(starts[0]) - 1):
            rows, keys = (slice(each[b], each[b + 1]) for each in starts)
            parts.append(_dense(operands, operands.q[rows], operands.k[keys], operands.v[keys], b))
        return torch.cat(parts)
    batch = range(len(operands.q))
    found = [
        _dense(operands, *(each[b].transpose(0, 1) for each in operands[:3]), b) for b in batch
    ]
    return torch.stack(found).transpose(1, 2)


def _dense(operands: Operands, q: Tensor, k: Tensor, v: Tensor, b: int) -> Tensor:
    """[rows, heads, size] of a batch."""
    if operands.key_lengths is not None:
        length = int(operands.key_lengths[b])
        k, v = k[:length], v[:length]
    share = q.shape[1] // k.shape[1]
    q, k, v = (each.double().transpose(0, 1) for each in (q, k, v))
    scale = q.shape[-1] ** -0.5 if operands.scale is None else operands.scale
    scores = q @ k.repeat_interleave(share, 0).mT * scale
    rows, keys = scores.shape[1:]
    if operands.mask is not None:
        mask = operands.mask
        mask = mask.expand(len(operands.q), *scores.shape[:2], mask.shape[-1])[b, :, :, :keys]
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -math.inf)
        else:
            scores = scores + mask.double()
    if operands.causal:
        offset = operands.causal_offset
        last = torch.arange(rows)[:, None] + (keys - rows if offset is None else offset)
        scores = scores.masked_fill(torch.arange(keys) > last, -math.inf)
    weights = torch.softmax(scores, -1)
    weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    return (weights @ v.repeat_interleave(share, 0)).transpose(0, 1)


def cases() -> dict[str, Operands]:
    """Calls of many kinds."""
    torch.manual_seed(0)

    def made(*shape: int) -> Tensor:
        return torch.randn(shape).bfloat16()

    q, k, v = made(2, 4, 3, 32), made(2, 2, 70, 32), made(2, 2, 70, 32)
    cache = made(2, 128, 2, 64).transpose(1, 2)  # [batch, kv heads, 128, 64]: as a cache lies
    turned = made(2, 2, 32, 70).mT
    starts_q, starts_k = torch.tensor([0, 1, 1, 6]), torch.tensor([0, 40, 70, 70])
    lengths = torch.tensor([70, 33], dtype=torch.int32)
    odd = made(2 * 2 * 70 * 32 + 1)[1:].view(2, 2, 70, 32)
    ragged = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}
    packed = (made(6, 4, 32), made(70, 2, 32), made(70, 2, 32))
    return {
        "plain": operands_of(q, k, v),
        "causal": operands_of(q, k, v, causal=True),
        "causal from the start": operands_of(q, k, v, causal=True, causal_offset=0),
        "first queries see nothing": operands_of(q, k, v, causal=True, causal_offset=-2),
        "prefix of a cache": operands_of(made(2, 4, 1, 64), cache[:, :, :77], cache[:, :, :77]),
        "keys in columns": operands_of(q, turned, v),
        "odd address": operands_of(q, odd, v),
        "bool mask": operands_of(q, k, v, mask=torch.rand(2, 1, 3, 70) > 0.5),
        "mask of keys": operands_of(q, k, v, mask=torch.rand(2, 1, 1, 70) > 0.5),
        "mask of heads": operands_of(q, k, v, mask=torch.rand(4, 1, 70) > 0.5, scale=0.3),
        "float mask": operands_of(q, k, v, mask=torch.randn(3, 70), scale=-0.3),
        "lengths": operands_of(q, k, v, key_lengths=lengths, causal=True),
        "every second length": operands_of(q, k, v, key_lengths=lengths.repeat_interleave(2)[::2]),
        "ragged": operands_of(*packed, **ragged),
        "ragged and causal": operands_of(*packed, **ragged, causal=True),
        "ragged, by the longest": operands_of(*packed, **ragged, max_seqlen_q=5, max_seqlen_k=40),
        "one of each": operands_of(made(1, 1, 1, 7), made(1, 1, 1, 7), made(1, 1, 1, 5)),
        "heads of 80": operands_of(made(1, 2, 2, 80), made(1, 1, 40, 80), made(1, 1, 40, 80)),
    }


CASES = cases()


# Both sorts of kernels read operands alike; so each case is one of either, in turn.
_RUNS = [(name, (SPLIT, TILES)[number % 2]) for number, name in enumerate(CASES)]


@pytest.mark.parametrize(("name", "variant"), [*_RUNS, ("ragged", TILES), ("odd address", TILES)])
def test_numerics(name: str, variant: str) -> None:
    operands = CASES[name]
    got, reference = computed(variant, operands), expected(operands)
    largest = operands.v.abs().max().double()
    assert got.shape == reference.shape
    assert ((got.double() - reference).abs() <= 2.0**-8 * (reference.abs() + largest)).all()


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_kinds(name: str) -> None:
    """All are read back as what they say; all have variants; heads that share keys are found."""
    operands = CASES[name]
    kind, symbols = layout(operands, sizes_of(operands), operands.q)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(KernelText(kind).text())
        module.operation.verify()
        problem = attention_problem(sir.kernels(module)["attention"])
    assert [size.evaluate(symbols) for size in problem.space] == [
        *(getattr(sizes_of(operands), each) for each in ("batch", "heads", "queries", "keys")),
        kind.head,
        kind.value,
    ]
    assert problem_of_kind(kind).dtypes[0] == "bf16"
    choice = choice_of(kind, 132)
    assert choice(symbols) in choice.variants
    if kind.lengths or kind.starts:
        assert not any(variant.startswith("flash") for variant in choice.variants)


def test_few_queries_divide_their_keys() -> None:
    kind = AttentionKind("bf16", 128, 128, 4, 0.1, causal="end")
    choice = choice_of(kind, 132)

    def symbols(batch: int, queries: int, keys: int) -> list[int]:
        return [batch, 8, queries, keys, 1 << 30, 0, *[8] * 12]

    for batch, queries, keys in ((1, 1, 128), (16, 1, 32768), (4, 16, 8192)):
        assert choice(symbols(batch, queries, keys)).startswith("split_")
    for queries in (17, 4096):
        assert not choice(symbols(4, queries, 4096)).startswith("split_")


def test_limits_are_those_of_the_kernels() -> None:
    assert HEAD_SIZES[-1] == MOST_HEAD
    assert str(parse_schedule(GENERIC)) == GENERIC


# What is refused ----------------------------------------------------------------------------------

Q, K, V = torch.zeros(2, 4, 3, 32), torch.zeros(2, 2, 5, 32), torch.zeros(2, 2, 5, 32)
STARTS = torch.tensor([0, 2])
RAGGED = (torch.zeros(6, 4, 32), torch.zeros(8, 2, 32), torch.zeros(8, 2, 32))


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        (operands_of(Q[0], K, V), r'"q" of attention\(\) has the shape'),
        (operands_of(Q, K, V[:1]), '"v" of attention'),
        (operands_of(Q, K[..., :16], V), 'its last size must be that of "q", 32'),
        (operands_of(Q[:, :3], K, V), "its 3 heads must be a multiple of the 2"),
        (operands_of(torch.zeros(1, 1, 1, 257), *[torch.zeros(1, 1, 1, 257)] * 2), "from 1 to 256"),
        (operands_of(Q, K, V, mask=torch.zeros(3, 4)), "must broadcast to"),
        (operands_of(Q, K, V, key_lengths=torch.zeros(3)), "a length for each of 2 batches"),
        (operands_of(*RAGGED, cu_seqlens_q=STARTS), "needs cu_seqlens_q and cu_seqlens_k"),
        (
            operands_of(*RAGGED, cu_seqlens_q=STARTS, cu_seqlens_k=torch.tensor([0, 1, 2])),
            r"both have the shape \[batch \+ 1\]",
        ),
        (
            operands_of(*RAGGED, cu_seqlens_q=STARTS, cu_seqlens_k=STARTS.int()),
            '"cu_seqlens_q" is torch.int64',
        ),
        (
            operands_of(*RAGGED, cu_seqlens_q=STARTS, cu_seqlens_k=STARTS, mask=torch.zeros(1)),
            "no common shape that a mask could have",
        ),
        (
            operands_of(*RAGGED, cu_seqlens_q=STARTS, cu_seqlens_k=STARTS, max_seqlen_q=-1),
            "a batch has 0 or more",
        ),
    ],
)
def test_shapes_that_do_not_fit(operands: Operands, message: str) -> None:
    with pytest.raises(ShapeJitError, match=message):
        sizes_of(operands)


H = Q.bfloat16(), K.bfloat16(), V.bfloat16()


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        (operands_of(Q, K, V), "queries are torch.bfloat16 or torch.float16"),
        (operands_of(H[0], K, H[2]), '"q" is torch.bfloat16'),
        (operands_of(*H, mask=torch.zeros(1, dtype=torch.int32)), "masks are torch.bool"),
        (operands_of(*H, key_lengths=torch.zeros(2)), "lengths are torch.int32 or torch.int64"),
        (operands_of(*H, causal_offset=1), "only a causal limit has an offset"),
        (operands_of(*H, causal=True, causal_offset=1 << 40), "it must be between"),
        (operands_of(*H, scale=math.nan), "it must be a finite number"),
        (operands_of(H[0].to_sparse(), *H[1:]), "only dense"),
        (operands_of(H[0], KINDS["fake"](H[1]), H[2]), 'SJ-ARG-012 "k" is a FakeTensor'),
        (operands_of(*H, mask=KINDS["emptied"](torch.zeros(1))), 'SJ-ARG-012 "mask" is a Tensor'),
        (operands_of(H[0].clone().requires_grad_(), *H[1:]), "requires grad"),
    ],
)
def test_operands_that_are_refused(
    operands: Operands, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ShapeJitError, match="runs on NVIDIA GPUs"):
        attention_operands.check(operands)
    monkeypatch.setattr(type(attention_operands.RULES), "check_device", lambda *_: None)
    with pytest.raises(ShapeJitError, match=message):
        attention_operands.check(operands)


# Calls, on a fake driver --------------------------------------------------------------------------


class Setting:
    """`ops.attention` on the fake driver, with tensors of the CPU."""

    def __init__(self, fake: Fake) -> None:
        self.fake, self.builds, self.memory = fake, Builds(), CodeMemory()
        self.kinds: dict[AttentionKind, KindKernels] = {}

    def kernels(self, kind: AttentionKind, device: int) -> KindKernels:
        if kind not in self.kinds:
            gpu = self.fake.driver.device(device)
            self.kinds[kind] = KindKernels(kind, gpu, self.memory, self.builds)
        return self.kinds[kind]

    def launched(self) -> tuple[str, int, int]:
        """Kernel, batch and address of the result of the last launch."""
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
    monkeypatch.setattr(calls, "_kind_kernels", made.kernels)
    monkeypatch.setattr(calls, "current_stream", lambda device: 0)
    monkeypatch.setattr(type(attention_operands.RULES), "check_device", lambda *_: None)
    yield made
    fake.check()


def decode(batch: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """One query and a prefix of a cache."""
    cache = torch.zeros(batch, 2, 4096, 64).bfloat16()
    return torch.zeros(batch, 8, 1, 64).bfloat16(), cache[:, :, :keys], cache[:, :, :keys]


def test_a_growing_cache_needs_one_kernel(setting: Setting) -> None:
    for batch, keys in ((1, 1), (1, 2), (1, 4096), (3, 777), (64, 4000)):
        result = ops.attention(*decode(batch, keys), causal=True, deterministic=True)
        assert result.shape == (batch, 8, 1, 64)
        [kernels] = setting.kinds.values()
        name, sent, address = setting.launched()
        assert name == kernels.choice.variants[0]
        assert (sent, address) == (batch, result.data_ptr())
    assert len(setting.builds.asked) == 1


def test_calls_take_the_generic_kernel_until_the_chosen_one_is_built(setting: Setting) -> None:
    setting.builds.at_once = False
    setting.builds.generic = GENERIC
    ops.attention(*decode(2, 500))
    assert setting.launched()[0] == GENERIC
    chosen = setting.builds.asked[0]
    assert chosen.startswith("split_")
    setting.builds.finish(chosen)
    ops.attention(*decode(2, 501))
    assert setting.launched()[0] == chosen


def test_a_kernel_that_cannot_be_built_is_left_out(setting: Setting) -> None:
    [chosen] = {choice_of(kind_of(*decode(2, 500)), 132)(symbols_of(*decode(2, 500)))}
    setting.builds.fail = {chosen}
    ops.attention(*decode(2, 500), deterministic=True)
    assert setting.launched()[0] == GENERIC
    setting.builds.fail = {chosen, GENERIC}
    with pytest.raises(RuntimeError, match=f"no code for {GENERIC}"):
        ops.attention(*decode(2, 500), scale=0.5, deterministic=True)


def kind_of(q: Tensor, k: Tensor, v: Tensor) -> AttentionKind:
    operands = operands_of(q, k, v)
    return layout(operands, sizes_of(operands), torch.empty_like(q))[0]


def symbols_of(q: Tensor, k: Tensor, v: Tensor) -> list[int]:
    operands = operands_of(q, k, v)
    return layout(operands, sizes_of(operands), torch.empty_like(q))[1]


def test_eviction_and_return(setting: Setting) -> None:
    setting.memory.max_bytes = 60  # one kernel's code
    for _ in range(2):
        for scale in (0.1, 0.2, 0.3):
            ops.attention(*decode(1, 100), scale=scale, deterministic=True)
    assert setting.memory.evictions == 5
    assert len(setting.builds.asked) == 6


def test_compile_attention_builds_what_calls_need(setting: Setting) -> None:
    names = ops.compile_attention(*decode(1, 9), causal=True)
    assert sorted(names) == sorted(setting.builds.asked)
    for queries in (1, 100, 2000):
        q = torch.zeros(2, 8, queries, 64).bfloat16()
        ops.attention(q, *decode(2, 4096)[1:], causal=True)
        assert setting.launched()[0] in names
    assert len(names) == len(setting.builds.asked)


def test_out(setting: Setting) -> None:
    q, k, v = decode(2, 50)
    room = torch.empty(2, 1, 8, 64).bfloat16().transpose(1, 2)
    assert ops.attention(q, k, v, out=room) is room
    assert setting.launched()[2] == room.data_ptr()
    for out, message in (
        (torch.empty(2, 8, 1, 32).bfloat16(), "the result has the shape"),
        (torch.empty(2, 8, 1, 64), "the result is torch.bfloat16"),
        (torch.empty(1, 1, 1, 64).bfloat16().expand(2, 8, 1, 64), "a place of its own"),
        (q, "shares memory"),
        (k[:, :, :4].reshape(2, 8, 1, 64)[:], None),
    ):
        if message is None:
            ops.attention(q, k, v, out=out)
            continue
        with pytest.raises(ShapeJitError, match=message):
            ops.attention(q, k, v, out=out)


def test_what_launches_nothing(setting: Setting) -> None:
    q, k, v = decode(2, 0)
    assert not ops.attention(q, k, v).any()  # no key: 0
    assert ops.attention(q[:0], k[:0], v[:0]).shape == (0, 8, 1, 64)
    assert ops.attention(q[:, :, :0], k, v).shape == (2, 8, 0, 64)
    assert not setting.builds.asked
    assert attention_kernels.LOWERING == "shapejit-lower-attention-to-nvgpu"
