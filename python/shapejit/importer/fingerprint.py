# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The one text of an exported program, by which compilations of equal programs know each other.

It has all that importing and compiling read: the graph with the sizes and types of its values, the
user's dims with their ranges, names and structure of arguments and results, source lines (which
reports show), and of the weights everything but their values::

    symbol seq 0 1..512 opt None divisor 1 equal None
    leaf ids
    weight 2 PARAMETER encoder.weight float32 [384, 384] (384, 1) cpu in-state like 2
    node 7 aten.linear.default(%5, %2, %3) float32 [s0, s1, 384] at model.py:41

Values of weights are in it only where the importer makes constants of them: literal tensors of one
element without dims. Values in the graph are numbered, so that their names do not matter. Sizes are
written in torch's own symbols, whose definitions and example values are listed: decompositions may
look at either.

What is not known to be read correctly has no text: operators of other libraries (their
decompositions may change under an unchanged name), graphs within graphs, objects of other types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from shapejit.importer.export import CapturedModel, user_values
from shapejit.importer.source import model_line

LIBRARIES: Final = frozenset({"aten", "prims"})
"""Whose operators torch's version says all about."""

_FUNCTION_MODULES: Final = frozenset({"_operator", "builtins", "math", "operator", "torch"})

_PLAIN: Final = (bool, int, float, complex, str, type(None))
_TORCH: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_SIZES: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)


class NoTextError(Exception):
    """A program holds something of which it is not known what compiling reads."""


def program_text(captured: CapturedModel) -> str:
    """The text of a captured program; equal texts compile to equal artefacts.

    Raises:
        NoTextError: there is none.
    """
    return "\n".join(_Writer(captured).lines())


def weight_tensor(program: ExportedProgram, name: str) -> torch.Tensor | None:
    """The weight or constant of that name; None if the program has none."""
    found = program.state_dict.get(name)
    if found is None:
        found = program.constants.get(name)
    return found if isinstance(found, torch.Tensor) else None


