# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Walks a torch-dialect function and applies the rules.

Values are found by identity. Every shape that torch bound is compared with the one our rule gave:
shapes are inferred by the rules alone, and a difference is a fault of ours.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from mlir import ir
from torch_mlir import ir as torch_ir

from shapejit.errors import ErrorId, ShapeJitError
from shapejit.importer.builder import Builder
from shapejit.importer.context import Context, UnsupportedCaseError
from shapejit.importer.decompose import unsupported_error
from shapejit.importer.dtypes import TORCH_MLIR_NAMES
from shapejit.importer.registry import Rule, is_builtin
from shapejit.importer.size_float import read_size_float
from shapejit.importer.sizes import SympySizes, UnknownSizeError
from shapejit.importer.torch_mlir import TorchModule
from shapejit.importer.values import Shape, Tensor
from shapejit.symbolic import Expr

_TENSOR_TYPE = re.compile(r"!torch\.vtensor<\[([^\]]*)\],(\S+)>")
_LINE = re.compile(r'"([^"]+)":(\d+):\d+')
_NAME = re.compile(r'loc\("([^"]+)"\(')


@dataclass(frozen=True)
class TensorType:
    """A torch tensor type: static sizes (None where dynamic) and dtype (None if unsupported)."""

    sizes: tuple[int | None, ...]
    dtype: torch.dtype | None
    element: str


def parse_tensor_type(text: str) -> TensorType | None:
    """The parts of ``!torch.vtensor<[?,8],f32>``; None for any other type."""
    match = _TENSOR_TYPE.fullmatch(text)
    if match is None:
        return None
    sizes = tuple(None if s == "?" else int(s) for s in match[1].split(",") if s)
    return TensorType(sizes, TORCH_MLIR_NAMES.get(match[2]), match[2])


@dataclass
class _Unsupported:
    """Uses of operators that no rule covers, in program order: (operator, source line)."""

    uses: list[tuple[str, str | None]] = field(default_factory=list)


