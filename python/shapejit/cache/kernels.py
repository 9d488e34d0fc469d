# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Keys of kernels and host programs, made from their IR before it is lowered.

An object file defines a symbol, and the host program calls it. For a kernel to be shared by models
that name it differently, its name must not depend on the model: it is made from the key, and the
launches are changed to it. A kernel that the cache has is then taken out of the module, so that
nothing of it is lowered. ::

    shapejit.kernel @rows0 symbols 1 (..) {..}        module @sj_loop_2c26.. attributes {..} {}
    shapejit.kernel @gemm1 symbols 1 (..) {..}   ->   shapejit.kernel @sj_gemm_fcde.. (..) {..}
    shapejit.launch @rows0 ..                         shapejit.launch @sj_loop_2c26.. ..
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlir.ir as ir

from shapejit import ir as sir
from shapejit.cache import fingerprint
from shapejit.cache.key import TargetKey, VariantKey, sorted_items, split_features, text_digest
from shapejit.cache.objects import Fetched, ObjectCache
from shapejit.cache.problem import problem_of, text_of
from shapejit.codegen import HostTarget

_NAME_DIGITS = 32  # of the digest: 128 bits


@dataclass(frozen=True)
class Recipe:
    """How IR becomes native code, apart from what the sources of the passes say.

    Attributes:
        target: the CPU.
        opt_level: LLVM's optimisation level, 0 to 3.
        pipeline: the pass pipelines with their options, as text.
    """

    target: HostTarget
    opt_level: int
    pipeline: str


@dataclass(frozen=True)
class Unit:
    """What becomes one object file.

    Attributes:
        key: its key.
        text: the IR that the key covers, without names and locations.
        symbol: the name that its module and its entry point have.
    """

    key: VariantKey
    text: str
    symbol: str


def name_kernels(module: Any, recipe: Recipe) -> dict[str, Unit]:
    """Gives every ``shapejit.kernel`` of a module the name that its key determines, in place.

    Launches are changed to the new names, and of kernels that are the same one is left.

    Args:
        module: the module after ``shapejit-form-kernels``.
        recipe: how its kernels are compiled.

    Returns:
        The kernels by their new names, in program order.
    """
    names: dict[str, str] = {}
    units: dict[str, Unit] = {}
    for name, op in sir.kernels(module).items():
        unit = kernel_unit(op, recipe)
        names[name] = unit.symbol
        if unit.symbol in units:
            op.erase()
        else:
            units[unit.symbol] = unit
            op.attributes["sym_name"] = ir.StringAttr.get(unit.symbol, op.context)
    for op in sir.walk(module.operation):
        if op.name == "shapejit.launch":
            name = ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
            op.attributes["kernel"] = ir.FlatSymbolRefAttr.get(names[name], op.context)
    return units


def take_found(module: Any, units: dict[str, Unit], cache: ObjectCache) -> dict[str, Fetched]:
    """Replaces every kernel whose code the cache has by an empty module of its name.

    Such a module is how a kernel that is lowered already appears to launches.

    Args:
        module: the module after `name_kernels`.
        units: what `name_kernels` gave.
        cache: where to look.

    Returns:
        The code of the kernels that were replaced, by name.
    """
    found: dict[str, Fetched] = {}
    for name, op in sir.kernels(module).items():
        fetched = cache.get(units[name].key)
        if fetched is None:
            continue
        found[name] = fetched
        with op.context, op.location:
            empty = ir.Operation.create(
                "builtin.module",
                attributes={
                    "sym_name": ir.StringAttr.get(name),
                    "shapejit.target": ir.StringAttr.get("cpu"),
                },
                regions=1,
                ip=ir.InsertionPoint(op),
            )
            empty.regions[0].blocks.append()
        op.erase()
    return found


def kernel_unit(op: Any, recipe: Recipe) -> Unit:
    """The unit of a ``shapejit.kernel``, which is left as it is."""
    problem = problem_of(op)
    key = _key(
        problem.kind,
        problem.text,
        recipe,
        dtypes=problem.dtypes,
        layouts=problem.layouts,
        epilogue=problem.epilogue,
    )
    return Unit(key, problem.text, f"sj_{key.kind}_{key.digest[:_NAME_DIGITS]}")


def host_unit(module: Any, recipe: Recipe) -> Unit:
    """The unit of the module ``@shapejit_host`` after ``shapejit-lower-to-host``.

    Its text names the kernels that it calls. Their names are made from their keys, so that two host
    programs of one key call the same code.
    """
    text = text_of(module.operation)
    symbol = ir.StringAttr(module.operation.attributes["sym_name"]).value
    return Unit(_key("host", text, recipe), text, symbol)


def _key(
    kind: str,
    text: str,
    recipe: Recipe,
    *,
    dtypes: tuple[str, ...] = (),
    layouts: tuple[str, ...] = (),
    epilogue: str = "",
) -> VariantKey:
    target = recipe.target
    return VariantKey(
        kind=kind,
        dtypes=dtypes,
        layouts=layouts,
        math_mode="ieee",
        epilogue=epilogue,
        text=text_digest(text),
        schedule=sorted_items({"panel": target.panel, "pipeline": recipe.pipeline}),
        alignment=1,  # CPU code takes buffers to be aligned to their elements only
        parameters="by-value",
        index_bits=64,
        target=TargetKey(
            target.triple, target.cpu, split_features(target.features), target.vector_bytes
        ),
        opt_level=recipe.opt_level,
        toolchain=fingerprint.toolchain(),
        passes=fingerprint.pass_digest(),
    )
