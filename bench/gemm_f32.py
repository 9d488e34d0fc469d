# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products of float32 on a GPU: `shapejit.ops.gemm` as dispatched, against cuBLAS.

The shapes and the method are those of ``gemm.py``; both sides compute in IEEE arithmetic
(``--precision ieee``) or may round factors to tf32 (``--precision tf32``). Results are checked
against float64 before they are timed.

    python bench/gemm_f32.py
    python bench/gemm_f32.py --precision tf32 --seconds 400
    python bench/gemm_f32.py --candidates

Writes ``bench/results/gemm-<precision>-<GPU>.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gemm import REGIME_NAMES, RESULTS, Call, Shape, environment, measure, shape_of, shapes

from shapejit import ops
from shapejit.ops.gemm import kernels_of
from shapejit.ops.gemm_operands import Operands, result_shape
from shapejit.passes.nvgpu.schedule import ALL_CANDIDATES, GemmSchedule

_ROTATED_BYTES, _MAX_SETS = 300_000_000, 16
_PEAKS = {"ieee": 60e12, "tf32": 400e12}
_BANDWIDTH = 3.8e12
# Elements of a product that are compared with float64: rows of a tall one.
_CHECKED_ROWS = 256
_BOUNDS = {"ieee": 3e-6, "tf32": 3e-3}


