# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-lower-to-cpu: kernels as functions of upstream dialects, ready for LLVM.

Why: a kernel is compiled once and must serve every size, so its function takes bare pointers and
the kernel's symbols, and all loops, blocks and edges are computed from those. Each kernel becomes a
module of its own, hence an object of its own: equal kernels are built once, different ones in
parallel. Contractions run on packed blocks through register micro-kernels, loops as plain scalar
code for LLVM's vectoriser; see `shapejit.passes.cpu`. Launches stay as they are.

Before::

    shapejit.kernel @double symbols 1 (%x: tensor<?xf32, #shapejit.shape<[s0]>>) {
      %0 = shapejit.loop over [s0] ins(%x at #id : ..) outs(#id : ..) {
      ^bb0(%v: f32):
        %1 = arith.addf %v, %v : f32
        shapejit.yield %1 : f32
      }
      shapejit.yield %0 : ..
    }

After::

    module @double attributes {shapejit.target = "cpu"} {
      func.func @double(%in: !llvm.ptr, %out: !llvm.ptr, %s0: i64) {
        %x, %y = .. : memref<?xf32>      (the pointers as flat memrefs)
        scf.for %i = %c0 to %n step %c1 {
          %v = memref.load %x[%i] : memref<?xf32>
          %w = arith.addf %v, %v : f32
          memref.store %w, %y[%i] : memref<?xf32>
        }
        return
      }
    }

Threads share the outermost loop where it runs over independent units and the work is worth it; see
`shapejit.passes.cpu.parallel`, left out above. Arguments are the kernel's, then its results, then
its symbols. Inputs may be the same memory; a
result shares memory with nothing else, but that of a scatter lies where what it updates was, which
the kernel does not read. Bools are bytes. Scratch is on the stack, of fixed size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, option, register_pass
from shapejit.passes.cpu.attention import emit_attention
from shapejit.passes.cpu.conv import emit_conv
from shapejit.passes.cpu.depthwise import emit_depthwise
from shapejit.passes.cpu.depthwise import fits as fits_depthwise
from shapejit.passes.cpu.errors import LoweringError
from shapejit.passes.cpu.gemm import emit_gemm
from shapejit.passes.cpu.kernel import KernelFunction
from shapejit.passes.cpu.loops import emit_loops
from shapejit.passes.cpu.parallel import CHUNK_COST
from shapejit.passes.cpu.problems import (
    KernelOps,
    attention_problem,
    conv_problem,
    gemm_problem,
    loop_kernel,
    row_kernel,
    tensor_of,
)
from shapejit.passes.cpu.scans import emit_scan
from shapejit.passes.cpu.sorts import emit_sort

Rule: TypeAlias = Callable[[KernelOps, Sequence[Any]], None]

_RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the emitter of kernels whose last op has one of these names."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _only(op: Any, ops: Sequence[Any]) -> None:
    """A contraction shares its kernel with views of its operands at most."""
    for other in ops:
        if other.name not in (op.name, "shapejit.view"):
            raise PassFailure(
                other,
                f"'{other.name}' shares a kernel with '{op.name}'; a contraction's kernel holds "
                "nothing else, pointwise ops go into its epilogue",
            )


@_rule("shapejit.gemm")
def _gemm(kernel: KernelOps, ops: Sequence[Any]) -> None:
    _only(ops[-1], ops)
    emit_gemm(kernel.function, gemm_problem(kernel, ops[-1]))


@_rule("shapejit.conv")
def _conv(kernel: KernelOps, ops: Sequence[Any]) -> None:
    _only(ops[-1], ops)
    problem = conv_problem(kernel, ops[-1])
    if fits_depthwise(kernel.function, problem):
        emit_depthwise(kernel.function, problem)
    else:
        emit_conv(kernel.function, problem)


@_rule("shapejit.attention")
def _attention(kernel: KernelOps, ops: Sequence[Any]) -> None:
    _only(ops[-1], ops)
    emit_attention(kernel.function, attention_problem(kernel, ops[-1]))


@_rule("shapejit.scan")
def _scan(kernel: KernelOps, ops: Sequence[Any]) -> None:
    _only(ops[-1], ops)
    emit_scan(row_kernel(kernel, ops[-1]))


@_rule("shapejit.sort")
def _sort(kernel: KernelOps, ops: Sequence[Any]) -> None:
    _only(ops[-1], ops)
    emit_sort(row_kernel(kernel, ops[-1]))


@_rule("shapejit.loop", "shapejit.scatter", "shapejit.view")
def _loops(kernel: KernelOps, ops: Sequence[Any]) -> None:
    for op in ops:
        if op.name not in ("shapejit.loop", "shapejit.scatter", "shapejit.view"):
            _only(op, ops)
    emit_loops(kernel.function, loop_kernel(kernel, ops))


def lower_kernel(op: Any, vector_bytes: int, chunk_cost: int = CHUNK_COST) -> Any:
    """Replaces a kernel by the module of its code, which is returned.

    Args:
        op: ``shapejit.kernel``.
        vector_bytes: width of the vector registers to use.
        chunk_cost: picoseconds of work that a thread takes at least.

    Raises:
        PassFailure: the kernel's ops do not fit together.
    """
    *ops, terminator = sir.operations(sir.body(op))
    # Constants that folding moved out of bodies are cloned back where they are used.
    ops = [inner for inner in ops if inner.name != "arith.constant"]
    name = ir.StringAttr(op.attributes["sym_name"])
    module = ir.Operation.create(
        "builtin.module",
        attributes={"sym_name": name, "shapejit.target": ir.StringAttr.get("cpu")},
        regions=1,
        ip=ir.InsertionPoint(op),
    )
    last = ops[-1]
    if last.name not in _RULES:
        raise PassFailure(last, f"'{last.name}' has no lowering to the CPU")
    with ir.InsertionPoint(module.regions[0].blocks.append()), op.location:
        function = KernelFunction(
            name.value,
            [tensor_of(argument) for argument in sir.body(op).arguments],
            [tensor_of(result) for result in terminator.operands],
            ir.IntegerAttr(op.attributes["symbols"]).value,
            vector_bytes,
            chunk_cost,
        )
        with function.body():
            try:
                _RULES[last.name](KernelOps(op, function), ops)
            except LoweringError as error:
                raise PassFailure(last, str(error)) from error
    op.erase()
    return module


@register_pass(
    "shapejit-lower-to-cpu",
    dialects=("arith", "func", "llvm", "math", "memref", "omp", "scf", "vector"),
)
@dataclass(frozen=True)
class LowerToCpu(Pass):
    """Turn every kernel into a module with its CPU code."""

    vector_bytes: int = option(64, help="width of the vector registers to use: 16, 32 or 64")

    chunk_cost: int = option(
        CHUNK_COST, help="picoseconds of work that a thread takes at least, at least 1"
    )

    def run(self, module: Any) -> None:
        if self.chunk_cost < 1:
            raise PassFailure(module, f"chunk-cost must be at least 1, got {self.chunk_cost}")
        if self.vector_bytes not in (16, 32, 64):
            raise PassFailure(module, f"vector-bytes must be 16, 32 or 64, got {self.vector_bytes}")
        for op in sir.kernels(module).values():
            lower_kernel(op, self.vector_bytes, self.chunk_cost)
