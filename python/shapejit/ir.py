# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Reading and building shapejit IR: what the importer and the passes share.

Sizes and index maps are handled as :class:`~shapejit.symbolic.Expr`; in a map, dims are
``Expr.dim(i)`` and symbol ``i`` is the module's (or kernel's) symbol ``s<i>``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlir.ir as ir

from . import _native
from .symbolic import Expr, map_exprs, product, to_map
from .symbolic.memo import remembered

DYNAMIC = ir.ShapedType.get_dynamic_size()

# ---------------------------------------------------------------------------
# Shapes
# ---------------------------------------------------------------------------


def shape_attr(sizes: Iterable[Expr | int], context: Any = None) -> Any:
    """The ``#shapejit.shape`` attribute of the given sizes."""
    context = context or ir.Context.current
    exprs = tuple(s if isinstance(s, Expr) else Expr.const(s) for s in sizes)
    return remembered(("shape", exprs, context), lambda: _shape_attr(exprs, context))


def _shape_attr(sizes: Sequence[Expr], context: Any) -> Any:
    dims = [size.to_affine(context) for size in sizes]
    array = (ctypes.c_void_p * len(dims))(*[_native.pointer(d) for d in dims])
    address = _native.lib.shapejitShapeAttrGet(_native.pointer(context), array, len(dims))
    return _native.wrap(ir.Attribute, address)


def attr_sizes(attribute: Any) -> tuple[Expr, ...]:
    """Sizes of a ``#shapejit.shape`` attribute.

    Raises:
        TypeError: the attribute is not a shape.
    """
    return remembered(attribute, lambda: _attr_sizes(attribute))


def _attr_sizes(attribute: Any) -> tuple[Expr, ...]:
    address = _native.pointer(attribute)
    rank = _native.lib.shapejitShapeAttrRank(address)
    if rank < 0:
        raise TypeError(f"expected a #shapejit.shape attribute, got {attribute}")
    dims = (_native.lib.shapejitShapeAttrDim(address, i) for i in range(rank))
    return tuple(Expr.from_affine(_native.wrap(ir.AffineExpr, d)) for d in dims)


def has_shape(type_or_value: Any) -> bool:
    """Whether a type (or a value's type) is a tensor with a symbolic shape."""
    type_ = type_or_value.type if isinstance(type_or_value, ir.Value) else type_or_value
    if not isinstance(type_, ir.RankedTensorType) or type_.encoding is None:
        return False
    return bool(_native.lib.shapejitShapeAttrRank(_native.pointer(type_.encoding)) >= 0)


def shape_of(type_or_value: Any) -> tuple[Expr, ...]:
    """Symbolic sizes of a tensor type, or of a value's type.

    Raises:
        TypeError: the type carries no symbolic shape.
    """
    type_ = type_or_value.type if isinstance(type_or_value, ir.Value) else type_or_value
    if not isinstance(type_, ir.RankedTensorType) or type_.encoding is None:
        raise TypeError(f"{type_} carries no symbolic shape")
    return attr_sizes(type_.encoding)


def tensor_type(sizes: Sequence[Expr | int], element: Any) -> Any:
    """The tensor type with these symbolic sizes; needs a current context."""
    exprs = [s if isinstance(s, Expr) else Expr.const(s) for s in sizes]
    static = [DYNAMIC if e.constant is None else e.constant for e in exprs]
    return ir.RankedTensorType.get(static, element, shape_attr(exprs))


def element_bytes(element: Any) -> int:
    """Bytes of an element in memory; a bool takes a whole one."""
    return max(int(element.width), 8) // 8


def bytes_of(type_: Any) -> Expr:
    """Bytes that a tensor of this type takes in memory, as an expression of its symbols."""
    return product(shape_of(type_)) * element_bytes(type_.element_type)


# ---------------------------------------------------------------------------
# Maps
# ---------------------------------------------------------------------------


def op_maps(op: Any) -> list[Any]:
    """The affine maps of a loop, gemm or attention: operands first, then results."""
    return [attribute.value for attribute in op.attributes["maps"]]


def maps_attr(maps: Iterable[Any]) -> Any:
    """The ``maps`` attribute of an op."""
    return ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])


