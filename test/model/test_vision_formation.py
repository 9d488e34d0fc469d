# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels for a GPU, as formed from vision models: the same meaning, no launch too many."""

from __future__ import annotations

import functools
import re
import warnings
from collections import Counter
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest
import torch

from model.test_gpu_formation import stages
from model.vision import VISION_MODELS
from reference.interpreter import Interpreter
from shapejit import ir as sir
from shapejit import passes
from shapejit.cpu_features import host_target
from shapejit.importer import import_model
from shapejit.pipeline import run_stage

passes.register_all()

MODELS = ("unet",)


@functools.cache
def imported(name: str, *, dynamic: bool) -> Any:
    """The module of a model, and its weights."""
    model = VISION_MODELS[name]
    shapes = model.dynamic_shapes() if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its export
        found = import_model(model.model, model.example(), dynamic_shapes=shapes)
    with found.module.context:
        found.module.operation.attributes["shapejit.target"] = ir.StringAttr.get("cuda:sm_90a:h200")
    return found


def formed(name: str, *, dynamic: bool) -> Counter[str]:
    """How many kernels of each kind a model launches; its module is consumed."""
    module = imported(name, dynamic=dynamic).module
    for stage in stages():
        run_stage(module, stage, host_target("host"), verify=True)
    names = (
        ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
        for op in sir.walk(module.operation)
        if op.name == "shapejit.launch"
    )
    return Counter(re.sub(r"\d+", "", kernel) for kernel in names)


@pytest.mark.parametrize("name", MODELS)
def test_formation(name: str) -> None:
    """The interpreter, which rounds nothing, gives the same; there are as many launches as for
    static shapes."""
    torch.manual_seed(0)
    found = imported(name, dynamic=True)
    weights = [w.double().numpy() for w in found.weight_tensors]
    sizes = [(1, 4, 4), (2, 9, 6)]
    inputs = [[x.numpy() for x in VISION_MODELS[name].inputs(*size)] for size in sizes]
    before = [Interpreter(found.module).run([*x, *weights]) for x in inputs]
    launches = formed(name, dynamic=True)
    interpreter = Interpreter(found.module)
    for x, wanted in zip(inputs, before, strict=True):
        for got, want in zip(interpreter.run([*x, *weights]), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    static = formed(name, dynamic=False)
    assert launches.total() <= static.total(), (launches, static)
