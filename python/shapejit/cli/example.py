# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""An example call for the compiler, from a model's own example and the options on its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from shapejit.cli.models import LoadedModule
from shapejit.cli.random_values import IntRange, random_tensor
from shapejit.cli.specs import DimSpec, InputSpec, NamedDim, RangedDim, malformed
from shapejit.errors import ErrorId, join_names, quote
from shapejit.importer.dynamic_shapes import ExampleCall, InputLeaf
from shapejit.options import close_match_hint

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
"""Example sizes of dims, so that no two are equal by accident."""


@dataclass(frozen=True)
class CompileCall:
    """What `shapejit.compile` is called with.

    Attributes:
        int_ranges: least and greatest value of each integer example, by input: values that the
            model is known to take.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: dict[str, Any] | None
    int_ranges: dict[str, IntRange] = field(default_factory=dict)


def compile_call(
    loaded: LoadedModule, specs: Mapping[str, InputSpec], generator: torch.Generator
) -> CompileCall:
    """The example call and its dynamic dims.

    Args:
        loaded: the model; its own example call is used if there is one, with its tensors cut or
            repeated to the sizes that `specs` ask for.
        specs: what the options say, by input.
        generator: source of the values of inputs that the model has no example of.

    Raises:
        CommandLineError: an input is unknown, or not described enough (SJ-CLI-004, -005), or
            differs from the example (SJ-CLI-001).
    """
    sizes = _ExampleSizes(specs.values())
    args, kwargs = loaded.args, loaded.kwargs
    if args is None:
        args, kwargs = _made_arguments(loaded.module, specs, sizes, generator)
        ranges = {}
    else:
        ranges = _int_ranges(ExampleCall.bind(loaded.module.forward, args, kwargs).leaves())
    call = ExampleCall.bind(loaded.module.forward, args, kwargs)
    leaves = call.leaves()
    _check_names(specs, [leaf.name for leaf in leaves if isinstance(leaf.value, Tensor)])
    values = [_example(leaf, specs.get(leaf.name), sizes) for leaf in leaves]
    structure = pytree.tree_structure((tuple(args), dict(kwargs)))
    args, kwargs = pytree.tree_unflatten(values, structure)
    return CompileCall(args, kwargs, _dynamic_shapes(leaves, specs), ranges)


# Example values.


class _ExampleSizes:
    """The size that each dim has in the example call."""

    def __init__(self, specs: Iterable[InputSpec]) -> None:
        self._named: dict[str, int] = {}
        for spec in specs:
            for dim in spec.dims or ():
                if isinstance(dim, NamedDim) and dim.name not in self._named:
                    self._named[dim.name] = _named_size(dim, set(self._named.values()))

    def of(self, dim: DimSpec) -> int:
        """The example size of one dim."""
        match dim:
            case NamedDim(name=name):
                return self._named[name]
            case RangedDim(opt=opt, max=high):
                # Equal ranges get equal sizes: the model may force them to be equal.
                return high if opt is None else opt
            case int():
                return dim


def _named_size(dim: NamedDim, taken: set[int]) -> int:
    if dim.opt is not None:
        return dim.opt
    high = dim.max
    allowed = [p for p in _PRIMES if p >= dim.min and (high is None or p <= high)]
    free = [size for size in allowed if size not in taken]
    return (free or allowed or [dim.min])[0]


def _example(leaf: InputLeaf, spec: InputSpec | None, sizes: _ExampleSizes) -> Any:
    """The leaf's example with the sizes that the options ask for."""
    tensor = leaf.value
    if spec is None or not isinstance(tensor, Tensor):
        return tensor
    if spec.dtype is not None and tensor.dtype is not getattr(torch, spec.dtype):
        rule = f"the model's own example of {quote(leaf.name)} is {_dtype_name(tensor.dtype)}"
        raise malformed(spec.option, spec.text, rule)
    if spec.dims is None:
        return tensor
    if len(spec.dims) != tensor.ndim:
        rule = (
            f"the model's own example of {quote(leaf.name)} has {tensor.ndim} dims "
            f"({_shape_text(tensor.shape)})"
        )
        raise malformed(spec.option, spec.text, rule)
    for index, dim in enumerate(spec.dims):
        tensor = _resized(tensor, index, sizes.of(dim))
    return tensor


