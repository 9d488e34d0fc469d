# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loops on a GPU, which have no matrix product: kernels as chosen for their sizes, against torch.

Sets of shapes:

- ``minilm``: what stands between MiniLM's products: layer norms of 384, with a residual or
  without, the sum over tokens and small additions;
- ``norms``: layer norms of other widths and softmax, of odd lengths too;
- ``columns``: sums over the tokens of each text, with a mask;
- ``pointwise``: additions of 1000 to 67 million elements;
- ``long``: softmax and sums of few long rows and columns, which several CTAs share;
- ``scans``: running sums of masks, of probabilities, of one long row;
- ``sorts``: sorts and heads of them: of logits, of boxes' scores, of one long row.

The peer is torch's eager kernels, and with ``--compile`` `torch.compile` for each shape too, which
fuses them. Results are checked against float64 before they are timed. Calls are captured into CUDA
graphs and replayed in a shuffled order, as in ``gemm.py``; figures are the best peer's median time
over ours. Beside what moves 16 MiB or more a copy of as many bytes is measured (``copy_rate.py``):
the goal is 0.85 of its rate, with ``--megabytes 300``, so that all comes from memory.

    python bench/loops.py
    python bench/loops.py --sets norms --compile --megabytes 300
    python bench/loops.py --only "masked sum" "softmax (512, 50257)" --megabytes 300

Writes ``bench/results/loops-<GPU>.json``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from kernel_cells import Cell, Expected
from kernel_runs import parser_of, run
from row_cells import row_cells
from torch import Tensor
from torch.nn import functional

from unit import gpu_loop_samples as samples

ELEMENT, DTYPE = "bf16", torch.bfloat16
#: Half an ulp of a result, and what sums may be off beside it, relative to the greatest element.
HALF_ULP = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-20}
FLOOR = 2.0**-18

MINILM_WIDTH = 384
MINILM_ROWS = (3, 64, 512, 2048, 8192)
TEXTS = ((1, 3), (1, 256), (8, 64), (32, 64), (32, 256))
NORMS = ((8192, 768), (8192, 1024), (264, 4096), (8192, 4096), (1, 8192), (8192, 8192))
SOFTMAXES = (
    (6144, 128), (6144, 200), (6144, 201), (4096, 1000), (4096, 1001), (512, 8192), (4096, 8192),
    (4096, 16384), (64, 50257), (512, 50257), (512, 128256), (8, 128256),
)  # fmt: skip
LONG_ROWS = ((1, 32000), (1, 128256), (4, 128256), (16, 128256), (4, 1000000), (1, 4000000))
LONG_COLUMNS = ((1, 100000, 64), (1, 20000, 768), (4, 100000, 100))
ELEMENTS = (1000, 1 << 16, 1 << 20, (1 << 22) + 3, 1 << 24, 1 << 26)


def noise(*sizes: int) -> Tensor:
    """Random values on the GPU."""
    return torch.randn(*sizes, device="cuda").to(DTYPE)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[1:], weight, bias, 1e-5)


def residual_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return layer_norm(x + residual, weight, bias)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def column_sum(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask[..., None]).sum(1)


@functools.cache
def sample(name: str, *arguments: int | str, residual: bool = False) -> samples.Sample:
    """A kernel with its reference."""
    options = {"residual": True} if residual else {}
    made: samples.Sample = getattr(samples, name)(ELEMENT, *arguments, **options)
    return made


@dataclass(frozen=True)
class LoopCell(Cell):
    """Loops at one size.

    Attributes:
        sample: the kernel, with its reference.
        made: new random arguments.
        torch_function: the same in torch, from the arguments.
        dtype: of the result.
        compiled: whether `torch.compile` is a peer.
    """

    sample: samples.Sample
    made: Callable[[], list[Tensor]]
    torch_function: Callable[..., Tensor]
    dtype: torch.dtype = DTYPE
    compiled: bool = False

    def text(self) -> str:
        return self.sample.text

    def operands(self) -> list[Tensor]:
        inputs = self.made()
        with torch.no_grad():
            sizes = self.torch_function(*(each.to("meta") for each in inputs)).shape
        return [*inputs, torch.empty(sizes, dtype=self.dtype, device="cuda")]

    def expected(self, operands: Sequence[Tensor]) -> list[Expected]:
        [value] = self.sample.expected(*operands[:-1])
        allowed = HALF_ULP[self.dtype] * value.abs() + FLOOR * value.abs().max()
        return [Expected(slice(None), value, allowed)]

    def moved(self, operands: Sequence[Tensor]) -> int:
        return sum(each.numel() * each.element_size() for each in operands)

    def peers(self) -> dict[str, Callable[..., Tensor]]:
        found = {"eager": self.torch_function}
        if self.compiled:
            torch._dynamo.reset()
            found["torch.compile"] = torch.compile(self.torch_function, dynamic=False)
        return found


