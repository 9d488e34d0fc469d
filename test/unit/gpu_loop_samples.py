# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of loops in the ways that models write them, with what they compute in torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from unit.cpu_kernels import DTYPES, Size, access, tensor

FLOATS = ("bf16", "f16", "f32", "f64")


@dataclass(frozen=True)
class Sample:
    """A kernel with random arguments and a reference.

    Attributes:
        text: IR of a kernel of the name k.
        inputs: makes its arguments for values of its symbols.
        expected: the results, in float64 (floats) or exact, from the arguments.
        scale: what an error of a float result is relative to; None for the greatest element.
    """

    text: str
    inputs: Callable[..., list[Tensor]]
    expected: Callable[..., list[Tensor]]


def values(element: str, *sizes: int, seed: int = 0) -> Tensor:
    """Random values; small integers for integer types."""
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    dtype = DTYPES[element]
    if element == "i1":
        return torch.rand(sizes, generator=generator) > 0.5
    if dtype.is_floating_point:
        return torch.randn(sizes, dtype=torch.float64, generator=generator).to(dtype)
    return torch.randint(-5, 6, sizes, dtype=dtype, generator=generator)


class _Body:
    """Lines of a scalar body that computes in f32, or in f64 for f64."""

    def __init__(self, element: str) -> None:
        self.element = element
        self.wide = "f64" if element == "f64" else "f32"
        self.lines: list[str] = []
        self._numbers = itertools.count()

    def op(self, name: str, *operands: str) -> str:
        made = f"%t{next(self._numbers)}"
        self.lines.append(f"{made} = {name} {', '.join(operands)} : {self.wide}")
        return made

    def constant(self, value: float) -> str:
        made = f"%t{next(self._numbers)}"
        self.lines.append(f"{made} = arith.constant {value:.17e} : {self.wide}")
        return made

    def widened(self, value: str) -> str:
        if self.element == self.wide:
            return value
        made = f"%t{next(self._numbers)}"
        self.lines.append(f"{made} = arith.extf {value} : {self.element} to {self.wide}")
        return made

    def yielded(self, value: str, *, wide: bool = False) -> str:
        if wide or self.element == self.wide:
            self.lines.append(f"shapejit.yield {value} : {self.wide}")
        else:
            self.lines.append(f"%out = arith.truncf {value} : {self.wide} to {self.element}")
            self.lines.append(f"shapejit.yield %out : {self.element}")
        return "\n".join(self.lines)


def sums(reduced: int) -> str:
    """IR of sums of [s0, s1] of f32 over a dim."""
    x, kept = tensor("f32", "s0", "s1"), 1 - reduced
    y, at, out = tensor("f32", f"s{kept}"), access(2, "d0, d1"), access(2, f"d{kept}")
    return f"""
        shapejit.kernel @k symbols 2 (%x: {x}) {{
          %y = shapejit.loop over [s0, s1] ins(%x at {at} : {x}) outs(add {out} : {y}) {{
          ^bb0(%v: f32):
            shapejit.yield %v : f32
          }}
          shapejit.yield %y : {y}
        }}"""


