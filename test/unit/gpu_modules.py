# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels for GPUs, as lowering passes take them and as they leave them."""

from __future__ import annotations

import json

from shapejit.gpu.interface import Grid, KernelInterface, Pointer, Size

#: How `scale_module` is called.
SCALE_INTERFACE = KernelInterface(
    entry="scale",
    threads=128,
    shared_bytes=0,
    cluster=1,
    grid=Grid(((0, 128),), ctas_per_sm=0),
    values=("s0", "7"),
    parameters=(Pointer(0), Size(1)),
)


def scale_module(
    entry: str = "scale",
    *,
    named: str | None = None,
    target: str = '[#nvvm.target<O = 3, chip = "sm_90a", features = "+ptx83">]',
    interface: str | None = None,
    value: str = "%product",
) -> str:
    """The IR of a ``gpu.module`` whose kernel writes the product of thread number and factor.

    Args:
        entry: name of the kernel and of its module.
        named: the kernel's name by its interface, if another.
        target: the module's targets.
        interface: the JSON of its interface; empty for none.
        value: what is written: ``%product`` or ``%factor``.
    """
    record = json.loads(SCALE_INTERFACE.to_json())
    text = json.dumps({**record, "entry": named or entry}) if interface is None else interface
    attributes = f"attributes {{shapejit.interface = {json.dumps(text)}}}" if text else ""
    return f"""\
gpu.module @{entry} {target} {attributes} {{
  llvm.func @{entry}(%target: !llvm.ptr<1>, %factor: i32) attributes {{nvvm.kernel}} {{
    %thread = nvvm.read.ptx.sreg.tid.x : i32
    %product = llvm.mul %thread, %factor : i32
    %word = llvm.getelementptr %target[%thread] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
    llvm.store {value}, %word : i32, !llvm.ptr<1>
    llvm.return
  }}
}}
"""


def gemm(name: str = "gemm0", *, value: str = "x", epilogue: str = "maximumf", n: int = 64) -> str:
    """A kernel of one product with a bias."""
    x = "tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>"
    w = f"tensor<64x{n}xbf16, #shapejit.shape<[64, {n}]>>"
    b = f"tensor<{n}xbf16, #shapejit.shape<[{n}]>>"
    y = f"tensor<?x{n}xbf16, #shapejit.shape<[s0, {n}]>>"
    return f"""
shapejit.kernel @{name} symbols 1 (%{value}: {x}, %w: {w}, %b: {b}) {{
  %0 = shapejit.gemm over [s0, {n}, 64]
      lhs(%{value} at affine_map<(d0, d1, d2) -> (d0, d2)> : {x})
      rhs(%w at affine_map<(d0, d1, d2) -> (d2, d1)> : {w})
      extras(%b at affine_map<(d0, d1) -> (d1)> : {b}) epilogue {{
  ^bb0(%acc: f32, %bias: bf16):
    %1 = arith.extf %bias : bf16 to f32
    %2 = arith.{epilogue} %acc, %1 : f32
    %3 = arith.truncf %2 : f32 to bf16
    shapejit.yield %3 : bf16
  }} -> {y}
  shapejit.yield %0 : {y}
}}
"""
