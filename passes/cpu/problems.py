# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From the ops of a `shapejit.kernel` to the problems that the emitters solve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.analysis.accesses import conv_spaces
from shapejit.passes.cpu.attention import AttentionProblem
from shapejit.passes.cpu.bodies import captured_tensors, emit_body, is_costly, split_indices
from shapejit.passes.cpu.conv import ConvProblem
from shapejit.passes.cpu.errors import LoweringError
from shapejit.passes.cpu.evaluate import (
    BodyContext,
    Loop,
    LoopKernel,
    Read,
    Write,
    identity_indices,
)
from shapejit.passes.cpu.gemm import Epilogue, GemmProblem
from shapejit.passes.cpu.indexing import Indexer, Value
from shapejit.passes.cpu.kernel import KernelFunction, Tensor
from shapejit.passes.cpu.memory import Access
from shapejit.passes.cpu.row_ops import RowKernel
from shapejit.passes.cpu.scalars import compute_type
from shapejit.passes.rowwise.problem import row_problem
from shapejit.symbolic import Expr, map_exprs
from shapejit.windows import Window


def tensor_of(value: Value) -> Tensor:
    """Sizes and element type of a tensor value."""
    return Tensor(sir.shape_of(value), value.type.element_type)


@dataclass(frozen=True)
class KernelOps:
    """A kernel op with the function that it becomes.

    Attributes:
        op: ``shapejit.kernel``.
        function: its arguments and results are those of the op, in order.
    """

    op: Any
    function: KernelFunction

    @property
    def _arguments(self) -> dict[Value, int]:
        return {value: number for number, value in enumerate(sir.body(self.op).arguments)}

    @property
    def results(self) -> list[Value]:
        """What the kernel yields."""
        return list(sir.operations(sir.body(self.op))[-1].operands)

    def named(self, exprs: Iterable[Expr]) -> tuple[Expr, ...]:
        """Sizes or indices with their divisions of symbols named, see `Indexer.named`."""
        return tuple(map(self.function.indexer.named, exprs))

    def read(self, value: Value, indices: Sequence[Expr], space: Sequence[Expr]) -> Access:
        """A kernel argument, or a view of one, read at indices over the dims of a space.

        Raises:
            LoweringError: the value is made by another op of the kernel.
        """
        while (producer := sir.defining_op(value)) is not None:
            if producer.name != "shapejit.view":
                raise LoweringError(
                    f"reads the result of '{producer.name}'; a kernel holds one contraction, which "
                    "reads the kernel's arguments"
                )
            dims = dict(enumerate(indices))
            source = map_exprs(producer.attributes["map"].value)
            indices = [index.substitute(dims=dims) for index in source]
            value = producer.operands[0]
        buffer = self.function.inputs[self._arguments[value]]
        return Access.through(
            buffer, self.named(sir.shape_of(value)), self.named(indices), self.named(space)
        )

    def write(self, value: Value, indices: Sequence[Expr], space: Sequence[Expr]) -> Access:
        """The memory of a result of the kernel, written at indices over the dims of a space.

        Raises:
            LoweringError: the kernel yields other values.
        """
        if self.results != [value]:
            raise LoweringError("is not all that its kernel yields")
        shape = self.named(sir.shape_of(value))
        return Access.through(
            self.function.outputs[0], shape, self.named(indices), self.named(space)
        )


# Gemm ---------------------------------------------------------------------------------------------


def gemm_problem(kernel: KernelOps, op: Any) -> GemmProblem:
    """The problem of a ``shapejit.gemm``."""
    space = kernel.named(sir.attr_sizes(op.attributes["space"]))
    _, weights, _ = op.attributes["operandSegmentSizes"]
    maps = [map_exprs(m) for m in sir.op_maps(op)]
    accesses = [
        kernel.read(value, indices, space) for value, indices in zip(op.operands, maps, strict=True)
    ]
    block = op.regions[0].blocks[0] if len(op.regions[0].blocks) else None
    result = op.results[0]
    return GemmProblem(
        space=space,
        lhs=accesses[0],
        weights=tuple(accesses[1 : 1 + weights]),
        result=kernel.write(result, identity_indices(len(space) - 1), space),
        accumulate=_accumulate_type(op),
        epilogue=_epilogue(block, accesses[1 + weights :]) if block is not None else None,
    )


def _accumulate_type(op: Any) -> Any:
    if "accumulate" in op.attributes:
        return ir.TypeAttr(op.attributes["accumulate"]).value
    return compute_type(op.operands[0].type.element_type)


@dataclass(frozen=True)
class _EpilogueContext:
    """An epilogue sees sizes, but neither indices nor captured tensors."""

    indexer: Indexer

    def index(self, dim: int) -> Value:
        raise LoweringError(f"asks for index {dim} in its epilogue, which has none")

    def size(self, expr: Expr) -> Value:
        return self.indexer.value(expr)

    def extract(self, tensor: Value, indices: Sequence[Value]) -> Value:
        raise LoweringError(
            f"reads {tensor.type} by tensor.extract; an epilogue reads its extras by maps"
        )


def _epilogue(block: Any, extras: Sequence[Access]) -> Epilogue:
    def emit(indexer: Indexer, sums: Sequence[Value], dims: dict[int, Expr]) -> Value:
        loaded = [extra.load(indexer, dims) for extra in extras]
        return emit_body(block, _EpilogueContext(indexer), [*sums, *loaded])[0]

    return emit


# Conv ---------------------------------------------------------------------------------------------


