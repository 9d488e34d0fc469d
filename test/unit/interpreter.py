# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Runs functions of the dialect with numpy, by the definition of each op: a reference for passes.

Slow and plain on purpose. Every op is computed over its whole iteration space at once; floats are
float64 whatever their type, so that two forms of one program may be compared closely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from mlir import ir

from shapejit import ir as sir
from shapejit.symbolic import Expr, map_exprs

Array = np.ndarray[Any, Any]


def run(module: Any, symbols: Sequence[int], arguments: Sequence[Array]) -> list[Array]:
    """The results of the module's only function.

    Args:
      module: holds one function, without launches.
      symbols: the value of each symbol, by id.
      arguments: the function's arguments.
    """
    [function] = sir.functions(module)
    return _Frame(symbols, function, arguments).run(function)


def numpy_type(element: Any) -> Any:
    """The numpy type in which elements are held."""
    if isinstance(element, ir.IntegerType):
        return np.bool_ if element.width == 1 else np.int64
    return np.int64 if isinstance(element, ir.IndexType) else np.float64


class _Frame:
    """Values of one function."""

    def __init__(self, symbols: Sequence[int], function: Any, arguments: Sequence[Array]) -> None:
        self._symbols = symbols
        self.values: dict[Any, Array] = dict(
            zip(sir.body(function).arguments, arguments, strict=True)
        )
        for argument, value in self.values.items():
            self._check(argument, value)

    def run(self, function: Any) -> list[Array]:
        for op in sir.operations(sir.body(function)):
            if op.name == "func.return":
                return [self.values[v] for v in op.operands]
            for result, value in zip(op.results, _OPS[op.name](self, op), strict=True):
                self._check(result, value)
                self.values[result] = value.astype(numpy_type(result.type.element_type))
        raise AssertionError("no return")

    def _check(self, value: Any, array: Array) -> None:
        sizes = self.sizes(sir.shape_of(value))
        assert array.shape == sizes, f"{value} is {array.shape}, not {sizes}"

    def sizes(self, exprs: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(e.evaluate(self._symbols) for e in exprs)

    def grid(self, sizes: Sequence[int]) -> list[Array]:
        """The index of each dim, broadcastable over the space."""
        return list(np.indices(sizes, sparse=True)) if sizes else []

    def index(self, affine_map: Any, grid: Sequence[Array]) -> tuple[Array, ...]:
        """The index tuple of a map at every point."""
        exprs = map_exprs(affine_map)
        return tuple(np.asarray(e.evaluate(self._symbols, grid)) for e in exprs)

    def read(self, tensor: Any, affine_map: Any, sizes: Sequence[int]) -> Array:
        """The elements of a tensor at every point of a space."""
        source = self.values[tensor]
        if 0 in sizes:
            return np.zeros(sizes, source.dtype)
        return np.broadcast_to(source[self.index(affine_map, self.grid(sizes))], sizes)

    def body(self, block: Any, arguments: Sequence[Array], sizes: Sequence[int]) -> list[Array]:
        """The yielded values of a scalar body at every point."""
        local = dict(zip(block.arguments, arguments, strict=True))
        grid = self.grid(sizes)
        for op in sir.operations(block):
            if op.name == "shapejit.yield":
                return [np.broadcast_to(local[v], sizes) for v in op.operands]
            if op.name == "shapejit.index":
                local[op.results[0]] = grid[ir.IntegerAttr(op.attributes["dim"]).value]
            elif op.name == "shapejit.size":
                local[op.results[0]] = self.index(op.attributes["expr"].value, [])[0]
            elif op.name == "tensor.extract":
                index = tuple(local[v] for v in list(op.operands)[1:])
                local[op.results[0]] = self.values[op.operands[0]][index]
            elif op.name == "arith.constant":
                local[op.results[0]] = np.asarray(_constant(op.attributes["value"]))
            else:
                local[op.results[0]] = _scalar(op, [local[v] for v in op.operands])
        raise AssertionError("no yield")


def _constant(attribute: Any) -> Any:
    if isinstance(attribute, ir.FloatAttr):
        return attribute.value
    value = ir.IntegerAttr(attribute).value
    one_bit = isinstance(attribute.type, ir.IntegerType) and attribute.type.width == 1
    return bool(value) if one_bit else value


_ERF = np.vectorize(math.erf, otypes=[np.float64])

_SCALARS: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add,
    "arith.addi": np.add,
    "arith.subf": np.subtract,
    "arith.subi": np.subtract,
    "arith.mulf": np.multiply,
    "arith.muli": np.multiply,
    "arith.divf": np.divide,
    "arith.divui": np.floor_divide,
    "arith.remui": np.remainder,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.negf": np.negative,
    "arith.select": np.where,
    "arith.index_cast": np.asarray,
    "arith.sitofp": np.float64,
    "arith.uitofp": np.float64,
    "arith.extui": np.int64,
    "arith.extsi": np.int64,
    "arith.fptosi": np.int64,
    "math.erf": _ERF,
    "math.exp": np.exp,
    "math.log": np.log,
    "math.sqrt": np.sqrt,
    "math.rsqrt": lambda x: 1 / np.sqrt(x),
    "math.tanh": np.tanh,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.powf": np.power,
}
# Signed integer predicates and the ordered float ones, by their number.
_CMPI = [np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal]
_CMPF = {
    1: np.equal,
    2: np.greater,
    3: np.greater_equal,
    4: np.less,
    5: np.less_equal,
    13: np.not_equal,
}