class _Writer:
    def __init__(self, captured: CapturedModel) -> None:
        self._captured = captured
        self._program = captured.program
        self._numbers = {node: number for number, node in enumerate(self._program.graph.nodes)}
        self._names = {node.name: number for node, number in self._numbers.items()}
        self._exprs: dict[Any, str] = {}
        self._sources: dict[str, str] = {}

    def lines(self) -> Iterator[str]:
        """The lines of the text."""
        yield from self._symbols()
        yield from self._call()
        yield from self._signature()
        for node, number in self._numbers.items():
            yield f"node {number} {self._node(node)}"

    def _symbols(self) -> Iterator[str]:
        captured = self._captured
        for s in captured.sizes.table.symbols:
            named = captured.sizes.table.is_named(s.id)
            yield (
                f"symbol {s.name!r} {s.id} {s.min}..{s.max} opt {s.opt} divisor {s.divisor} "
                f"equal {s.equal_to} derived {s.derived} named {named}"
            )
        for symbol, value in captured.sizes.values.items():
            yield f"torch {symbol} = {value}"
        for constraint in captured.constraints:
            yield f"constraint {constraint} at {constraint.source}"
        for symbol, bounds in self._program.range_constraints.items():
            yield f"range {symbol} {bounds.lower}..{bounds.upper}"
        for symbol, hint in _hints(self._program):
            yield f"example {symbol} = {hint}"

    def _call(self) -> Iterator[str]:
        for argument in self._captured.call.arguments:
            tree = _tree(pytree.tree_structure(argument.value))
            yield f"argument {argument.name!r} keyword {argument.keyword} {tree}"
        for leaf in self._captured.leaves:
            yield f"leaf {leaf.name!r}"
        spec = self._program.call_spec
        yield f"call {_tree(spec.in_spec)} -> {_tree(spec.out_spec)}"

    def _signature(self) -> Iterator[str]:
        alike: dict[Any, int] = {}
        for number, spec in enumerate(self._program.graph_signature.input_specs):
            words = [spec.kind.name, self._argument(spec.arg), repr(spec.target)]
            if spec.kind is not InputKind.USER_INPUT:
                words += self._weight(str(spec.target), spec.kind, number, alike)
            yield f"input {number} {' '.join(words)}"
        for number, result in enumerate(self._program.graph_signature.output_specs):
            words = [result.kind.name, self._argument(result.arg), repr(result.target)]
            yield f"output {number} {' '.join(words)}"

    def _weight(
        self, name: str, kind: InputKind, number: int, alike: dict[Any, int]
    ) -> Iterator[str]:
        tensor = weight_tensor(self._program, name)
        if tensor is None:
            raise NoTextError(f"input {name} is no tensor")
        yield f"{tensor.dtype} {list(tensor.shape)} {tensor.stride()} {tensor.device.type}"
        yield "in-state" if name in self._program.state_dict else "constant"
        # Tied weights become one argument.
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        yield f"like {alike.setdefault(place, number) if tensor.numel() else number}"
        if kind is InputKind.CONSTANT_TENSOR and tensor.ndim == 0:
            yield f"= {tensor.item()!r}"

    def _argument(self, argument: Any) -> str:
        if isinstance(argument, ConstantArgument):
            return f"{self._value(argument.value)}"
        number = self._names.get(argument.name)
        return f"{type(argument).__name__} {argument.name if number is None else number}"

    def _node(self, node: Node) -> str:
        if node.op == "call_function":
            target = _target(node.target)
        elif node.op in ("placeholder", "output"):
            target = node.op
        else:
            raise NoTextError(f"a node of kind {node.op}")
        given = [self._value(argument) for argument in node.args]
        given += [f"{name}={self._value(argument)}" for name, argument in node.kwargs.items()]
        is_input = node.op == "placeholder"
        value = "" if node.op == "output" else self._described(node.meta.get("val"), is_input)
        return f"{target}({', '.join(given)}) {value}{self._source(node)}"

    def _value(self, value: Any) -> str:
        """An argument of a node."""
        if isinstance(value, Node):
            return f"%{self._numbers[value]}"
        if isinstance(value, (*_PLAIN, *_TORCH)):
            return repr(value)
        if isinstance(value, _SIZES):
            return self._expr(value.node.expr)
        if isinstance(value, (list, tuple)):  # immutable lists of torch.fx among them
            return f"[{', '.join(map(self._value, value))}]"
        if isinstance(value, dict):
            pairs = (f"{key!r}: {self._value(entry)}" for key, entry in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, slice):
            return f"slice{self._value((value.start, value.stop, value.step))}"
        raise NoTextError(f"an argument of type {type(value).__name__}")

    def _described(self, value: Any, is_input: bool) -> str:
        """What is known of a node's value. Strides of all values follow from those of inputs."""
        if isinstance(value, torch.Tensor):
            sizes = ", ".join(map(self._size, value.shape))
            text = f"{value.dtype} [{sizes}]"
            if is_input:
                strides = ", ".join(map(self._size, value.stride()))
                text += f" ({strides}) {value.device.type} {value.layout}"
            return text
        if isinstance(value, (list, tuple)):
            return f"({', '.join(self._described(each, is_input) for each in value)})"
        return self._value(value)

    def _size(self, size: Any) -> str:
        return str(size) if isinstance(size, int) else self._expr(size.node.expr)

    def _expr(self, expr: Any) -> str:
        """Printing torch's expressions takes long, and there are few."""
        text = self._exprs.get(expr)
        if text is None:
            text = self._exprs[expr] = str(expr)
        return text

    def _source(self, node: Node) -> str:
        trace = node.meta.get("stack_trace") or ""
        text = self._sources.get(trace)
        if text is None:
            line = model_line(trace)
            text = self._sources[trace] = "" if line is None else f" at {line}"
        return text


def _target(target: Any) -> str:
    """The name of an operator or function that torch's and Python's versions say all about."""
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace not in LIBRARIES:
            raise NoTextError(f"the operator {target}")
        return str(target)
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if module not in _FUNCTION_MODULES or name is None:
        raise NoTextError(f"the function {target}")
    return f"{module}.{name}"


def _hints(program: ExportedProgram) -> list[tuple[str, str]]:
    """The sizes of the example call, by torch's symbols."""
    for value in user_values(program):
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                env: Any = size.node.shape_env
                known = getattr(env, "backed_var_to_val", None) or getattr(env, "var_to_val", {})
                return sorted((str(symbol), str(hint)) for symbol, hint in known.items())
    return []


def _tree(tree: pytree.TreeSpec) -> str:
    try:
        return pytree.treespec_dumps(tree)
    except (NotImplementedError, TypeError) as error:
        raise NoTextError(f"a structure that torch cannot write: {error}") from error


__all__ = ["LIBRARIES", "NoTextError", "program_text", "weight_tensor"]
