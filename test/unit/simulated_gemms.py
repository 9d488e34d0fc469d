# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gemm kernels in the ways that models write them, lowered for a GPU and run on a simulated one."""

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
from shapejit.passes.nvgpu.lowering import lower_variant
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.target import HOPPER
from unit.cpu_kernels import DTYPES, Size, access, tensor
from unit.machine_code import device_code

#: Symbols of a kernel: m, n, k, batch, and the length of padded rows.
SYMBOLS = {"m": "s0", "n": "s1", "k": "s2", "b": "s3", "p": "s4"}

# Dims of the letter x have three elements, of which the second is read.
_OTHER = 3


@dataclass(frozen=True)
class Epilogue:
    """What is done with sums.

    Attributes:
        extras: layout letters and element type of every extra operand.
        weights: 1, or 2 for a gated pair.
        body: lines of the region; the sums are %a, %b, the extras %e0, %e1, ..
    """

    body: str
    extras: tuple[tuple[str, str], ...] = ()
    weights: int = 1


EPILOGUES = {
    "none": Epilogue("shapejit.yield %a : f32"),
    "bias, relu, residual": Epilogue(
        """
        %0 = arith.extf %e0 : bf16 to f32
        %1 = arith.addf %a, %0 : f32
        %z = arith.constant 0.0 : f32
        %2 = arith.maximumf %1, %z : f32
        %3 = arith.extf %e1 : bf16 to f32
        %4 = arith.addf %2, %3 : f32
        shapejit.yield %4 : f32""",
        (("n", "bf16"), ("mn", "bf16")),
    ),
    "bias, gelu, residual": Epilogue(
        """
        %0 = arith.extf %e0 : bf16 to f32
        %1 = arith.addf %a, %0 : f32
        %root = arith.constant 0.70710678 : f32
        %half = arith.constant 0.5 : f32
        %one = arith.constant 1.0 : f32
        %2 = arith.mulf %1, %root : f32
        %3 = math.erf %2 : f32
        %4 = arith.addf %3, %one : f32
        %5 = arith.mulf %1, %half : f32
        %6 = arith.mulf %5, %4 : f32
        %7 = arith.extf %e1 : bf16 to f32
        %8 = arith.addf %6, %7 : f32
        shapejit.yield %8 : f32""",
        (("n", "bf16"), ("mn", "bf16")),
    ),
    "row and column scale": Epilogue(
        """
        %0 = arith.mulf %a, %e0 : f32
        %1 = arith.mulf %0, %e1 : f32
        shapejit.yield %1 : f32""",
        (("m", "f32"), ("n", "f32")),
    ),
    "f32 residual": Epilogue(
        """
        %0 = arith.addf %a, %e0 : f32
        shapejit.yield %0 : f32""",
        (("mn", "f32"),),
    ),
    "gated": Epilogue(
        """
        %one = arith.constant 1.0 : f32
        %0 = arith.negf %a : f32
        %1 = math.exp %0 : f32
        %2 = arith.addf %1, %one : f32
        %3 = arith.divf %a, %2 : f32
        %4 = arith.mulf %3, %b : f32
        shapejit.yield %4 : f32""",
        weights=2,
    ),
}


def _apply(name: str, sums: Sequence[Tensor], extras: Sequence[Tensor]) -> Tensor:
    """An epilogue in float64."""
    match name:
        case "bias, relu, residual":
            return (sums[0] + extras[0]).clamp(min=0) + extras[1]
        case "bias, gelu, residual":
            return torch.nn.functional.gelu(sums[0] + extras[0]) + extras[1]
        case "row and column scale":
            return sums[0] * extras[0][:, None] * extras[1]
        case "f32 residual":
            return sums[0] + extras[0]
        case "gated":
            return torch.nn.functional.silu(sums[0]) * sums[1]
    return sums[0]


