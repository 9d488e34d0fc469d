# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The user's `dynamic_shapes`, read against an example call.

The notation is torch.export's: a dict by argument name or a sequence, nested like the arguments,
with a dict or a sequence of dims at each tensor. A dim is None or an int (static), a
`torch.export.Dim`, a dim derived from one (``2 * Dim("t") + 1``), a hint (`Dim.AUTO`,
`Dim.DYNAMIC`, `Dim.STATIC`), or a triple ``(min, opt, max)`` whose `opt` is the expected size.

`read_inputs` gives one `InputLeaf` for each leaf of the call, in pytree order.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from shapejit.errors import ErrorId


class DimKind(enum.Enum):
    """How firmly the user asked for a size to vary."""

    NAMED = "named"
    """A `Dim` with a name: it must vary, and differs from other names."""
    UNNAMED = "unnamed"
    """A triple or `Dim.DYNAMIC`: it must vary, but may equal another size."""
    AUTO = "auto"
    """`Dim.AUTO`: it varies if the model allows it."""


@dataclass(frozen=True)
class RootDim:
    """A size that varies freely within its range.

    Attributes:
        name: the user's name, or one made from the argument and the dim.
        min, max: the inclusive range as the user gave it; no `max` means unbounded.
        opt: the size expected most often, if the user said so.
        kind: how firmly it was asked for.
    """

    name: str
    min: int
    max: int | None
    opt: int | None
    kind: DimKind

    @property
    def range_text(self) -> str:
        """The range as messages print it: ``1..64``, ``1..`` when unbounded."""
        return f"{self.min}..{'' if self.max is None else self.max}"


@dataclass(frozen=True)
class LeafDim:
    """The size of one tensor dim: ``scale * root + offset``, with `scale` > 0."""

    root: RootDim
    scale: int = 1
    offset: int = 0

    @property
    def label(self) -> str:
        """How the user wrote this size: ``seq`` or ``2*t + 1``."""
        text = self.root.name if self.scale == 1 else f"{self.scale}*{self.root.name}"
        if self.offset:
            text += f" {'+' if self.offset > 0 else '-'} {abs(self.offset)}"
        return text

    def size(self, root_value: int) -> int:
        """The size when the root is `root_value`."""
        return self.scale * root_value + self.offset

    def root_value(self, size: int) -> int | None:
        """The root's value that gives `size`, or None if none does."""
        quotient, rest = divmod(size - self.offset, self.scale)
        return quotient if rest == 0 else None


@dataclass
class InputLeaf:
    """One leaf of the call's arguments.

    Attributes:
        parameter: name of the parameter of `forward` that holds it.
        name: how messages name it: ``ids``, ``batch["mask"]``, ``states[0]``.
        path: its pytree path below `parameter`.
        value: the example.
        dims: the dynamic dims of a tensor, by number.
    """

    parameter: str
    name: str
    path: tuple[Any, ...]
    value: Any
    dims: dict[int, LeafDim] = field(default_factory=dict)


@dataclass(frozen=True)
class CallArgument:
    """One argument of the example call.

    Attributes:
        parameter: name of the parameter of `forward` that takes it.
        name: its own name: `parameter`, ``states[0]`` in ``*states``, the keyword in ``**options``.
        path: pytree path below `parameter`: empty unless that takes several arguments.
        value: the example.
        keyword: it is passed by keyword.
    """

    parameter: str
    name: str
    path: tuple[Any, ...]
    value: Any
    keyword: bool

    def leaves(self) -> list[InputLeaf]:
        """Its leaves, in pytree order."""
        return [
            InputLeaf(
                self.parameter,
                self.name + "".join(map(_key_text, path)),
                (*self.path, *path),
                leaf,
            )
            for path, leaf in pytree.tree_flatten_with_path(self.value)[0]
        ]


