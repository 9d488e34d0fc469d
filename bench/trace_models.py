# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The models of the traces: how to build them, which sizes vary, and inputs of a request.

Every process that measures builds its own copy, so weights and inputs are drawn on the CPU from
fixed seeds: all systems, and the exact results that they are compared with, see the same numbers.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shapejit.demo.encoder import WEIGHTS_PACKAGE, SentenceEncoder, load_encoder

TRACES = Path(__file__).parent / "traces.json"

Request = tuple[int, ...]
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Axis:
    """A size of requests that varies; ``divisor`` divides it."""

    name: str
    low: int
    high: int
    divisor: int = 1


@dataclass(frozen=True)
class Workload:
    """A model, its trace and what a system may know of both ahead of time.

    Attributes:
        axes: what the sizes of a request are.
        build: the module in evaluation mode, float32 on the CPU.
        draw: inputs of a request on the CPU, in a floating-point type if they are no integers.
        dims: for each input, the axis of each dim that varies.
        padding: how a padded batch stays right. "mask": the model's last argument, or one that it
            takes besides, is a mask, 1 at a token. "causal": what follows a token has no effect.
            None: padding changes the result.
        draw_request: a request of the trace's kind.
        channels_last: the layout of model and inputs.
    """

    name: str
    axes: tuple[Axis, ...]
    build: Callable[[], nn.Module]
    draw: Callable[[Request, torch.dtype], Inputs]
    dims: tuple[dict[int, int], ...]
    padding: str | None
    draw_request: Callable[[random.Random], Request]
    requests: tuple[Request, ...]
    channels_last: bool = False

    def model(self, device: str, dtype: torch.dtype) -> nn.Module:
        """The model on a device, its weights rounded to a type."""
        torch.manual_seed(0)
        model = self.build().to(dtype).to(device)
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model.eval()

    def inputs(self, request: Request, dtype: torch.dtype) -> Inputs:
        """The inputs of a request on the CPU: the same values every time."""
        drawn = self.draw(request, dtype)
        if self.channels_last:
            drawn = tuple(x.to(memory_format=torch.channels_last) for x in drawn)
        return drawn

    def new_requests(self, count: int, seed: int) -> list[Request]:
        """Distinct requests, none of which the trace has."""
        rng = random.Random(seed)
        found: dict[Request, None] = {}
        while len(found) < count:
            request = self.draw_request(rng)
            if request not in self.requests:
                found[request] = None
        return list(found)


# ---------------------------------------------------------------------------
# Modules
# ---------------------------------------------------------------------------


class HiddenStates(nn.Module):
    """BERT's hidden states, with or without a mask."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden: Tensor = self.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden


def _bert(**sizes: int) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(**sizes, attn_implementation="sdpa")
    transformer: nn.Module = BertModel(config, add_pooling_layer=False)
    return transformer.eval()


MINILM = {
    "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 1536, "max_position_embeddings": 512,
}  # fmt: skip
TINY = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 128, "max_position_embeddings": 64,
}  # fmt: skip


def real_weights() -> bool:
    """Whether MiniLM's own weights are installed; without them the weights are random."""
    return find_spec(WEIGHTS_PACKAGE) is not None


def _minilm() -> nn.Module:
    return load_encoder() if real_weights() else SentenceEncoder(_bert(**MINILM))


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        # In float32, but for the float64 of the exact results.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * scale).to(x.dtype) * self.weight


class LlamaBlock(nn.Module):
    """A block of Llama's form, without rotary embeddings."""

    def __init__(self, width: int = 2048, heads: int = 16, inner: int = 5632) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        y = self.norm2(x)
        result: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result


def _llama() -> nn.Module:
    return nn.Sequential(*(LlamaBlock() for _ in range(12)))


def _resnet() -> nn.Module:
    import torchvision  # type: ignore[import-not-found]

    model: nn.Module = torchvision.models.resnet50(weights=None)
    return model


# ---------------------------------------------------------------------------
# Inputs and requests
# ---------------------------------------------------------------------------


def _generator(request: Request) -> torch.Generator:
    return torch.Generator().manual_seed(sum(size * 1009**i for i, size in enumerate(request)))


def _ids(vocabulary: int) -> Callable[[Request, torch.dtype], Inputs]:
    def draw(request: Request, dtype: torch.dtype) -> Inputs:
        return (torch.randint(0, vocabulary, request, generator=_generator(request)),)

    return draw


def _ids_and_mask(vocabulary: int) -> Callable[[Request, torch.dtype], Inputs]:
    def draw(request: Request, dtype: torch.dtype) -> Inputs:
        """Texts of different lengths, one of them as long as the request."""
        batch, tokens = request
        generator = _generator(request)
        lengths = torch.randint(1, tokens + 1, (batch, 1), generator=generator)
        lengths[0] = tokens
        ids = torch.randint(0, vocabulary, (batch, tokens), generator=generator)
        return ids, (torch.arange(tokens)[None] < lengths).long()

    return draw