@dataclass(frozen=True)
class Gemm:
    """A kernel of one product.

    Operands are given by the letters of their dims, from the slowest on: m, n, k, b (batch), and x,
    a dim of three elements of which the second is read. A letter that is missing is broadcast.

    Attributes:
        lhs, rhs, result: layouts.
        element: type of the factors and extras of 16 bits.
        out: type of the result.
        epilogue: name in `EPILOGUES`.
        padded: whether rows of lhs are longer than what is read of them.
        sizes: the sizes that are constants, by letter.
    """

    lhs: str = "mk"
    rhs: str = "nk"
    result: str = "mn"
    element: str = "bf16"
    out: str = "bf16"
    epilogue: str = "none"
    padded: bool = False
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def half(self) -> str:
        """Type of the extras of 16 bits."""
        return "bf16" if self.element == "f32" else self.element

    @property
    def dims(self) -> str:
        """Letters of the space."""
        return ("b" if "b" in self.result else "") + "mnk"

    def _size(self, letter: str) -> Size:
        return dict(self.sizes).get(letter, SYMBOLS.get(letter, _OTHER))

    def _type(self, layout: str, element: str, padded: bool = False) -> str:
        sizes = [self._size(letter) for letter in layout]
        return tensor(element, *sizes[: len(sizes) - padded], *[SYMBOLS["p"]] * padded)

    def _operand(self, value: str, layout: str, element: str, rank: int, padded: bool) -> str:
        indices = ["1" if letter == "x" else f"d{self.dims.index(letter)}" for letter in layout]
        map_ = access(rank, ", ".join(indices))
        return f"%{value} at {map_} : {self._type(layout, element, padded)}"

    @property
    def arguments(self) -> list[tuple[str, str, str, bool]]:
        """Name, layout, element type and padding of every argument."""
        epilogue = EPILOGUES[self.epilogue]
        weights = [(f"w{i}", self.rhs, self.element, False) for i in range(epilogue.weights)]
        extras = [
            (f"x{i}", layout, self.half if element == "bf16" else element, False)
            for i, (layout, element) in enumerate(epilogue.extras)
        ]
        return [("lhs", self.lhs, self.element, self.padded), *weights, *extras]

    @property
    def text(self) -> str:
        """The kernel's IR; its symbols are those of `SYMBOLS`."""
        epilogue, rank = EPILOGUES[self.epilogue], len(self.dims)
        arguments = ", ".join(
            f"%{name}: {self._type(layout, element, padded)}"
            for name, layout, element, padded in self.arguments
        )
        operands = []
        for name, layout, element, padded in self.arguments:
            extra = name.startswith("x")
            operands.append(self._operand(name, layout, element, rank - extra, padded))
        weights = operands[1 : 1 + epilogue.weights]
        extras = operands[1 + epilogue.weights :]
        body = epilogue.body.replace("bf16", self.half)
        if self.out != "f32":
            body = body.replace(
                "shapejit.yield %", f"%out = arith.truncf %r : f32 to {self.out}\nshapejit.yield %"
            )
            last = body.rsplit("shapejit.yield ", 1)[1].split()[0]
            body = body.replace("%r :", f"{last} :").rsplit("shapejit.yield", 1)[0]
            body += f"shapejit.yield %out : {self.out}"
        names = ["%a: f32", "%b: f32"][: epilogue.weights]
        names += [
            f"%e{i}: {element}"
            for i, (_, _, element, _) in enumerate(self.arguments[1 + epilogue.weights :])
        ]
        out = self._type(self.result, self.out)
        space = ", ".join(str(self._size(letter)) for letter in self.dims)
        return f"""
            shapejit.kernel @k symbols {len(SYMBOLS)} ({arguments}) {{
              %y = shapejit.gemm over [{space}]
                  lhs({operands[0]})
                  rhs({", ".join(weights)})
                  {f"extras({', '.join(extras)})" if extras else ""}
                  epilogue {{
                ^bb0({", ".join(names)}):
                  {body}
                  }} -> {out}
              shapejit.yield %y : {out}
            }}"""

    # Values ---------------------------------------------------------------------------------------

    def lengths(self, m: int, n: int, k: int, b: int = 1) -> dict[str, int]:
        """Sizes by letter, those that are constants as they are."""
        return {"m": m, "n": n, "k": k, "b": b, "x": _OTHER, **dict(self.sizes)}

    def inputs(self, lengths: dict[str, int], padding: int = 0) -> list[Tensor]:
        """Random arguments, NaN where nothing may be read."""
        made = []
        for _, layout, element, padded in self.arguments:
            sizes = [lengths[letter] for letter in layout]
            values = torch.randn(sizes) / math.sqrt(max(lengths["k"], 1))
            if padded:
                values = torch.nn.functional.pad(values, (0, padding), value=math.nan)
            if "x" in layout:
                read = [slice(None) if letter != "x" else slice(1, 2) for letter in layout]
                kept = values[tuple(read)].clone()
                values[:] = math.nan
                values[tuple(read)] = kept
            made.append(values.to(DTYPES[element]))
        return made

    def reference(self, inputs: Sequence[Tensor], lengths: dict[str, int]) -> Tensor:
        """The result in float64."""
        plain = []
        for value, (_, layout, _, padded) in zip(inputs, self.arguments, strict=True):
            read = value.double()
            if padded:
                read = read[..., : lengths[layout[-1]]]
            plain.append(read.select(layout.index("x"), 1) if "x" in layout else read)
        layouts = [layout.replace("x", "") for _, layout, _, _ in self.arguments]
        weights = EPILOGUES[self.epilogue].weights
        sums = [
            torch.einsum(f"{layouts[0]},{layouts[1]}->{self._summed(layouts[:2])}", plain[0], w)
            for w in plain[1 : 1 + weights]
        ]
        if "k" not in layouts[0] + layouts[1]:
            sums = [value * lengths["k"] for value in sums]
        shape = [lengths[letter] for letter in self.result]
        summed = self._summed(layouts[:2])
        sums = [
            value[tuple(slice(None) if each in summed else None for each in self.result)].expand(
                shape
            )
            for value in sums
        ]
        return _apply(self.epilogue, sums, plain[1 + weights :])

    def _summed(self, layouts: Sequence[str]) -> str:
        present = "".join(layouts)
        return "".join(letter for letter in self.result if letter in present)


