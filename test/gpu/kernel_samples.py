# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels saved for processes of their own, which launch nothing else.

`prepare` builds kernels and writes each with one small, ragged product to a folder; it needs no
GPU. The command runs saved kernels, first thing on the GPU, and compares with float64 on the CPU::

    python -m gpu.kernel_samples FOLDER NAME [NAME ...]      # with ``test`` on PYTHONPATH

Such a process starts with shared memory, barriers and lazily loaded code as the driver leaves them,
and under a checker of memory it shows kernels of ours and copies alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import signal
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from shapejit.gpu.interface import KernelInterface
from shapejit.ops.gemm_operands import Operands, product, result_shape
from shapejit.passes.nvgpu.schedule import CANDIDATES, UNALIGNED, GemmSchedule

_ALIGNMENT = 64  # of an entry in a block
_GPU_SECONDS = 30  # what takes longer hangs


@dataclass(frozen=True)
class Sample:
    """A kernel and its product.

    Attributes:
        schedule: of the kernel.
        block: whether it takes its parameters from a block.
        programmatic: whether it may start before the kernel ahead of it ends.
        epilogue: bias, gelu and residual.
        dtype: ``bfloat16`` or ``float16``.
        shape: (m, n, k).
    """

    schedule: GemmSchedule
    block: bool = False
    programmatic: bool = False
    epilogue: bool = False
    dtype: str = "bfloat16"
    shape: tuple[int, int, int] = (300, 328, 584)

    @staticmethod
    def of(fields: dict[str, Any]) -> Sample:
        """From its fields, with the schedule as text."""
        schedule = GemmSchedule.parse(fields["schedule"])
        return Sample(**{**fields, "schedule": schedule, "shape": tuple(fields["shape"])})

    @property
    def name(self) -> str:
        """Names its files."""
        marks = [("block", self.block), ("programmatic", self.programmatic)]
        marks += [("epilogue", self.epilogue), (self.dtype, self.dtype != "bfloat16")]
        return "-".join([str(self.schedule), *(mark for mark, given in marks if given)])

    def operands(self) -> Operands:
        """The product's operands in the memory of the CPU; the same ones each time."""
        m, n, k = self.shape
        if self.schedule.family == "unaligned":
            k -= 3  # rows that start anywhere
        generator = torch.Generator().manual_seed(7)
        dtype = getattr(torch, self.dtype)

        def noise(*sizes: int) -> Tensor:
            return torch.randn(*sizes, generator=generator).to(dtype)

        a, b = noise(m, k), noise(n, k).mT
        if not self.epilogue:
            return Operands(a, b, None, None, None, None, None)
        return Operands(a, b, noise(n), None, noise(m, n), "gelu", None)

    def reference(self) -> Tensor:
        """The product in float64."""
        given = self.operands()
        result = given.a.double() @ given.b.double()
        if given.bias is not None and given.residual is not None:
            result = functional.gelu(result + given.bias.double()) + given.residual.double()
        return result


def samples() -> list[Sample]:
    """Every kernel by value; one of each way of working in block form and with an epilogue."""
    everything = (*CANDIDATES, UNALIGNED)
    found = list(map(Sample, everything))
    for schedule in _one_of_each(everything):
        found.append(Sample(schedule, block=True, programmatic=True))
    for schedule in _one_of_each(CANDIDATES):
        found.append(Sample(schedule, epilogue=True, dtype="float16"))
    return found


def _one_of_each(schedules: Iterable[GemmSchedule]) -> list[GemmSchedule]:
    """A schedule of each family and way of sharing."""
    found: dict[Any, GemmSchedule] = {}
    for each in schedules:
        way = (each.family, each.turns, each.stream, each.rows_shared, each.columns_shared)
        found.setdefault((*way, each.split > 1), each)
    return list(found.values())


