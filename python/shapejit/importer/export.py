# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From a model and an example call to an exported program with the user's dims.

torch.export runs twice. First with the user's own `Dim`s; if torch refuses them (it is strict about
ranges, and refuses some that hold), again with `Dim.AUTO` in their place, and then `guards` judges
torch's assumptions by the user's ranges. Those that torch made by chance, for the example's sizes,
are got rid of by other sizes to trace with.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.dynamic_shapes import ShapesCollection
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from shapejit.errors import ErrorId, ShapeJitError
from shapejit.importer.dynamic_shapes import (
    DimKind,
    ExampleCall,
    InputLeaf,
    LeafDim,
    RootDim,
    read_inputs,
)
from shapejit.importer.examples import traced_examples
from shapejit.importer.guards import Coincidences, check_guards, coincidences
from shapejit.importer.sizes import LEAST_TRACED, SymbolTable, SympySizes
from shapejit.importer.source import error_line
from shapejit.importer.symbols import SizeConstraint, bind_symbols, name_dims
from shapejit.precision import kept_settings

_RESTRICTIONS = (ErrorId.SJ_EXPORT_010, ErrorId.SJ_EXPORT_011)
"""What says that a model holds for some sizes alone."""

_RETRACES = 3
"""Sizes unlike the first ones may have short cuts of their own, deeper in the model."""


@dataclass
class CapturedModel:
    """An exported program, its inputs as the user named them, and its symbols.

    Attributes:
        program: torch's program, before decomposition.
        call: the example call, for names and structure of the arguments.
        leaves: the leaves of the call, in order.
        sizes: the module's symbols, and torch's in terms of them.
        constraints: facts about sizes that every call must be checked for.
    """

    program: ExportedProgram
    call: ExampleCall
    leaves: list[InputLeaf]
    sizes: SympySizes
    constraints: list[SizeConstraint]


def capture(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> CapturedModel:
    """Exports `model`, or takes it as it is if it is an exported program already.

    Raises:
        ExportError: the model or `dynamic_shapes` cannot be captured; names the user's dim.
        TrainError: dropout or batch norm in training mode.
        ArgumentError: the example call does not fit the model.
    """
    if isinstance(model, ExportedProgram):
        return _adopt(model, args, kwargs, dynamic_shapes)
    if not isinstance(model, torch.nn.Module):
        raise ErrorId.SJ_ARG_007.error(kind=f"a {type(model).__name__}")
    check_eval(model)
    call = ExampleCall.bind(model.forward, args or (), kwargs or {})
    if dynamic_shapes is not None and hasattr(dynamic_shapes, "dynamic_shapes"):
        dynamic_shapes = dynamic_shapes.dynamic_shapes(model, tuple(args or ()), kwargs)
    leaves = read_inputs(call, dynamic_shapes)
    structure = pytree.tree_structure((tuple(args or ()), dict(kwargs or {})))
    met: Coincidences = {}

    def traced(values: list[Any], *, relaxed: bool = False) -> CapturedModel:
        args, kwargs = pytree.tree_unflatten(values, structure)
        program, validated = _export(model, args, kwargs, leaves, values, relaxed=relaxed)
        return _bound(program, call, leaves, validated=validated, met=met)

    try:
        return traced(traced_examples(leaves))
    except ShapeJitError as error:
        if error.id not in _RESTRICTIONS:
            raise
        refusal = error
    # The model may hold only for some sizes. Or the example's happened to have one of torch's own
    # short cuts, as for even sizes or even halves of them; others then have none. torch refuses the
    # user's dims at either, as it says so of those which have none.
    tried: list[list[Any]] = []
    for _ in range(_RETRACES):
        values = traced_examples(leaves, unlike=met)
        shapes = [getattr(value, "shape", None) for value in values]
        if shapes in tried:
            break
        tried.append(shapes)
        try:
            return traced(values, relaxed=True)
        except ShapeJitError as error:
            if error.id not in _RESTRICTIONS:
                break
        except Exception:
            break
    raise refusal from None


def check_eval(model: torch.nn.Module) -> None:
    """SJ-TRAIN-001 if a module whose result depends on the mode is in training mode."""
    norms = torch.nn.modules.batchnorm._NormBase
    moody = [
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if module.training
        and (
            (isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0)
            or (isinstance(module, norms) and module.track_running_stats)
            or (isinstance(getattr(module, "dropout", None), float) and module.dropout > 0)
        )
    ]
    if moody:
        more = f" and {len(moody) - 3} more" if len(moody) > 3 else ""
        raise ErrorId.SJ_TRAIN_001.error(modules=", ".join(moody[:3]) + more)


# Export -------------------------------------------------------------------------------------------


def _export(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[InputLeaf],
    values: Sequence[Any],
    *,
    relaxed: bool,
) -> tuple[ExportedProgram, bool]:
    """The program, and whether torch accepted the user's own dims; `relaxed`: it is not asked."""
    refusal: Exception | None = None
    if not relaxed:
        try:
            return _run_export(model, args, kwargs, _shapes(leaves, values, relaxed=False)), True
        except Exception as error:
            refusal = error
    # Besides refusing dims, torch may fail while it words the refusal, so any error is tried again.
    try:
        return _run_export(model, args, kwargs, _shapes(leaves, values, relaxed=True)), False
    except Exception as error:
        cause = error if refusal is None or _is_constraint_violation(refusal) else refusal
        raise _export_error(cause) from cause


def _run_export(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any
) -> ExportedProgram:
    with torch.no_grad(), quiet(), kept_settings():
        return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)


