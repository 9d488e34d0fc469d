# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imports a model once, runs it in the interpreter at many sizes, and compares with PyTorch.

The reference is the model itself in float64. Many operators are tested by one model that returns a
dict of results by name: exporting is what costs time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch.export import Dim
from torch.utils import _pytree as pytree

from reference.interpreter import Interpreter
from shapejit import artefacts
from shapejit.importer import ImportedModel, import_model

quick = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
"""Few examples: every one checks all operators of a family."""


class Table(torch.nn.Module):
    """A model that applies every function of a table to its inputs: results by name."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = dict(functions)

    def forward(self, *inputs: torch.Tensor) -> dict[str, Any]:
        return {name: function(*inputs) for name, function in self.functions.items()}


def sizes(low: int, high: int) -> st.SearchStrategy[int]:
    """A size in a range, its ends and 1 more often than others."""
    ends = sorted({low, high, min(max(1, low), high)})
    return st.one_of(st.sampled_from(ends), st.integers(low, high))


def doubled(value: Any) -> Any:
    """A float tensor in float64; anything else as it is."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value


class Imported:
    """A model that was imported, ready to be compared.

    Args:
        model: the model; it is put in eval mode.
        args, kwargs: the example call.
        dynamic_shapes: as for `import_model`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: Sequence[Any],
        dynamic_shapes: Any,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model.eval()
        self.double = copy.deepcopy(model).double()
        self.imported: ImportedModel = import_model(
            model, args, kwargs, dynamic_shapes=dynamic_shapes
        )
        self.interpreter = Interpreter(self.imported.module)
        self.weights = [w.detach().double().numpy() if w.is_floating_point() else w.numpy()
                        for w in self.imported.weight_tensors]  # fmt: skip

    @staticmethod
    def table(
        functions: Mapping[str, Callable[..., Any]],
        examples: Sequence[torch.Tensor],
        dims: Sequence[Mapping[int, str]],
        low: int = 1,
        high: int = 64,
    ) -> Imported:
        """Imports a `Table`. `dims` names the dynamic dims of each input."""
        made: dict[str, Any] = {}
        for names in dims:
            for name in names.values():
                made.setdefault(name, Dim(name, min=low, max=high))
        shapes = tuple({index: made[name] for index, name in names.items()} for names in dims)
        return Imported(Table(functions), examples, {"inputs": shapes})

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The result of a call, by the interpreter: numpy arrays in the model's structure."""
        leaves = [leaf for value in (*args, *kwargs.values()) for leaf in pytree.tree_leaves(value)]
        tensors = [doubled(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        results = iter(self.interpreter.run([t.detach().numpy() for t in tensors] + self.weights))
        outputs: list[Any] = []
        for spec in self.imported.outputs:
            match spec:
                case artefacts.TensorOutput():
                    outputs.append(next(results))
                case artefacts.InputOutput(number):
                    outputs.append(doubled(leaves[number]).numpy())
                case artefacts.ConstantOutput(value):
                    outputs.append(value)
                case artefacts.SizeOutput():
                    outputs.append(spec)
        return pytree.tree_unflatten(outputs, self.imported.output_tree)

    def check(self, *args: Any, tolerance: float = 1e-6, **kwargs: Any) -> None:
        """Compares one call with the model in float64, leaf by leaf."""
        call_args, call_kwargs = pytree.tree_map(doubled, (args, kwargs))
        with torch.no_grad():
            expected = self.double(*call_args, **call_kwargs)
        actual = self.run(*args, **kwargs)
        wanted = pytree.tree_flatten_with_path(expected)[0]
        faults = [
            f"{pytree.keystr(path)}: {fault}"
            for (path, want), got in zip(wanted, pytree.tree_leaves(actual), strict=True)
            if isinstance(want, torch.Tensor)
            if (fault := difference(got, want.numpy(), tolerance)) is not None
        ]
        assert not faults, "\n".join(faults)


def difference(got: np.ndarray, want: np.ndarray, tolerance: float) -> str | None:
    """What differs, or None if max|got - want| / max|want| is within the tolerance.

    NaN and infinities must agree element by element, and all that is no float exactly.
    """
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    if want.dtype.kind != "f":
        # The interpreter's integers have no sign.
        return None if np.array_equal(got.astype(want.dtype), want) else f"{got} is not {want}"
    if not np.array_equal(np.isnan(got), np.isnan(want)):
        return f"NaN differ: {got} for {want}"
    infinite, finite = np.isinf(want), np.isfinite(want)
    if not np.array_equal(got[infinite], want[infinite]):
        return f"infinities differ: {got} for {want}"
    if not finite.any():
        return None
    scale = max(np.abs(want[finite]).max(), 1e-30)
    error = np.abs(got[finite] - want[finite]).max() / scale
    return None if error <= tolerance else f"error {error:.2e}: {got} for {want}"
