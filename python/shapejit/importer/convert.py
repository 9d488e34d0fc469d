# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Makes the module in our dialect: symbols, constraints, and the function with its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mlir import ir
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec
from torch.utils import _pytree as pytree

from shapejit import artefacts
from shapejit.errors import ErrorId
from shapejit.importer.builder import Builder, Read
from shapejit.importer.context import splat_cast
from shapejit.importer.decompose import FunctionalProgram
from shapejit.importer.dtypes import TORCH_MLIR_NAMES, dtype_name
from shapejit.importer.dynamic_shapes import ExampleCall, InputLeaf
from shapejit.importer.export import CapturedModel
from shapejit.importer.registry import Rule
from shapejit.importer.scatters import leads_from, scatter
from shapejit.importer.sizes import Symbol, SymbolTable, UnknownSizeError
from shapejit.importer.symbols import SizeConstraint
from shapejit.importer.torch_mlir import TorchModule, is_tensor_node
from shapejit.importer.updates import updated_outputs
from shapejit.importer.values import Tensor
from shapejit.importer.walk import Walker
from shapejit.ir import make_map
from shapejit.symbolic import Expr

SUPPORTED_DTYPES = frozenset(TORCH_MLIR_NAMES.values())


@dataclass
class Weight:
    """A tensor of the model that is an argument of the function."""

    spec: artefacts.WeightSpec
    tensor: torch.Tensor


@dataclass(frozen=True)
class _Returned:
    """A result of the function.

    Attributes:
        tensor: it.
        name: of the output, or of what changes.
        argument: the function's argument whose new value it is.
    """

    tensor: Tensor
    name: str
    argument: int | None = None


@dataclass
class ConvertedModule:
    """The module and what its arguments and results are; see `ImportedModel`."""

    module: Any
    inputs: tuple[artefacts.InputSpec, ...]
    states: list[Weight]
    weights: list[Weight]
    outputs: tuple[artefacts.OutputSpec, ...]
    updates: tuple[int, ...]


def parameters_of(call: ExampleCall) -> tuple[artefacts.Parameter, ...]:
    """The arguments of a call, as the program takes them."""
    found = []
    for argument in call.arguments:
        tree = pytree.tree_structure(argument.value)
        single = None if tree.is_leaf() else tree
        found.append(artefacts.Parameter(argument.name, argument.keyword, single))
    return tuple(found)


def convert_program(
    captured: CapturedModel,
    functional: FunctionalProgram,
    source: TorchModule,
    outputs: Sequence[Any],
    rules: Mapping[str, Rule],
) -> ConvertedModule:
    """Converts a program whose operators have rules.

    Args:
        captured: the symbols and the inputs' names.
        functional: the program that `source` was imported from.
        outputs: the arguments of the graph's output, before it was reduced to tensors.
        rules: the importer's rules by operator.
    """
    return _Converter(captured, functional, source, rules).run(outputs)


