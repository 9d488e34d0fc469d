# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Moves the computation of values from a function into another one, whose results they become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.fusion.readers import erase_dead
from shapejit.passes.hoisting.plan import Hoisted

BIND_MODULE: Final = "shapejit_bind"
"""Name of the module of what runs when weights are bound."""

HOISTED: Final = "shapejit.hoisted"
"""Attribute of an argument of the function of launches that is no weight of the model's."""

WEIGHT: Final = "shapejit.weight"
"""Attribute of an argument of the bind part: the number of the weight that it is."""


def is_bind_part(module: Any) -> bool:
    """Whether a module is what runs when weights are bound."""
    attributes = module.operation.attributes
    return "sym_name" in attributes and ir.StringAttr(attributes["sym_name"]).value == BIND_MODULE


def split(function: Any, hoisted: Sequence[Hoisted], bind: Any) -> None:
    """Moves what computes some values out of a function; they become weights of it.

    Args:
        function: of a model.
        hoisted: the values, in program order.
        bind: the block of the module that gets a function of the same name with them as results.
    """
    values = [each.value for each in hoisted]
    _make_bind_function(function, hoisted, bind)
    for value, argument in zip(values, _add_arguments(function, values), strict=True):
        value.replace_all_uses_with(argument)
    erase_dead(sir.body(function))


def _make_bind_function(function: Any, hoisted: Sequence[Hoisted], bind: Any) -> None:
    arguments = list(sir.body(function).arguments)
    kinds = [sir.argument_kind(function, number) for number in range(len(arguments))]
    weights = [number for number, kind in enumerate(kinds) if kind == "weight"]
    used = sorted(frozenset[int]().union(*(each.weights for each in hoisted)))
    inputs = [
        {
            "shapejit.kind": ir.StringAttr.get("input"),
            "shapejit.name": _argument_name(function, number),
            WEIGHT: _number(weights.index(number)),
        }
        for number in used
    ]
    results = [{"shapejit.name": ir.StringAttr.get(_name(i))} for i in range(len(hoisted))]
    types = [arguments[number].type for number in used], [each.value.type for each in hoisted]
    with ir.InsertionPoint(bind), function.location:
        made = ir.Operation.create(
            "func.func",
            attributes={
                "sym_name": function.attributes["sym_name"],
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(*types)),
                "arg_attrs": ir.ArrayAttr.get(list(map(ir.DictAttr.get, inputs))),
                "res_attrs": ir.ArrayAttr.get(list(map(ir.DictAttr.get, results))),
            },
            regions=1,
        )
        block = made.regions[0].blocks.append(*types[0])
    given = zip((arguments[number] for number in used), block.arguments, strict=True)
    values = _clone_slice(function, [each.value for each in hoisted], dict(given), block)
    ir.Operation.create(
        "func.return", operands=values, loc=function.location, ip=ir.InsertionPoint(block)
    )


def _clone_slice(
    function: Any, wanted: Sequence[Any], known: dict[Any, Any], block: Any
) -> list[Any]:
    """Clones what some values are computed by into a block: the values there.

    Args:
        known: values of the block by those of the function.
    """
    needed = set(wanted)
    found = []
    for op in reversed(sir.operations(sir.body(function))):
        if needed.intersection(op.results):
            found.append(op)
            needed.update(op.operands)
            needed.update(sir.captured_values(op) if len(op.regions) else ())
    point = ir.InsertionPoint(block)
    for op in reversed(found):
        clone = op.clone(point).operation
        for user in (clone, *sir.walk(clone)):
            for number, value in enumerate(user.operands):
                if value in known:
                    user.operands[number] = known[value]
        known.update(zip(op.results, clone.results, strict=True))
    return [known[value] for value in wanted]


def _add_arguments(function: Any, values: Sequence[Any]) -> list[Any]:
    """New arguments of a function that are weights, of the types of some values."""
    block = sir.body(function)
    count = len(block.arguments)
    added = [block.add_argument(value.type, value.owner.location) for value in values]
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    types = [argument.type for argument in block.arguments]
    before = [ir.DictAttr.get({})] * count
    if "arg_attrs" in function.attributes:
        before = list(ir.ArrayAttr(function.attributes["arg_attrs"]))
    attributes = [
        ir.DictAttr.get(
            {
                "shapejit.kind": ir.StringAttr.get("weight"),
                "shapejit.name": ir.StringAttr.get(_name(number)),
                HOISTED: ir.UnitAttr.get(),
            }
        )
        for number in range(len(values))
    ]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, kind.results))
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([*before, *attributes])
    return added


def _name(number: int) -> str:
    return f"hoisted{number}"


def _argument_name(function: Any, number: int) -> Any:
    attributes = ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[number])
    if "shapejit.name" in attributes:
        return attributes["shapejit.name"]
    return ir.StringAttr.get(f"weight{number}")


def _number(value: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


__all__ = ["BIND_MODULE", "HOISTED", "WEIGHT", "is_bind_part", "split"]