def layer_norm(element: str, width: Size, *, residual: bool = False) -> Sample:
    """Layer norm over rows of a width, after an addition if there is a residual."""
    x, vector = tensor(element, "s0", width), tensor(element, width)
    body = _Body(element)
    wide = body.wide
    h, row = tensor(wide, "s0", width), tensor(wide, "s0")
    full, rows, columns = access(2, "d0, d1"), access(2, "d0"), access(2, "d1")
    space = f"[s0, {width}]"
    count = (
        [f"%c = arith.constant {float(width):.1f} : {wide}"]
        if isinstance(width, int)
        else [
            f"%n = shapejit.size affine_map<()[s0, s1] -> ({width})>",
            "%ni = arith.index_cast %n : index to i64",
            f"%c = arith.sitofp %ni : i64 to {wide}",
        ]
    )

    def start(body: _Body) -> str:
        left = body.widened("%v")
        return body.op("arith.addf", left, body.widened("%u")) if residual else left

    arguments = f"%x: {x}" + (f", %r: {x}" if residual else "")
    reads = f"%x at {full} : {x}" + (f", %r at {full} : {x}" if residual else "")
    block = f"%v: {element}" + (f", %u: {element}" if residual else "")
    first = _Body(element)
    first_text = first.yielded(start(first), wide=True)
    last = _Body(element)
    last.lines += count
    variance = last.op("arith.divf", "%q", "%c")
    root = last.op("math.rsqrt", last.op("arith.addf", variance, last.constant(1e-5)))
    centred = last.op("arith.subf", "%a", last.op("arith.divf", "%s", "%c"))
    scaled = last.op("arith.mulf", last.op("arith.mulf", centred, root), last.widened("%w"))
    last_text = last.yielded(last.op("arith.addf", scaled, last.widened("%b")))
    text = f"""
      shapejit.kernel @k symbols 2 ({arguments}, %weight: {vector}, %bias: {vector}) {{
        %h = shapejit.loop over {space} ins({reads}) outs({full} : {h}) {{
        ^bb0({block}):
          {first_text}
        }}
        %sum = shapejit.loop over {space} ins(%h at {full} : {h}) outs(add {rows} : {row}) {{
        ^bb0(%a: {wide}):
          shapejit.yield %a : {wide}
        }}
        %var = shapejit.loop over {space} ins(%h at {full} : {h}, %sum at {rows} : {row})
            outs(add {rows} : {row}) {{
        ^bb0(%a: {wide}, %s: {wide}):
          {chr(10).join(count)}
          %m = arith.divf %s, %c : {wide}
          %d = arith.subf %a, %m : {wide}
          %e = arith.mulf %d, %d : {wide}
          shapejit.yield %e : {wide}
        }}
        %y = shapejit.loop over {space}
            ins(%h at {full} : {h}, %sum at {rows} : {row}, %var at {rows} : {row},
                %weight at {columns} : {vector}, %bias at {columns} : {vector})
            outs({full} : {x}) {{
        ^bb0(%a: {wide}, %s: {wide}, %q: {wide}, %w: {element}, %b: {element}):
          {last_text}
        }}
        shapejit.yield %y : {x}
      }}"""

    def inputs(m: int, n: int = 0) -> list[Tensor]:
        size = width if isinstance(width, int) else n
        made = [values(element, m, size, seed=i) for i in range(1 + residual)]
        return [*made, values(element, size, seed=7), values(element, size, seed=8)]

    def expected(*arguments: Tensor) -> list[Tensor]:
        *rows_, weight, bias = (each.double() for each in arguments)
        h_ = sum(rows_[1:], rows_[0])
        return [functional.layer_norm(h_, h_.shape[1:], weight, bias, 1e-5)]

    return Sample(text, inputs, expected)


def softmax(element: str, width: Size = "s1") -> Sample:
    """Softmax over the last dim."""
    x = tensor(element, "s0", width)
    wide = _Body(element).wide
    e, row = tensor(wide, "s0", width), tensor(wide, "s0")
    full, rows = access(2, "d0, d1"), access(2, "d0")
    space = f"[s0, {width}]"
    greatest, power, ratio = _Body(element), _Body(element), _Body(element)
    greatest_text = greatest.yielded(greatest.widened("%v"), wide=True)
    difference = power.op("arith.subf", power.widened("%v"), "%top")
    power_text = power.yielded(power.op("math.exp", difference), wide=True)
    ratio_text = ratio.yielded(ratio.op("arith.divf", "%p", "%total"))
    text = f"""
      shapejit.kernel @k symbols 2 (%x: {x}) {{
        %m = shapejit.loop over {space} ins(%x at {full} : {x}) outs(max {rows} : {row}) {{
        ^bb0(%v: {element}):
          {greatest_text}
        }}
        %e = shapejit.loop over {space} ins(%x at {full} : {x}, %m at {rows} : {row})
            outs({full} : {e}) {{
        ^bb0(%v: {element}, %top: {wide}):
          {power_text}
        }}
        %s = shapejit.loop over {space} ins(%e at {full} : {e}) outs(add {rows} : {row}) {{
        ^bb0(%p: {wide}):
          shapejit.yield %p : {wide}
        }}
        %y = shapejit.loop over {space} ins(%e at {full} : {e}, %s at {rows} : {row})
            outs({full} : {x}) {{
        ^bb0(%p: {wide}, %total: {wide}):
          {ratio_text}
        }}
        shapejit.yield %y : {x}
      }}"""

    def inputs(m: int, n: int = 0) -> list[Tensor]:
        return [values(element, m, width if isinstance(width, int) else n) * 5]

    return Sample(text, inputs, lambda x_: [torch.softmax(x_.double(), -1)])


