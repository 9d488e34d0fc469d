# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs a shapejit module with numpy: the meaning of our IR, for tests.

Floats are computed in float64, so that a difference from a float64 reference is a difference in
meaning and not in rounding. Every read is checked to be within its tensor, every result to have the
sizes that its type states. Any stage of the pipeline up to launches can be run, so a pass is tested
by running a module before and after it:

    before = Interpreter(module).run(inputs)
    run_pass(module)
    after = Interpreter(module).run(inputs)

Nothing here is fast, and gathers of whole index grids need memory: use small sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlir.ir as ir
import numpy as np

import shapejit.ir as sir
from reference.scalar_semantics import SCALAR_OPS, numpy_type
from shapejit.passes.hoisting.split import WEIGHT, is_bind_part
from shapejit.symbolic import Expr, map_exprs
from shapejit.windows import Window

Array = np.ndarray
Symbols = Mapping[int, int]

_COMBINE: dict[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


class InterpreterError(AssertionError):
    """The module does what no legal program does: an index out of bounds, a wrong size."""


class Interpreter:
    """Evaluates ``func.func @main`` (or another function) of a module.

    Args:
        module: an `ir.Module`, or its operation.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.symbols = sir.symbols(module)
        self.kernels = sir.kernels(module)

    def run(
        self, inputs: Sequence[Array], symbols: Symbols | None = None, function: str = "main"
    ) -> list[Array]:
        """The function's results for one array an argument, weights included.

        Args:
            inputs: arrays; floats of any width are taken as float64, bools as numpy bools. What
                a bind part that is in the module computes may be left out.
            symbols: values of the symbols by id; by default worked out from the inputs' sizes.
            function: name of the function.
        """
        (found,) = (
            op
            for op in sir.functions(self.module)
            if ir.StringAttr(op.attributes["sym_name"]).value == function
        )
        arguments = list(sir.body(found).arguments)
        inputs = [*inputs, *self._hoisted(found, inputs)]
        shapes = [np.shape(x) for x in inputs]
        values = self.bind(arguments, shapes) if symbols is None else dict(symbols)
        self._derive(values)
        frame = _Frame(self, values)
        for argument, x in zip(arguments, inputs, strict=True):
            frame.env[argument] = _as_array(x, argument.type.element_type)
            frame.check_size(argument, "argument")
        with np.errstate(all="ignore"):
            return frame.run(sir.body(found))

    def _hoisted(self, function: Any, inputs: Sequence[Array]) -> list[Array]:
        """What the module's bind part computes from the weights; nothing if it has none."""
        found = [
            op
            for op in sir.operations(sir.module_block(self.module))
            if op.name == "builtin.module" and is_bind_part(op)
        ]
        if not found or len(inputs) == len(sir.body(function).arguments):
            return []
        [bind] = sir.functions(found[0])
        weights = [x for i, x in enumerate(inputs) if sir.argument_kind(function, i) == "weight"]
        numbers = [ir.IntegerAttr(ir.DictAttr(each)[WEIGHT]).value
                   for each in ir.ArrayAttr(bind.attributes["arg_attrs"])]  # fmt: skip
        name = ir.StringAttr(bind.attributes["sym_name"]).value
        return Interpreter(found[0]).run([weights[number] for number in numbers], {}, name)

    def bind(self, arguments: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> dict[int, int]:
        """Values of the symbols that the arguments' sizes determine."""
        values: dict[int, int] = {}
        for argument, shape in zip(arguments, shapes, strict=True):
            for size, actual in zip(sir.shape_of(argument), shape, strict=True):
                solved = _solve(size, actual)
                if solved is not None:
                    values.setdefault(*solved)
        for symbol in self.symbols:
            if symbol.equal_to is not None:
                values[symbol.id] = values[symbol.equal_to]
        return values

    def _derive(self, values: dict[int, int]) -> None:
        for symbol in self.symbols:
            if symbol.derived is not None:
                lhs, rhs = (e.evaluate(symbols=values) for e in symbol.arguments)
                values[symbol.id] = {
                    "max": lambda a, b: max(a, b),
                    "min": lambda a, b: min(a, b),
                    "floordiv": lambda a, b: a // b,
                    "ceildiv": lambda a, b: -(-a // b),
                    "mod": lambda a, b: a % b,
                }[symbol.derived](lhs, rhs)


def _solve(size: Expr, actual: int) -> tuple[int, int] | None:
    """(symbol, value) for a size that is linear in one symbol."""
    symbols = size.symbols()
    if len(symbols) != 1:
        return None
    (symbol,) = symbols
    offset = size.evaluate(symbols={symbol: 0})
    scale = size.evaluate(symbols={symbol: 1}) - offset
    if scale <= 0 or size != Expr.symbol(symbol) * scale + offset:
        return None
    return symbol, (actual - offset) // scale


def _shifted(x: Array, spatial: int, count: int, tap: int, window: Window) -> Array:
    """What one tap sees of a spatial dim at each of `count` output pixels: zeros off the image."""
    axis, spread = 2 + spatial, window.lhs_dilations[spatial]
    offset = tap * window.dilations[spatial] - window.padding[spatial][0]
    places = np.arange(count) * window.strides[spatial] + offset
    pixels = places // spread
    seen = (places % spread == 0) & (pixels >= 0) & (pixels < x.shape[axis])
    if not seen.any():
        return np.zeros([count if i == axis else size for i, size in enumerate(x.shape)])
    values = np.take(x, np.where(seen, pixels, 0), axis=axis)
    return values * seen.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def _as_array(x: Any, element: Any) -> Array:
    return np.asarray(x).astype(numpy_type(element))


class _Frame:
    """Evaluation of one function's or kernel's body, with its values and symbols."""

    def __init__(self, interpreter: Interpreter, symbols: Symbols) -> None:
        self.interpreter = interpreter
        self.symbols = symbols
        self.env: dict[Any, Array] = {}

    def run(self, block: Any) -> list[Array]:
        """Evaluates a block of tensor operations; gives what its terminator gives."""
        for op in sir.operations(block):
            if op.name in ("func.return", "shapejit.yield"):
                return [self.env[value] for value in op.operands]
            results = self.evaluate(op)
            for value, result in zip(op.results, results, strict=True):
                self.env[value] = result
                self.check_size(value, op.name)
        raise InterpreterError("the block has no terminator")

    def evaluate(self, op: Any) -> list[Array]:
        """The results of one operation between tensors (or of a scalar one outside a body)."""
        handler = getattr(self, "_" + op.name.removeprefix("shapejit."), None)
        if op.name.startswith("shapejit.") and handler is not None:
            return list(handler(op))
        if op.name in SCALAR_OPS:
            return [SCALAR_OPS[op.name](op, *(self.env[v] for v in op.operands))]
        raise InterpreterError(f"no semantics for {op.name}")

    def check_size(self, value: Any, what: str) -> None:
        """An array has the sizes and dtype of its value's type."""
        if not isinstance(value.type, ir.RankedTensorType):
            return
        expected = self.sizes(sir.shape_of(value))
        actual = self.env[value].shape
        if actual != expected:
            raise InterpreterError(
                f"{what} has sizes {actual}, its type {value.type} says {expected}"
            )

    def sizes(self, sizes: Sequence[Expr]) -> tuple[int, ...]:
        """Values of symbolic sizes."""
        return tuple(size.evaluate(symbols=self.symbols) for size in sizes)

    # Reading through maps -------------------------------------------------------------------------

    def indices(self, affine_map: Any, space: Sequence[int]) -> list[Array]:
        """The values of a map's results over a grid; broadcastable where they do not vary."""
        rank = len(space)
        grid = [
            np.arange(size).reshape([-1 if i == d else 1 for i in range(rank)])
            for d, size in enumerate(space)
        ]
        return [
            np.asarray(e.evaluate(symbols=self.symbols, dims=grid)) for e in map_exprs(affine_map)
        ]

    def read(self, tensor: Array, affine_map: Any, space: Sequence[int]) -> Array:
        """`tensor` at a map over a grid; a dim of the grid that the map ignores has size one."""
        if 0 in space:
            used = set().union(*(e.dims() for e in map_exprs(affine_map)))
            return np.zeros(
                [size if i in used else 1 for i, size in enumerate(space)], tensor.dtype
            )
        rank = len(space)
        indices = self.indices(affine_map, space)
        self.check_bounds(tensor, indices, str(affine_map))
        if not indices:
            return tensor.reshape([1] * rank)
        result = tensor[tuple(indices)]
        return result.reshape([1] * (rank - result.ndim) + list(result.shape))

    def check_bounds(self, tensor: Array, indices: Sequence[Array], what: str) -> None:
        """Every index lies within its dim."""
        for dim, (index, size) in enumerate(zip(indices, tensor.shape, strict=True)):
            if index.size and (index.min() < 0 or index.max() >= size):
                raise InterpreterError(
                    f"{what} reads index {index.min()}..{index.max()} of dim {dim}, of size {size}"
                )

    # Operations -----------------------------------------------------------------------------------

    def _size(self, op: Any) -> list[Array]:
        (expr,) = map_exprs(op.attributes["expr"].value)
        return [np.asarray(expr.evaluate(symbols=self.symbols))]

    def _view(self, op: Any) -> list[Array]:
        shape = self.sizes(sir.shape_of(op.results[0]))
        result = self.read(self.env[op.operands[0]], op.attributes["map"].value, shape)
        return [np.broadcast_to(result, shape)]

    def _loop(self, op: Any) -> list[Array]:
        space = self.sizes(sir.attr_sizes(op.attributes["space"]))
        maps = sir.op_maps(op)
        inputs = [
            self.read(self.env[v], m, space)
            for v, m in zip(op.operands, maps[: len(op.operands)], strict=True)
        ]
        values = self.run_body(sir.body(op), inputs, space)
        return [
            self._combine(
                np.broadcast_to(value, space), kind, out, element=result.type.element_type
            )
            for value, kind, out, result in zip(
                values, sir.kinds(op), maps[len(op.operands) :], op.results, strict=True
            )
        ]

    def _combine(self, value: Array, kind: str, out: Any, element: Any) -> Array:
        """Reduces over the dims that the result's map lacks, and orders the others by it."""
        kept = [e.dim_index for e in map_exprs(out)]
        if kind != "none":
            reduced = tuple(i for i in range(value.ndim) if i not in kept)
            identity = _identity(kind, numpy_type(element))
            value = _COMBINE[kind].reduce(value, axis=reduced, initial=identity, keepdims=True)
            value = value.astype(numpy_type(element))
            value = value.reshape([value.shape[i] for i in range(value.ndim) if i not in reduced])
        order = [sorted(kept).index(i) for i in kept]
        return np.transpose(value, order)

    def run_body(self, block: Any, arguments: Sequence[Array], space: Sequence[int]) -> list[Array]:
        """Evaluates a scalar body over a whole grid at once."""
        local = dict(zip(block.arguments, arguments, strict=True))

        def value_of(value: Any) -> Array:
            return local[value] if value in local else self.env[value]

        for op in sir.operations(block):
            if op.name == "shapejit.yield":
                return [value_of(v) for v in op.operands]
            operands = [value_of(v) for v in op.operands]
            local[op.results[0]] = self._scalar(op, operands, space)
        raise InterpreterError("the body has no shapejit.yield")

    def _scalar(self, op: Any, operands: list[Array], space: Sequence[int]) -> Array:
        if op.name == "shapejit.index":
            dim = ir.IntegerAttr(op.attributes["dim"]).value
            return np.arange(space[dim]).reshape([-1 if i == dim else 1 for i in range(len(space))])
        if op.name == "shapejit.size":
            return self._size(op)[0]
        if op.name == "tensor.extract":
            table, *indices = operands
            if 0 in space:
                return np.zeros(tuple(space), table.dtype)
            if 0 in table.shape:
                return np.zeros(np.broadcast_shapes(*(i.shape for i in indices)), table.dtype)
            self.check_bounds(table, indices, "tensor.extract")
            return np.asarray(table[tuple(indices)])
        if op.name not in SCALAR_OPS:
            raise InterpreterError(f"no semantics for {op.name} in a body")
        return np.asarray(SCALAR_OPS[op.name](op, *operands))

    def _gemm(self, op: Any) -> list[Array]:
        space = self.sizes(sir.attr_sizes(op.attributes["space"]))
        maps = sir.op_maps(op)
        segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        operands = [self.env[v] for v in op.operands]
        lhs = self.read(operands[0], maps[0], space)[..., 0, :]
        products = []
        for weight, weight_map in zip(
            operands[1 : 1 + segments[1]], maps[1 : 1 + segments[1]], strict=True
        ):
            rhs = self.read(weight, weight_map, space)[..., 0, :, :]
            lhs, rhs = _full_matrices(lhs, rhs, space)
            result = np.matmul(lhs, np.swapaxes(rhs, -1, -2))
            products.append(np.broadcast_to(result, space[:-1]))
        extras = [
            self.read(x, m, space[:-1])
            for x, m in zip(operands[1 + segments[1] :], maps[1 + segments[1] :], strict=True)
        ]
        if not len(op.regions[0].blocks):
            return [products[0]]
        (result,) = self.run_body(sir.body(op), [*products, *extras], space[:-1])
        return [np.broadcast_to(result, space[:-1])]

    def _attention(self, op: Any) -> list[Array]:
        b, h, m, n, d, dv = self.sizes(sir.attr_sizes(op.attributes["space"]))
        maps = sir.op_maps(op)
        if "is_ragged" in op.attributes:
            raise NotImplementedError("attention with starts")
        grids: list[tuple[int, ...]] = [(b, h, m, d), (b, h, n, d), (b, h, n, dv)]
        has_lengths = "has_lengths" in op.attributes
        if len(op.operands) > len(grids) + has_lengths:
            grids.append((b, h, m, n))
        if has_lengths:
            grids.append((b, h))
        operands = [
            np.broadcast_to(self.read(self.env[v], read_map, grid), grid)
            for v, read_map, grid in zip(op.operands, maps, grids, strict=False)
        ]
        lengths = operands.pop()[..., None, None] if has_lengths else np.full((b, h, 1, 1), n)
        q, k, v = operands[:3]
        scores = np.matmul(q, np.swapaxes(k, -1, -2)) * ir.FloatAttr(op.attributes["scale"]).value
        if len(operands) == 4:
            mask = operands[3]
            scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
        scores = np.where(np.arange(n) < lengths, scores, -np.inf)
        if "causal" in op.attributes:
            (offset,) = map_exprs(op.attributes["causal"].value)
            last = np.arange(m)[:, None] + offset.evaluate(symbols=self.symbols)
            if "from_end" in op.attributes:
                last = last + (lengths - m)
            scores = np.where(np.arange(n)[None, :] <= last, scores, -np.inf)
        values = np.matmul(_softmax(scores), v)
        return [self.written(op, values, maps[-1], (b, h, m, dv))]

    def _scan(self, op: Any) -> list[Array]:
        x = self.row_input(op)
        kind = ir.StringAttr(op.attributes["kind"]).value
        steps = {"add": np.add, "mul": np.multiply, "logaddexp": np.logaddexp}
        if kind in steps:
            return [steps[kind].accumulate(x, axis=-1)]
        values = (np.maximum if kind == "max" else np.minimum).accumulate(x, axis=-1)
        taken = (x == values) | np.isnan(x)
        places = np.where(taken, np.arange(x.shape[-1]), 0)
        return [values, np.maximum.accumulate(places, axis=-1)][: len(op.results)]

    def _sort(self, op: Any) -> list[Array]:
        x = self.row_input(op)
        wanted = self.sizes(sir.shape_of(op.results[0]))[-1]
        if "descending" in op.attributes:
            # The reverse of the row in order, which is stable from its other end.
            back = np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
            places = x.shape[-1] - 1 - back
        else:
            places = np.argsort(x, axis=-1, kind="stable")
        places = places[..., :wanted]
        return [np.take_along_axis(x, places, axis=-1), places]

    def row_input(self, op: Any) -> Array:
        """The input of a scan or sort over its space."""
        space = self.sizes(sir.attr_sizes(op.attributes["space"]))
        read = self.read(self.env[op.operands[0]], sir.op_maps(op)[0], space)
        return np.broadcast_to(read, space)

    def written(self, op: Any, values: Array, affine_map: Any, space: Sequence[int]) -> Array:
        """The result of an op that writes `values` at a map over a grid; NaN where it does not."""
        written = np.full(self.sizes(sir.shape_of(op.results[0])), np.nan)
        places = self.indices(affine_map, space)
        if values.size:
            self.check_bounds(written, places, "the result's map")
            written[tuple(places)] = values
        return written

    def _conv(self, op: Any) -> list[Array]:
        space = self.sizes(sir.attr_sizes(op.attributes["space"]))
        image = self.sizes(sir.attr_sizes(op.attributes["image"]))
        maps, rank, window = sir.op_maps(op), len(image), Window.of(op)
        (n, g, *pixels), (f, c, *taps) = space[: 2 + rank], space[2 + rank :]
        grids = [(n, g, *image, c), (g, f, c, *taps)]
        x, weight = (
            np.broadcast_to(self.read(self.env[v], m, grid), grid)
            for v, m, grid in zip(op.operands, maps, grids, strict=False)
        )
        result_space = (n, g, *pixels, f)
        sums = np.zeros(result_space)
        for tap in np.ndindex(*taps):
            seen = x
            for dim in range(rank):
                seen = _shifted(seen, dim, pixels[dim], tap[dim], window)
            sums += np.einsum("ng...c,gfc->ng...f", seen, weight[(..., *tap)])
        if len(op.regions[0].blocks):
            extras = [
                self.read(self.env[v], m, result_space)
                for v, m in zip(list(op.operands)[2:], maps[2:-1], strict=True)
            ]
            (sums,) = self.run_body(sir.body(op), [sums, *extras], result_space)
        values = np.broadcast_to(sums, result_space)
        return [self.written(op, values, maps[-1], result_space)]

    def _pack(self, op: Any) -> list[Array]:
        weight = self.env[op.operands[0]]
        dim, panel = (ir.IntegerAttr(op.attributes[name]).value for name in ("dim", "panel"))
        if "space" in op.attributes:
            space = self.sizes(sir.attr_sizes(op.attributes["space"]))
            seen = np.broadcast_to(self.read(weight, op.attributes["map"].value, space), space)
        else:
            seen, dim = (weight, 0) if dim == 0 else (weight.T, 0)
        pads = [(0, -size % panel if i == dim else 0) for i, size in enumerate(seen.shape)]
        padded = np.pad(seen, pads)
        cut = padded.reshape(*seen.shape[:dim], -1, panel, *seen.shape[dim + 1 :])
        return [np.moveaxis(cut, dim + 1, -1)]

    def _join(self, op: Any) -> list[Array]:
        dim = ir.IntegerAttr(op.attributes["dim"]).value
        return [np.concatenate([self.env[value] for value in op.operands], axis=dim)]

    def _launch(self, op: Any) -> list[Array]:
        kernel = self.interpreter.kernels[ir.FlatSymbolRefAttr(op.attributes["kernel"]).value]
        sizes = self.sizes(map_exprs(op.attributes["sizes"].value))
        frame = _Frame(self.interpreter, dict(enumerate(sizes)))
        block = sir.body(kernel)
        for argument, operand in zip(block.arguments, op.operands, strict=True):
            # A launch may regroup contiguous dims.
            shape = frame.sizes(sir.shape_of(argument))
            frame.env[argument] = self.env[operand].reshape(shape)
        return [
            result.reshape(self.sizes(sir.shape_of(value)))
            for result, value in zip(frame.run(block), op.results, strict=True)
        ]


def _full_matrices(lhs: Array, rhs: Array, space: Sequence[int]) -> tuple[Array, Array]:
    """Operands [.., m, k] and [.., n, k] whose rows or columns were read once if all are equal."""
    m, n, k = space[-3:]
    left = np.broadcast_to(lhs, (*lhs.shape[:-2], m, k))
    right = np.broadcast_to(rhs, (*rhs.shape[:-2], n, k))
    return left, right


def _identity(kind: str, dtype: np.dtype[Any]) -> Any:
    if kind == "add":
        return dtype.type(0)
    if kind == "mul":
        return dtype.type(1)
    if dtype == np.bool_:
        return kind == "and"
    if kind in ("and", "or"):
        return dtype.type(-1 if kind == "and" else 0)
    if dtype.kind == "f":
        return -np.inf if kind == "max" else np.inf
    limits = np.iinfo(dtype)
    return limits.min if kind == "max" else limits.max


def _softmax(scores: Array) -> Array:
    """Softmax over the last dim; a row of -inf gives zeros."""
    if scores.shape[-1] == 0:
        return scores
    best = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(best), 0, best))
    total = powers.sum(axis=-1, keepdims=True)
    return np.where(total == 0, 0, powers / np.where(total == 0, 1, total))