@functools.cache
def lowered(gemm: Gemm, schedule: str, block: bool = False, ahead: bool = False) -> LoweredGemm:
    """A kernel lowered by a schedule, see `LoweredGemm`."""
    return LoweredGemm(gemm, schedule, block, ahead)


class LoweredGemm:
    """A kernel's variant for a GPU.

    Args:
        gemm: the kernel.
        schedule: text of a `GemmSchedule`.
        block: whether its parameters lie in a parameter block.
        ahead: whether it may start, and load its weights, before the kernel ahead of it ends.

    Attributes:
        interface: how it is called.
    """

    def __init__(self, gemm: Gemm, schedule: str, block: bool, ahead: bool) -> None:
        self._gemm = gemm
        self._context = ir.Context()
        with self._context, ir.Location.unknown():
            self._module = ir.Module.parse(gemm.text)
            kernel = sir.kernels(self._module)["k"]
            self.interface: KernelInterface = lower_variant(
                kernel,
                GemmSchedule.parse(schedule),
                HOPPER,
                block=block,
                programmatic=ahead,
                constant_weights=ahead,
            )
            self._gpu_module = next(
                op for op in sir.operations(self._module.body) if op.name == "gpu.module"
            )
            self._module.operation.verify()
            self._function = kernel_function(self._gpu_module)

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
        lengths: dict[str, int],
        *,
        padding: int = 0,
        shifts: Sequence[int] = (),
        multiprocessors: int = 4,
        seed: int = 0,
        places: int | None = None,
    ) -> Tensor:
        """The result, computed by a simulated GPU; see `simulate`."""
        symbols = [lengths[letter] for letter in "mnkb"]
        symbols.append(lengths[self._gemm.lhs[-1]] + padding)
        result = torch.empty(
            [lengths[letter] for letter in self._gemm.result], dtype=DTYPES[self._gemm.out]
        )
        with self._context:
            return simulate(
                self._function,
                self.interface,
                inputs,
                result,
                symbols,
                shifts=shifts,
                multiprocessors=multiprocessors,
                seed=seed,
                places=places,
            )


def check(
    gemm: Gemm,
    schedule: str,
    m: int,
    n: int,
    k: int,
    b: int = 1,
    *,
    block: bool = False,
    ahead: bool = False,
    padding: int = 0,
    shifts: Sequence[int] = (),
    multiprocessors: int = 4,
    seed: int = 0,
) -> Tensor:
    """Runs a kernel on random values and compares it with float64.

    An element may differ by the rounding of its type, and by 2^-14 of the largest: products of 16
    bits are exact in f32, and so few are summed that its own rounding is below that. Of factors of
    32 bits 2^-20 is left, for the rounding of some hundred sums.
    """
    kernel = lowered(gemm, schedule, block, ahead)
    lengths = gemm.lengths(m, n, k, b)
    torch.manual_seed(m * 1000003 + n * 1009 + k + b)
    inputs = gemm.inputs(lengths, padding)
    got = kernel.run(
        inputs,
        lengths,
        padding=padding,
        shifts=shifts,
        multiprocessors=multiprocessors,
        seed=seed,
    )
    expected = gemm.reference(inputs, lengths)
    half_ulp = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-24}[gemm.out]
    if expected.numel():
        share = 2.0**-20 if gemm.element == "f32" else 2.0**-14
        allowed = half_ulp * expected.abs() + share * expected.abs().max()
        worst = (got.double() - expected).abs() - allowed
        assert (worst <= 0).all(), f"{worst.max()} too far off at {m=} {n=} {k=} {b=}"
    return got
