# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The function of one GPU kernel under construction, and how it gets its parameters.

An emitter asks for what it needs (a size, an operand's address, a tensor map) when it needs it; the
function collects the requests into its parameter list and into the `KernelInterface` that the
launch runtime follows. The same emitter so gives both forms of a kernel:

- *by value*: tensor maps are grid constants, sizes and addresses plain parameters;
- *block*: the one parameter is the address of the kernel's entry in a parameter block in device
  memory, whose contents change between launches of one CUDA graph. Tensor maps are used in place,
  and every thread that issues a TMA must acquire them first (`Descriptor.acquire`). Sizes and
  addresses are copied to shared memory first, by as many threads as there are words: were every
  warp of the grid to load them, which may not be from a first-level cache, these thousands of
  requests to one line of the second-level cache would take microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mlir import ir
from mlir.dialects import gpu, llvm, nvvm

from shapejit.gpu.interface import (
    Grid,
    Im2colMap,
    KernelInterface,
    Parameter,
    Pointer,
    Size,
    TensorMap,
    Workspace,
)
from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Num,
    Type,
    Value,
    add,
    and_,
    compare,
    constant,
    i32,
    i64,
    integer,
    mul,
    pointer,
    select,
    shr,
    sub,
    udiv,
    when,
    wide,
)
from shapejit.passes.nvgpu.target import Architecture
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import as_expr

_MAP_BYTES = 128
_WORDS = "parameters"
_DYNAMIC = -(1 << 31)  # marks an index of llvm.getelementptr that is a value
_GRID_CONSTANT = "{llvm.byval = !llvm.array<16 x i64>, llvm.align = 64 : i64, nvvm.grid_constant}"

_P = TypeVar("_P", bound=Parameter)


def uniform(number: Value) -> Value:
    """A number that all lanes of a warp agree on, in a form that ptxas knows to be uniform."""
    kind = ir.Attribute.parse("#nvvm<shfl_kind idx>")
    return nvvm.shfl_sync(i32(), constant(-1), number, constant(0), constant(31), kind)


@dataclass(frozen=True)
class Threads:
    """Where a thread is in its CTA: all i32.

    Attributes:
        thread: its number.
        warpgroup: its warpgroup's number, uniform.
        warp: its warp's number, uniform.
        lane: its number in the warp.
    """

    thread: Value
    warpgroup: Value
    warp: Value
    lane: Value

    @staticmethod
    def read() -> Threads:
        """Emits the reads of the special registers."""
        thread = nvvm.read_ptx_sreg_tid_x(i32())
        return Threads(thread, uniform(shr(thread, 7)), uniform(shr(thread, 5)), and_(thread, 31))


@dataclass(frozen=True)
class Units:
    """Where a CTA is in the grid.

    Attributes:
        unit: number of its cluster.
        units: clusters of the grid.
        rank: its number in the cluster, 0 without one.
    """

    unit: Value
    units: Value
    rank: Num

    @staticmethod
    def read(cluster: int, *, backwards: bool = False) -> Units:
        """Emits the reads of the special registers.

        Args:
            cluster: CTAs of a cluster.
            backwards: whether the cluster that starts last has number 0. The hardware starts
                clusters in order, maybe not all at once: a cluster may wait for those that started
                before it, hence, backwards, for those of higher numbers.
        """
        cta = nvvm.read_ptx_sreg_ctaid_x(i32())
        ctas = nvvm.read_ptx_sreg_nctaid_x(i32())
        rank = nvvm.read_ptx_sreg_cluster_ctarank(i32()) if cluster > 1 else 0
        unit, units = udiv(cta, cluster), udiv(ctas, cluster)
        if backwards:
            unit = sub(sub(units, 1), unit)
        return Units(unit, units, rank)


@dataclass(frozen=True)
class _Word:
    """A scalar parameter in a block: where it is copied to, its bytes, where it is in the entry."""

    start: int
    bytes: int
    offset: int

    @property
    def end(self) -> int:
        return self.start + self.bytes


def _copied_words() -> Value:
    """The address of the shared memory that the words of a block are copied to."""
    return llvm.AddressOfOp(pointer(3), _WORDS).result


