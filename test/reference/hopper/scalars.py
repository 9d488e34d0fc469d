# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""arith, math and scalar llvm ops of the simulated GPU, on numpy values of 32 lanes.

Integers and pointers are unsigned arrays, bf16 its bits, structs and vectors tuples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from mlir import ir

from reference.hopper.machine import Product, Warp

Compute: TypeAlias = Callable[..., Any]
Maker: TypeAlias = Callable[[Any], Compute]

OPS: dict[str, Maker] = {}

_DTYPES: dict[str, Any] = {
    "i1": np.bool_,
    "i8": np.uint8,
    "i16": np.uint16,
    "i32": np.uint32,
    "i64": np.uint64,
    "index": np.uint64,
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
    "f64": np.float64,
}
_SIGNED = {np.uint8: np.int8, np.uint16: np.int16, np.uint32: np.int32, np.uint64: np.int64}


def dtype_of(type_: Any) -> Any:
    """The numpy type of a scalar type's values."""
    text = str(type_)
    return np.uint64 if text.startswith("!llvm.ptr") else _DTYPES[text]


def signed(value: Any) -> Any:
    """The same bits as a signed integer."""
    kind = np.asarray(value).dtype.type
    return np.asarray(value).view(_SIGNED[kind]) if kind in _SIGNED else value


def round_bf16(value: Any) -> Any:
    """f32 to the bits of bf16, to nearest even."""
    value = np.asarray(value, np.float32)
    bits = value.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(value), quiet, rounded).astype(np.uint16)


