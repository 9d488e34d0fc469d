# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Launchers: functions of a host program that launch a kernel of a GPU.

A launcher stands where a kernel of the CPU target has its code: it takes the addresses of the
kernel's operands and results and the values of its symbols, and further the table of the program's
kernels and a stream. It finds the bucket, computes the values that the variant's interface asks
for, and calls the runtime, whose status it returns::

    func.func private @gemm0(%x: !llvm.ptr, .., %s0: i64, %kernels: !llvm.ptr, %stream: !llvm.ptr)
        -> i32 {
      %operands = llvm.alloca ..                   // x, ..
      %variant = (a select for each bucket)
      %kernel = scf.index_switch %variant .. {     // stores the values, gives the kernel's handle
      }
      %status = llvm.call @shapejitRtCudaLaunch(%kernel, %operands, %values, %null, %stream)
      return %status : i32
    }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlir.ir as ir
from mlir.dialects import arith, func, llvm, scf

from shapejit.gpu.interface import KernelInterface
from shapejit.passes.cpu.indexing import Indexer
from shapejit.passes.host.dispatches import Bucket, Dispatch, variants_of
from shapejit.passes.host.entry import Value, integer_type, load, pointer_type, store
from shapejit.symbolic import Expr

LAUNCH = "shapejitRtCudaLaunch"
"""The function of the runtime library that launches one kernel."""


class Launchers:
    """The launchers of a host program, made when first asked for.

    Args:
        block: of the host module.
        dispatches: of the module's kernels, by their names.
        interfaces: of their variants, by the names of their modules.
    """

    def __init__(
        self,
        block: Any,
        dispatches: Mapping[str, Dispatch],
        interfaces: Mapping[str, KernelInterface],
    ) -> None:
        self._block = block
        self._dispatches = dispatches
        self._interfaces = interfaces
        self._made: set[str] = set()
        self.table: list[str] = []
        """The modules of the variants, in the order of the table of kernels."""

    def need(self, kernel: str, num_pointers: int, num_sizes: int) -> None:
        """Makes the launcher of a kernel, unless it is there.

        Raises:
            LookupError: the kernel has no dispatch, or a variant no module; says what makes it.
        """
        if kernel in self._made:
            return
        dispatch, variants = variants_of(kernel, self._dispatches, self._interfaces)
        if not self._made:
            self._declare_runtime()
        self._made.add(kernel)
        first = len(self.table)
        self.table += map(dispatch.module_name, dispatch.variants)
        with ir.InsertionPoint.at_block_begin(self._block):
            _Launcher(dispatch, variants, num_pointers, num_sizes).emit(first)

    def _declare_runtime(self) -> None:
        signature = ir.Type.parse("!llvm.func<i32 (ptr, ptr, ptr, ptr, ptr)>")
        with ir.InsertionPoint.at_block_begin(self._block):
            llvm.LLVMFuncOp(LAUNCH, ir.TypeAttr.get(signature))


class _Launcher:
    """One launcher under construction."""

    def __init__(
        self,
        dispatch: Dispatch,
        variants: Sequence[KernelInterface],
        num_pointers: int,
        num_sizes: int,
    ) -> None:
        self._dispatch = dispatch
        self._variants = variants
        self._num_pointers = num_pointers
        types = [pointer_type()] * num_pointers + [integer_type(64)] * num_sizes
        types += [pointer_type()] * 2
        self._function = func.FuncOp(
            dispatch.kernel, (types, [integer_type(32)]), visibility="private"
        )
        # Nothing outside calls it, so LLVM may put it into its caller.
        self._function.attributes["llvm.linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")

    def emit(self, first: int) -> None:
        """Emits the body; the kernel's variants are in the table from `first` on."""
        block = self._function.add_entry_block()
        *arguments, kernels, stream = block.arguments
        pointers = arguments[: self._num_pointers]
        with ir.InsertionPoint(block):
            index = ir.IndexType.get()
            sizes = [arith.index_cast(index, size) for size in arguments[self._num_pointers :]]
            self._indexer = Indexer(sizes)
            operands = _array(pointer_type(), len(pointers))
            for position, pointer in enumerate(pointers):
                store(pointer, operands, position)
            kernel, values = self._variant(kernels, first)
            null = llvm.mlir_zero(pointer_type())
            status = _call(LAUNCH, integer_type(32), [kernel, operands, values, null, stream])
            func.ReturnOp([status])

    def _variant(self, kernels: Value, first: int) -> tuple[Value, Value]:
        """The kernel to launch, and its values."""
        i64 = integer_type(64)
        values = _array(i64, max(len(variant.values) for variant in self._variants))
        # Before the switch: what several variants need is computed once.
        known = {
            text: arith.index_cast(i64, self._indexer.value(Expr.parse(text)))
            for text in dict.fromkeys(text for v in self._variants for text in v.values)
        }
        chosen = self._number()

        def case(number: int) -> None:
            for position, text in enumerate(self._variants[number].values):
                store(known[text], values, position)
            scf.yield_([load(pointer_type(), kernels, first + number)])

        last = len(self._variants) - 1
        switch = scf.IndexSwitchOp(
            [pointer_type()],
            chosen,
            range(last),
            case_body_builder=lambda _op, number, _value: case(number),
            default_body_builder=lambda _op: case(last),
        )
        return switch.results[0], values

    def _number(self) -> Value:
        """The number of the variant that the sizes ask for."""
        numbers = {name: i for i, name in enumerate(self._dispatch.variants)}
        *others, last = self._dispatch.buckets
        chosen = self._indexer.constant(numbers[last.variant])
        for bucket in reversed(others):
            number = self._indexer.constant(numbers[bucket.variant])
            chosen = arith.select(self._is_in(bucket), number, chosen)
        return chosen

    def _is_in(self, bucket: Bucket) -> Value:
        holds = None
        for axis, low, high in zip(self._dispatch.axes, bucket.lower, bucket.upper, strict=True):
            for predicate, bound in (("sge", low), ("sle", high)):
                if bound is None:
                    continue
                inside = self._indexer.compare(predicate, axis, bound)
                holds = inside if holds is None else arith.andi(holds, inside)
        return arith.constant(integer_type(1), 1) if holds is None else holds


def _array(element: Any, length: int) -> Value:
    """An array in the frame of the function under construction."""
    count = arith.constant(integer_type(64), max(length, 1))
    return llvm.AllocaOp(pointer_type(), count, ir.TypeAttr.get(element)).result


def _call(name: str, result: Any, operands: Sequence[Value]) -> Value:
    call = llvm.CallOp(result, operands, [], [], callee=ir.FlatSymbolRefAttr.get(name))
    return call.result
