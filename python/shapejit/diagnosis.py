# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Words for what is wrong with a call; runs only once `Signature` has found that it is.

`diagnose` walks the inputs in order and returns the error of the first broken rule: kind of each
leaf, then ranks, static sizes, and last the symbols in the order in which the plan finds them.
"""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shapejit.artefacts import ConstantInput, Parameter, SizeInput, SymbolSpec, TensorInput
from shapejit.errors import ErrorId, ShapeJitError, join_names, quote
from shapejit.native_calls import has_memory
from shapejit.signature import Place, Signature, Solution, same_constant
from shapejit.symbolic import Expr

_SYMBOL = re.compile(r"\bs(\d+)\b")


def named(size: Expr | str, symbols: Sequence[SymbolSpec]) -> str:
    """`size` written with the user's names of the dims: ``8*h``, ``max(h - 2, 0)``."""

    def text(match: re.Match[str]) -> str:
        spec = symbols[int(match[1])]
        made = spec.derived
        if made is None:
            return spec.name
        return f"{made.kind}({named(made.lhs, symbols)}, {named(made.rhs, symbols)})"

    return _SYMBOL.sub(text, str(size))


def shape_text(sizes: Sequence[Expr], symbols: Sequence[SymbolSpec]) -> str:
    """``[batch, seq, 768]``."""
    return f"[{', '.join(named(size, symbols) for size in sizes)}]"


def values_text(values: Sequence[int], symbols: Sequence[SymbolSpec]) -> str:
    """``batch = 3, seq = 7``: values of the symbols that the inputs determine."""
    shown = [
        f"{spec.name} = {value}"
        for spec, value in zip(symbols, values, strict=True)
        if spec.derived is None and spec.equal_to is None
    ]
    return ", ".join(shown) or "of the inputs"


def range_text(spec: SymbolSpec) -> str:
    """``1..1024``, or ``1..`` without an upper end."""
    return f"{spec.min}..{'' if spec.max is None else spec.max}"


# Arguments.