class Walker:
    """Imports the body of one torch-dialect function."""

    def __init__(
        self,
        source: TorchModule,
        builder: Builder,
        sizes: SympySizes,
        rules: Mapping[str, Rule],
    ) -> None:
        self.source = source
        self.builder = builder
        self.sizes = sizes
        self.rules = rules
        self.context = Context(builder)
        self.env: dict[Any, Any] = {}
        self.results: list[Tensor] = []
        self._names = {str(symbol): value for symbol, value in sizes.values.items()}
        self._types: dict[str, TensorType | None] = {}
        self._locations: dict[str, Any] = {}
        self._parsed: dict[str, Expr] = {}
        self._bound: dict[Any, Shape] = {}
        self._unsupported = _Unsupported()

    @property
    def block(self) -> Any:
        """The function's only block, in torch-mlir's IR."""
        return self.source.module.body.operations[0].regions[0].blocks[0]

    def run(self, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Imports every op at the current insertion point; returns what the function returns.

        Raises:
            UnsupportedOpError: lists all uses of operators that the rules do not cover.
        """
        operations = [op.operation for op in self.block.operations]
        self.env.update(zip(self.block.arguments, arguments, strict=True))
        self._read_binds(operations)
        for operation in operations:
            self._import(operation)
        if self._unsupported.uses:
            raise unsupported_error(self._unsupported.uses)
        return self.results

    # Shapes ---------------------------------------------------------------------------------------

    def _read_binds(self, operations: Sequence[Any]) -> None:
        symbols = {
            op.results[0]: self._names.get(torch_ir.StringAttr(op.attributes["symbol_name"]).value)
            for op in operations
            if op.name == "torch.symbolic_int"
        }
        for op in operations:
            if op.name == "torch.bind_symbolic_shape":
                value, *names = op.operands
                shape = self._bind(
                    str(op.attributes["shape_expressions"]), [symbols[n] for n in names]
                )
                if shape is not None:
                    self._bound[value] = shape

    def _bind(self, text: str, values: Sequence[Expr | None]) -> Shape | None:
        """The shape of ``affine_map<()[s0, s1] -> (s0 * s1, 8)>`` with the symbols replaced."""
        known = {i: value for i, value in enumerate(values) if value is not None}
        if len(known) != len(values):
            return None
        inner = text[text.index("->") + 2 : text.rindex(")")].strip()[1:]
        return tuple(
            self._parse(part).substitute(symbols=known) for part in inner.split(",") if part.strip()
        )

    def _parse(self, text: str) -> Expr:
        found = self._parsed.get(text)
        if found is None:
            found = self._parsed[text] = Expr.parse(text)
        return found

    def _type(self, value: Any) -> TensorType | None:
        text = str(value.type)
        if text not in self._types:
            self._types[text] = parse_tensor_type(text)
        return self._types[text]

    def _expected(self, value: Any, kind: TensorType) -> list[Expr | None]:
        bound = self._bound.get(value)
        if bound is not None:
            return list(bound)
        return [None if size is None else Expr.const(size) for size in kind.sizes]

    def _check(self, name: str, value: Any, result: Any, line: str | None) -> None:
        """Compares a result with torch's type and bound shape."""
        kind = self._type(value)
        if kind is None:
            return
        expected = self._expected(value, kind)
        same = isinstance(result, Tensor) and result.rank == len(expected)
        same = same and all(
            size is None or self.builder.same_size(size, ours)
            for size, ours in zip(expected, result.shape, strict=True)
        )
        if not same or result.dtype is not kind.dtype:
            ours = (
                f"{result.dtype}[{_sizes(result.shape)}]" if isinstance(result, Tensor) else result
            )
            wanted = f"{kind.dtype}[{_sizes(expected)}]"
            rule = self.rules.get(name)
            if rule is not None and not is_builtin(rule):
                reason = f"it gives {ours}, PyTorch (the operator's fake kernel) {wanted}"
                raise _custom_rule_error(rule, name, reason, line)
            raise ErrorId.SJ_INTERNAL_003.error(op=name, shape=ours, expected=wanted, location=line)

    # Operations -----------------------------------------------------------------------------------

    def _import(self, op: Any) -> None:
        name = op.name
        if name.startswith("torch.constant."):
            self.env[op.results[0]] = _constant(op)
            return
        special = _SPECIAL.get(name)
        if special is not None:
            special(self, op)
            return
        if name == "torch.operator":
            name = torch_ir.StringAttr(op.attributes["name"]).value
        self._apply(op, name.removeprefix("torch."))

    def _apply(self, op: Any, name: str) -> None:
        location = str(op.location)
        line = _line(location)
        kinds = [self._type(value) for value in op.results]
        operands = [self.env[value] for value in op.operands]
        try:
            self._check_dtypes(name, [*op.operands, *op.results])
            results = self._rule_results(name, kinds, operands, location)
        except UnsupportedCaseError as error:
            self._unsupported.uses.append((f"{name} {error}".strip(), line))
            results = [self._placeholder(value) for value in op.results]
        except ShapeJitError:
            raise
        except UnknownSizeError as error:
            raise error.as_user_error(name, line) from error
        except Exception as error:
            raise _rule_error(self.rules.get(name), name, error, line) from error
        for value, result in zip(op.results, results, strict=True):
            self._check(name, value, result, line)
            self.env[value] = result

    def _rule_results(
        self, name: str, kinds: Sequence[TensorType | None], operands: list[Any], location: str
    ) -> list[Any]:
        if name in ("shapejit.size", "shapejit.size_float"):
            return [read_size_float(self.source.expressions[operands[0]], self.sizes)]
        rule = self.rules.get(name)
        if rule is None:
            raise UnsupportedCaseError
        context = self.context
        context.op = name
        context.dtypes = tuple(kind.dtype for kind in kinds if kind is not None and kind.dtype)
        context.shapes = tuple(kind.sizes for kind in kinds if kind is not None and kind.dtype)
        with self._location(location):
            result = rule(context, *operands)
        results = [result] if len(kinds) == 1 else list(result or ())
        if len(results) != len(kinds):
            raise ValueError(f"it gives {len(results)} results, the operator has {len(kinds)}")
        return results

    def _check_dtypes(self, name: str, values: Sequence[Any]) -> None:
        for value in values:
            kind = self._type(value)
            if kind is not None and kind.dtype is None:
                raise UnsupportedCaseError(f"on {kind.element} tensors")

    def _placeholder(self, value: Any) -> Any:
        """Stands for the result of an unsupported operator, so that the walk finds the others."""
        kind = self._type(value)
        if kind is None:
            return None
        shape = [Expr.const(1) if s is None else s for s in self._expected(value, kind)]
        return self.builder.splat(shape, kind.dtype or torch.float32, 0)

    def _location(self, text: str) -> Any:
        found = self._locations.get(text)
        if found is None:
            found = self._locations[text] = _converted_location(text, self.builder.context)
        return found

    def _symbol(self, op: Any) -> None:
        """A symbol is read through the sizes of tensors; as a value it has no use."""

    def _bind_op(self, op: Any) -> None:
        """Binds were read before the walk; `_check` compares with them."""

    def _list(self, op: Any) -> None:
        self.env[op.results[0]] = [self.env[value] for value in op.operands]

    def _unpack(self, op: Any) -> None:
        items = self.env[op.operands[0]]
        if items is None:  # of an operator that is reported
            items = [self._placeholder(value) for value in op.results]
        for value, item in zip(op.results, items, strict=True):
            self._check("prim.ListUnpack", value, item, _line(str(op.location)))
            self.env[value] = item

    def _return(self, op: Any) -> None:
        self.results = [self.env[value] for value in op.operands]


_SPECIAL = {
    "torch.symbolic_int": Walker._symbol,
    "torch.bind_symbolic_shape": Walker._bind_op,
    "torch.prim.ListConstruct": Walker._list,
    "torch.prim.ListUnpack": Walker._unpack,
    "func.return": Walker._return,
}


def _constant(op: Any) -> Any:
    """The Python value of a ``torch.constant`` op."""
    match op.name.removeprefix("torch.constant."):
        case "none":
            return None
        case "bool":
            return bool(torch_ir.IntegerAttr(op.attributes["value"]).value)
        case "int" | "number":
            return int(torch_ir.IntegerAttr(op.attributes["value"]).value)
        case "float":
            return float(torch_ir.FloatAttr(op.attributes["value"]).value)
        case _:
            return torch_ir.StringAttr(op.attributes["value"]).value


def _converted_location(text: str, context: Any) -> Any:
    """A location of torch-mlir, ``loc("aten.linear"("model.py":41:0))``, in our context."""
    line, name = _LINE.search(text), _NAME.match(text)
    child = (
        ir.Location.unknown(context)
        if line is None
        else ir.Location.file(line[1], int(line[2]), 0, context)
    )
    return child if name is None else ir.Location.name(name[1], child, context)


def _line(location: str) -> str | None:
    """``model.py:41`` of a location as MLIR prints it."""
    match = _LINE.search(location)
    return None if match is None else f"{match[1].rsplit('/', 1)[-1]}:{match[2]}"


def _rule_error(rule: Rule | None, name: str, error: Exception, line: str | None) -> ShapeJitError:
    """For an exception out of a rule, or on the way to it: whose fault it is."""
    reason = f"{type(error).__name__}: {error}"
    if rule is not None and not is_builtin(rule):
        return _custom_rule_error(rule, name, reason, line, error)
    return ErrorId.SJ_INTERNAL_001.error(
        stage="import", reason=f"{name}: {reason}", reproduction="the model", location=line
    )


def _custom_rule_error(
    rule: Rule, name: str, reason: str, line: str | None, error: Exception | None = None
) -> ShapeJitError:
    """For a rule of the user's: names the last line of its file that the exception went through."""
    file = inspect.getsourcefile(rule) or rule.__module__
    number = getattr(getattr(rule, "__code__", None), "co_firstlineno", 0)
    for frame in traceback.extract_tb(error.__traceback__ if error else None):
        if frame.filename == file:
            number = frame.lineno
    return ErrorId.SJ_OP_002.error(
        rule=rule.__qualname__,
        operator=name,
        reason=reason,
        where=f"{Path(file).name}:{number}",
        location=line,
    )


def _sizes(sizes: Sequence[Expr | None]) -> str:
    return ", ".join("?" if size is None else str(size) for size in sizes)
