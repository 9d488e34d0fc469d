# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention on a GPU: kernels as chosen for their sizes, against torch's backends.

Sets of shapes (batch, queries, keys):

- ``minilm``: 12 heads of 32 with padding, q, k and v slices of one tensor, as in MiniLM;
- ``prefill``: 16 heads of 64 and of 128, causal and not, lengths 64 to 8192 with odd ones;
- ``decode``: 1, 4 and 16 queries and 128 to 32768 keys, with odd ones: 32 heads of 128 on 8, 16
  heads of 64 and of 128 with keys of their own.

Peers are `scaled_dot_product_attention` by the flash, memory-efficient and cuDNN backends, each
where it takes the operands. Results are checked against float64 before they are timed, of large
ones the first and the last of the batch. Calls are captured into CUDA graphs and replayed in a
shuffled order, as in ``gemm.py``; figures are the best backend's median time over ours.

    python bench/attention.py
    python bench/attention.py --sets minilm --variants tiles_64x64_s4_c4

Writes ``bench/results/attention-<GPU>.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from kernel_cells import Cell, Expected
from kernel_runs import parser_of, run
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from unit.simulated_attention import Attention

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
MINILM = Attention(heads=12, d=32, layout="packed", mask="i1")
MINILM_LENGTHS = (8, 32, 64, 100, 128, 200, 256)
PREFILL_LENGTHS = (64, 100, 128, 333, 512, 777, 1024, 2047, 2048, 4096, 8192)
DECODE_KEYS = (128, 1000, 2048, 8191, 32768)
#: Batches and queries of each kind of decode; every query sees all keys, in torch as here.
DECODE = {
    "32 heads of 128 on 8": (Attention(32, 8, d=128, layout="bhm"), (1, 4, 16), (1, 4, 16)),
    "16 heads of 64": (Attention(16, d=64, layout="bhm"), (1, 4, 16), (1, 16)),
    "16 heads of 128": (Attention(16, d=128, layout="bhm"), (1, 4), (1,)),
}

_SCORES_CHECKED = 1 << 27  # of all the batch; where there are more, only its ends are checked


@dataclass(frozen=True)
class AttentionCell(Cell):
    """Attention at a batch, a number of queries and one of keys."""

    attention: Attention

    def text(self) -> str:
        return self.attention.text

    def operands(self) -> list[Tensor]:
        b, m, n = self.sizes
        with torch.device("cuda"):
            inputs = self.attention.inputs(b, m, n)
            if self.attention.mask:  # padding: from half of the keys on
                lengths = torch.randint((n + 1) // 2, n + 1, (b,)).clamp(min=1)
                inputs[-1] = (torch.arange(n) < lengths[:, None])[:, None, None, :]
            return [*inputs, self.attention.result(b, m)]

    def expected(self, operands: Sequence[Tensor]) -> list[Expected]:
        b, m, n = self.sizes
        every = b * self.attention.heads * m * n <= _SCORES_CHECKED
        *inputs, result = operands
        found = []
        for number in range(b) if every else sorted({0, b - 1}):
            own = [each[_part(each, number, b)] for each in inputs]
            value = self.attention.reference(own, 1, m, n)
            allowed = self.attention.allowed(own, value)
            found.append(Expected(_part(result, number, b), value, allowed))
        return found

    def peers(self) -> dict[str, Callable[..., Tensor]]:
        return {name: self._by(backend) for name, backend in BACKENDS.items()}

    def as_ours(self, result: Tensor, like: Tensor) -> Tensor:
        if self.attention.layout != "bhm":
            result = result.transpose(1, 2)
        return result.reshape(like.shape)

    def flops(self) -> float:
        b, m, n = self.sizes
        half = 0.5 if self.attention.causal == "0" else 1.0
        return 4.0 * half * b * self.attention.heads * m * n * self.attention.d

    def _by(self, backend: SDPBackend) -> Callable[..., Tensor]:
        b, m, n = self.sizes
        heads, causal = self.attention.heads, self.attention.causal == "0"
        grouped = self.attention.groups != heads

        def call(*inputs: Tensor) -> Tensor:
            q, k, v = self._heads(inputs)
            mask = inputs[-1].expand(b, heads, m, n) if self.attention.mask else None
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(
                    q, k, v, mask, is_causal=causal, enable_gqa=grouped
                )

        return call

    def _heads(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """q, k and v as views [batch, heads, length, size]."""
        b, m, _ = self.sizes
        attention = self.attention
        if attention.layout == "packed":
            parts = inputs[0].view(b, m, 3, attention.heads, attention.d)
            return parts.permute(2, 0, 3, 1, 4).unbind(0)
        if attention.layout == "bhm":
            return inputs[:3]
        return [each.view(b, each.shape[1], -1, attention.d).transpose(1, 2) for each in inputs[:3]]


def _part(tensor: Tensor, number: int, batch: int) -> slice:
    """Where a batch's part lies in the first dim: as long as every other's in all layouts."""
    length = tensor.shape[0] // batch
    return slice(number * length, (number + 1) * length)


def cells_of(
    group: str, kind: str, attention: Attention, shapes: Sequence[tuple[int, int, int]]
) -> list[Cell]:
    """A cell for each shape, all by one kernel with the least and greatest sizes of them."""
    bounds = tuple((min(each), max(each)) for each in zip(*shapes, strict=True))
    return [AttentionCell(group, kind, shape, bounds, attention) for shape in shapes]


def all_cells() -> list[Cell]:
    """The cells of all sets."""
    shapes = [(b, s, s) for b in (1, 4, 8, 16, 32) for s in MINILM_LENGTHS]
    found = cells_of("minilm", "12 heads of 32, padded", MINILM, shapes)
    shapes = [(b, s, s) for b in (1, 4, 16) for s in PREFILL_LENGTHS]
    for d in (64, 128):
        for causal in (None, "0"):
            kind = f"16 heads of {d}{', causal' if causal else ''}"
            found += cells_of("prefill", kind, Attention(heads=16, d=d, causal=causal), shapes)
    for kind, (attention, batches, queries) in DECODE.items():
        shapes = [(b, m, n) for b in batches for m in queries for n in DECODE_KEYS]
        found += cells_of("decode", kind, attention, shapes)
    return found


def main() -> None:
    parser = parser_of(__doc__, ("minilm", "prefill", "decode"))
    run("attention", all_cells(), parser.parse_args())


if __name__ == "__main__":
    main()