def _embeddings(request: Request, dtype: torch.dtype) -> Inputs:
    return (torch.randn(*request, 2048, generator=_generator(request)).to(dtype),)


def _images(request: Request, dtype: torch.dtype) -> Inputs:
    batch, height, width = request
    return (torch.randn(batch, 3, height, width, generator=_generator(request)).to(dtype),)


def _texts(batches: Axis, tokens: Axis, mean: float, deviation: float) -> Callable[..., Request]:
    def draw(rng: random.Random) -> Request:
        length = round(math.exp(rng.gauss(mean, deviation)))
        batch = rng.randint(batches.low, batches.high)
        return batch, min(max(length, tokens.low), tokens.high)

    return draw


def _sides(batches: Axis, side: Axis) -> Callable[..., Request]:
    def draw(rng: random.Random) -> Request:
        low, high = side.low // side.divisor, side.high // side.divisor
        sides = (rng.randint(low, high) * side.divisor for _ in range(2))
        return rng.choice((1, 2, 4, batches.high)), *sides

    return draw


def _trace(name: str) -> tuple[Request, ...]:
    return tuple(tuple(request) for request in json.loads(TRACES.read_text())[name])


# ---------------------------------------------------------------------------
# Workloads
# ---------------------------------------------------------------------------

_BOTH = {0: 0, 1: 1}


def _minilm_workload() -> Workload:
    axes = (Axis("batch", 1, 32), Axis("tokens", 1, 256))
    return Workload(
        "minilm", axes, _minilm, _ids_and_mask(MINILM["vocab_size"]), (_BOTH, _BOTH), "mask",
        _texts(*axes, 3.1, 0.7), _trace("minilm"),
    )  # fmt: skip


def _bert_workload() -> Workload:
    axes = (Axis("batch", 1, 16), Axis("tokens", 1, 512))
    return Workload(
        "bert", axes, lambda: HiddenStates(_bert()), _ids(30000), (_BOTH,), "mask",
        _texts(*axes, 4.4, 0.8), _trace("bert"),
    )  # fmt: skip


def _llama_workload() -> Workload:
    axes = (Axis("batch", 1, 4), Axis("tokens", 1, 2048))
    return Workload(
        "llama", axes, _llama, _embeddings, (_BOTH,), "causal", _texts(*axes, 5.2, 1.1),
        _trace("llama"),
    )  # fmt: skip


def _resnet_workload(name: str, divisor: int) -> Workload:
    axes = (Axis("batch", 1, 8), *(Axis(n, 160, 640, divisor) for n in ("height", "width")))
    return Workload(
        name, axes, _resnet, _images, ({0: 0, 2: 1, 3: 2},), None, _sides(*axes[:2]),
        _trace(name), channels_last=True,
    )  # fmt: skip


def _tiny_workload() -> Workload:
    """A small encoder over a short trace: to try the benchmark itself, on a CPU too."""
    axes = (Axis("batch", 1, 4), Axis("tokens", 1, 64))
    requests: tuple[Request, ...] = ((2, 13), (1, 22), (4, 5), (2, 13), (1, 3), (4, 64), (3, 17))
    return Workload(
        "tiny", axes, lambda: SentenceEncoder(_bert(**TINY)), _ids_and_mask(TINY["vocab_size"]),
        (_BOTH, _BOTH), "mask", _texts(*axes, 2.5, 0.7), requests,
    )  # fmt: skip


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "minilm": _minilm_workload,
    "bert": _bert_workload,
    "llama": _llama_workload,
    "resnet": lambda: _resnet_workload("resnet", 32),
    "resnet_odd": lambda: _resnet_workload("resnet_odd", 1),
    "tiny": _tiny_workload,
}

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
}


def dynamic_shapes(workload: Workload) -> Any:
    """The workload's dims as `torch.export` and `shapejit.compile` take them."""

    def dim(axis: Axis) -> Any:
        if axis.divisor == 1:
            return torch.export.Dim(axis.name, min=axis.low, max=axis.high)
        low, high = axis.low // axis.divisor, axis.high // axis.divisor
        return axis.divisor * torch.export.Dim(f"{axis.name}_units", min=low, max=high)

    dims = [dim(axis) for axis in workload.axes]
    return tuple({d: dims[axis] for d, axis in varying.items()} for varying in workload.dims)


def example(workload: Workload) -> Request:
    """A request to compile with: in range, with sizes that differ and are not 0 or 1."""
    units = (3, 17, 19)
    return tuple(
        min(max(unit * axis.divisor, axis.low + number * axis.divisor), axis.high)
        for number, (axis, unit) in enumerate(zip(workload.axes, units, strict=False), start=1)
    )