def bounds_of(*sizes: int) -> tuple[tuple[int, int], ...]:
    """Ranges that a program might have: up to the next power of two."""
    return tuple((min(each, 1), 1 << max(each - 1, 0).bit_length()) for each in sizes)


def norm_cell(group: str, m: int, n: int, residual: bool = False) -> LoopCell:
    """A layer norm over rows of constant length."""

    def made() -> list[Tensor]:
        rows = [noise(m, n) for _ in range(1 + residual)]
        return [*rows, noise(n), noise(n)]

    kind = f"layer norm{' of a sum' if residual else ''}"
    return LoopCell(
        group, f"{kind} of {n}", (m, 0), bounds_of(m, 0),
        sample("layer_norm", n, residual=residual), made,
        residual_norm if residual else layer_norm,
    )  # fmt: skip


def softmax_cell(m: int, n: int) -> LoopCell:
    """A softmax over rows of any length."""
    return LoopCell(
        "norms", "softmax", (m, n), bounds_of(m, n), sample("softmax"), lambda: [noise(m, n) * 5],
        softmax,
    )  # fmt: skip


def column_cell(group: str, b: int, s: int, n: int) -> LoopCell:
    """The masked sum over tokens, which is f32."""

    def made() -> list[Tensor]:
        return [noise(b, s, n), torch.randint(0, 2, (b, s), device="cuda")]

    return LoopCell(
        group, f"masked sum of tokens of {n}", (b, s, 0), bounds_of(b, s, 0),
        sample("column_sum", n), made, column_sum, torch.float32,
    )  # fmt: skip


def add_cell(group: str, n: int) -> LoopCell:
    """An addition."""
    return LoopCell(
        group, "addition", (n, 0), bounds_of(n, 0), sample("pointwise"),
        lambda: [noise(n), noise(n)], torch.add,
    )  # fmt: skip


def loop_cells() -> list[LoopCell]:
    """The cells of loops."""
    found = [norm_cell("minilm", m, MINILM_WIDTH) for m in MINILM_ROWS]
    found += [norm_cell("minilm", m, MINILM_WIDTH, residual=True) for m in MINILM_ROWS]
    found += [column_cell("minilm", b, s, MINILM_WIDTH) for b, s in TEXTS]
    found += [add_cell("minilm", n) for n in (96, 8192)]
    found += [norm_cell("norms", m, n) for m, n in NORMS]
    found += [softmax_cell(m, n) for m, n in SOFTMAXES]
    found += [column_cell("columns", b, s, n) for n in (768, 1000) for b, s in TEXTS]
    found += [add_cell("pointwise", n) for n in ELEMENTS]
    found += [dataclasses.replace(softmax_cell(m, n), group="long") for m, n in LONG_ROWS]
    return found + [column_cell("long", b, s, n) for b, s, n in LONG_COLUMNS]


def main() -> None:
    sets = ("minilm", "norms", "columns", "pointwise", "long", "scans", "sorts")
    parser = parser_of(__doc__, sets)
    parser.add_argument("--compile", action="store_true", help="also against torch.compile")
    parser.add_argument("--only", nargs="*", default=[""], help="cells with one of these texts")
    arguments = parser.parse_args()
    cells = [
        cell
        for cell in (*loop_cells(), *row_cells())
        if any(text in f"{cell.kind} {cell.sizes}" for text in arguments.only)
    ]
    cells = [dataclasses.replace(cell, compiled=arguments.compile) for cell in cells]
    run("loops", cells, arguments)


if __name__ == "__main__":
    main()