def pointwise(element: str, function: str = "add", *, rank: int = 1) -> Sample:
    """``x + y``, or gelu of x, over one dim or over [s0, s1]."""
    sizes = ["s0", "s1"][:rank]
    x = tensor(element, *sizes)
    own = access(rank, ", ".join(f"d{i}" for i in range(rank)))
    body = _Body(element)
    if function == "add":
        result = body.op("arith.addf", body.widened("%v"), body.widened("%u"))
    else:
        value = body.widened("%v")
        inner = body.op("math.erf", body.op("arith.mulf", value, body.constant(0.7071067811865476)))
        half = body.op("arith.mulf", value, body.constant(0.5))
        result = body.op("arith.mulf", half, body.op("arith.addf", inner, body.constant(1.0)))
    text = body.yielded(result)
    text = f"""
      shapejit.kernel @k symbols 2 (%x: {x}, %y: {x}) {{
        %0 = shapejit.loop over [{", ".join(sizes)}] ins(%x at {own} : {x}, %y at {own} : {x})
            outs({own} : {x}) {{
        ^bb0(%v: {element}, %u: {element}):
          {text}
        }}
        shapejit.yield %0 : {x}
      }}"""

    def inputs(*sizes_: int) -> list[Tensor]:
        return [values(element, *sizes_[:rank], seed=i) for i in range(2)]

    def expected(a: Tensor, b: Tensor) -> list[Tensor]:
        if function == "add":
            return [a.double() + b.double()]
        return [functional.gelu(a.double())]

    return Sample(text, inputs, expected)


def column_sum(element: str, width: Size = "s2") -> Sample:
    """[s0, s1, s2] summed over the middle dim, with a factor of [s0, s1]."""
    x, y = tensor(element, "s0", "s1", width), tensor("f32", "s0", width)
    mask = tensor("i64", "s0", "s1")
    body = _Body(element)
    value = body.widened("%v")
    body.lines.append("%f = arith.sitofp %m : i64 to f32")
    text = body.yielded(body.op("arith.mulf", value, "%f"), wide=True)
    text = f"""
      shapejit.kernel @k symbols 3 (%x: {x}, %mask: {mask}) {{
        %0 = shapejit.loop over [s0, s1, {width}]
            ins(%x at {access(3, "d0, d1, d2")} : {x}, %mask at {access(3, "d0, d1")} : {mask})
            outs(add {access(3, "d0, d2")} : {y}) {{
        ^bb0(%v: {element}, %m: i64):
          {text}
        }}
        shapejit.yield %0 : {y}
      }}"""

    def inputs(b: int, s: int, n: int = 0) -> list[Tensor]:
        size = width if isinstance(width, int) else n
        mask_ = (values("i64", b, s) > 0).to(torch.int64)
        return [values(element, b, s, size), mask_]

    def expected(x_: Tensor, mask_: Tensor) -> list[Tensor]:
        return [(x_.double() * mask_[..., None]).sum(1)]

    return Sample(text, inputs, expected)


def embedding(element: str, width: Size = 64, words: int = 50) -> Sample:
    """Rows of a table by indices, plus a row for each position."""
    ids, table = tensor("i64", "s0", "s1"), tensor(element, words, width)
    places, y = tensor(element, 512, width), tensor(element, "s0", "s1", width)
    body = _Body(element)
    text = body.yielded(body.op("arith.addf", body.widened("%a"), body.widened("%b")))
    text = f"""
      shapejit.kernel @k symbols 2 (%ids: {ids}, %words: {table}, %places: {places}) {{
        %0 = shapejit.loop over [s0, s1, {width}] ins(%ids at {access(3, "d0, d1")} : {ids})
            outs({access(3, "d0, d1, d2")} : {y}) {{
        ^bb0(%id: i64):
          %j = shapejit.index 2
          %p = shapejit.index 1
          %w = arith.index_cast %id : i64 to index
          %a = tensor.extract %words[%w, %j] : {table}
          %b = tensor.extract %places[%p, %j] : {places}
          {text}
        }}
        shapejit.yield %0 : {y}
      }}"""

    def inputs(b: int, s: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(b + s)
        assert isinstance(width, int)
        made = [values(element, count, width, seed=count) for count in (words, 512)]
        return [torch.randint(0, words, (b, s), generator=generator), *made]

    def expected(ids_: Tensor, words_: Tensor, places_: Tensor) -> list[Tensor]:
        return [words_.double()[ids_] + places_.double()[: ids_.shape[1]]]

    return Sample(text, inputs, expected)


def assert_near(element: str, got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Every result within the rounding of its type, and 2^-18 of the greatest element."""
    half_ulp = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-20, "f64": 2.0**-44}[element]
    floor = 2.0**-44 if element == "f64" else 2.0**-18
    for one, reference in zip(got, expected, strict=True):
        assert one.shape == reference.shape
        if not reference.numel():
            continue
        allowed = half_ulp * reference.abs() + floor * reference.abs().max().clamp(min=1e-30)
        wrong = (one.double() - reference).abs() - allowed
        assert (wrong <= 0).all(), f"{wrong.max().item()} too far off"
