# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Times of constant graphs, as JSON: ``python test/gpu/graph_cost.py``; ``test`` on PYTHONPATH.

A call of a chain of products, in microseconds: of the CPU, in native code alone and through Python,
in bursts that fit the stream's queue; and of the GPU, beside a graph of the same products by torch
and of ours as the caller captured them. All times are medians.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int32, c_int64, c_void_p

import mlir.ir as ir
import torch

from gpu.graph_programs import GemmChain, TestProgram, gemm_kernels
from shapejit.codegen import HostTarget, JitLibrary, compile_object
from shapejit.gpu.bindings import Runtime
from shapejit.gpu.device import Device
from shapejit.gpu.driver import driver
from unit.simulated_gemms import Gemm

SCHEDULES = ("small_m_64x16x64_s9_w1", "swapped_128x128x64_s4_w2")
BURST = 16
BURSTS = 50

_LOOP = """
llvm.func @run(!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
llvm.func @loop(%program: !llvm.ptr, %symbols: !llvm.ptr, %stream: !llvm.ptr, %count: i64) -> i32 {
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %none = llvm.mlir.zero : !llvm.ptr
  llvm.br ^next(%zero : i64)
^next(%i: i64):
  %status = llvm.call @run(%program, %symbols, %none, %none, %stream)
    : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  %n = llvm.add %i, %one : i64
  %on = llvm.icmp "slt" %n, %count : i64
  llvm.cond_br %on, ^next(%n : i64), ^end
^end:
  llvm.return %status : i32
}
"""


def native_loop(runtime: Runtime) -> JitLibrary:
    """``loop(program, symbols, stream, count)``: so many calls, without Python."""
    with ir.Context(), ir.Location.unknown():
        code = compile_object(ir.Module.parse(_LOOP), HostTarget.host())
    run = ctypes.cast(runtime.functions["ProgramRun"], c_void_p).value or 0
    return JitLibrary([code], symbols={"run": run})


def cpu_microseconds(burst: Callable[[], object]) -> float:
    """Of one call of a burst."""
    times = []
    for _ in range(BURSTS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        burst()
        times.append((time.perf_counter() - start) / BURST)
    return round(statistics.median(times) * 1e6, 2)


def gpu_microseconds(call: Callable[[], object], stream: torch.cuda.Stream) -> float:
    """Of one call, queued after others."""
    times = []
    with torch.cuda.stream(stream):
        for _ in range(9):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            for _ in range(50):
                call()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 50 * 1e3)
    return round(statistics.median(times), 1)


def measure(
    device: Device, chain: GemmChain, program: TestProgram, region: int, rows: int
) -> dict[str, float]:
    """All figures of one size."""
    size = chain.weights[0].shape[0]
    tensors = chain.tensors(torch.randn(rows, size, device="cuda").bfloat16())
    words = chain.words(rows, tensors)
    symbols = (c_int64 * (1 + len(words)))(region, *words)
    stream = torch.cuda.Stream()
    handle, graph = stream.cuda_stream, program.graph
    program.run(region, words, handle)
    graph.wait()
    torch.cuda.synchronize()
    library = native_loop(device.runtime)
    loop = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_int64)(library.lookup("loop"))

    def native() -> None:
        assert loop(graph._handle, symbols, handle, BURST) == 0

    def python() -> None:
        for _ in range(BURST):
            graph.run(symbols, None, None, handle)

    captured, by_torch = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        program.run(region, words)
    chain.reference(tensors[0])
    with torch.cuda.graph(by_torch):
        chain.reference(tensors[0])
    figures = {
        "CPU, native": cpu_microseconds(native),
        "CPU, Python": cpu_microseconds(python),
        "GPU": gpu_microseconds(lambda: graph.run(symbols, None, None, handle), stream),
        "GPU, captured by the caller": gpu_microseconds(captured.replay, stream),
        "GPU, torch.mm in a graph": gpu_microseconds(by_torch.replay, stream),
    }
    library.close()
    return figures


def main() -> None:
    device = driver().device(0)
    torch.manual_seed(0)
    results: dict[str, dict[str, float]] = {}
    for size in (384, 1024):
        kernels = gemm_kernels(device, Gemm(sizes=(("n", size), ("k", size))), SCHEDULES)
        for steps in (1, 24, 57):
            weights = [
                (torch.randn(size, size, device="cuda") / size**0.5).bfloat16()
                for _ in range(steps)
            ]
            chain = GemmChain(weights, [[kernel] * steps for kernel in kernels])
            program = chain.program(device)
            for region, rows in ((0, 16), (0, 128), (1, 512)):
                name = f"{steps} products of {rows} rows with {size} x {size}"
                results[name] = measure(device, chain, program, region, rows)
    report = {"device": device.name, "torch": torch.__version__, "microseconds": results}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