def widen_bf16(bits: Any) -> Any:
    """The bits of bf16 to f32."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _op(*names: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        OPS.update(dict.fromkeys(names, maker))
        return maker

    return register


def _lanewise(function: Callable[..., Any]) -> Maker:
    """An op on scalars or, lane by lane of a vector, on tuples."""

    def compute(_: Warp, *operands: Any) -> Any:
        if operands and isinstance(operands[0], tuple):
            return tuple(function(*parts) for parts in zip(*operands, strict=True))
        return function(*operands)

    return lambda op: compute


def _signed_binary(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compute(lhs: Any, rhs: Any) -> Any:
        kind = np.asarray(lhs).dtype.type
        return np.asarray(function(signed(lhs), signed(rhs))).astype(_SIGNED[kind]).view(kind)

    return compute


def _divide_signed(lhs: Any, rhs: Any) -> Any:
    quotient = np.floor_divide(lhs, rhs)
    return quotient + ((quotient < 0) & (quotient * rhs != lhs))


_LANEWISE: dict[str, Callable[..., Any]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divui": np.floor_divide,
    "arith.remui": np.remainder,
    "arith.ceildivui": lambda a, b: (a + (b - b.dtype.type(1))) // b,
    "arith.divsi": _signed_binary(_divide_signed),
    "arith.remsi": _signed_binary(lambda a, b: np.fmod(a, b)),
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrui": np.right_shift,
    "arith.shrsi": _signed_binary(np.right_shift),
    "arith.minui": np.minimum,
    "arith.maxui": np.maximum,
    "arith.minsi": _signed_binary(np.minimum),
    "arith.maxsi": _signed_binary(np.maximum),
    "arith.select": np.where,
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "math.absf": np.abs,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.sqrt": np.sqrt,
    "math.rsqrt": lambda a: (1 / np.sqrt(a)).astype(np.float32),
    "math.tanh": np.tanh,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.erf": lambda a: np.vectorize(math.erf, otypes=[np.float32])(a),
    "math.fma": lambda a, b, c: (
        np.asarray(a, np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64)
    ).astype(np.asarray(a).dtype),
    "llvm.intr.fma": lambda a, b, c: (np.multiply(a, b, dtype=np.float64) + c).astype(np.float32),
    "llvm.intr.ctpop": lambda a: np.bitwise_count(a).astype(np.asarray(a).dtype),
    "math.copysign": np.copysign,
    "math.powf": np.power,
}
for _name, _function in _LANEWISE.items():
    OPS[_name] = _lanewise(_function)


@_op("llvm.intr.ctlz")
def _leading_zeros(op: Any) -> Compute:
    width = op.results[0].type.width

    def count(warp: Warp, number: Any) -> Any:
        lanes = np.broadcast_to(number, 32)
        zeros = [width - int(lane).bit_length() for lane in lanes]
        return np.array(zeros, lanes.dtype)

    return count


def _constant_of(attribute: Any, type_: Any) -> Any:
    kind = dtype_of(type_)
    if isinstance(attribute, ir.BoolAttr) or str(type_) == "i1":
        return np.bool_(str(attribute).startswith(("true", "1", "-1")))
    if isinstance(attribute, ir.FloatAttr):
        value = np.float32(attribute.value)
        return round_bf16(value)[()] if str(type_) == "bf16" else kind(attribute.value)
    width = np.dtype(kind).itemsize * 8
    return kind(ir.IntegerAttr(attribute).value & ((1 << width) - 1))


@_op("arith.constant", "llvm.mlir.constant")
def _constant(op: Any) -> Compute:
    type_ = op.results[0].type
    attribute = op.attributes["value"]
    if isinstance(type_, ir.VectorType):
        dense = ir.DenseElementsAttr(attribute)
        count = type_.shape[0]
        one = _constant_of(dense.get_splat_value(), type_.element_type)
        return lambda warp: (one,) * count
    value = _constant_of(attribute, type_)
    return lambda warp: value


_INTEGER_PREDICATES: list[tuple[bool, Any]] = [
    (False, np.equal),
    (False, np.not_equal),
    (True, np.less),
    (True, np.less_equal),
    (True, np.greater),
    (True, np.greater_equal),
    (False, np.less),
    (False, np.less_equal),
    (False, np.greater),
    (False, np.greater_equal),
]


@_op("arith.cmpi")
def _compare(op: Any) -> Compute:
    is_signed, compare = _INTEGER_PREDICATES[ir.IntegerAttr(op.attributes["predicate"]).value]
    if is_signed:
        return lambda warp, a, b: compare(signed(a), signed(b))
    return lambda warp, a, b: compare(a, b)


@_op("arith.cmpf")
def _compare_floats(op: Any) -> Compute:
    code = ir.IntegerAttr(op.attributes["predicate"]).value
    ordered = [None, np.equal, np.greater, np.greater_equal, np.less, np.less_equal, np.not_equal]

    def compare(_: Warp, a: Any, b: Any) -> Any:
        unordered = np.isnan(a) | np.isnan(b)
        if code in (0, 15):
            return np.bool_(code == 15)
        if code == 7:
            return ~unordered
        if code == 14:
            return unordered
        if code < 7:
            return ordered[code](a, b) & ~unordered  # type: ignore[misc]
        return ordered[code - 7](a, b) | unordered  # type: ignore[misc]

    return compare


@_op("arith.index_cast", "arith.extsi", "llvm.sext")
def _sign_extend(op: Any) -> Compute:
    target = dtype_of(op.results[0].type)
    is_bool = str(op.operands[0].type) == "i1"

    def cast(_: Warp, value: Any) -> Any:
        if is_bool:
            return np.where(
                value, target(-1 & ((1 << 8 * np.dtype(target).itemsize) - 1)), target(0)
            )
        return signed(value).astype(_SIGNED[target]).view(target)

    return cast


@_op(
    "arith.extui",
    "arith.trunci",
    "arith.index_castui",
    "llvm.zext",
    "llvm.trunc",
    "llvm.inttoptr",
    "llvm.ptrtoint",
    "llvm.addrspacecast",
)
def _zero_extend(op: Any) -> Compute:
    target = dtype_of(op.results[0].type)
    if target is np.bool_:
        return lambda warp, value: (value & type(value.flat[0])(1)).astype(np.bool_)
    return lambda warp, value: np.asarray(value).astype(target)


@_op("arith.sitofp", "arith.uitofp", "arith.extf", "arith.truncf", "arith.fptosi", "arith.fptoui")
def _convert(op: Any) -> Compute:
    types = [op.operands[0].type, op.results[0].type]
    scalars = [t.element_type if isinstance(t, ir.VectorType) else t for t in types]
    source, target = map(str, scalars)
    kind = dtype_of(scalars[1])

    def convert(value: Any) -> Any:
        if op_name == "arith.sitofp" and source != "i1":
            value = signed(value)
        if source == "bf16":
            value = widen_bf16(value)
        if target == "bf16":
            return round_bf16(np.asarray(value).astype(np.float32))
        if op_name == "arith.fptosi":
            return np.asarray(value).astype(_SIGNED[kind]).view(kind)
        return np.asarray(value).astype(kind)

    op_name = op.name
    return _lanewise(convert)(op)


@_op("arith.bitcast", "llvm.bitcast", "vector.bitcast")
def _bitcast(op: Any) -> Compute:
    source, target = op.operands[0].type, op.results[0].type

    def cast(_: Warp, value: Any) -> Any:
        parts = value if isinstance(value, tuple) else (value,)
        lanes = np.stack([np.broadcast_to(part, 32) for part in parts], axis=-1)
        if not isinstance(target, ir.VectorType):
            return np.ascontiguousarray(lanes).view(dtype_of(target))[:, 0]
        made = np.ascontiguousarray(lanes).view(dtype_of(target.element_type))
        return tuple(made[:, number] for number in range(made.shape[1]))

    del source
    return cast


# Aggregates ---------------------------------------------------------------------------------------


@_op("llvm.mlir.undef", "llvm.mlir.poison", "ub.poison")
def _undefined(op: Any) -> Compute:
    return lambda warp: None


@_op("llvm.mlir.zero")
def _zero(op: Any) -> Compute:
    value = dtype_of(op.results[0].type)(0)
    return lambda warp: value


def _position(op: Any) -> list[int]:
    name = "position" if "position" in op.attributes else "static_position"
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


@_op("llvm.extractvalue", "vector.extract")
def _extract(op: Any) -> Compute:
    position = _position(op)

    def extract(_: Warp, aggregate: Any) -> Any:
        for index in position:
            if isinstance(aggregate, Product):
                aggregate = aggregate.registers()
            aggregate = aggregate[index]
        return aggregate

    return extract


@_op("llvm.insertvalue")
def _insert(op: Any) -> Compute:
    [index] = _position(op)
    count = str(op.results[0].type).count(",") + 1

    def insert(_: Warp, aggregate: Any, value: Any) -> Any:
        if isinstance(aggregate, Product):
            aggregate = aggregate.registers()
        parts = list(aggregate) if aggregate is not None else [None] * count
        parts[index] = value
        return tuple(parts)

    return insert


@_op("vector.from_elements")
def _from_elements(op: Any) -> Compute:
    return lambda warp, *values: values


@_op("vector.broadcast", "vector.splat")
def _broadcast(op: Any) -> Compute:
    count = op.results[0].type.shape[0]
    return lambda warp, value: (value,) * count


@_op("llvm.insertelement")
def _insert_element(op: Any) -> Compute:
    count = op.results[0].type.shape[0]

    def insert(warp: Warp, aggregate: Any, value: Any, index: Any) -> Any:
        parts = list(aggregate) if aggregate is not None else [None] * count
        parts[warp.one(index)] = value
        return tuple(parts)

    return insert


@_op("llvm.extractelement")
def _extract_element(op: Any) -> Compute:
    return lambda warp, aggregate, index: aggregate[warp.one(index)]


# Memory -------------------------------------------------------------------------------------------


def space_of(pointer_type: Any) -> str:
    """The memory that an ``!llvm.ptr`` points into."""
    text = str(pointer_type)
    return "shared" if text in ("!llvm.ptr<3>", "!llvm.ptr<7>") else "global"


@_op("llvm.load")
def _load(op: Any) -> Compute:
    space, type_ = space_of(op.operands[0].type), op.results[0].type
    vector = isinstance(type_, ir.VectorType)
    kind = dtype_of(type_.element_type if vector else type_)
    count = type_.shape[0] if vector else 1
    width = np.dtype(kind).itemsize

    def load(warp: Warp, address: Any) -> Any:
        values = warp.load(space, address, width * count).view(kind)
        return tuple(values[:, i] for i in range(count)) if vector else values[:, 0]

    return load


@_op("llvm.store")
def _store(op: Any) -> Compute:
    space, type_ = space_of(op.operands[1].type), op.operands[0].type
    vector = isinstance(type_, ir.VectorType)
    kind = dtype_of(type_.element_type if vector else type_)

    def store(warp: Warp, value: Any, address: Any) -> None:
        parts = value if vector else (value,)
        lanes = np.stack([np.broadcast_to(part, 32) for part in parts], axis=-1).astype(kind)
        warp.store(space, address, np.ascontiguousarray(lanes).view(np.uint8))

    return store


@_op("llvm.getelementptr")
def _element_address(op: Any) -> Compute:
    constants = list(ir.DenseI32ArrayAttr(op.attributes["rawConstantIndices"]))
    type_ = ir.TypeAttr(op.attributes["elem_type"]).value
    size = np.dtype(dtype_of(type_)).itemsize
    assert len(constants) == 1, "only plain element offsets"

    def address(_: Warp, base: Any, *indices: Any) -> Any:
        index = signed(indices[0]).astype(np.int64) if indices else np.int64(constants[0])
        return (np.asarray(base).astype(np.int64) + index * size).astype(np.uint64)

    return address
