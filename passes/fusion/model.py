# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""A kernel in the making: its operations' spaces, index maps and shapes as expressions.

Everything is worked out on this model before an operation is moved or changed: which dims become
one (`collapse`), which symbols the kernel has (`symbols`), and whether an equal kernel exists
(`signature`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import PassFailure
from shapejit.passes.fusion.clusters import Node
from shapejit.passes.fusion.codec import Codec, dims
from shapejit.passes.fusion.readers import enclosing_op
from shapejit.passes.rowwise.problem import ROW_OPS
from shapejit.symbolic import Expr

# What a body may read from the function besides tensors: it gets its own copy.
_COPIED: Final = frozenset({"arith.constant", "shapejit.size"})


@dataclass(eq=False)
class Access:
    """A tensor and where an operation reads or writes it, over the operation's dims."""

    value: Any
    indices: list[Expr]


@dataclass(eq=False)
class Part:
    """One operation of the kernel.

    Attributes:
        op: the operation.
        space: sizes of its dims.
        accesses: of its operands, then of its results, in the order of its maps.
        map_ranks: how many dims each map has.
        causal: the offset of a causal attention.
        image: the spatial sizes of a convolution's input.
        body: the operations in its region, in order.
        body_dims: for the number of each ``shapejit.index`` in the body, its dim.
        body_sizes: for the number of each ``shapejit.size`` in the body, its expression.
    """

    op: Any
    space: list[Expr]
    accesses: list[Access]
    map_ranks: list[int]
    causal: Expr | None
    image: list[Expr]
    body: list[Any]
    body_dims: dict[int, int]
    body_sizes: dict[int, Expr]

    @property
    def results(self) -> list[Access]:
        """The accesses of its results."""
        return self.accesses[len(self.op.operands) :]


@dataclass(eq=False)
class Model:
    """A kernel: what it reads, computes and gives.

    Attributes:
        parts: its operations.
        inputs: tensors from outside, in order of first use.
        outputs: results that are read outside, each with the (operation, operand) that read it.
        captured: tensors that bodies read at computed indices.
        sizes: of every tensor of the kernel.
    """

    parts: list[Part]
    inputs: list[Any]
    outputs: list[tuple[Any, list[tuple[Any, int]]]]
    captured: set[Any]
    sizes: dict[Any, list[Expr]]

    def expressions(self) -> tuple[list[Expr], list[Expr]]:
        """The sizes of the kernel, and its other expressions, in order of appearance."""
        sizes = [size for value in self.inputs for size in self.sizes[value]]
        others: list[Expr] = []
        for part in self.parts:
            sizes += part.space + part.image
            sizes += [size for access in part.results for size in self.sizes[access.value]]
            others += [index for access in part.accesses for index in access.indices]
            others += part.body_sizes.values()
            others += [] if part.causal is None else [part.causal]
        return sizes, others

    def replace(self, function: Callable[[Expr], Expr]) -> None:
        """Replaces every expression."""
        self.sizes = {value: list(map(function, sizes)) for value, sizes in self.sizes.items()}
        for part in self.parts:
            part.space = list(map(function, part.space))
            part.image = list(map(function, part.image))
            part.body_sizes = {n: function(size) for n, size in part.body_sizes.items()}
            part.causal = None if part.causal is None else function(part.causal)
            for access in part.accesses:
                access.indices = list(map(function, access.indices))


def build(nodes: Sequence[Node], codec: Codec) -> Model:
    """The model of the kernel of some nodes; their bodies get copies of scalars from outside.

    Raises:
        PassFailure: a body reads a scalar from outside that is no constant and no size.
    """
    own = {result for node in nodes for result in node.op.results}
    keys = {sir.key(node.op) for node in nodes}
    inputs: dict[Any, None] = {}
    captured: set[Any] = set()
    outputs = []
    for node in nodes:
        tensors = _captured_tensors(node)
        captured.update(tensors)
        inputs.update(dict.fromkeys(v for v in (*node.op.operands, *tensors) if v not in own))
        for result in node.op.results:
            users = sir.users(result)
            outside = [use for use in users if sir.key(enclosing_op(use[0])) not in keys]
            # A sort works in the memory of both of its results.
            if outside or node.op.name == "shapejit.sort":
                outputs.append((result, outside))
    parts = [_part(node.op, codec) for node in nodes]
    sizes = {value: list(codec.shape(value)) for value in (*inputs, *own)}
    return Model(parts, list(inputs), outputs, captured, sizes)


def _captured_tensors(node: Node) -> list[Any]:
    """The tensors that a body reads; it gets its own copies of the scalars."""
    if not node.captured:
        return []
    tensors = []
    # Not node.captured: what made these values may be a launch by now.
    for value in sir.captured_values(node.op):
        if isinstance(value.type, ir.RankedTensorType):
            tensors.append(value)
        else:
            _copy_scalar(node.op, value)
    return tensors


def _copy_scalar(op: Any, value: Any) -> None:
    """Makes a copy of a constant or size of the function for each use in the body of `op`."""
    source = sir.defining_op(value)
    if source is None or source.name not in _COPIED:
        what = "an argument" if source is None else source.name
        raise PassFailure(
            op,
            f"the body reads a scalar made by {what} outside of it; "
            "only constants and sizes can be copied into a kernel",
        )
    own = sir.key(op)
    for user, operand in sir.users(value):
        if sir.key(enclosing_op(user)) == own:
            user.operands[operand] = source.clone(ir.InsertionPoint(user)).operation.results[0]


def _part(op: Any, codec: Codec) -> Part:
    space = list(codec.space(op))
    values = [*op.operands, *op.results]
    maps = [list(indices) for indices in codec.maps(op)]
    ranks = [attribute.value.n_dims for attribute in op.attributes["maps"]]
    if op.name == "shapejit.gemm":  # its result has no map
        maps.append(list(dims(len(space) - 1)))
    elif op.name in ROW_OPS:  # nor have theirs
        maps += [list(dims(len(space))) for _ in op.results]
    elif op.name == "shapejit.scatter":  # it is written where dest is
        maps.append(list(maps[-1]))
    causal = None
    if "causal" in op.attributes:
        (causal,) = codec.indices(op.attributes["causal"])
    image = list(codec.sizes(op.attributes["image"])) if "image" in op.attributes else []
    body = list(sir.walk(op))
    body_dims, body_sizes = {}, {}
    for number, child in enumerate(body):
        if child.name == "shapejit.index":
            body_dims[number] = ir.IntegerAttr(child.attributes["dim"]).value
        elif child.name == "shapejit.size":
            (body_sizes[number],) = codec.indices(child.attributes["expr"])
    accesses = [Access(value, indices) for value, indices in zip(values, maps, strict=True)]
    return Part(op, space, accesses, ranks, causal, image, body, body_dims, body_sizes)


# Equality of kernels ------------------------------------------------------------------------------

# Attributes of operations whose values the model holds as expressions or implies.
_MODELLED: Final = frozenset({"space", "maps", "causal", "image"})
_MODELLED_IN_BODY: Final = {"shapejit.index": "dim", "shapejit.size": "expr"}


def signature(model: Model) -> Any:
    """A value that is equal for kernels of equal text, locations and names aside."""
    numbers: dict[Any, int] = {}

    def number(values: Any) -> tuple[int, ...]:
        return tuple(numbers.setdefault(value, len(numbers)) for value in values)

    inputs = [(tuple(model.sizes[v]), v.type.element_type) for v in model.inputs]
    number(model.inputs)
    parts = tuple(_part_signature(part, model, number) for part in model.parts)
    return tuple(inputs), parts, number(output for output, _ in model.outputs)


def _part_signature(part: Part, model: Model, number: Callable[[Any], tuple[int, ...]]) -> Any:
    op = part.op
    head = (
        op.name,
        tuple(part.space),
        tuple((number([a.value]), tuple(a.indices)) for a in part.accesses),
        tuple((tuple(model.sizes[a.value]), a.value.type.element_type) for a in part.results),
        part.causal,
        tuple(part.image),
        _attributes(op, _MODELLED),
    )
    blocks = [block for region in op.regions for block in region.blocks]
    arguments = tuple(number(block.arguments) for block in blocks)
    body = tuple(
        (
            child.name,
            number(child.operands),
            number(child.results),
            tuple(result.type for result in child.results),
            part.body_dims.get(position, part.body_sizes.get(position)),
            _attributes(child, _MODELLED_IN_BODY.get(child.name, ())),
        )
        for position, child in enumerate(part.body)
    )
    return head, arguments, body


def _attributes(op: Any, without: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((name, op.attributes[name]) for name in op.attributes if name not in without)
