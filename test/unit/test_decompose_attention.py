# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention of float32 as products and a softmax: the same values in exact arithmetic."""

from __future__ import annotations

import mlir.ir as ir
import numpy as np
import pytest

from reference.interpreter import Interpreter
from shapejit import ir as sir
from shapejit import passes
from shapejit.pass_host import run_pipeline

# What is in the op beside q, k and v, by name: operands, their types, attributes.
MASK = "tensor<?x?x?xf32, #shapejit.shape<[s0, s1, s2]>>"
LENGTHS = "tensor<?xi64, #shapejit.shape<[s0]>>"
AT_MASK = f"mask(%m at affine_map<(b, h, m, n) -> (b, m, n)> : {MASK})"
AT_LENGTHS = f"lengths(%l at affine_map<(b, h) -> (b)> : {LENGTHS})"
CASES = {
    "float mask": (AT_MASK, "", True, False),
    "lengths": (AT_LENGTHS, "", False, True),
    "causal from the end": ("", "causal = affine_map<()[s0] -> (0)>, from_end, ", False, False),
    "all": (
        f"{AT_MASK} {AT_LENGTHS}",
        "causal = affine_map<()[s0] -> (1)>, from_end, ",
        True,
        True,
    ),
}


def text_of(others: str, attributes: str, masked: bool, measured: bool) -> str:
    q = "tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>"
    k = "tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s2, 4]>>"
    more = f", %m: {MASK}" if masked else ""
    more += f", %l: {LENGTHS}" if measured else ""
    same = "affine_map<(b, h, m, d) -> (b, h, m, d)>"
    return f"""
      shapejit.symbol @b {{id = 0, min = 1}}
      shapejit.symbol @m {{id = 1, min = 1}}
      shapejit.symbol @n {{id = 2, min = 1}}
      func.func @main(%q: {q}, %k: {k}, %v: {k}{more}) -> {q} {{
        %0 = shapejit.attention over [s0, 2, s1, s2, 4, 4]
          q(%q at {same} : {q}) k(%k at {same} : {k}) v(%v at {same} : {k}) {others}
          {{{attributes}scale = 0.5 : f64}} -> {same} : {q}
        return %0 : {q}
      }}"""


def reference(case: str, inputs: list[np.ndarray]) -> np.ndarray:
    """By the definition of the op, one query at a time."""
    _, attributes, masked, measured = CASES[case]
    q, k, v, *others = inputs
    offset = {"": None, "0": 0, "1": 1}[attributes.partition("-> (")[2][:1]]
    result = np.zeros(q.shape)
    for b, h, m in np.ndindex(q.shape[:3]):
        keys = int(others[-1][b]) if measured else k.shape[2]
        scores = 0.5 * k[b, h, :keys] @ q[b, h, m]
        if masked:
            scores = scores + others[0][b, m, :keys]
        if offset is not None:  # from the end: the last query sees up to the last key, and more
            seen = np.arange(keys) <= m + offset + keys - q.shape[2]
            scores = scores[seen]
        if scores.size:
            weights = np.exp(scores - scores.max())
            result[b, h, m] = weights / weights.sum() @ v[b, h, : scores.size]
    return result


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 5), (4, 2)])
def test_the_meaning_stays(case: str, queries: int, keys: int) -> None:
    passes.register_all()
    _, _, masked, measured = CASES[case]
    rng = np.random.default_rng(queries)
    inputs = [rng.standard_normal((2, 2, size, 4)) for size in (queries, keys, keys)]
    if masked:
        inputs.append(rng.standard_normal((2, queries, keys)))
    if measured:
        inputs.append(np.array([keys, keys - 1]))
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text_of(*CASES[case]))
        run_pipeline(module, "shapejit-decompose-attention,shapejit-verify-shapes", stage="test")
        names = [op.name for op in sir.operations(sir.body(sir.functions(module)[0]))]
        assert "shapejit.attention" not in names
        [after] = Interpreter(module).run(inputs)
    np.testing.assert_allclose(after, reference(case, inputs), rtol=0, atol=1e-12)