def prepare(folder: Path, wanted: Sequence[Sample], arch: str = "sm_90a") -> None:
    """Builds kernels and writes them to a folder.

    Raises:
        Exception: what a build raised.
    """
    import mlir.ir as ir

    from shapejit import ir as sir
    from shapejit.cache.cubins import CubinRecipe, cubin_unit
    from shapejit.codegen.builder import cubin_builder
    from shapejit.codegen.ptx import private_context
    from shapejit.codegen.ptxas import find_ptxas
    from shapejit.ops.gemm_layout import gemm_layout
    from shapejit.ops.gemm_spec import kernel_text
    from shapejit.symbolic import Expr

    units, layouts = [], []
    for sample in wanted:
        operands = sample.operands()
        layout = gemm_layout(product(operands, result_shape(operands), 0))
        recipe = CubinRecipe(
            schedule=str(sample.schedule),
            arch=arch,
            parameters="block" if sample.block else "by-value",
            alignment=16 if layout.kind.aligned else 1,
            programmatic=sample.programmatic,
        )
        with private_context():
            module = ir.Module.parse(kernel_text(layout.kind))
            [kernel] = sir.kernels(module).values()
            units.append(cubin_unit(kernel, recipe, find_ptxas()))
        layouts.append(layout)
    built = cubin_builder().build_all(units)
    for sample, unit, layout in zip(wanted, units, layouts, strict=True):
        cubin = built[unit.key]
        values = [Expr.parse(text).evaluate(layout.symbols) for text in cubin.interface.values]
        record = {
            "sample": {**dataclasses.asdict(sample), "schedule": str(sample.schedule)},
            "interface": cubin.interface.to_json(),
            "values": values,
        }
        (folder / f"{sample.name}.json").write_text(json.dumps(record))
        (folder / f"{sample.name}.cubin").write_bytes(cubin.cubin)


def run(folder: Path, name: str) -> float:
    """Launches a saved kernel; gives the relative error of its result.

    Raises:
        AssertionError: it wrote behind its result.
        CudaError: the driver refused something.
    """
    from shapejit.gpu.driver import driver
    from shapejit.gpu.launch import Kernel
    from shapejit.gpu.module import Module

    record = json.loads((folder / f"{name}.json").read_text())
    sample = Sample.of(record["sample"])
    interface = KernelInterface.from_json(record["interface"])
    operands = sample.operands()
    given = [_on_gpu(tensor) for tensor in operands.tensors]
    m, n, _ = sample.shape
    # Filled on the CPU: a fill on the GPU would be a kernel ahead of ours.
    memory = torch.full((m * n + 4096,), float("nan"), dtype=operands.result_dtype).cuda()
    code = (folder / f"{name}.cubin").read_bytes()
    kernel = Kernel(interface, Module(code, driver().device(0)))
    addresses = [tensor.data_ptr() for tensor in (*given, memory)]
    if sample.block:
        _launch_block(kernel, addresses, record["values"])
    else:
        kernel.launch(addresses, record["values"], torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    result = memory.cpu()
    assert result[m * n :].isnan().all(), "it wrote behind its result"
    reference = sample.reference()
    error = (result[: m * n].view(m, n).double() - reference).norm() / reference.norm()
    return float(error)


def _on_gpu(tensor: Tensor) -> Tensor:
    """A copy with the same strides."""
    return tensor.cuda() if tensor.is_contiguous() else tensor.mT.contiguous().cuda().mT


def _launch_block(kernel: Any, addresses: Sequence[int], values: Sequence[int]) -> None:
    size = kernel.interface.block_bytes
    host = torch.zeros(size + _ALIGNMENT, dtype=torch.uint8)
    host = host[-host.data_ptr() % _ALIGNMENT :][:size]
    workspace = torch.zeros(max(kernel.workspace_bytes, 1), dtype=torch.uint8).cuda()
    scratch = workspace.data_ptr() if kernel.workspace_bytes else None
    kernel.fill_block(addresses, values, host.data_ptr(), scratch)
    entry = host.cuda()
    kernel.launch_block(entry.data_ptr(), torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--lock", type=Path, help="file that is locked while the GPU is used")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        if arguments.lock is not None:
            fcntl.flock(stack.enter_context(arguments.lock.open("w")), fcntl.LOCK_EX)
            signal.alarm(_GPU_SECONDS)  # a kernel that hangs must not keep the lock
        wrong = 0
        for name in arguments.names:
            error = run(arguments.folder, name)
            fine = error < 5e-3
            wrong += not fine
            print(f"{name}: {'right' if fine else 'WRONG'}, relative error {error:.2e}", flush=True)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