def make_map(n_dims: int, exprs: Iterable[Expr | int]) -> Any:
    """An affine map with these results; needs a current context."""
    return to_map(
        n_dims,
        [e if isinstance(e, Expr) else Expr.const(e) for e in exprs],
        ir.Context.current,
    )


def identity_map(n_dims: int) -> Any:
    """``(d0, .., dn) -> (d0, .., dn)``."""
    return ir.AffineMap.get_identity(n_dims)


def compose(
    outer: Any,
    inner: Any,
    symbol_ranges: Any = None,
    dim_sizes: Sequence[Expr] | None = None,
) -> Any:
    """``outer(inner(dims))``, simplified within the ranges that are given.

    Symbols mean the same in both maps.
    """
    dims = dict(enumerate(map_exprs(inner)))
    exprs = [e.substitute(dims=dims) for e in map_exprs(outer)]
    if dim_sizes is not None:
        exprs = [e.simplify(symbol_ranges or {}, dim_sizes) for e in exprs]
    return make_map(inner.n_dims, exprs)


# ---------------------------------------------------------------------------
# Operations
# ---------------------------------------------------------------------------


#: Ops that make a copy of weights, once when these are bound; they stand in front of launches.
COPIES = ("shapejit.pack", "shapejit.join")


def operations(block: Any) -> list[Any]:
    """The operations of a block, as ``ir.Operation``; safe to erase while iterating."""
    return [op.operation for op in block.operations]


def walk(op: Any) -> Iterator[Any]:
    """All operations nested under `op`, in order, without `op` itself."""
    for region in op.regions:
        for block in region.blocks:
            for child in operations(block):
                yield child
                yield from walk(child)


def key(op: Any) -> int:
    """Identity of an operation (``hash(op)`` is structural and reads freed memory)."""
    return _native.pointer(op.operation)


def defining_op(value: Any) -> Any | None:
    """The operation that defines a value; None for a block argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def users(value: Any) -> list[tuple[Any, int]]:
    """(user operation, operand number) of every use of a value."""
    return [(use.owner.operation, use.operand_number) for use in value.uses]


def attributes(op: Any) -> dict[str, Any]:
    """The attributes of an operation by name."""
    return {name: op.attributes[name] for name in op.attributes}


def body(op: Any) -> Any:
    """The only block of an op's only region."""
    return op.regions[0].blocks[0]


def kinds(op: Any) -> list[str]:
    """The combine kinds of a loop, one a result."""
    return [ir.StringAttr(k).value for k in op.attributes["kinds"]]


def is_pointwise(op: Any) -> bool:
    """Whether an operation is a loop without reductions."""
    return op.name == "shapejit.loop" and all(k == "none" for k in kinds(op))


def captured_values(op: Any) -> list[Any]:
    """Values from outside that the regions of an op read, each once, in order."""
    inside: set[Any] = set()
    captured: dict[Any, None] = {}
    for region in op.regions:
        for block in region.blocks:
            inside.update(block.arguments)
    for child in walk(op):
        for operand in child.operands:
            if operand not in inside:
                captured[operand] = None
        inside.update(child.results)
        for region in child.regions:
            for block in region.blocks:
                inside.update(block.arguments)
    return list(captured)


def clone_body(
    source: Any,
    mapping: Mapping[Any, Any],
    insertion_point: Any,
    *,
    index: Callable[[int], Any] | None = None,
) -> list[Any]:
    """Clones a body without its terminator; returns what the terminator would yield.

    Args:
        source: the block to clone.
        mapping: values that replace the block's arguments and captured values; others
            are kept as they are.
        insertion_point: where the clones go.
        index: makes the value that replaces ``shapejit.index i``; None clones the op.
    """
    values = dict(mapping)
    with insertion_point:
        for op in operations(source):
            if op.name == "shapejit.yield":
                return [values.get(v, v) for v in op.operands]
            if op.name == "shapejit.index" and index is not None:
                values[op.results[0]] = index(ir.IntegerAttr(op.attributes["dim"]).value)
                continue
            clone = op.clone().operation
            for i, operand in enumerate(op.operands):
                if operand in values:
                    clone.operands[i] = values[operand]
            values.update(zip(op.results, clone.results, strict=True))
    raise ValueError("the block has no shapejit.yield")