def _resized(tensor: Tensor, index: int, size: int) -> Tensor:
    """`tensor` cut, or repeated, to `size` in one dim: its values stay ones the model takes."""
    old = tensor.shape[index]
    if old == size:
        return tensor
    if old == 0:
        return tensor.new_zeros((*tensor.shape[:index], size, *tensor.shape[index + 1 :]))
    return tensor.index_select(index, torch.arange(size, device=tensor.device) % old)


def _int_ranges(leaves: Sequence[InputLeaf]) -> dict[str, IntRange]:
    return {
        leaf.name: (int(leaf.value.min()), int(leaf.value.max()))
        for leaf in leaves
        if isinstance(leaf.value, Tensor)
        and not leaf.value.dtype.is_floating_point
        and not leaf.value.dtype.is_complex
        and leaf.value.dtype is not torch.bool
        and leaf.value.numel()
    }


# Examples made from the options alone.


def _made_arguments(
    module: nn.Module,
    specs: Mapping[str, InputSpec],
    sizes: _ExampleSizes,
    generator: torch.Generator,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of `forward` made from `specs`, positional as far as possible."""
    parameters = inspect.signature(module.forward).parameters
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
        _check_names(specs, list(parameters))
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    positional = True
    for name, parameter in parameters.items():
        if name in specs:
            value = _made(specs[name], sizes, generator)
            if positional and parameter.kind is not parameter.KEYWORD_ONLY:
                args.append(value)
            else:
                kwargs[name] = value
            continue
        positional = False
        if parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        ):
            raise _lacking("the dtype and shape", name, f"--input {name}:float32:4x128")
    for name, spec in specs.items():
        if name not in parameters:
            kwargs[name] = _made(spec, sizes, generator)
    return tuple(args), kwargs


def _made(spec: InputSpec, sizes: _ExampleSizes, generator: torch.Generator) -> Tensor:
    if spec.dtype is None:
        raise _lacking("the dtype", spec.name, f"--input {spec.name}:float32")
    if spec.dims is None:
        raise _lacking("the shape", spec.name, f"--input {spec.name}:{spec.dtype}:4x128")
    shape = [sizes.of(dim) for dim in spec.dims]
    return random_tensor(shape, spec.dtype, generator)


def _lacking(what: str, name: str, suggestion: str) -> Exception:
    return ErrorId.SJ_CLI_005.error(what=what, input=name, suggestion=suggestion)


def _check_names(specs: Mapping[str, InputSpec], known: list[str]) -> None:
    for name, spec in specs.items():
        if name not in known:
            raise ErrorId.SJ_CLI_004.error(
                option=spec.option,
                text=spec.text,
                name=name,
                kind="inputs",
                known=join_names(known),
                hint=close_match_hint(name, known),
            )


# Dynamic dims.


def _dynamic_shapes(
    leaves: Sequence[InputLeaf], specs: Mapping[str, InputSpec]
) -> dict[str, Any] | None:
    """`dynamic_shapes` as torch.export writes it, nested as the arguments are."""
    torch_dim = _dim_maker()
    shapes: dict[str, Any] = {}
    for leaf in leaves:
        spec = specs.get(leaf.name)
        dims = {
            index: torch_dim(dim)
            for index, dim in enumerate((spec and spec.dims) or ())
            if not isinstance(dim, int)
        }
        if not dims:
            continue
        keys = [leaf.parameter, *map(_plain_key, leaf.path)]
        inner = shapes
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = dims
    return shapes or None


def _dim_maker() -> Callable[[NamedDim | RangedDim], Any]:
    """A function to torch's dims; the same name gives the same `Dim`."""
    made: dict[str, Any] = {}

    def torch_dim(dim: NamedDim | RangedDim) -> Any:
        if isinstance(dim, NamedDim):
            return made.setdefault(dim.name, Dim(dim.name, min=dim.min, max=dim.max))
        if dim.opt is not None:
            return (dim.min, dim.opt, dim.max)
        return Dim.DYNAMIC(min=dim.min, max=dim.max)

    return torch_dim


def _plain_key(key: Any) -> Any:
    match key:
        case pytree.SequenceKey(idx=index):
            return index
        case pytree.GetAttrKey(name=name):
            return name
        case _:
            return key.key


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