def conv_problem(kernel: KernelOps, op: Any) -> ConvProblem:
    """The problem of a ``shapejit.conv``."""
    space = kernel.named(sir.attr_sizes(op.attributes["space"]))
    image = kernel.named(sir.attr_sizes(op.attributes["image"]))
    *maps, written = (map_exprs(m) for m in sir.op_maps(op))
    over_input, over_weight, over_result = conv_spaces(space, image)
    spaces = [over_input, over_weight, *[over_result] * (len(op.operands) - 2)]
    accesses = [
        kernel.read(value, indices, over)
        for value, indices, over in zip(op.operands, maps, spaces, strict=True)
    ]
    block = op.regions[0].blocks[0] if len(op.regions[0].blocks) else None
    return ConvProblem(
        space=space,
        image=image,
        window=Window.of(op),
        input=accesses[0],
        weight=accesses[1],
        result=kernel.write(op.results[0], written, over_result),
        accumulate=_accumulate_type(op),
        epilogue=_epilogue(block, accesses[2:]) if block is not None else None,
    )


# Attention ----------------------------------------------------------------------------------------


def attention_problem(kernel: KernelOps, op: Any) -> AttentionProblem:
    """The problem of a ``shapejit.attention``.

    Raises:
        LoweringError: its batches lie one behind the other.
    """
    if "is_ragged" in op.attributes:
        raise LoweringError(
            "'shapejit.attention' with starts has no lowering to the CPU; give it a batch dim"
        )
    batch, heads, m, n, head, value = kernel.named(sir.attr_sizes(op.attributes["space"]))
    maps = [map_exprs(m_) for m_ in sir.op_maps(op)]
    spaces: list[tuple[Expr, ...]] = [
        (batch, heads, m, head),
        (batch, heads, n, head),
        (batch, heads, n, value),
    ]
    has_lengths = "has_lengths" in op.attributes
    if len(op.operands) > len(spaces) + has_lengths:
        spaces.append((batch, heads, m, n))
    if has_lengths:
        spaces.append((batch, heads))
    q, k, v, *others = (
        kernel.read(operand, indices, space)
        for operand, indices, space in zip(op.operands, maps, spaces, strict=False)
    )
    lengths = others.pop() if has_lengths else None
    causal = map_exprs(op.attributes["causal"].value)[0] if "causal" in op.attributes else None
    return AttentionProblem(
        space=(batch, heads, m, n, head, value),
        q=q,
        k=k,
        v=v,
        result=kernel.write(op.results[0], maps[-1], (batch, heads, m, value)),
        scale=ir.FloatAttr(op.attributes["scale"]).value,
        mask=others[0] if others else None,
        causal=causal,
        from_end="from_end" in op.attributes,
        lengths=lengths,
    )


# Scans and sorts ----------------------------------------------------------------------------------


def row_kernel(kernel: KernelOps, op: Any) -> RowKernel:
    """A ``shapejit.scan`` or ``shapejit.sort`` in the memory of the kernel.

    Raises:
        LoweringError: the kernel yields other values.
    """
    problem = row_problem(op)
    yielded = dict(zip(kernel.results, kernel.function.outputs, strict=True))
    if not set(yielded).issubset(problem.results):
        raise LoweringError("is not all that its kernel yields")
    space = kernel.named(problem.space)
    return RowKernel(
        function=kernel.function,
        problem=problem,
        space=space,
        head=kernel.named([problem.head])[0],
        source=kernel.read(problem.input, problem.indices, problem.space),
        outputs=tuple(yielded.get(result) for result in problem.results),
    )


# Loops --------------------------------------------------------------------------------------------


def loop_kernel(kernel: KernelOps, ops: Sequence[Any]) -> LoopKernel:
    """The loops and views of a kernel."""
    arguments = sir.body(kernel.op).arguments
    return LoopKernel(
        loops=tuple(_LOOPS[op.name](op) for op in ops),
        inputs={
            value: (tensor_of(value), buffer)
            for value, buffer in zip(arguments, kernel.function.inputs, strict=True)
        },
        outputs=tuple(zip(kernel.results, kernel.function.outputs, strict=True)),
    )


def _loop(op: Any) -> Loop:
    maps = [map_exprs(m) for m in sir.op_maps(op)]
    inputs = len(op.operands)
    block = sir.body(op)
    writes = (
        Write(value, indices, value.type.element_type, None if kind == "none" else kind)
        for value, indices, kind in zip(op.results, maps[inputs:], sir.kinds(op), strict=True)
    )

    def body(context: BodyContext, arguments: Sequence[Value]) -> Sequence[Value]:
        return emit_body(block, context, arguments)

    space = sir.attr_sizes(op.attributes["space"])
    return Loop(
        space=space,
        reads=tuple(map(Read, op.operands, maps[:inputs])),
        writes=tuple(writes),
        body=body,
        costly=is_costly(block),
        captures=tuple(captured_tensors(block)),
        splits=split_indices(block, space),
    )


def _view(op: Any) -> Loop:
    """A view that was not folded into what reads it: a copy."""
    [result] = op.results
    space = sir.shape_of(result)
    indices = map_exprs(op.attributes["map"].value)
    return Loop(
        space=space,
        reads=(Read(op.operands[0], indices),),
        writes=(Write(result, identity_indices(len(space)), result.type.element_type),),
        body=lambda _, arguments: arguments,
        costly=False,
    )


def _scatter(op: Any) -> Loop:
    [result] = op.results
    *maps, dest = (map_exprs(m) for m in sir.op_maps(op))
    write = Write(result, dest, result.type.element_type, into=sir.shape_of(result))
    return Loop(
        space=sir.attr_sizes(op.attributes["space"]),
        reads=tuple(map(Read, op.operands, maps)),
        writes=(write,),
        body=lambda _, arguments: arguments[:1],
        costly=False,
    )


_LOOPS = {"shapejit.loop": _loop, "shapejit.scatter": _scatter, "shapejit.view": _view}