class Cell:
    """A shape with its operands, several sets of them."""

    def __init__(self, shape: Shape, precision: str) -> None:
        m, n, k = self.shape = shape
        self.precision = precision
        total = 4 * (m * k + n * k + m * n)
        generator = torch.Generator("cuda").manual_seed(m * 31 + n * 7 + k)

        def noise(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, device="cuda", generator=generator)

        count = max(1, min(_MAX_SETS, -(-_ROTATED_BYTES // total)))
        self.sets = [
            (noise(m, k), noise(n, k), torch.empty(m, n, device="cuda")) for _ in range(count)
        ]
        self.estimate = max(2.0 * m * n * k / _PEAKS[precision], total / _BANDWIDTH, 4e-6)

    def operands(self, number: int) -> Operands:
        x, w, _ = self.sets[number]
        return Operands(x, w.mT, None, None, None, None, None, self.precision == "tf32")

    def chosen(self) -> GemmSchedule:
        """What calls are dispatched to."""
        layout, kernels = kernels_of(self.operands(0), self.shape[:2], 0)
        return kernels.choose_rows(layout, layout.m)

    def cublas(self) -> list[Call]:
        return [lambda x=x, w=w, out=out: torch.mm(x, w.mT, out=out) for x, w, out in self.sets]

    def dispatched(self) -> list[Call]:
        def call(number: int) -> Call:
            x, w, out = self.sets[number]
            return lambda: ops.gemm(
                x, w.mT, out=out, deterministic=True, float32_precision=self.precision
            )

        return [call(number) for number in range(len(self.sets))]

    def scheduled(self, schedule: GemmSchedule) -> list[Call]:
        """Calls of one schedule's kernel."""

        def call(number: int) -> Call:
            operands, out = self.operands(number), self.sets[number][2]
            layout, kernels = kernels_of(operands, result_shape(operands), out.data_ptr())
            loaded = kernels.load(schedule)
            assert loaded.kernel is not None
            values = [value.evaluate(layout.symbols) for value in loaded.values]
            addresses = [tensor.data_ptr() for tensor in (*operands.tensors, out)]
            launch = loaded.kernel.launch
            return lambda: launch(addresses, values, torch.cuda.current_stream().cuda_stream)

        return [call(number) for number in range(len(self.sets))]

    def error(self, calls: Sequence[Call]) -> float:
        """The relative error of the first call's first rows, after its result was poisoned."""
        x, w, out = self.sets[0]
        out.fill_(float("nan"))
        calls[0]()
        exact = x[:_CHECKED_ROWS].double() @ w.mT.double()
        return ((out[:_CHECKED_ROWS].double() - exact).norm() / exact.norm()).item()


def records_of(cell: Cell, arguments: argparse.Namespace, rng: random.Random) -> list[Any]:
    """What was measured of a shape, by provider."""
    providers = {"cublas": cell.cublas(), "shapejit": cell.dispatched()}
    if arguments.candidates:
        marks = {"ieee": ("simt", "tf32x3"), "tf32": ("simt", "tf32")}[cell.precision]
        for schedule in ALL_CANDIDATES:
            if any(mark in str(schedule).split("_") for mark in marks):
                providers[str(schedule)] = cell.scheduled(schedule)
    errors = {name: cell.error(calls) for name, calls in providers.items()}
    for name, error in errors.items():
        if not error <= _BOUNDS[cell.precision]:
            print(f"{cell.shape} {name}: WRONG, relative error {error:.2e}", flush=True)
    m, n, k = cell.shape
    schedules = {"cublas": None, "shapejit": str(cell.chosen())}
    return [
        {
            "m": m, "n": n, "k": k, "batch": 1, "dtype": "f32", "precision": cell.precision,
            "provider": name if name in schedules else "single", **times,
            "schedule": schedules.get(name, name), "error": errors[name],
        }
        for name, times in measure(cell, providers, rng).items()
    ]  # fmt: skip


def summary(records: Sequence[Any]) -> dict[str, Any]:
    """cuBLAS's time over ours, by rows and regime."""
    by_shape: dict[Shape, dict[str, Any]] = {}
    for each in records:
        if each["provider"] != "single":
            by_shape.setdefault((each["m"], each["n"], each["k"]), {})[each["provider"]] = each
    table = {}
    for regime in REGIME_NAMES:
        for title, small in (("M <= 128", True), ("M > 128", False)):
            ratios = [
                found["cublas"][f"{regime}_us"] / found["shapejit"][f"{regime}_us"]
                for (m, _, _), found in by_shape.items()
                if (m <= 128) == small and len(found) == 2
            ]
            if ratios:
                table[f"{title}, {regime}"] = {
                    "geomean": round(statistics.geometric_mean(ratios), 3),
                    "worst": round(min(ratios), 3),
                    "shapes": len(ratios),
                }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=("ieee", "tf32"), default="ieee")
    parser.add_argument("--cells", type=shape_of, nargs="*", help="these shapes instead, as m,n,k")
    parser.add_argument("--every", type=int, default=1, help="take every so many")
    parser.add_argument("--candidates", action="store_true", help="measure schedules one by one")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench/gemm_f32.py measures an NVIDIA GPU, and torch finds none: run it on one")
    torch.backends.cuda.matmul.fp32_precision = arguments.precision
    gpu = torch.cuda.get_device_name().replace("NVIDIA ", "").replace(" ", "-").lower()
    output = arguments.output or RESULTS / f"gemm-{arguments.precision}-{gpu}.json"
    end, rng = time.monotonic() + arguments.seconds, random.Random(arguments.seed)
    wanted = list(dict.fromkeys(arguments.cells or shapes()[:: arguments.every]))
    rng.shuffle(wanted)
    records: list[Any] = []
    for number, shape in enumerate(wanted):
        if time.monotonic() > end:
            print(f"out of time after {number} of {len(wanted)} shapes", flush=True)
            break
        found = records_of(Cell(shape, arguments.precision), arguments, rng)
        records += found
        text = " | ".join(f"{each['schedule'] or 'cublas'} {each['burst_us']}" for each in found)
        print(f"{shape}: {text}", flush=True)
        result = {"environment": environment(), "summary": summary(records), "records": records}
        output.write_text(json.dumps(result, indent=1) + "\n")
        torch.cuda.empty_cache()
    for title, row in summary(records).items():
        print(title, row)


if __name__ == "__main__":
    main()