class KernelFunction:
    """``gpu.module @name { llvm.func @name(..) }``, inserted at the current point.

    Args:
        name: of the module and of the function in the machine code.
        architecture: what it is compiled for.
        threads: of a CTA.
        block: whether parameters come from a parameter block.
        cluster: CTAs of a cluster.
        ctas_per_sm: how many CTAs must fit on a multiprocessor at once.
        programmatic: whether it may start before the kernel ahead of it ends.
    """

    def __init__(
        self,
        name: str,
        architecture: Architecture,
        *,
        threads: int,
        block: bool = False,
        cluster: int = 1,
        ctas_per_sm: int = 1,
        programmatic: bool = False,
    ) -> None:
        self.architecture = architecture
        self.block = block
        self.cluster = cluster
        self.programmatic = programmatic
        self._name, self._threads = name, threads
        clusters = f", nvvm.cluster_dim = array<i32: {cluster}, 1, 1>" if cluster > 1 else ""
        self.module = ir.Operation.parse(
            f'gpu.module @{name} [#nvvm.target<O = 3, chip = "{architecture.chip}", '
            f'features = "{architecture.features}">] {{ llvm.func @{name}() attributes {{'
            f"nvvm.kernel, gpu.kernel, nvvm.reqntid = array<i32: {threads}, 1, 1>, "
            f"nvvm.minctasm = {ctas_per_sm} : i32{clusters}}} {{ llvm.return }} }}"
        )
        ir.InsertionPoint.current.insert(self.module)
        self._function = self.module.regions[0].blocks[0].operations[0].operation
        self._body = self._function.regions[0].blocks[0]
        self._attributes: list[Any] = []
        self._parameters: list[Parameter] = []
        self._made: dict[Any, Value] = {}
        self._values: dict[Expr, int] = {}
        self._block_bytes = 0
        self._words: list[_Word] = []
        # Parameters are read before this op, whenever they are asked for.
        with ir.InsertionPoint.at_block_begin(self._body):
            self._entry_end = constant(0).owner
        if block:
            self._entry = self._argument(pointer(1), "{llvm.align = 128 : i64}")

    # Parameters -----------------------------------------------------------------------------------

    def _argument(self, type_: Type, attributes: str = "{}") -> Value:
        self._attributes.append(ir.Attribute.parse(attributes))
        return self._body.add_argument(type_, self._function.location)

    def unlisted(self, type_: Type, attributes: str = "{}") -> Value:
        """A parameter that the interface does not list, of a kernel that is launched specially.

        Args:
            attributes: of the argument, as text.
        """
        return self._argument(type_, attributes)

    def _place(self, parameter: _P, bytes_: int) -> _P:
        """The parameter with its offset in the block."""
        start = -(-self._block_bytes // bytes_) * bytes_
        self._block_bytes = start + bytes_
        placed = replace(parameter, offset=start)
        self._parameters.append(placed)
        return placed

    def _word(self, parameter: Parameter, bytes_: int, type_: Type) -> Value:
        """A scalar parameter."""
        if not self.block:
            self._parameters.append(parameter)
            return self._argument(type_)
        placed = self._place(parameter, bytes_)
        end = self._words[-1].end if self._words else 0
        word = _Word(-(-end // bytes_) * bytes_, bytes_, placed.offset)
        self._words.append(word)
        with ir.InsertionPoint(self._entry_end):
            address = llvm.GEPOp(
                pointer(3), _copied_words(), [], [word.start], ir.TypeAttr.get(integer(8)), 0
            ).result
            loaded = llvm.LoadOp(integer(8 * bytes_), address, alignment=bytes_).result
            return llvm.inttoptr(type_, loaded) if type_ == pointer(1) else loaded

    def value_number(self, size: Expr | int) -> int:
        """The number of an expression among the interface's values."""
        return self._values.setdefault(as_expr(size), len(self._values))

    def size(self, size: Expr | int, bytes_: int = 4) -> Num:
        """An expression of the kernel's symbols: a Python int if constant, else a parameter."""
        expr = as_expr(size)
        if expr.constant is not None:
            return expr.constant
        key = (expr, bytes_)
        if key not in self._made:
            parameter = Size(self.value_number(expr), bytes_)
            self._made[key] = self._word(parameter, bytes_, i32() if bytes_ == 4 else i64())
        return self._made[key]

    def address(self, operand: int) -> Value:
        """The address of an operand, in global memory."""
        key = ("address", operand)
        if key not in self._made:
            self._made[key] = self._word(Pointer(operand), 8, pointer(1))
        return self._made[key]

    def workspace(self, bytes_per_cta: int, zeroed: int, least_ctas: int = 0) -> Value:
        """The address of scratch memory, see `Workspace`; asked for once."""
        memory = Workspace(bytes_per_cta, zeroed, least_ctas=least_ctas)
        return self._word(memory, 8, pointer(1))

    def tensor_map(self, record: TensorMap | Im2colMap) -> Value:
        """The address of a tensor map, generic."""
        if not self.block:
            self._parameters.append(record)
            return self._argument(pointer(), _GRID_CONSTANT)
        placed = self._place(record, _MAP_BYTES)
        with ir.InsertionPoint(self._entry_end):
            generic = llvm.AddrSpaceCastOp(pointer(), self._entry).result
            address = add(llvm.ptrtoint(i64(), generic), placed.offset)
            return llvm.inttoptr(pointer(), address)

    # The body -------------------------------------------------------------------------------------

    @contextmanager
    def body(self) -> Iterator[None]:
        """Emits into the function; closes its signature at the end."""
        with ir.InsertionPoint(self._body.operations[len(self._body.operations) - 1]):
            yield
        if self._words:
            with ir.InsertionPoint(self._first_of_entry()):
                self._copy_words()
        types = ", ".join(str(argument.type) for argument in self._body.arguments)
        signature = ir.Type.parse(f"!llvm.func<void ({types})>")
        self._function.attributes["function_type"] = ir.TypeAttr.get(signature)
        self._function.attributes["arg_attrs"] = ir.ArrayAttr.get(self._attributes)

    def _first_of_entry(self) -> Any:
        """The first op but for `launch_dependents`."""
        first, second, *_ = self._body.operations
        return second if first.operation.name == "nvvm.griddepcontrol" else first

    def _copy_words(self) -> None:
        """Copies the words of the entry to shared memory, 4 bytes a thread."""
        count = self._words[-1].end // 4
        memory = ir.Operation.parse(
            f"llvm.mlir.global internal @{_WORDS}() {{addr_space = 3 : i32, alignment = 8 : i64}} "
            f": !llvm.array<{4 * count} x i8>"
        )
        ir.InsertionPoint(self._function).insert(memory)
        thread = nvvm.read_ptx_sreg_tid_x(i32())
        for first in range(0, count, self._threads):
            number = add(thread, first)
            with when(compare("ult", number, count)):
                at = mul(number, 4)
                address = add(llvm.ptrtoint(i64(), self._entry), wide(add(at, self._shift(number))))
                word = ptx.load_relaxed(llvm.inttoptr(pointer(1), address), 4)
                target = llvm.GEPOp(
                    pointer(3), _copied_words(), [at], [_DYNAMIC], ir.TypeAttr.get(integer(8)), 0
                )
                llvm.StoreOp(word, target.result, alignment=4)
        gpu.barrier()

    def _shift(self, number: Value) -> Num:
        """How much further a word is in the entry than in shared memory: maps lie between them."""
        last = self._words[0].offset - self._words[0].start
        shift: Num = last
        for word in self._words[1:]:
            further = word.offset - word.start
            if further != last:
                beyond = compare("uge", number, word.start // 4)
                shift, last = select(beyond, further, shift), further
        return shift

    def launch_dependents(self) -> None:
        """Lets the next kernel of the stream start, if programmatic.

        It does so first of all, wherever in the entry of the body it is asked for: the time in
        which the words of a block arrive is time in which CTAs of the next kernel can start.
        """
        if self.programmatic:
            with ir.InsertionPoint.at_block_begin(self._body):
                nvvm.GriddepcontrolOp(nvvm.GridDepActionKind.launch_dependents)

    def await_predecessors(self) -> None:
        """Waits until what the kernels ahead wrote is there, if programmatic.

        Every thread calls it before it reads or overwrites what another kernel of the stream
        writes or reads, by TMA or otherwise.
        """
        if self.programmatic:
            nvvm.GriddepcontrolOp(nvvm.GridDepActionKind.wait)

    def synchronize(self) -> None:
        """A barrier of the CTA, or of the cluster, that publishes shared memory."""
        if self.cluster > 1:
            nvvm.cluster_arrive()
            nvvm.cluster_wait()
        else:
            gpu.barrier()

    # The result -----------------------------------------------------------------------------------

    def interface(self, grid: Grid, shared_bytes: int) -> KernelInterface:
        """The record of how the kernel is called, complete once the body is."""
        return KernelInterface(
            entry=self._name,
            threads=self._threads,
            shared_bytes=shared_bytes,
            cluster=self.cluster,
            grid=grid,
            values=tuple(map(str, self._values)),
            parameters=tuple(self._parameters),
            block=self.block,
            block_bytes=-(-self._block_bytes // _MAP_BYTES) * _MAP_BYTES,
            programmatic=self.programmatic,
        )


def elected_thread(threads: Threads, number: int) -> Any:
    """``when`` this is one thread of the CTA, by number."""
    return when(compare("eq", threads.thread, number))


@contextmanager
def one_thread_of(warp: Value, number: int) -> Iterator[None]:
    """``when`` this is the one thread of a warp that the hardware elects.

    Args:
        warp: of this thread.
        number: of the warp that is meant.
    """
    with when(compare("eq", warp, number)), when(nvvm.elect_sync(integer(1))):
        yield