class _Converter:
    def __init__(
        self,
        captured: CapturedModel,
        functional: FunctionalProgram,
        source: TorchModule,
        rules: Mapping[str, Rule],
    ) -> None:
        self.captured = captured
        self.program = functional.program
        self.graph = functional.graph
        self.table = captured.sizes.table
        self.context = ir.Context()
        self.builder = Builder(self.context, self.table)
        self.walker = Walker(source, self.builder, captured.sizes, rules)
        self.arguments: list[tuple[Tensor, str, str]] = []  # tensor, name, kind
        self.states: list[Weight] = []
        self.weights: list[Weight] = []
        # Of the program's outputs the inputs whose new values they are, by number.
        self.updates = dict(updated_outputs(self.program))
        self.number_of: dict[str, int] = {}  # of an argument of the function, by the input's name
        self.weight_arguments: dict[Any, Tensor] = {}

    def run(self, outputs: Sequence[Any]) -> ConvertedModule:
        with self.context, ir.Location.unknown():
            module = ir.Module.create()
            inputs, graph_arguments = self._arguments()
            function, entry = self._function(module)
            for (tensor, _, _), value in zip(self.arguments, entry.arguments, strict=True):
                tensor.value = value
            with ir.InsertionPoint(entry):
                results = self.walker.run(graph_arguments)
                specs, returned = self._outputs(outputs, results)
                self._return(function, entry, returned)
            for shape in self.builder.shapes():
                self.table.require(*shape)
            checked = {fact.expr for fact in self.captured.constraints if fact.kind == "ge"}
            self.captured.constraints += [
                SizeConstraint("ge", expr) for expr in self.table.required if expr not in checked
            ]
            self._declare(module)
            if not module.operation.verify():
                raise ErrorId.SJ_INTERNAL_001.error(
                    stage="import", reason="the module does not verify", reproduction="the model"
                )
        return ConvertedModule(
            module, inputs, self.states, self.weights, specs, self._updated_leaves()
        )

    def _updated_leaves(self) -> tuple[int, ...]:
        """The leaves of the call that change."""
        leaves = self._leaf_numbers()
        return tuple(sorted(leaves[i] for i in self.updates.values() if i in leaves))

    def _leaf_numbers(self) -> dict[int, int]:
        """Of the program's inputs, by number, which leaf of the call they are; states follow."""
        specs = self.program.graph_signature.input_specs
        users = [i for i, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT]
        return {number: leaf for leaf, number in enumerate(users)}

    # Arguments ------------------------------------------------------------------------------------

    def _arguments(self) -> tuple[tuple[artefacts.InputSpec, ...], list[Tensor]]:
        """Specs of the inputs' leaves, and a tensor for each of the graph's arguments."""
        signature = self.program.graph_signature.input_specs
        names = [spec.arg.name for spec in signature]
        nodes = dict(zip(names, self._placeholders(), strict=True))
        by_name: dict[str, Tensor] = {}
        leaves = iter(self.captured.leaves)
        specs: list[artefacts.InputSpec] = []
        for spec in signature:
            if spec.kind is InputKind.USER_INPUT:
                leaf = next(leaves)
                value = nodes[spec.arg.name].meta.get("val") if spec.arg.name in nodes else None
                specs.append(self._input(spec, leaf, value, by_name))
        changed = [spec for i, spec in enumerate(signature) if i in self.updates.values()]
        for spec in changed:
            if spec.kind is not InputKind.USER_INPUT:
                by_name[spec.arg.name] = self._state(spec)
        for spec in signature:
            if spec.kind is not InputKind.USER_INPUT and spec not in changed:
                node = nodes[spec.arg.name]
                by_name[spec.arg.name] = self._weight(spec, node.meta["val"], used=bool(node.users))
        ordered = [by_name.get(name) for name in nodes]
        empty = Tensor((), torch.float32)
        return tuple(specs), [empty if tensor is None else tensor for tensor in ordered]

    def _placeholders(self) -> list[Any]:
        """The graph's inputs, in the order of the signature's. They may differ in name: copying a
        graph renames one that is called like a builtin, `input` say."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    def _input(
        self, spec: InputSpec, leaf: InputLeaf, value: Any, by_name: dict[str, Tensor]
    ) -> artefacts.InputSpec:
        if not isinstance(value, torch.Tensor):
            constant = spec.arg.value if isinstance(spec.arg, ConstantArgument) else value
            if not isinstance(constant, (bool, int, float, str, type(None))):
                raise ErrorId.SJ_EXPORT_015.error(
                    argument=leaf.name, kind=f"a {type(leaf.value).__name__}"
                )
            return artefacts.ConstantInput(leaf.name, constant)
        check_dtype(value.dtype, f'input "{leaf.name}"')
        tensor = Tensor(self.captured.sizes.shape(value.shape), value.dtype)
        by_name[spec.arg.name] = tensor
        self.number_of[spec.arg.name] = len(self.arguments)
        self.arguments.append((tensor, leaf.name, "input"))
        return artefacts.TensorInput(leaf.name, dtype_name(value.dtype), tensor.shape)

    def _state(self, spec: InputSpec) -> Tensor:
        """The argument of a buffer that changes: an input that the program itself holds."""
        name = str(spec.target)
        tensor = self._weight_tensor(name)
        check_dtype(tensor.dtype, f'buffer "{name}"')
        argument = Tensor(tuple(map(Expr.const, map(int, tensor.shape))), tensor.dtype)
        constant = name not in self.program.state_dict
        sizes = tuple(map(int, tensor.shape))
        described = artefacts.WeightSpec(name, dtype_name(tensor.dtype), sizes, constant)
        self.states.append(Weight(described, tensor))
        self.number_of[spec.arg.name] = len(self.arguments)
        self.arguments.append((argument, name, "input"))
        return argument

    def _weight(self, spec: InputSpec, value: torch.Tensor, *, used: bool) -> Tensor:
        """A weight's argument. Unused ones get none, tied ones share, scalars are constants."""
        shape = tuple(map(Expr.const, map(int, value.shape)))
        placeholder = Tensor(shape, value.dtype)
        if not used:
            return placeholder
        name = str(spec.target)
        tensor = self._weight_tensor(name)
        check_dtype(tensor.dtype, f'weight "{name}"')
        literal = spec.kind is InputKind.CONSTANT_TENSOR
        if literal and tensor.numel() == 1 and tensor.ndim == 0:
            return self.builder.splat(shape, tensor.dtype, splat_cast(tensor.item(), tensor.dtype))
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        if key in self.weight_arguments and tensor.numel():
            return self.weight_arguments[key]
        constant = literal or name not in self.program.state_dict
        sizes = tuple(map(int, tensor.shape))
        self.weights.append(
            Weight(artefacts.WeightSpec(name, dtype_name(tensor.dtype), sizes, constant), tensor)
        )
        self.weight_arguments[key] = placeholder
        self.arguments.append((placeholder, name, "weight"))
        return placeholder

    def _weight_tensor(self, name: str) -> torch.Tensor:
        tensor = self.program.state_dict.get(name)
        found = self.program.constants[name] if tensor is None else tensor
        assert isinstance(found, torch.Tensor)
        return found

    # Function -------------------------------------------------------------------------------------

    def _function(self, module: Any) -> tuple[Any, Any]:
        types = [self.builder.tensor_type(t.shape, t.dtype) for t, _, _ in self.arguments]
        function = ir.Operation.create(
            "func.func",
            attributes={
                "sym_name": ir.StringAttr.get("main"),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
                "arg_attrs": ir.ArrayAttr.get(
                    [
                        _names({"shapejit.name": name, "shapejit.kind": kind})
                        for _, name, kind in self.arguments
                    ]
                ),
            },
            regions=1,
            ip=ir.InsertionPoint(module.body),
        )
        return function, function.regions[0].blocks.append(*types)

    def _return(self, function: Any, entry: Any, returned: list[_Returned]) -> None:
        """Ends the function. Each result is a value of its own, and no argument.

        New values of arguments come last; scatters lead to them from the arguments.
        """
        returned = sorted(returned, key=lambda each: each.argument is not None)
        values: list[Any] = []
        arguments = list(entry.arguments)
        for each in returned:
            tensor = each.tensor
            if each.argument is not None:
                tensor = self._written_back(tensor, self.arguments[each.argument][0])
            value = self.builder.value(tensor)
            if value in values or value in arguments:
                value = self.builder.value(
                    self.builder.pointwise(lambda scalar: scalar, [tensor], tensor.dtype)
                )
            values.append(value)
        ir.Operation.create("func.return", operands=values)
        kind = ir.FunctionType.get([a.type for a in arguments], [v.type for v in values])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        function.attributes["res_attrs"] = ir.ArrayAttr.get(
            [_result_attributes(each) for each in returned]
        )

    def _written_back(self, x: Tensor, argument: Tensor) -> Tensor:
        """The new value of an argument, as updates of it."""
        if x.value is not None and x.value != argument.value and leads_from(x, argument):
            return x
        # torch leaves a broadcast out of what is copied to a static shape.
        x = self.builder.expand(x, argument.shape)
        identity = tuple(map(Expr.dim, range(x.rank)))
        return scatter(self.builder, x.shape, Read(x, identity), [], argument, identity)

    def _outputs(
        self, outputs: Sequence[Any], results: Sequence[Tensor]
    ) -> tuple[tuple[artefacts.OutputSpec, ...], list[_Returned]]:
        """Specs of the result's leaves, and the tensors that the function returns."""
        signature = self.program.graph_signature
        inputs = {
            node.name: number
            for number, node in enumerate(
                node
                for node, spec in zip(self._placeholders(), signature.input_specs, strict=True)
                if spec.kind is InputKind.USER_INPUT
            )
        }
        names = iter(_leaf_names(self.program.call_spec.out_spec))
        remaining = iter(results)
        specs: list[artefacts.OutputSpec] = []
        returned: list[_Returned] = []
        changed: dict[Any, int] = {}  # leaves by the node of their new value
        for number, output in enumerate(outputs):
            result = next(remaining) if is_tensor_node(output) else None
            if number in self.updates:
                assert result is not None
                argument = signature.input_specs[self.updates[number]]
                changed.setdefault(output, self._leaf_or_state(self.updates[number]))
                name = self.arguments[self.number_of[argument.arg.name]][1]
                returned.append(_Returned(result, name, self.number_of[argument.arg.name]))
                continue
            name = next(names)
            if result is not None and output in changed:
                specs.append(artefacts.InputOutput(changed[output]))
            elif result is not None and output.op == "placeholder" and output.name in inputs:
                specs.append(artefacts.InputOutput(inputs[output.name]))
            elif result is not None:
                specs.append(artefacts.TensorOutput(dtype_name(result.dtype), result.shape))
                returned.append(_Returned(result, name))
            else:
                specs.append(self._plain_output(output, name))
        return tuple(specs), returned

    def _leaf_or_state(self, number: int) -> int:
        """Which leaf of the call an input of the program is; states count after the leaves."""
        leaves = self._leaf_numbers()
        if number in leaves:
            return leaves[number]
        name = str(self.program.graph_signature.input_specs[number].target)
        return len(leaves) + [state.spec.name for state in self.states].index(name)

    def _plain_output(self, output: Any, name: str) -> artefacts.OutputSpec:
        value = output.meta.get("val") if isinstance(output, torch.fx.Node) else output
        if isinstance(value, torch.SymInt):
            try:
                return artefacts.SizeOutput(self.captured.sizes.size(value))
            except UnknownSizeError as error:
                raise error.as_user_error(f"output {name}", None) from error
        if isinstance(value, (bool, int, float, str, type(None))):
            return artefacts.ConstantOutput(value)
        raise ErrorId.SJ_EXPORT_016.error(output=name, kind=f"a {type(value).__name__}")

    # Symbols and constraints ----------------------------------------------------------------------

    def _declare(self, module: Any) -> None:
        with ir.InsertionPoint.at_block_begin(module.body):
            for symbol in self.table.symbols:
                _declare_symbol(symbol)
            for constraint in self.captured.constraints:
                _declare_constraint(constraint, self.table)