# ---------------------------------------------------------------------------
# Modules
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Symbol:
    """A declared symbol. `max` is inclusive, None when unbounded."""

    name: str
    id: int
    min: int = 0
    max: int | None = None
    divisor: int = 1
    opt: int | None = None
    equal_to: int | None = None
    derived: str | None = None
    arguments: tuple[Expr, ...] = ()


def _optional_int(op: Any, name: str) -> int | None:
    return ir.IntegerAttr(op.attributes[name]).value if name in op.attributes else None


def symbols(module: Any) -> list[Symbol]:
    """The symbols a module declares, in the order of their ids."""
    found = []
    for op in operations(module_block(module)):
        if op.name != "shapejit.symbol":
            continue
        derived = "derived" in op.attributes
        found.append(
            Symbol(
                name=ir.StringAttr(op.attributes["sym_name"]).value,
                id=ir.IntegerAttr(op.attributes["id"]).value,
                min=_optional_int(op, "min") or 0,
                max=_optional_int(op, "max"),
                divisor=_optional_int(op, "divisor") or 1,
                opt=_optional_int(op, "opt"),
                equal_to=_optional_int(op, "equal_to"),
                derived=ir.StringAttr(op.attributes["derived"]).value if derived else None,
                arguments=map_exprs(op.attributes["arguments"].value) if derived else (),
            )
        )
    return sorted(found, key=lambda s: s.id)


@dataclass(frozen=True)
class Relation:
    """One line of a constraint: `expr` equals 0, or is at least 0."""

    expr: Expr
    is_equality: bool

    def __str__(self) -> str:
        return f"{self.expr} {'==' if self.is_equality else '>='} 0"


@dataclass(frozen=True)
class Constraint:
    """A ``shapejit.constraint``: all relations hold in every legal call."""

    relations: tuple[Relation, ...]
    reason: str | None
    location: Any


def constraints(module: Any) -> list[Constraint]:
    """The constraints a module states, in program order."""
    found = []
    for op in operations(module_block(module)):
        if op.name != "shapejit.constraint":
            continue
        address = _native.pointer(op.attributes["set"])
        relations = []
        for i in range(_native.lib.shapejitIntegerSetSize(address)):
            is_equality = ctypes.c_int()
            expr = _native.lib.shapejitIntegerSetConstraint(address, i, ctypes.byref(is_equality))
            relations.append(
                Relation(
                    Expr.from_affine(_native.wrap(ir.AffineExpr, expr)), bool(is_equality.value)
                )
            )
        has_reason = "reason" in op.attributes
        reason = ir.StringAttr(op.attributes["reason"]).value if has_reason else None
        found.append(Constraint(tuple(relations), reason, op.location))
    return found


def symbol_ranges(module: Any) -> dict[int, tuple[int, int | None]]:
    """Range of every symbol by id, as `Expr.bounds` and `Expr.simplify` take it."""
    return {s.id: (s.min, s.max) for s in symbols(module)}


def module_block(module: Any) -> Any:
    """The body of a module, given as ``ir.Module`` or as its operation."""
    return module.operation.regions[0].blocks[0]


def functions(module: Any) -> list[Any]:
    """The ``func.func`` operations of a module that have a body."""
    return [
        op
        for op in operations(module_block(module))
        if op.name == "func.func" and len(op.regions[0].blocks)
    ]


def argument_kind(function: Any, position: int) -> str:
    """``"input"`` or ``"weight"``; an argument without the attribute is an input."""
    if "arg_attrs" not in function.attributes:
        return "input"
    attributes = ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[position])
    if "shapejit.kind" not in attributes:
        return "input"
    return str(ir.StringAttr(attributes["shapejit.kind"]).value)


def updated_arguments(function: Any) -> dict[int, int]:
    """Of the results that are new values of arguments, in whose memory they lie: their arguments.

    They come after all other results.
    """
    if "res_attrs" not in function.attributes:
        return {}
    found = {}
    for number, entry in enumerate(ir.ArrayAttr(function.attributes["res_attrs"])):
        attributes_ = ir.DictAttr(entry)
        if "shapejit.updates" in attributes_:
            found[number] = int(ir.IntegerAttr(attributes_["shapejit.updates"]).value)
    return found


def kernels(module: Any) -> dict[str, Any]:
    """The kernels of a module by name."""
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in operations(module_block(module))
        if op.name == "shapejit.kernel"
    }