@contextmanager
def quiet() -> Iterator[None]:
    """torch's own warnings about its internals say nothing to our users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _shapes(leaves: Sequence[InputLeaf], values: Sequence[Any], *, relaxed: bool) -> Any:
    """torch.export's `dynamic_shapes`; `relaxed` gives `Dim.AUTO` to dims that derive no other."""
    derived = {
        dim.root.name
        for leaf in leaves
        for dim in leaf.dims.values()
        if dim.scale != 1 or dim.offset != 0
    }
    made: dict[str, Any] = {}

    def torch_dim(dim: LeafDim) -> Any:
        root = dim.root
        if root.kind is not DimKind.NAMED or (relaxed and root.name not in derived):
            return Dim.AUTO
        if root.name not in made:
            made[root.name] = _named_dim(root)
        scaled = made[root.name] if dim.scale == 1 else dim.scale * made[root.name]
        return scaled + dim.offset if dim.offset else scaled

    shapes = ShapesCollection()  # type: ignore[no-untyped-call]
    for leaf, value in zip(leaves, values, strict=True):
        if leaf.dims:
            shapes[value] = {index: torch_dim(dim) for index, dim in leaf.dims.items()}
    return shapes if any(leaf.dims for leaf in leaves) else None


def _named_dim(root: RootDim) -> Any:
    """A `Dim` of the user's range. One that ends below the traced size is widened to it."""
    high = root.max
    if high is not None:
        high = max(high, LEAST_TRACED, root.min + 1)
    return Dim(root.name, min=root.min, max=high)


def _is_constraint_violation(error: Exception) -> bool:
    kind = getattr(getattr(error, "error_type", None), "name", "")
    return kind == "CONSTRAINT_VIOLATION" or "Constraints violated" in str(error)


def _export_error(error: Exception) -> Exception:
    line = error_line(error)
    text = str(error).split("\nThe error above occurred")[0].split("\nFor more information")[0]
    reason = " ".join(text.split()) or type(error).__name__
    return ErrorId.SJ_EXPORT_001.error(
        reason=f"{type(error).__name__}: {reason[:1000]}",
        location=None if line is None else str(line),
    )


# Exported programs --------------------------------------------------------------------------------


def user_values(program: ExportedProgram) -> list[Any]:
    """The fake tensors and constants of the user's inputs, in order."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    values: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            node = nodes.get(spec.arg.name)
            values.append(
                getattr(spec.arg, "value", None) if node is None else node.meta.get("val")
            )
    return values


def _adopt(
    program: ExportedProgram,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> CapturedModel:
    """An exported program brings its own example and ranges; the user may name its dims."""
    if args or kwargs:
        raise ErrorId.SJ_ARG_008.error(
            kind="an exported program",
            rule="takes no example arguments: the program holds its own",
            remedy="Leave out args and kwargs",
        )
    values = user_values(program)
    in_spec = program.call_spec.in_spec
    call_args, call_kwargs = pytree.tree_unflatten(values, in_spec)
    call = ExampleCall.bind(_forward_of(program, call_args), call_args, call_kwargs)
    leaves = read_inputs(call, dynamic_shapes)
    leaves = name_dims(leaves, values, program.range_constraints)
    return _bound(program, call, leaves, validated=True)


def _forward_of(program: ExportedProgram, args: tuple[Any, ...]) -> Any:
    """A function with the program's parameter names, as far as it kept them."""
    signature = program.module_call_graph[0].signature
    names = list(getattr(signature, "forward_arg_names", None) or [])
    kwargs = program.call_spec.in_spec.child(1).context or []
    while len(names) < len(args):
        names.append(f"arg{len(names)}")
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in names[: len(args)]]
    parameters += [inspect.Parameter(str(name), inspect.Parameter.KEYWORD_ONLY) for name in kwargs]

    def forward(*_: Any, **__: Any) -> None:
        """Stands for the model's forward; only its signature is read."""

    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return forward


def _bound(
    program: ExportedProgram,
    call: ExampleCall,
    leaves: list[InputLeaf],
    *,
    validated: bool,
    met: Coincidences | None = None,
) -> CapturedModel:
    """The program with the user's symbols; if it holds only for some sizes, `met` gets those of
    torch's coincidences."""
    sizes = SympySizes(SymbolTable())
    values = user_values(program)
    constraints = bind_symbols(leaves, values, sizes)
    shape_env = _shape_env(values)
    if shape_env is not None:
        try:
            constraints += check_guards(shape_env, sizes, validated=validated)
        except ShapeJitError:
            for name, found in coincidences(shape_env, sizes).items():
                (met if met is not None else {}).setdefault(name, []).extend(found)
            raise
    return CapturedModel(program, call, leaves, sizes, constraints)


def _shape_env(values: Sequence[Any]) -> Any:
    for value in values:
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None
