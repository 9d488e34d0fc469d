# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-inline-pointwise: pointwise loops move into what reads them or makes their input.

Why: a pointwise loop on its own reads and writes memory for a few flops an element. Inlined into
the loop that reads it, or into the epilogue of the product that feeds it, it costs nothing.

Before::

    %g = shapejit.gemm over [s0, 384, 1536] lhs(%x ..) rhs(%w ..) -> tensor<?x384xf32, ..>
    %0 = shapejit.loop over [s0, 384] ins(%g at #id, %bias at #col) outs(#id) { add }
    %1 = shapejit.loop over [s0, 384] ins(%0 at #id, %residual at #id) outs(#id) { add }

After::

    %1 = shapejit.gemm over [s0, 384, 1536] lhs(%x ..) rhs(%w ..)
        extras(%bias at #col, %residual at #id) epilogue {
    ^bb0(%acc: f32, %b: f32, %r: f32):
      %2 = arith.addf %acc, %b : f32
      %3 = arith.addf %2, %r : f32
      shapejit.yield %3 : f32
    } -> tensor<?x384xf32, ..>

Every loop is visited once, in program order, and takes these steps:

1. Its body is simplified: comparisons that ranges decide are folded, and a ``tensor.extract`` at
   affine functions of the loop's indices becomes a mapped input (`bodies`).
2. Pointwise loops that it reads are inlined into it, if no work is done twice (`may_inline`).
3. Dims that no value of the loop depends on are dropped; readers broadcast through their maps.
   A padding mask then has [batch, keys] elements and not [batch, 1, queries, keys].
4. It becomes the epilogue of a gemm whose result it alone reads (`epilogues`); two gemms of the
   same lhs that meet in it become one with two weights. Or it becomes that of a convolution
   (`conv_epilogues`), which at the end writes where a view that is left would have read.

An attention whose mask turns out to keep everything loses it (`masks`).

What a program computes does not change, scalar by scalar: the scalar operations are the same ones
in the same order. Reductions are never producers here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, register_pass
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.fold_views import ViewFolder
from shapejit.passes.fusion import bodies, conv_epilogues, epilogues, masks
from shapejit.passes.fusion.codec import Codec, Indices, Sizes
from shapejit.passes.fusion.readers import erase_dead, is_live, is_read, read_only_by, readers
from shapejit.symbolic import Expr

# Operations, none of them dear (`bodies.Survey`), that each iteration of the consumer may repeat
# instead of loading their result.
MAX_REPEATED_OPS: Final = 8
# The same where several loops repeat them.
MAX_SHARED_OPS: Final = 4
# That a loop reads after a loop with inputs was inlined into it; each is a parameter of its kernel.
MAX_TENSORS: Final = 128


@dataclass(frozen=True)
class Read:
    """An input of a consumer that is a result of the producer.

    Attributes:
        operand: the input's number.
        result: the result's number.
        location: the producer's indices at which the consumer reads, over the consumer's dims.
    """

    operand: int
    result: int
    location: Indices


def _reads(producer: Any, consumer: Any, codec: Codec) -> list[Read]:
    """The inputs of `consumer` that `producer` makes; the latter's results are not reduced."""
    made = {result: number for number, result in enumerate(producer.results)}
    written = codec.maps(producer)[len(producer.operands) :]
    found = []
    for operand, (value, indices) in enumerate(
        zip(consumer.operands, codec.maps(consumer), strict=False)
    ):
        result = made.get(value)
        if result is None:
            continue
        location: list[Expr] = [Expr.const(0)] * len(indices)
        for index, target in zip(indices, written[result], strict=True):
            dim = target.dim_index
            assert dim is not None, "a pointwise result is written at a permutation of the dims"
            location[dim] = index
        found.append(Read(operand, result, tuple(location)))
    return found


# Whether to inline --------------------------------------------------------------------------------


def may_inline(producer: Any, consumer: Any, reads: list[Read], codec: Codec) -> bool:
    """Whether inlining does no dear work twice and leaves less to read and write.

    A *light* producer takes few operations and reads at most one tensor of its own size, such as a
    cast or a broadcast: reading its inputs instead of its result moves no more memory. Inlined are

    * a light producer without inputs (positions, constants), always;
    * one that only the consumer reads, if it is light or each of its values is needed once;
    * a very light one that several loops read, and nothing but loops.

    A producer with inputs stays apart where the consumer would read too many tensors with them.
    """
    body = bodies.survey(producer)
    light = not body.dear and body.ops <= MAX_REPEATED_OPS and _large_inputs(producer, codec) <= 1
    if light and not producer.operands and not body.captures:
        return True
    if len(_tensors(producer) | _tensors(consumer)) > MAX_TENSORS:
        return False
    if all(read_only_by(result, consumer) for result in producer.results):
        return light or _needs_each_once(producer, consumer, reads, codec)
    if not light or body.ops > MAX_SHARED_OPS or body.captures:
        return False
    return all(_is_loop_input(r) for result in producer.results for r in readers(result))


def _tensors(loop: Any) -> set[Any]:
    """What a loop reads, through maps and by computed indices."""
    return {*loop.operands, *sir.captured_values(loop)}


def _needs_each_once(producer: Any, consumer: Any, reads: list[Read], codec: Codec) -> bool:
    first = reads[0].location
    if any(read.location != first for read in reads):
        return False
    return is_injective(first, codec.space(producer), codec.space(consumer), codec)


def _is_loop_input(reader: Any) -> bool:
    return reader.op.name == "shapejit.loop" and reader.operand is not None


def _large_inputs(loop: Any, codec: Codec) -> int:
    """How many inputs of a loop are read at another place in each iteration."""
    wide = {dim for dim, size in enumerate(codec.space(loop)) if size.constant != 1}
    if not wide:
        return 0
    maps = codec.maps(loop)[: len(loop.operands)]
    return sum(wide <= {d for index in indices for d in index.dims()} for indices in maps)


def is_injective(location: Indices, source: Sizes, space: Sizes, codec: Codec) -> bool:
    """Whether no two points of `space` read the same element of `source`; False if unknown."""
    if codec.is_reshape(location, source, space):
        return True
    found: set[int] = set()
    for index in location:
        found |= _recoverable_dims(index, space, codec)
    return all(dim in found for dim, size in enumerate(space) if size.constant != 1)


def _recoverable_dims(index: Expr, space: Sizes, codec: Codec) -> frozenset[int]:
    """The dims of an index, if its value determines them: ``32*d1 + d3`` with d3 < 32 does."""
    strides: list[tuple[int, int]] = []
    for dim in index.dims():
        stride = index.stride(dim)
        if stride is None or not stride.constant:
            return frozenset()
        strides.append((abs(stride.constant), dim))
    reach = Expr.const(0)  # how far the dims of smaller strides get
    for step, dim in sorted(strides):
        if not codec.ranges(space).provably_le(reach + 1, step):
            return frozenset()
        reach += (space[dim] - 1) * step
    return index.dims()


# Inlining -----------------------------------------------------------------------------------------


class _Inputs:
    """The inputs of a loop under construction, equal ones once, and their block arguments."""

    def __init__(self, block: Any) -> None:
        self.values: list[Any] = []
        self.indices: list[Indices] = []
        self._block = block
        self._arguments: dict[tuple[Any, Indices], Any] = {}

    def keep(self, value: Any, indices: Indices, argument: Any) -> None:
        """An input that the block has an argument for."""
        self.values.append(value)
        self.indices.append(indices)
        self._arguments.setdefault((value, indices), argument)

    def argument(self, value: Any, indices: Indices) -> Any:
        """The argument for an input, which is added if there is none."""
        found = self._arguments.get((value, indices))
        if found is None:
            found = self._block.add_argument(value.type.element_type, ir.Location.current)
            self.keep(value, indices, found)
        return found


def inline(producer: Any, consumer: Any, reads: list[Read], codec: Codec) -> Any:
    """The consumer with the producer's body in front of its own, in the consumer's place.

    The producer is erased if nobody reads it any more.
    """
    space, maps, block = codec.space(consumer), codec.maps(consumer), sir.body(consumer)
    replaced = {read.operand for read in reads}
    inputs = _Inputs(block)
    for number, (value, argument) in enumerate(
        zip(consumer.operands, block.arguments, strict=True)
    ):
        if number not in replaced:
            inputs.keep(value, maps[number], argument)
    location = ir.Location.fused([producer.location, consumer.location])
    start = ir.InsertionPoint.at_block_begin(block)
    with start, producer.location:
        emitter = bodies.IndexEmitter(codec)
        for at in dict.fromkeys(read.location for read in reads):
            yielded = _clone_at(producer, at, space, inputs, emitter, start, codec)
            for read in reads:
                if read.location == at:
                    block.arguments[read.operand].replace_all_uses_with(yielded[read.result])
    for number in sorted(replaced, reverse=True):
        block.erase_argument(number)
    attributes = sir.attributes(consumer)
    access = [*inputs.indices, *maps[len(consumer.operands) :]]
    attributes["maps"] = ir.ArrayAttr.get([codec.map_attr(len(space), i) for i in access])
    new = bodies.replace_loop(consumer, inputs.values, attributes, location)
    if not any(map(is_read, producer.results)):
        producer.erase()
    return new


def _clone_at(
    producer: Any,
    location: Indices,
    space: Sizes,
    inputs: _Inputs,
    emitter: bodies.IndexEmitter,
    start: Any,
    codec: Codec,
) -> list[Any]:
    """The values of the producer's results at `location`, computed at `start`."""
    body, maps = sir.body(producer), codec.maps(producer)
    mapping = {
        argument: inputs.argument(value, codec.compose(indices, location, space))
        for value, indices, argument in zip(producer.operands, maps, body.arguments, strict=False)
    }
    return sir.clone_body(body, mapping, start, index=lambda dim: emitter.value(location[dim]))


# Dropping dims ------------------------------------------------------------------------------------

_READ_BY_MAP: Final = frozenset(
    {"shapejit.loop", "shapejit.gemm", "shapejit.conv", "shapejit.attention", "shapejit.view"}
)


def drop_dims(loop: Any, codec: Codec) -> Any:
    """A pointwise loop without the dims that its values do not depend on.

    Only if all readers can broadcast through their maps, and no read is made that the loop would
    not have made: with an empty dim it makes none.
    """
    space, maps, count = codec.space(loop), codec.maps(loop), len(loop.operands)
    read = {d for indices in maps[:count] for index in indices for d in index.dims()}
    if all(dim in read or size.constant == 1 for dim, size in enumerate(space)):
        return loop
    used = read | bodies.survey(loop).dims
    dropped = [dim for dim in range(len(space)) if dim not in used]
    if all(space[dim].constant == 1 for dim in dropped):
        return loop
    uses = [readers(result) for result in loop.results]
    if any(r.operand is None or r.op.name not in _READ_BY_MAP for found in uses for r in found):
        return loop
    kept = [dim for dim in range(len(space)) if dim not in dropped]
    if not _reads_stay_legal(loop, kept, dropped, codec):
        return loop
    new, positions = _without_dims(loop, kept, codec)
    for found, result, position in zip(uses, new.results, positions, strict=True):
        for reader in found:
            assert reader.operand is not None
            _read_at_positions(reader.op, reader.operand, result, position, codec)
    if not any(map(is_read, loop.results)):
        loop.erase()
    return new


def _reads_stay_legal(loop: Any, kept: list[int], dropped: list[int], codec: Codec) -> bool:
    space, maps = codec.space(loop), codec.maps(loop)
    known = codec.ranges(())
    if all(known.provably_le(1, space[dim]) for dim in dropped):
        return True
    if bodies.survey(loop).captures:
        return False
    renamed = {dim: Expr.dim(number) for number, dim in enumerate(kept)}
    ranges = codec.ranges(tuple(space[dim] for dim in kept))
    for value, indices in zip(loop.operands, maps, strict=False):
        for index, size in zip(indices, codec.shape(value), strict=True):
            moved = index.substitute(dims=renamed)
            if not ranges.is_nonnegative(moved) or not ranges.provably_le(moved + 1, size):
                return False
    return True


def _without_dims(loop: Any, kept: list[int], codec: Codec) -> tuple[Any, list[list[int]]]:
    """The loop over the kept dims, and for each result which of its dims are left."""
    space, maps, count = codec.space(loop), codec.maps(loop), len(loop.operands)
    renamed = {dim: Expr.dim(number) for number, dim in enumerate(kept)}
    positions, types = [], []
    for result, indices in zip(loop.results, maps[count:], strict=True):
        left = [p for p, index in enumerate(indices) if index.dim_index in renamed]
        shape = codec.shape(result)
        positions.append(left)
        types.append(codec.tensor_type([shape[p] for p in left], result.type.element_type))
    access = maps[:count] + [
        tuple(indices[p] for p in left)
        for indices, left in zip(maps[count:], positions, strict=True)
    ]
    attributes = sir.attributes(loop)
    attributes["space"] = codec.shape_attr([space[dim] for dim in kept])
    attributes["maps"] = ir.ArrayAttr.get(
        [
            codec.map_attr(len(kept), [index.substitute(dims=renamed) for index in indices])
            for indices in access
        ]
    )
    new = ir.Operation.create(
        "shapejit.loop",
        results=types,
        operands=list(loop.operands),
        attributes=attributes,
        regions=1,
        loc=loop.location,
        ip=ir.InsertionPoint(loop),
    )
    i64 = ir.IntegerType.get_signless(64)
    for child in sir.operations(sir.body(loop)):
        if child.name == "shapejit.index":
            dim = kept.index(ir.IntegerAttr(child.attributes["dim"]).value)
            child.attributes["dim"] = ir.IntegerAttr.get(i64, dim)
    sir.body(loop).append_to(new.regions[0])
    return new, positions


def _read_at_positions(
    op: Any, operand: int, value: Any, positions: list[int], codec: Codec
) -> None:
    """Makes an operand read `value`, a tensor with only the given dims of the old one."""
    op.operands[operand] = value
    if op.name == "shapejit.view":
        indices = codec.indices(op.attributes["map"])
        rank = len(codec.shape(op.results[0]))
        op.attributes["map"] = codec.map_attr(rank, [indices[p] for p in positions])
        return
    maps = list(op.attributes["maps"])
    indices = codec.indices(maps[operand])
    maps[operand] = codec.map_attr(maps[operand].value.n_dims, [indices[p] for p in positions])
    op.attributes["maps"] = ir.ArrayAttr.get(maps)


def forward_copies(loop: Any, codec: Codec) -> None:
    """Readers of a result that only repeats an input read the input."""
    maps, count, block = codec.maps(loop), len(loop.operands), sir.body(loop)
    numbers = {argument: number for number, argument in enumerate(block.arguments)}
    yielded = block.operations[len(block.operations) - 1].operands
    for result, indices, value in zip(loop.results, maps[count:], yielded, strict=True):
        number = numbers.get(value)
        if number is None or maps[number] != indices:
            continue
        if loop.operands[number].type == result.type:
            result.replace_all_uses_with(loop.operands[number])


# The pass -----------------------------------------------------------------------------------------


class _Function:
    """One function, visited from front to back."""

    def __init__(self, function: Any, codec: Codec) -> None:
        self._block, self._codec = sir.body(function), codec

    def run(self) -> None:
        erase_dead(self._block)
        for op in sir.operations(self._block):
            # No op after the current one is ever erased, so `op` is there.
            if op.name == "shapejit.loop" and is_live(op):
                self._visit(op)
            elif op.name == "shapejit.attention":
                masks.drop_mask(op)
        erase_dead(self._block)

    def _visit(self, loop: Any) -> None:
        loop = bodies.simplify(loop, self._codec)
        while (new := self._inline_one(loop)) is not None:
            loop = bodies.simplify(new, self._codec)
        if not sir.is_pointwise(loop):
            return
        forward_copies(loop, self._codec)
        if not is_live(loop):
            return
        loop = drop_dims(loop, self._codec)
        if not epilogues.fuse(loop, self._codec):
            conv_epilogues.fuse(loop, self._codec)

    def _inline_one(self, consumer: Any) -> Any | None:
        """The consumer with one more producer inlined; None if there is none to inline."""
        for producer in self._producers(consumer):
            reads = _reads(producer, consumer, self._codec)
            if may_inline(producer, consumer, reads, self._codec):
                return inline(producer, consumer, reads, self._codec)
        return None

    def _producers(self, loop: Any) -> Iterator[Any]:
        """The pointwise loops that make inputs of a loop, each once."""
        seen: set[int] = set()
        for value in loop.operands:
            op = sir.defining_op(value)
            if op is None or op.name != "shapejit.loop" or sir.key(op) in seen:
                continue
            seen.add(sir.key(op))
            if sir.is_pointwise(op):
                yield op


@register_pass("shapejit-inline-pointwise", dialects=("arith", "tensor"))
@dataclass(frozen=True)
class InlinePointwise(Pass):
    """Inline pointwise loops into their readers and into the epilogues of contractions."""

    def run(self, module: Any) -> None:
        codec = Codec(module)
        facts = SymbolFacts.of(module)
        for function in sir.functions(module):
            _Function(function, codec).run()
            ViewFolder(function, facts).sink()
