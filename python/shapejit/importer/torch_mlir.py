# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From an exported program to torch-mlir's torch dialect, weights as arguments.

torch-mlir's stateless import is used, with a node importer of our own: sizes may hold floor
divisions and remainders, every operator carries a location ``"aten.linear"("model.py":41)``, and
size arithmetic that torch-mlir does not know comes as an operator ``shapejit.size`` that refers to
torch's expression.

libLLVM of the `mlir` package must be loaded before torch-mlir; ``import shapejit`` does so.
"""

from __future__ import annotations

import logging
import operator
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import sympy
import torch
from torch.fx import Graph, Node
from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.extras import fx_importer

from shapejit.errors import ErrorId
from shapejit.importer.decompose import FunctionalProgram
from shapejit.importer.registry import target_name
from shapejit.importer.source import model_line

# torch.library is untyped.
_LIBRARY: Final[Any] = torch.library.Library("shapejit", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("size(int expression) -> int")
_LIBRARY.define("size_float(int expression) -> float")

_IMPORTED_ARITHMETIC: Final = frozenset(
    {operator.add, operator.sub, operator.mul, operator.floordiv}
)
"""Size arithmetic that torch-mlir imports itself."""


@dataclass
class TorchModule:
    """A module of torch-mlir's torch dialect with one function.

    Attributes:
        module: the module; keep it alive while its operations are read.
        expressions: what each ``shapejit.size`` operator refers to.
    """

    module: Any
    expressions: list[sympy.Expr] = field(default_factory=list)

    def text(self) -> str:
        """The module's assembly, long constants elided."""
        return str(self.module.operation.get_asm(large_elements_limit=16))


def import_program(functional: FunctionalProgram) -> TorchModule:
    """Imports a program whose operators have rules. Its graph's outputs are reduced to tensors.

    Raises:
        ExportError: torch-mlir refuses the graph (SJ-EXPORT-018).
    """
    graph = functional.graph
    expressions = _replace_size_arithmetic(graph)
    _keep_tensor_outputs(graph)
    graph.eliminate_dead_code()
    context = ir.Context()
    torch_dialect.register_dialect(context)
    with _root_logger_left_alone():
        importer = fx_importer.FxImporter(context=context, graph_node_importer_cls=_NodeImporter)
    importer._cc = _LocatedCache(context)
    importer._cc.set_symbolic_guards(functional.program)
    try:
        importer.import_stateless_graph(
            graph, func_name="main", import_symbolic_shape_expressions=True
        )
    except Exception as error:
        raise ErrorId.SJ_EXPORT_018.error(reason=f"{type(error).__name__}: {error}") from error
    return TorchModule(importer.module, expressions)


@contextmanager
def _root_logger_left_alone() -> Iterator[None]:
    """torch-mlir calls `logging.debug`, which sets the root logger up if it has no handler."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def output_nodes(graph: Graph) -> list[Any]:
    """The arguments of the graph's output: nodes and constants."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    return list(typing.cast("tuple[Any, ...]", output.args[0]))


def _keep_tensor_outputs(graph: Graph) -> None:
    (output,) = (node for node in graph.nodes if node.op == "output")
    output.args = (tuple(node for node in output_nodes(graph) if is_tensor_node(node)),)


def is_tensor_node(node: Any) -> bool:
    """Whether an FX argument is a node that gives a tensor."""
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def _replace_size_arithmetic(graph: Graph) -> list[sympy.Expr]:
    """Puts ``shapejit.size`` in place of size arithmetic that torch-mlir does not import."""
    expressions: list[sympy.Expr] = []
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, (torch.SymInt, torch.SymFloat)):
            continue
        if target_name(node.target) == "aten.sym_size.int":
            continue
        if isinstance(value, torch.SymInt) and node.target in _IMPORTED_ARITHMETIC:
            continue
        library = torch.ops.shapejit
        target = library.size if isinstance(value, torch.SymInt) else library.size_float
        with graph.inserting_before(node):
            replacement = graph.call_function(target.default, (len(expressions),))
        replacement.meta = dict(node.meta)
        expressions.append(value.node.expr)
        node.replace_all_uses_with(replacement)
        graph.erase_node(node)
    return expressions


class _LocatedCache(fx_importer.ContextCache):  # type: ignore[misc]
    """Locations name the operator and the innermost line of the model."""

    def get_node_location(self, node: Node) -> Any:
        if node.op != "call_function":
            return ir.Location.unknown(context=self._c)
        line = model_line(node.meta.get("stack_trace"))
        child = (
            ir.Location.unknown(context=self._c)
            if line is None
            else ir.Location.file(line.file, line.line, 0, context=self._c)
        )
        return ir.Location.name(target_name(node.target), child, context=self._c)


class _NodeImporter(fx_importer.GraphNodeImporter):  # type: ignore[misc]
    """Binds shapes with an expression printer that knows floor division."""

    def _create_bind_symbolic_shape_ops(self, loc: Any, node: Node) -> None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return
        sizes = [
            s.node.expr if isinstance(s, torch.SymInt) else sympy.Integer(s) for s in value.shape
        ]
        symbols = sorted(set().union(*(size.free_symbols for size in sizes)), key=str)
        if not symbols or any(str(symbol) not in self._symbol_to_value for symbol in symbols):
            return
        positions = {symbol: ir.AffineSymbolExpr.get(i) for i, symbol in enumerate(symbols)}
        affine = [_affine(size, positions) for size in sizes]
        if any(expr is None for expr in affine):
            return
        shape_map = ir.AffineMap.get(0, len(symbols), affine)
        ir.Operation.create(
            "torch.bind_symbolic_shape",
            attributes={"shape_expressions": ir.AffineMapAttr.get(shape_map)},
            operands=[
                self.resolve_node_value(node),
                *(self.resolve_symbol_value(str(symbol)) for symbol in symbols),
            ],
            loc=loc,
        )


def _affine(expr: sympy.Expr, symbols: dict[sympy.Symbol, Any]) -> Any:
    """`expr` as a (semi-)affine expression, None if it is none (a maximum, say)."""
    if isinstance(expr, sympy.Symbol):
        return symbols[expr]
    if isinstance(expr, sympy.Integer):
        return ir.AffineConstantExpr.get(int(expr))
    operands = [_affine(arg, symbols) for arg in expr.args]
    combine = _AFFINE.get(type(expr).__name__)
    if combine is None or any(operand is None for operand in operands):
        return None
    if type(expr).__name__ in ("Pow", "PowByNatural"):
        exponent = expr.args[1]
        if not exponent.is_Integer or exponent < 1:
            return None
        operands = operands[:1] * int(exponent)
    result = operands[0]
    for operand in operands[1:]:
        result = combine(result, operand)
    return result


_AFFINE: Final[dict[str, Any]] = {
    "Add": ir.AffineExpr.get_add,
    "Mul": ir.AffineExpr.get_mul,
    "Pow": ir.AffineExpr.get_mul,
    "PowByNatural": ir.AffineExpr.get_mul,
    "FloorDiv": ir.AffineExpr.get_floor_div,
    "CleanDiv": ir.AffineExpr.get_floor_div,
    "CeilDiv": ir.AffineExpr.get_ceil_div,
    "Mod": ir.AffineExpr.get_mod,
    "PythonMod": ir.AffineExpr.get_mod,
}