@dataclass(frozen=True)
class ExampleCall:
    """An example call bound to `forward`.

    Attributes:
        arguments: in the order of the call, positional ones first.
        values: the value of each parameter, as `forward` sees it.
    """

    arguments: tuple[CallArgument, ...]
    values: dict[str, Any]

    @staticmethod
    def bind(
        function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ExampleCall:
        """Binds an example call to `function`'s parameters; a mismatch is SJ-ARG-008."""
        signature = inspect.signature(function)
        try:
            values = dict(signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise ErrorId.SJ_ARG_008.error(
                kind="this model",
                rule=f"was given an example call that its forward does not take: {error}",
                remedy=f"Pass args and kwargs for forward{signature}",
            ) from error
        return ExampleCall(tuple(_call_arguments(signature, args, kwargs)), values)

    def leaves(self) -> list[InputLeaf]:
        """All leaves, in the order in which torch.export flattens ``(args, kwargs)``."""
        return [leaf for argument in self.arguments for leaf in argument.leaves()]


def _call_arguments(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[CallArgument]:
    parameters = list(signature.parameters.values())
    for position, value in enumerate(args):
        parameter = parameters[min(position, len(parameters) - 1)]
        first = next(
            (i for i, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL), len(parameters)
        )
        if position < first:
            yield CallArgument(parameter.name, parameter.name, (), value, keyword=False)
        else:
            key: Any = pytree.SequenceKey(position - first)
            name = parameters[first].name
            yield CallArgument(name, f"{name}{_key_text(key)}", (key,), value, keyword=False)
    variadic = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
    for keyword, value in kwargs.items():
        if keyword in signature.parameters and keyword != variadic:
            yield CallArgument(keyword, keyword, (), value, keyword=True)
        else:
            yield CallArgument(
                variadic, keyword, (pytree.MappingKey(keyword),), value, keyword=True
            )


def _key_text(key: Any) -> str:
    match key:
        case pytree.MappingKey(key=str() as text):
            return f'["{text}"]'
        case _:
            return str(key)


def read_inputs(call: ExampleCall, dynamic_shapes: Any) -> list[InputLeaf]:
    """The call's leaves with their dynamic dims. Faults are SJ-EXPORT-002 to 006."""
    leaves = call.leaves()
    reader = _Reader({(leaf.parameter, leaf.path): leaf for leaf in leaves})
    for parameter, spec in _by_parameter(call, dynamic_shapes).items():
        reader.read(call.values[parameter], spec, parameter, ())
    return leaves


def _by_parameter(call: ExampleCall, dynamic_shapes: Any) -> dict[str, Any]:
    if dynamic_shapes is None:
        return {}
    if isinstance(dynamic_shapes, Mapping):
        for name in dynamic_shapes:
            if name not in call.values:
                raise ErrorId.SJ_EXPORT_003.error(
                    argument=name, arguments=", ".join(map(repr, call.values)), hint=""
                )
        return dict(dynamic_shapes)
    if not isinstance(dynamic_shapes, (tuple, list)):
        raise _malformed(
            "", dynamic_shapes, "it must be a dict by argument name, a tuple or a list"
        )
    if len(dynamic_shapes) != len(call.values):
        rule = (
            f"it has {len(dynamic_shapes)} entries, but the call has {len(call.values)} arguments"
        )
        raise _malformed("", dynamic_shapes, rule)
    return dict(zip(call.values, dynamic_shapes, strict=True))


def _malformed(path: str, value: Any, rule: str) -> Exception:
    return ErrorId.SJ_EXPORT_002.error(path=path, value=repr(value), rule=rule)


class _Reader:
    """Walks the arguments and their specs together and fills the leaves' dims."""

    def __init__(self, leaves: dict[tuple[str, tuple[Any, ...]], InputLeaf]) -> None:
        self.leaves = leaves
        self.roots: dict[str, tuple[RootDim, InputLeaf]] = {}

    def read(self, value: Any, spec: Any, parameter: str, path: tuple[Any, ...]) -> None:
        if spec is None:
            return
        leaf = self.leaves.get((parameter, path))
        if leaf is None:
            self.read_node(value, spec, parameter, path)
        elif isinstance(value, torch.Tensor):
            self.read_tensor(leaf, value, spec)
        elif isinstance(value, int) and not isinstance(value, bool) and not isinstance(spec, int):
            raise ErrorId.SJ_EXPORT_015.error(argument=leaf.name, kind="an int that varies")
        elif spec != value:
            raise _malformed(
                _path_text(parameter, path),
                spec,
                f"{leaf.name} is not a tensor, so it must be None",
            )

    def read_node(self, value: Any, spec: Any, parameter: str, path: tuple[Any, ...]) -> None:
        """A container: its spec is like it, or the list of its children's specs."""
        children = _children(value)
        where = _path_text(parameter, path)
        if isinstance(spec, Mapping):
            by_key = {_plain_key(key): (key, child) for key, child in children}
            for name, child_spec in spec.items():
                if name not in by_key:
                    raise _malformed(where, spec, f"{parameter} has no {name!r} there")
                key, child = by_key[name]
                self.read(child, child_spec, parameter, (*path, key))
            return
        if not isinstance(spec, (tuple, list)) or len(spec) != len(children):
            raise _malformed(
                where, spec, f"it must mirror a {type(value).__name__} of {len(children)} entries"
            )
        for (key, child), child_spec in zip(children, spec, strict=True):
            self.read(child, child_spec, parameter, (*path, key))

    def read_tensor(self, leaf: InputLeaf, tensor: torch.Tensor, spec: Any) -> None:
        where = _path_text(leaf.parameter, leaf.path)
        if isinstance(spec, Mapping):
            entries = list(spec.items())
        elif isinstance(spec, (tuple, list)):
            if len(spec) != tensor.ndim:
                raise _malformed(
                    where, spec, f"{leaf.name} has {tensor.ndim} dims, not {len(spec)}"
                )
            entries = list(enumerate(spec))
        else:
            raise _malformed(where, spec, "a tensor's dims are given as a dict, a tuple or a list")
        for index, dim_spec in entries:
            if not isinstance(index, int):
                raise _malformed(where, spec, f"dims are numbered by ints, not {index!r}")
            position = index + tensor.ndim if index < 0 else index
            if not 0 <= position < tensor.ndim:
                raise ErrorId.SJ_EXPORT_004.error(
                    index=index, argument=leaf.name, rank=tensor.ndim, last=tensor.ndim - 1
                )
            self.read_dim(leaf, position, tensor.shape[position], dim_spec)

    def read_dim(self, leaf: InputLeaf, index: int, size: int, spec: Any) -> None:
        where = f"{_path_text(leaf.parameter, leaf.path)}[{index}]"
        dim = self.parse_dim(leaf, index, size, spec, where)
        if dim is None:
            return
        known = self.roots.setdefault(dim.root.name, (dim.root, leaf))
        if known[0] != dim.root:
            raise ErrorId.SJ_EXPORT_006.error(
                dim=dim.root.name,
                range=dim.root.range_text,
                argument=leaf.name,
                other_range=known[0].range_text,
                other_argument=known[1].name,
            )
        leaf.dims[index] = dim

    def parse_dim(
        self, leaf: InputLeaf, index: int, size: int, spec: Any, where: str
    ) -> LeafDim | None:
        if spec is None:
            return None
        if isinstance(spec, int) and not isinstance(spec, bool):
            if spec != size:
                raise _malformed(where, spec, f"the example has {size} there")
            return None
        if isinstance(spec, Dim):
            return _named_dim(spec)
        if isinstance(spec, type(Dim.AUTO)):
            return self.hinted_dim(leaf, index, spec)
        if isinstance(spec, (tuple, list)):
            return self.ranged_dim(leaf, index, spec, where)
        raise _malformed(
            where, spec, "a dim is None, an int, a torch.export.Dim or a (min, opt, max) triple"
        )

    def hinted_dim(self, leaf: InputLeaf, index: int, hint: Any) -> LeafDim | None:
        if hint.type.name == "STATIC":
            return None
        kind = DimKind.AUTO if hint.type.name == "AUTO" else DimKind.UNNAMED
        low = 0 if hint.min is None else hint.min
        return LeafDim(RootDim(self.fresh_name(leaf, index), low, hint.max, None, kind))

    def ranged_dim(self, leaf: InputLeaf, index: int, spec: Sequence[Any], where: str) -> LeafDim:
        if len(spec) != 3 or not all(type(bound) is int for bound in spec):
            raise _malformed(where, spec, "a range is three ints (min, opt, max)")
        low, opt, high = spec
        name = self.fresh_name(leaf, index)
        if not 0 <= low <= opt <= high:
            raise ErrorId.SJ_EXPORT_005.error(
                dim=name, range=repr(tuple(spec)), rule="its numbers are not in order"
            )
        return LeafDim(RootDim(name, low, high, opt, DimKind.UNNAMED))

    def fresh_name(self, leaf: InputLeaf, index: int) -> str:
        """``ids_1`` for dim 1 of argument ids; made unique among all names so far."""
        stem = re.sub(r"\W+", "_", leaf.name).strip("_")
        name = base = f"{stem}_{index}"
        count = 1
        while name in self.roots:
            count += 1
            name = f"{base}_{count}"
        return name


def _named_dim(dim: Any) -> LeafDim:
    """A `Dim`, plain or derived; derived ones are linear in their root, so two values tell all."""
    root = getattr(dim, "root", dim)
    scale, offset = 1, 0
    if root is not dim:
        offset = int(dim.fn(0))
        scale = int(dim.fn(1)) - offset
    high = root.max
    bounded = isinstance(high, int) or getattr(high, "is_Integer", False)
    named = RootDim(
        root.__name__, int(root.min), int(high) if bounded else None, None, DimKind.NAMED
    )
    return LeafDim(named, scale, offset)


def _children(value: Any) -> list[tuple[Any, Any]]:
    """Key and child for each child of a pytree node."""
    pairs, _ = pytree.tree_flatten_with_path(value, is_leaf=lambda child: child is not value)
    return [(path[0], child) for path, child in pairs]


def _plain_key(key: Any) -> Any:
    """The Python key, index or attribute name of a pytree key."""
    return next((getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name)), key)


def _path_text(parameter: str, path: tuple[Any, ...]) -> str:
    return f'["{parameter}"]' + "".join(_key_text(key) for key in path)
