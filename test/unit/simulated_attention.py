# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention kernels in the ways that models write them, lowered for a GPU and run on a simulated
one."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlir.ir as ir
import torch
from torch import Tensor

from reference.hopper.launch import kernel_function, simulate
from shapejit import ir as sir
from shapejit.codegen.ptxas import Cubin, assemble
from shapejit.gpu.interface import KernelInterface
from shapejit.passes.nvgpu.attention.lowering import lower
from shapejit.passes.nvgpu.target import HOPPER
from shapejit.symbolic import Expr
from unit.cpu_kernels import DTYPES, access, tensor
from unit.machine_code import device_code

#: Symbols of a kernel: batch, queries, keys.
SYMBOLS = ("s0", "s1", "s2")


@dataclass(frozen=True)
class Attention:
    """Attention over [s0, heads, s1, s2, d, dv].

    Attributes:
        heads, kv_heads: heads of q, and of k and v (0: as many).
        d, dv: head sizes (dv 0: as d).
        layout: ``bmh``: q, k, v and result are [batch, length, heads * size]; ``bhm``: they are
            [batch, heads, length, size]; ``packed``: q, k and v are slices of one
            [batch * length, 3 * heads * size] tensor; ``bhdm``: k is [batch, heads, d, length],
            so that its rows' elements are no neighbours.
        mask: element type of the mask, if any.
        mask_shape: its sizes over batch, heads, m, n; 1 is broadcast.
        causal: offset over s1 and s2, if causal.
        element: of the tensors.
        scale: of the scores; None for that of the head size.
    """

    heads: int = 2
    kv_heads: int = 0
    d: int = 32
    dv: int = 0
    layout: str = "bmh"
    mask: str | None = None
    mask_shape: str = "s0, 1, 1, s2"
    causal: str | None = None
    element: str = "bf16"
    scale: float | None = None

    @property
    def groups(self) -> int:
        return self.kv_heads or self.heads

    @property
    def value(self) -> int:
        return self.dv or self.d

    @property
    def factor(self) -> float:
        return self.d**-0.5 if self.scale is None else self.scale

    # The kernel's text ----------------------------------------------------------------------------

    def _operand(self, name: str, length: str, heads: int, size: int) -> tuple[str, str, str]:
        """Name of the argument, its map and type."""
        share = f"(d1 floordiv {self.heads // heads})" if heads != self.heads else "d1"
        match self.layout:
            case "packed":
                part = "qkv".find(name)
                if part >= 0:
                    rows = tensor(self.element, "s0 * s1", 3 * heads * size)
                    start = part * heads * size
                    at = f"d0 * s1 + d2, {share} * {size} + d3 + {start}"
                    return "q", access(4, at), rows
                rows = tensor(self.element, "s0 * s1", heads * size)
                return name, access(4, f"d0 * s1 + d2, {share} * {size} + d3"), rows
            case "bhm":
                type_ = tensor(self.element, "s0", heads, length, size)
                return name, access(4, f"d0, {share}, d2, d3"), type_
            case "bhdm" if name == "k":
                type_ = tensor(self.element, "s0", heads, size, length)
                return name, access(4, f"d0, {share}, d3, d2"), type_
        type_ = tensor(self.element, "s0", length, heads * size)
        return name, access(4, f"d0, d2, {share} * {size} + d3"), type_

    @property
    def keys(self) -> str:
        """The symbol of the number of keys."""
        return "s1" if self.layout == "packed" else "s2"

    @property
    def text(self) -> str:
        """The kernel's IR."""
        operands = {
            "q": self._operand("q", "s1", self.heads, self.d),
            "k": self._operand("k", self.keys, self.groups, self.d),
            "v": self._operand("v", self.keys, self.groups, self.value),
        }
        _, out, result = self._operand("y", "s1", self.heads, self.value)
        arguments = dict.fromkeys(f"%{name}: {type_}" for name, _, type_ in operands.values())
        uses = [f"{key}(%{name} at {at} : {type_})" for key, (name, at, type_) in operands.items()]
        if self.mask:
            sizes = self.mask_shape.split(", ")
            type_ = tensor(self.mask, *(int(s) if s.isdigit() else s for s in sizes))
            at = ", ".join("0" if size == "1" else f"d{i}" for i, size in enumerate(sizes))
            arguments[f"%mask: {type_}"] = None
            uses.append(f"mask(%mask at {access(4, at)} : {type_})")
        causal = ""
        if self.causal:
            causal = f", causal = affine_map<()[s0, s1, s2] -> ({self.causal})>"
        space = f"[s0, {self.heads}, s1, {self.keys}, {self.d}, {self.value}]"
        return f"""
            shapejit.kernel @k symbols 3 ({", ".join(arguments)}) {{
              %0 = shapejit.attention over {space}
                  {" ".join(uses)} {{scale = {self.factor} : f64{causal}}} -> {out} : {result}
              shapejit.yield %0 : {result}
            }}"""

    # Values ---------------------------------------------------------------------------------------

    def symbols(self, b: int, m: int, n: int) -> list[int]:
        """The values of the kernel's symbols."""
        return [b, m, n]

    def inputs(self, b: int, m: int, n: int) -> list[Tensor]:
        """Random arguments."""
        dtype = DTYPES[self.element]

        def made(length: int, heads: int, size: int, *, turned: bool = False) -> Tensor:
            match self.layout:
                case "bhm":
                    return torch.randn(b, heads, length, size).to(dtype)
                case "bhdm" if turned:
                    return torch.randn(b, heads, size, length).to(dtype)
            return torch.randn(b, length, heads * size).to(dtype)

        if self.layout == "packed":
            inputs = [torch.randn(b * m, 3 * self.heads * self.d).to(dtype)]
        else:
            inputs = [
                made(m, self.heads, self.d),
                made(n, self.groups, self.d, turned=True),
                made(n, self.groups, self.value),
            ]
        if self.mask:
            inputs.append(self._mask(b, m, n))
        return inputs

    def _mask(self, b: int, m: int, n: int) -> Tensor:
        sizes = [Expr.parse(s).evaluate([b, m, n]) for s in self.mask_shape.split(", ")]
        mask = torch.rand(sizes) > 0.4
        if self.mask_shape == "s0, 1, 1, s2" and n > 70:
            mask[:, :, :, 64 : 64 + n // 2] = False  # whole blocks that nobody sees
        if self.mask == "i1":
            return mask
        floats = torch.randn(sizes).to(DTYPES[self.mask or ""])
        return floats.masked_fill(~mask, -math.inf)

    def result(self, b: int, m: int) -> Tensor:
        """An empty result."""
        dtype = DTYPES[self.element]
        if self.layout == "bhm":
            return torch.empty(b, self.heads, m, self.value, dtype=dtype)
        if self.layout == "packed":
            return torch.empty(b * m, self.heads * self.value, dtype=dtype)
        return torch.empty(b, m, self.heads * self.value, dtype=dtype)

    def reference(self, inputs: Sequence[Tensor], b: int, m: int, n: int) -> Tensor:
        """The result in float64; a query that sees no key gives 0."""
        q, k, v, *mask = self._heads(inputs, b, m)
        share = self.heads // self.groups
        scores = q @ k.repeat_interleave(share, 1).transpose(2, 3) * self.factor
        if mask and mask[0].dtype == torch.bool:
            scores = scores.masked_fill(~mask[0], -math.inf)
        elif mask:
            scores = scores + mask[0].double()
        if self.causal:
            offset = Expr.parse(self.causal).evaluate([b, m, n])
            queries, keys = (torch.arange(each, device=q.device) for each in (m, n))
            seen = keys <= queries[:, None] + offset
            scores = scores.masked_fill(~seen, -math.inf)
        weights = torch.softmax(scores, -1)
        weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
        result = weights @ v.repeat_interleave(share, 1)
        if self.layout == "bhm":
            return result
        result = result.transpose(1, 2).flatten(2)
        return result.flatten(0, 1) if self.layout == "packed" else result

    def allowed(self, inputs: Sequence[Tensor], expected: Tensor) -> Tensor:
        """How far elements may be off.

        By the rounding of their type, and by that of the weights, which are rounded to it too:
        these errors add up to at most half an ulp of the largest value.
        """
        half_ulp = {"bf16": 2.0**-8, "f16": 2.0**-11}[self.element]
        values = inputs[0] if self.layout == "packed" else inputs[2]
        largest = values.abs().max().item() if values.numel() else 0.0
        return half_ulp * (expected.abs() + largest)

    def _heads(self, inputs: Sequence[Tensor], b: int, m: int) -> list[Tensor]:
        """q, k and v as [batch, heads, length, size], in float64; and the mask."""
        if self.layout == "packed":
            rows, *mask = inputs
            parts = rows.double().reshape(b, m, 3, self.heads, self.d).permute(2, 0, 3, 1, 4)
            return [*parts, *mask]
        q, k, v, *mask = inputs
        if self.layout == "bhm":
            return [q.double(), k.double(), v.double(), *mask]

        def split(value: Tensor, heads: int, size: int) -> Tensor:
            return value.double().unflatten(-1, (heads, size)).transpose(1, 2)

        keys = split(k, self.groups, self.d) if k.dim() == 3 else k.double().transpose(2, 3)
        return [split(q, self.heads, self.d), keys, split(v, self.groups, self.value), *mask]


@functools.cache
def lowered(
    attention: Attention, variant: str, block: bool = False, programmatic: bool = False
) -> LoweredAttention:
    """A kernel lowered by a schedule, see `LoweredAttention`."""
    return LoweredAttention(attention, variant, block, programmatic)


class LoweredAttention:
    """A kernel's variant for a GPU.

    Args:
        attention: the kernel.
        variant: text of an `AttentionSchedule`.
        block: whether its parameters lie in a parameter block.
        programmatic: whether it may start before the kernel ahead of it ends.

    Attributes:
        interface: how it is called.
        function: its ``llvm.func``.
    """

    def __init__(
        self, attention: Attention, variant: str, block: bool = False, programmatic: bool = False
    ) -> None:
        self._attention = attention
        self._context = ir.Context()
        with self._context, ir.Location.unknown():
            self._module = ir.Module.parse(attention.text)
            kernel = sir.kernels(self._module)["k"]
            self.interface: KernelInterface = lower(
                kernel, variant, HOPPER, block=block, programmatic=programmatic
            )
            self._gpu_module = next(
                op for op in sir.operations(self._module.body) if op.name == "gpu.module"
            )
            self._module.operation.verify()
            self.function = kernel_function(self._gpu_module)

    def assemble(self) -> Cubin:
        """Machine code, by ptxas.

        Raises:
            AssemblyError: ptxas refused it, or warned of what no kernel may have.
        """
        code = device_code(self._gpu_module)
        return assemble(code.ptx, code.arch)

    def run(
        self,
        inputs: Sequence[Tensor],
        b: int,
        m: int,
        n: int,
        *,
        shifts: Sequence[int] = (),
        multiprocessors: int = 2,
        seed: int = 0,
    ) -> Tensor:
        """The result, computed by a simulated GPU; see `simulate`."""
        with self._context:
            return simulate(
                self.function,
                self.interface,
                inputs,
                self._attention.result(b, m),
                self._attention.symbols(b, m, n),
                shifts=shifts,
                multiprocessors=multiprocessors,
                seed=seed,
            )


def check(
    attention: Attention,
    variant: str,
    b: int,
    m: int,
    n: int,
    *,
    block: bool = False,
    programmatic: bool = False,
    shifts: Sequence[int] = (),
    multiprocessors: int = 2,
    seed: int = 0,
) -> Tensor:
    """Runs a kernel on random values and compares it with float64, see `Attention.allowed`."""
    kernel = lowered(attention, variant, block, programmatic)
    torch.manual_seed(b * 1000003 + m * 1009 + n)
    inputs = attention.inputs(b, m, n)
    got = kernel.run(inputs, b, m, n, shifts=shifts, multiprocessors=multiprocessors, seed=seed)
    expected = attention.reference(inputs, b, m, n)
    assert got.shape == expected.shape
    if expected.numel():
        worst = (got.double() - expected).abs() - attention.allowed(inputs, expected)
        assert (worst <= 0).all(), f"{worst.max()} too far off at {b=} {m=} {n=}"
    return got
