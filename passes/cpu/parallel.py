# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loops that threads share.

A kernel whose outermost loop runs over independent units is emitted as two functions: the *part*,
which computes units [first, last), and the kernel itself::

    func.func @k(pointers, symbols) {
      chunks = min(units, work / chunk_cost, threads * CHUNKS_PER_THREAD)
      if threads > 1 and chunks > 1
        omp.parallel
          omp.wsloop schedule(dynamic) nowait
            for chunk
              call @k_part(pointers, symbols, chunk's units)
      else
        call @k_part(pointers, symbols, 0, units)
    }

So the code of a part is the same on any number of threads: pointers keep their `noalias`, scratch
is on the stack of the thread that runs it, and one thread pays for nothing but a few comparisons.
The size of a chunk depends on the number of threads, results do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlir import ir
from mlir.dialects import arith, func, openmp, scf

from shapejit.passes.cpu.indexing import Indexer, Size, Value
from shapejit.symbolic import Expr, delinearize, product
from shapejit.symbolic.expr import as_expr

if TYPE_CHECKING:
    from shapejit.passes.cpu.kernel import KernelFunction

# Costs are estimates in picoseconds.
ELEMENT_COST = 250
"""Of one element in one pass over it."""
MULTIPLY_COST = 256
"""Of one vector multiply-add, with what surrounds it."""
CHUNK_COST = 4_000_000
"""A chunk is worth a thread when it takes several times what a parallel region costs (0.5 us)."""

# More chunks than threads even out cores of unequal speed; too many cost locality.
_CHUNKS_PER_THREAD = 8

_THREADS = "shapejitRtThreads"


@dataclass(frozen=True)
class Share:
    """A loop that threads share, see `KernelFunction.share`."""

    units: Expr
    work: Expr
    align: Expr


def emit_shared_entry(name: str, part: Any, share: Share, chunk_cost: int) -> None:
    """Emits the kernel's function at the current point, a module's body.

    Args:
        name: its symbol.
        part: the ``func.func`` that takes the same arguments, then the first and last unit.
        share: the loop.
        chunk_cost: picoseconds of work that a chunk takes at least.
    """
    *types, _, _ = part.type.inputs
    entry = func.FuncOp(name, (types, []))
    *attributes, _, _ = part.arg_attrs
    entry.arg_attrs = ir.ArrayAttr.get(attributes)
    _declare_threads()
    with ir.InsertionPoint(entry.add_entry_block()):
        _emit_entry(part.name.value, list(entry.arguments), share, chunk_cost)
        func.ReturnOp([])


def _declare_threads() -> None:
    """Declares the runtime's function at the current point, a module's body, once."""
    names = (op.attributes["sym_name"] for op in ir.InsertionPoint.current.block.operations)
    if any(ir.StringAttr(name).value == _THREADS for name in names):
        return
    i32 = ir.IntegerType.get_signless(32)
    func.FuncOp(_THREADS, ([], [i32]), visibility="private")


def _emit_entry(part: str, arguments: list[Value], share: Share, chunk_cost: int) -> None:
    index = ir.IndexType.get()
    symbols = [arith.index_cast(index, value) for value in arguments if str(value.type) == "i64"]
    indexer = Indexer(symbols)
    zero, one = indexer.constant(0), indexer.constant(1)
    units = indexer.value(share.units)
    threads = arith.index_cast(index, func.call([ir.IntegerType.get_signless(32)], _THREADS, []))
    most = arith.muli(threads, indexer.constant(_CHUNKS_PER_THREAD))
    worth = arith.divui(indexer.value(share.work), indexer.constant(chunk_cost))
    chunks = arith.minui(arith.minui(worth, most), units)
    above = arith.CmpIPredicate.ugt
    shared = arith.andi(arith.cmpi(above, threads, one), arith.cmpi(above, chunks, one))
    choice = scf.IfOp(shared, has_else=True)
    with ir.InsertionPoint(choice.then_block):
        size = _chunk_size(indexer, units, chunks, share.align)
        _emit_region(part, arguments, units, size)
        scf.YieldOp([])
    with ir.InsertionPoint(choice.else_block):
        func.CallOp([], part, [*arguments, zero, units])
        scf.YieldOp([])


def _chunk_size(indexer: Indexer, units: Value, chunks: Value, align: Expr) -> Value:
    size = _ceil_div(units, chunks)
    if align.constant == 1:
        return size
    multiple = arith.maxui(indexer.value(align), indexer.constant(1))
    rest = arith.remui(size, multiple)
    small = arith.cmpi(arith.CmpIPredicate.ult, size, multiple)
    return arith.select(small, size, arith.subi(size, rest))


def _ceil_div(lhs: Value, rhs: Value) -> Value:
    one = arith.constant(ir.IndexType.get(), 1)
    return arith.divui(arith.addi(lhs, arith.subi(rhs, one)), rhs)


def _emit_region(part: str, arguments: list[Value], units: Value, size: Value) -> None:
    index = ir.IndexType.get()
    zero, one = arith.constant(index, 0), arith.constant(index, 1)
    count = _ceil_div(units, size)
    region = openmp.ParallelOp([], [], [], [])
    with ir.InsertionPoint(region.regions[0].blocks.append()):
        dynamic = ir.Attribute.parse("#omp<schedulekind dynamic>")
        loop = openmp.WsloopOp([], [], [], [], [], [], schedule_kind=dynamic, nowait=True)
        with ir.InsertionPoint(loop.regions[0].blocks.append()):
            nest = openmp.LoopNestOp([zero], [count], [one])
            body = nest.regions[0].blocks.append(index, arg_locs=[nest.location])
            with ir.InsertionPoint(body):
                first = arith.muli(body.arguments[0], size)
                last = arith.minui(arith.addi(first, size), units)
                func.CallOp([], part, [*arguments, first, last])
                openmp.YieldOp([])
        openmp.TerminatorOp()


def share_nest(
    kernel: KernelFunction, sizes: Sequence[Size], work: Size, body: Callable[[list[Expr]], None]
) -> None:
    """Loops over all indices below ``sizes``, the last one innermost, shared by threads.

    Args:
        work: picoseconds that it all takes about, over the kernel's symbols.
    """
    space = [as_expr(size) for size in sizes]
    first, last = kernel.share(product(space), work)

    def unit(index: Expr, _: list[Value]) -> Sequence[Value]:
        body(unit_indices(kernel.indexer, index, space))
        return ()

    kernel.indexer.loop(first, last, unit)


def unit_indices(indexer: Indexer, unit: Expr, sizes: Sequence[Expr]) -> list[Expr]:
    """The indices below ``sizes`` that a row-major number stands for.

    Each is a variable of its own, so that its range is known.
    """
    indices = zip(delinearize(unit, sizes), sizes, strict=True)
    return [
        Expr.const(0) if size.constant == 1 else indexer.compute(_same, index, size=size)
        for index, size in indices
    ]


def _same(value: Value) -> Value:
    return value