def arity_error(
    signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ShapeJitError:
    """The error for a call whose number or names of arguments do not fit."""
    taken = {parameter.name for parameter in signature.positional[: len(args)]}
    names = {parameter.name for parameter in signature.parameters} - taken
    unexpected = [f'keyword argument "{name}"' for name in kwargs if name not in names]
    surplus = len(args) - len(signature.positional)
    if surplus > 0:
        word = "argument" if surplus == 1 else "arguments"
        unexpected.insert(0, f"{surplus} positional {word} too many")
    if unexpected:
        return ErrorId.SJ_ARG_002.error(
            unexpected=" and ".join(unexpected), signature=signature.names
        )
    missing = [
        parameter.name
        for parameter in signature.parameters
        if parameter.name in names and parameter.name not in kwargs
    ]
    word = "argument" if len(missing) == 1 else "arguments"
    return ErrorId.SJ_ARG_001.error(
        missing=f"{word} {join_names(missing)}", signature=signature.names
    )


def structure_error(parameter: Parameter, value: Any) -> ShapeJitError:
    """The error for an argument of another structure than the compiled one."""
    path, found, expected = _first_difference(parameter.tree, value, parameter.name)
    return ErrorId.SJ_ARG_003.error(argument=path, structure=found, expected=expected)


def _first_difference(spec: Any, value: Any, path: str) -> tuple[str, str, str]:
    """Path, found structure and expected structure where `value` first departs from `spec`."""
    found = pytree.tree_structure(value)
    if not spec.is_leaf() and _node_text(spec) == _node_text(found):
        keys = _child_keys(spec)
        children = dict(zip(_child_keys(found), _children(value), strict=True))
        for key, child in zip(keys, spec.children(), strict=True):
            try:
                child.flatten_up_to(children[key])
            except ValueError:
                return _first_difference(child, children[key], path + key)
    return path, describe(value), _node_text(spec)


def _children(value: Any) -> list[Any]:
    """The values directly inside a container."""
    entries = pytree.SUPPORTED_NODES[_node_type(value)].flatten_fn(value)[0]
    return list(entries)


def _node_type(value: Any) -> Any:
    return pytree._get_node_type(value)


def _child_keys(spec: Any) -> list[str]:
    """How each child of a node is reached, as a suffix of the path: ``[0]``, ``["ids"]``."""
    context = spec.context
    if spec.type in (dict, OrderedDict):
        return [f"[{_quoted_key(key)}]" for key in context]
    if spec.type is defaultdict:
        return [f"[{_quoted_key(key)}]" for key in context[1]]
    return [f"[{index}]" for index in range(spec.num_children)]


def _quoted_key(key: Any) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def describe(value: Any) -> str:
    """What `value` is, in a few words: ``a tensor``, ``a dict of "ids"``, ``a list of 2``."""
    if isinstance(value, Tensor):
        return "a tensor"
    if value is None:
        return "None"
    spec = pytree.tree_structure(value)
    return _type_text(type(value)) if spec.is_leaf() else _node_text(spec)


def _node_text(spec: Any) -> str:
    """A container in a few words, keys in sorted order."""
    if spec.is_leaf():
        return "a tensor or constant"
    if spec.type in (dict, OrderedDict, defaultdict):
        keys = spec.context[1] if spec.type is defaultdict else spec.context
        return f"a dict of {join_names(sorted(map(str, keys)))}" if keys else "an empty dict"
    kind = spec.context if spec.type is namedtuple else spec.type
    return f"{_type_text(kind)} of {spec.num_children}"


def _type_text(kind: type) -> str:
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


# Leaves.


def diagnose(signature: Signature, leaves: Sequence[Any]) -> ShapeJitError:
    """The error of the first rule that the leaves of a call break."""
    for error in _broken_rules(signature, leaves):
        return error
    # Only a tensor that another thread changes during the call gets here.
    return ErrorId.SJ_INTERNAL_004.error(values="of the inputs", code=-1)


def _broken_rules(signature: Signature, leaves: Sequence[Any]) -> Iterator[ShapeJitError]:
    for leaf, spec in zip(leaves, signature.inputs, strict=True):
        if isinstance(spec, ConstantInput):
            if not same_constant(leaf, spec.value):
                yield ErrorId.SJ_ARG_005.error(
                    argument=spec.path, value=_constant_text(leaf), expected=repr(spec.value)
                )
        elif isinstance(spec, SizeInput):
            if type(leaf) is not int:
                yield ErrorId.SJ_ARG_004.error(
                    argument=spec.path, kind=describe(leaf), expected="an int", remedy="an int"
                )
        else:
            yield from _broken_by_tensor(signature, leaf, spec)
    yield from _broken_by_static_sizes(signature, leaves)
    values = [0] * len(signature.symbols)
    for solution in signature.solutions:
        yield from _broken_by_solution(signature, leaves, solution, values)
    for symbol, merged in enumerate(signature.symbols):
        values[symbol] = values[signature.root(symbol)]
        if merged.equal_to is not None:
            yield from _out_of_range(signature, leaves, symbol, values[symbol])
    yield from _broken_by_expressions(signature, leaves, values)


def _constant_text(value: Any) -> str:
    scalar = value is None or isinstance(value, (bool, int, float, str))
    return repr(value) if scalar else describe(value)


def _broken_by_tensor(
    signature: Signature, leaf: Any, spec: TensorInput
) -> Iterator[ShapeJitError]:
    """Kind, dtype, device, layout, rank and memory of one leaf."""
    if not isinstance(leaf, Tensor):
        yield ErrorId.SJ_ARG_004.error(
            argument=spec.path,
            kind=describe(leaf),
            expected=f"a tensor of torch.{spec.dtype}",
            remedy=_conversion(leaf, spec),
        )
        return
    if leaf.layout is not torch.strided or leaf.is_nested:
        layout = "nested" if leaf.is_nested else str(leaf.layout)
        yield ErrorId.SJ_ARG_006.error(argument=spec.path, layout=layout)
    if str(leaf.dtype) != f"torch.{spec.dtype}":
        yield ErrorId.SJ_DTYPE_001.error(
            argument=spec.path, dtype=leaf.dtype, expected=f"torch.{spec.dtype}"
        )
    if leaf.device != signature.device:
        yield ErrorId.SJ_DEVICE_001.error(
            argument=spec.path, device=leaf.device, expected=signature.device
        )
    if leaf.dim() != len(spec.dims):
        yield ErrorId.SJ_SHAPE_001.error(
            argument=spec.path,
            rank=leaf.dim(),
            shape=list(leaf.shape),
            expected=len(spec.dims),
            expected_shape=shape_text(spec.dims, signature.symbols),
        )
    if not has_memory(leaf):
        yield ErrorId.SJ_ARG_012.error(argument=spec.path, kind=type(leaf).__name__)


def _conversion(leaf: Any, spec: TensorInput) -> str:
    if type(leaf).__module__ == "numpy" and type(leaf).__name__ == "ndarray":
        return f"torch.from_numpy({spec.path})"
    if isinstance(leaf, (bool, int, float, list, tuple)):
        return f"torch.tensor({spec.path}, dtype=torch.{spec.dtype})"
    return "a tensor"


def _broken_by_static_sizes(signature: Signature, leaves: Sequence[Any]) -> Iterator[ShapeJitError]:
    for index, spec in signature.tensors:
        for dim, size in enumerate(spec.dims):
            found = leaves[index].shape[dim]
            if size.constant is not None and found != size.constant:
                yield ErrorId.SJ_SHAPE_005.error(
                    index=dim,
                    argument=spec.path,
                    size=found,
                    expected=size.constant,
                    expected_shape=shape_text(spec.dims, signature.symbols),
                    suggestion=_dynamic_suggestion(spec.path, dim),
                )


def _dynamic_suggestion(path: str, dim: int) -> str:
    """How to make a dim dynamic; nothing for arguments inside containers."""
    if not path.isidentifier():
        return ""
    return f': dynamic_shapes={{"{path}": {{{dim}: Dim("name")}}}}'


def _size_at(leaves: Sequence[Any], place: Place) -> int:
    leaf = leaves[place.input]
    return int(leaf.shape[place.dim]) if isinstance(leaf, Tensor) else int(leaf)


def _broken_by_solution(
    signature: Signature, leaves: Sequence[Any], solution: Solution, values: list[int]
) -> Iterator[ShapeJitError]:
    """Solve one symbol into `values`, then check its range and divisor."""
    place = solution.place
    size = _size_at(leaves, place)
    value, remainder = divmod(size - solution.offset, solution.scale)
    if remainder:
        yield _off_divisor(signature, place, size, solution.scale, solution.offset)
    values[solution.symbol] = value
    yield from _out_of_range(signature, leaves, solution.symbol, value)
    divisor = signature.symbols[solution.symbol].divisor
    if value % divisor:
        scale = solution.scale * divisor
        yield _off_divisor(signature, place, size, scale, solution.offset)


def _off_divisor(
    signature: Signature, place: Place, size: int, scale: int, offset: int
) -> ShapeJitError:
    rest = offset % scale
    rule = dict(signature.sizes)[place]
    multiple = f"a multiple of {scale}" + (f" plus {rest}" if rest else "")
    return ErrorId.SJ_SHAPE_004.error(
        index=place.dim,
        argument=signature.path(place),
        size=size,
        rule=named(rule, signature.symbols),
        divisibility=multiple,
        padded=size + (rest - size) % scale,
    )


def _out_of_range(
    signature: Signature, leaves: Sequence[Any], symbol: int, value: int
) -> Iterator[ShapeJitError]:
    spec = signature.symbols[symbol]
    below = value < spec.min
    if not below and (spec.max is None or value <= spec.max):
        return
    place = _place_of(signature, symbol)
    error = ErrorId.SJ_SHAPE_002 if below else ErrorId.SJ_SHAPE_003
    yield error.error(
        dim=spec.name,
        size=value,
        argument=signature.path(place),
        index=place.dim,
        range=range_text(spec),
        bound=spec.min if below else spec.max,
        suggestion=_wider_dim(spec, value),
    )


def _place_of(signature: Signature, symbol: int) -> Place:
    """Where the user put the dim: the plain use of a merged symbol, else what solves its root."""
    for place, size in signature.sizes:
        if size.symbol_index == symbol:
            return place
    root = signature.root(symbol)
    return next(solution.place for solution in signature.solutions if solution.symbol == root)


def _wider_dim(spec: SymbolSpec, value: int) -> str:
    """A Dim whose range takes `value`; an upper end is rounded up to a power of two."""
    low = min(spec.min, max(value, 0))
    arguments = [quote(spec.name), f"min={low}"]
    if spec.max is not None:
        high = spec.max if value <= spec.max else 1 << (value - 1).bit_length()
        arguments.append(f"max={high}")
    return f"Dim({', '.join(arguments)})"


def _broken_by_expressions(
    signature: Signature, leaves: Sequence[Any], values: Sequence[int]
) -> Iterator[ShapeJitError]:
    """Sizes that determine nothing: repeated symbols and expressions."""
    for place, rule in signature.sizes:
        size = _size_at(leaves, place)
        expected = signature.rooted(rule).evaluate(symbols=values)
        if size == expected:
            continue
        symbol = rule.symbol_index
        if symbol is not None:
            yield _disagreement(signature, leaves, place, symbol)
        yield ErrorId.SJ_SHAPE_007.error(
            index=place.dim,
            argument=signature.path(place),
            size=size,
            rule=named(rule, signature.symbols),
            expected=expected,
            values=", ".join(
                f"{signature.symbols[s].name} = {values[s]}" for s in sorted(rule.symbols())
            ),
        )


def _disagreement(
    signature: Signature, leaves: Sequence[Any], place: Place, symbol: int
) -> ShapeJitError:
    root = signature.root(symbol)
    solution = next(s for s in signature.solutions if s.symbol == root)
    other = solution.place
    other_size = (_size_at(leaves, other) - solution.offset) // solution.scale
    return ErrorId.SJ_SHAPE_006.error(
        dim=signature.symbols[symbol].name,
        size=_size_at(leaves, place),
        argument=signature.path(place),
        index=place.dim,
        other_size=other_size,
        other_argument=signature.path(other),
        other_index=other.dim,
    )