def check_dtype(dtype: torch.dtype, what: str) -> None:
    """SJ-DTYPE-002 unless the dialect has `dtype`."""
    if dtype not in SUPPORTED_DTYPES:
        supported = ", ".join(sorted(map(dtype_name, SUPPORTED_DTYPES)))
        raise ErrorId.SJ_DTYPE_002.error(
            what=what, dtype=dtype_name(dtype), target="any", supported=supported
        )


def _names(values: Mapping[str, str]) -> Any:
    return ir.DictAttr.get({key: ir.StringAttr.get(value) for key, value in values.items()})


def _result_attributes(returned: _Returned) -> Any:
    attributes = {"shapejit.name": ir.StringAttr.get(returned.name)}
    if returned.argument is not None:
        attributes["shapejit.updates"] = _i64(returned.argument)
    return ir.DictAttr.get(attributes)


def _leaf_names(tree: Any) -> list[str]:
    """Names of a result's leaves: ``logits``, ``[0]``, ``output`` for a lone tensor."""
    numbers = pytree.tree_unflatten(list(range(tree.num_leaves)), tree)
    paths = pytree.tree_flatten_with_path(numbers)[0]
    names = []
    for path, _ in paths:
        first, *rest = path or (None,)
        key = getattr(first, "key", getattr(first, "name", None))
        head = str(key) if isinstance(key, str) else "output" if first is None else str(first)
        names.append(head + "".join(map(str, rest)))
    return names


