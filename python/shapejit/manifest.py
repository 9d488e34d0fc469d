# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`Artefacts` as JSON and back.

A record becomes an object with its class under ``"is"``, a size ``{"size": "s0*s1 + 4"}``, a
treespec ``{"tree": ...}`` in torch's own JSON, a dict ``{"map": {...}}``. Reading makes only the
classes listed here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from shapejit import artefacts as records
from shapejit.artefacts import Artefacts
from shapejit.symbolic import Expr

if TYPE_CHECKING:
    from shapejit.gpu.program_code import GpuCode

_RECORDS: dict[str, Any] = {
    record.__name__: record
    for record in (
        records.Artefacts,
        records.BindPart,
        records.ConstantInput,
        records.ConstantOutput,
        records.ConstraintInfo,
        records.Derivation,
        records.HoistedSpec,
        records.InputOutput,
        records.JoinSpec,
        records.KernelInfo,
        records.LaunchInfo,
        records.PackSpec,
        records.Parameter,
        records.SizeInput,
        records.SizeOutput,
        records.SymbolSpec,
        records.TargetInfo,
        records.TensorInput,
        records.TensorOutput,
        records.WeightSpec,
    )
}

_NAMEDTUPLE = "collections.namedtuple"
"""torch's name for all namedtuples; the context then names the class."""


class UnregisteredTypeError(Exception):
    """A treespec names a container type that torch's pytree registry lacks in this process."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def to_json(artefacts: Artefacts) -> Any:
    """`artefacts`, but for its objects and leases, as dicts, lists and scalars.

    Of a bind part, what runs on a GPU is left out as well.

    Raises:
        NotImplementedError, TypeError: torch cannot serialise a treespec in it.
    """
    bind = artefacts.bind
    if bind is not None:
        program = dataclasses.replace(bind.program, objects=(), leases=(), gpu=None)
        bind = dataclasses.replace(bind, program=program)
    return _encode(dataclasses.replace(artefacts, objects=(), leases=(), bind=bind))


def from_json(value: Any, objects: tuple[bytes, ...]) -> Artefacts:
    """The inverse of `to_json`, with `objects` put back.

    Raises:
        UnregisteredTypeError: a container type is not registered here.
        ValueError, TypeError, KeyError, AttributeError: `value` is not what `to_json` gives.
    """
    artefacts = _decode(value)
    if not isinstance(artefacts, Artefacts):
        raise ValueError("the manifest holds no program")
    return dataclasses.replace(artefacts, objects=objects)


def with_bind_code(
    artefacts: Artefacts, objects: tuple[bytes, ...], gpu: GpuCode | None
) -> Artefacts:
    """What `from_json` gave, with the code of its bind part put back."""
    if artefacts.bind is None:
        return artefacts
    program = dataclasses.replace(artefacts.bind.program, objects=objects, gpu=gpu)
    bind = dataclasses.replace(artefacts.bind, program=program)
    return dataclasses.replace(artefacts, bind=bind)


def _encode(value: Any) -> Any:
    if isinstance(value, Expr):
        return {"size": str(value)}
    if isinstance(value, pytree.TreeSpec):
        return {"tree": pytree.treespec_dumps(value)}
    if dataclasses.is_dataclass(value):
        fields = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {"map": {key: _encode(entry) for key, entry in value.items()}}
    if isinstance(value, tuple):
        return [_encode(entry) for entry in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(entry) for entry in value)
    if not isinstance(value, dict):
        return value
    if "is" in value:
        fields = {key: _decode(entry) for key, entry in value.items() if key != "is"}
        return _RECORDS[value["is"]](**fields)
    if "size" in value:
        return Expr.parse(value["size"])
    if "tree" in value:
        return _tree(value["tree"])
    return {key: _decode(entry) for key, entry in value["map"].items()}


def _tree(text: str) -> pytree.TreeSpec:
    for name in _type_names(json.loads(text)[1]):
        if name not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
            raise UnregisteredTypeError(name)
    return pytree.treespec_loads(text)


def _type_names(node: Any) -> Iterator[str]:
    if node["type"] is not None:
        yield node["type"]
    if node["type"] == _NAMEDTUPLE:
        yield node["context"]
    for child in node["children_spec"]:
        yield from _type_names(child)