def _scalar(op: Any, operands: Sequence[Array]) -> Array:
    if op.name in ("arith.cmpi", "arith.cmpf"):
        predicate = ir.IntegerAttr(op.attributes["predicate"]).value
        compare = _CMPI[predicate] if op.name == "arith.cmpi" else _CMPF[predicate]
        return np.asarray(compare(*operands))
    return np.asarray(_SCALARS[op.name](*operands))


_COMBINES: dict[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def _view(frame: _Frame, op: Any) -> list[Array]:
    sizes = frame.sizes(sir.shape_of(op.results[0]))
    return [frame.read(op.operands[0], op.attributes["map"].value, sizes)]


def _loop(frame: _Frame, op: Any) -> list[Array]:
    sizes = frame.sizes(sir.attr_sizes(op.attributes["space"]))
    maps = sir.op_maps(op)
    inputs = [frame.read(v, m, sizes) for v, m in zip(op.operands, maps, strict=False)]
    yielded = frame.body(sir.body(op), inputs, sizes)
    results = []
    for value, kind, affine_map in zip(yielded, sir.kinds(op), maps[len(inputs) :], strict=True):
        order = [e.dim_index for e in map_exprs(affine_map)]
        reduced = tuple(i for i in range(len(sizes)) if i not in order)
        kept = sorted(i for i in order if i is not None)
        if kind != "none":
            combine = _COMBINES[kind]
            initial = {"max": -np.inf, "min": np.inf}.get(kind)
            extra = {} if initial is None else {"initial": initial}
            value = combine.reduce(value, axis=reduced, **extra)
        results.append(np.transpose(value, [kept.index(i) for i in order]))
    return results


def _gemm(frame: _Frame, op: Any) -> list[Array]:
    sizes = frame.sizes(sir.attr_sizes(op.attributes["space"]))
    maps, operands = sir.op_maps(op), list(op.operands)
    weights = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))[1]
    lhs = frame.read(operands[0], maps[0], sizes)
    sums = [
        (lhs * frame.read(operands[i], maps[i], sizes)).sum(axis=-1) for i in range(1, 1 + weights)
    ]
    if not len(op.regions[0].blocks):
        return sums
    extras = [
        frame.read(v, m, sizes[:-1])
        for v, m in zip(operands[1 + weights :], maps[1 + weights :], strict=True)
    ]
    return frame.body(sir.body(op), [*sums, *extras], sizes[:-1])


def _attention(frame: _Frame, op: Any) -> list[Array]:
    b, h, m, n, d, dv = frame.sizes(sir.attr_sizes(op.attributes["space"]))
    maps, operands = sir.op_maps(op), list(op.operands)
    q = frame.read(operands[0], maps[0], (b, h, m, d))
    k = frame.read(operands[1], maps[1], (b, h, n, d))
    v = frame.read(operands[2], maps[2], (b, h, n, dv))
    scores = ir.FloatAttr(op.attributes["scale"]).value * np.einsum("bhmd,bhnd->bhmn", q, k)
    if len(operands) == 4:
        mask = frame.read(operands[3], maps[3], (b, h, m, n))
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    if "causal" in op.attributes:
        offset = frame.index(op.attributes["causal"].value, [])[0]
        scores = np.where(np.arange(n) <= np.arange(m)[:, None] + offset, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    product = np.einsum("bhmn,bhnd->bhmd", weights / np.where(total == 0, 1, total), v)
    result = np.full(frame.sizes(sir.shape_of(op.results[0])), np.nan)
    if product.size:
        result[frame.index(maps[-1], frame.grid(product.shape))] = product
    return [result]


_OPS: Mapping[str, Callable[[_Frame, Any], list[Array]]] = {
    "shapejit.view": _view,
    "shapejit.loop": _loop,
    "shapejit.gemm": _gemm,
    "shapejit.attention": _attention,
}