def _i64(value: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _declare_symbol(symbol: Symbol) -> None:
    attributes = {"sym_name": ir.StringAttr.get(symbol.name), "id": _i64(symbol.id)}
    if symbol.derived is not None:
        attributes["derived"] = ir.StringAttr.get(symbol.derived.kind)
        operands = make_map(0, [symbol.derived.lhs, symbol.derived.rhs])
        attributes["arguments"] = ir.AffineMapAttr.get(operands)
    else:
        attributes["min"] = _i64(symbol.min)
        optional = {"max": symbol.max, "opt": symbol.opt, "equal_to": symbol.equal_to}
        attributes |= {key: _i64(value) for key, value in optional.items() if value is not None}
    ir.Operation.create("shapejit.symbol", attributes=attributes)


def _declare_constraint(constraint: SizeConstraint, table: SymbolTable) -> None:
    context = ir.Context.current
    expr = constraint.expr.to_affine(context)
    symbols = 1 + max(constraint.expr.symbols())
    integer_set = ir.IntegerSet.get(0, symbols, [expr], [constraint.kind == "eq"])
    reason = f"{table.describe(constraint.expr)} {'==' if constraint.kind == 'eq' else '>='} 0"
    if constraint.source is not None:
        reason += f" ({constraint.source})"
    ir.Operation.create(
        "shapejit.constraint",
        attributes={
            "set": ir.IntegerSetAttr.get(integer_set),
            "reason": ir.StringAttr.get(reason),
        },
    )
