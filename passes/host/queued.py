# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Host programs that queue their launches in a stream of a GPU, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlir.ir as ir
from mlir.dialects import arith, func, llvm

from shapejit.pass_host import PassFailure
from shapejit.passes.host.dispatches import dispatches, interfaces
from shapejit.passes.host.entry import EntryPoint, Value, integer_type
from shapejit.passes.host.launchers import Launchers
from shapejit.passes.host.program import (
    GPU_SLOT_ALIGNMENT,
    KERNELS,
    RUN_ENTRY,
    HostProgram,
    kernel_of,
)


class QueuedProgram(HostProgram):
    """Lowers one function whose kernels run on a GPU and take their parameters by value."""

    alignment = GPU_SLOT_ALIGNMENT

    def emit_run(self) -> None:
        """Emits the entry point that queues the launches."""
        try:
            found = interfaces(self.module)
        except ValueError as error:
            raise PassFailure(self.module, str(error)) from error
        launchers = Launchers(self.block, dispatches(self.module), found)
        i32 = integer_type(32)
        entry = EntryPoint(RUN_ENTRY, 5, self.symbols, [i32])
        end = entry.function.regions[0].blocks.append(i32)
        with ir.InsertionPoint(end):
            func.ReturnOp([end.arguments[0]])
        block = entry.block
        with ir.InsertionPoint(block):
            ok = arith.constant(i32, 0)
            pointers = self.pointers(entry)
        for op in self.launches():
            with ir.InsertionPoint(block), op.location:
                addresses, sizes = self.arguments(entry, op, pointers)
                status = self._launch(launchers, op, addresses, sizes, entry.arguments[3:])
                block = _next_block(status, ok, end)
        with ir.InsertionPoint(block):
            llvm.BrOp([ok], end)
        names = [ir.StringAttr.get(name) for name in launchers.table]
        self.host.attributes[KERNELS] = ir.ArrayAttr.get(names)

    def _launch(
        self,
        launchers: Launchers,
        op: Any,
        addresses: Sequence[Value],
        sizes: Sequence[Value],
        context: Sequence[Value],
    ) -> Value:
        """The status of a launch."""
        kernel = kernel_of(op)
        try:
            launchers.need(kernel, len(addresses), len(sizes))
        except LookupError as error:
            raise PassFailure(op, str(error)) from error
        operands = [*addresses, *sizes, *context]
        symbol = ir.FlatSymbolRefAttr.get(kernel)
        return func.CallOp([integer_type(32)], symbol, operands).result


def _next_block(status: Value, ok: Value, end: Any) -> Any:
    """The block that goes on after a launch that did not fail; a failure ends the function."""
    current = ir.InsertionPoint.current.block
    following = current.create_after()
    going_on = arith.cmpi(arith.CmpIPredicate.eq, status, ok)
    llvm.CondBrOp(going_on, [], [status], following, end)
    return following
