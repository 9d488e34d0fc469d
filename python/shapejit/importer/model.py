# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the importer gives to the pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from shapejit.artefacts import (
    ConstraintInfo,
    InputSpec,
    OutputSpec,
    Parameter,
    SymbolSpec,
    WeightSpec,
)

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec


@dataclass
class ImportedModel:
    """A model in our dialect, and all that is known about calling it.

    The module holds the symbols, the constraints and ``func.func @main``, whose arguments are the
    tensor inputs in order, the states and then the weights, and whose results are the
    `TensorOutput`s and then the new values of inputs and states.

    Attributes:
        module: the MLIR module; `module.context` is its context.
        symbols: the module's symbols, by id.
        parameters: the arguments of a call, positional ones first.
        inputs: the leaves of all arguments, in order.
        weights: the weights that are used, in argument order.
        weight_tensors: the model's own tensors, in the same order.
        states: the buffers that calls change, in argument order.
        state_tensors: the model's own tensors, in the same order.
        updates: leaves of the arguments that calls change, in order.
        outputs: the leaves of the result, in order.
        output_tree: structure of the result.
        constraints: facts about sizes that calls are checked for, as in the module.
        seconds: time taken, by step.
    """

    module: Any
    symbols: tuple[SymbolSpec, ...]
    parameters: tuple[Parameter, ...]
    inputs: tuple[InputSpec, ...]
    weights: tuple[WeightSpec, ...]
    weight_tensors: tuple[torch.Tensor, ...]
    outputs: tuple[OutputSpec, ...]
    output_tree: TreeSpec
    constraints: tuple[ConstraintInfo, ...] = ()
    states: tuple[WeightSpec, ...] = ()
    state_tensors: tuple[torch.Tensor, ...] = ()
    updates: tuple[int, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors of `Artefacts.tensors`, in order."""
        return (*self.weight_tensors, *self.state_tensors)
