# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Masks as lengths: the same values in exact arithmetic, whatever positions say."""

from __future__ import annotations

from collections.abc import Sequence

import mlir.ir as ir
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.interpreter import Interpreter
from shapejit import ir as sir
from shapejit import passes
from shapejit.pass_host import run_pipeline

KEYS = 9

# Conditions over %key and %query, i64, and what is read: a position of all batches (%one), of each
# batch (%own, i32), of each query (%each), keys that are there (%there). With what becomes of it.
CONDITIONS = {
    "causal": ("%x = arith.addi %query, %one : i64", "sle, %key, %x : i64", "exact"),
    "causal, before": ("%x = arith.addi %one, %query : i64", "slt, %key, %x : i64", "exact"),
    "causal, turned": ("%x = arith.subi %key, %query : i64", "sge, %one, %x : i64", "exact"),
    "batches": (
        "%w = arith.extsi %own : i32 to i64\n%x = arith.addi %query, %w : i64",
        "sgt, %x, %key : i64",
        "exact",
    ),
    "counts": ("", "slt, %key, %one : i64", "exact"),
    "counts of batches": (
        "%w = arith.extsi %own : i32 to i64",
        "sle, %key, %w : i64",
        "exact",
    ),
    "positions": ("", "sle, %key, %each : i64", "bound"),
    "falling": ("%x = arith.subi %one, %query : i64", "sle, %key, %x : i64", "bound"),
    "window": ("%x = arith.addi %key, %one : i64", "sgt, %x, %query : i64", "none"),
}


def text_of(names: Sequence[str], padded: bool, causal: str) -> str:
    """A module with one attention whose mask is a conjunction of conditions."""
    q = "tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>"
    k = f"tensor<?x1x{KEYS}x4xf32, #shapejit.shape<[s0, 1, {KEYS}, 4]>>"
    mask = f"tensor<?x?x{KEYS}xi1, #shapejit.shape<[s0, s1, {KEYS}]>>"
    types = {
        "one": ("i64", "tensor<i64, #shapejit.shape<[]>>", ""),
        "own": ("i32", "tensor<?xi32, #shapejit.shape<[s0]>>", "b"),
        "each": ("i64", "tensor<?xi64, #shapejit.shape<[s1]>>", "m"),
        "there": ("i1", f"tensor<?x{KEYS}xi1, #shapejit.shape<[s0, {KEYS}]>>", "b, n"),
    }
    reads = ", ".join(
        f"%t_{name} at affine_map<(b, m, n) -> ({at})> : {type_}"
        for name, (_, type_, at) in types.items()
    )
    lines, seen = [], "%there" if padded else ""
    for number, name in enumerate(names):
        before, comparison, _ = CONDITIONS[name]
        text = f"{before}\n%c = arith.cmpi {comparison}"
        for value in ("%x", "%w", "%c"):
            text = text.replace(value, f"{value}{number}")
        lines.append(text)
        if seen:
            lines.append(f"%s{number} = arith.andi {seen}, %c{number} : i1")
        seen = f"%s{number}" if seen else f"%c{number}"
    same = "affine_map<(b, h, m, d) -> (b, h, m, d)>"
    shared = "affine_map<(b, h, m, d) -> (b, h floordiv 2, m, d)>"
    arguments = ", ".join(f"%t_{name}: {type_}" for name, (_, type_, _) in types.items())
    scalars = ", ".join(f"%{name}: {element}" for name, (element, *_) in types.items())
    return f"""
      shapejit.symbol @b {{id = 0, min = 0, max = 4}}
      shapejit.symbol @m {{id = 1, min = 0, max = 12}}
      func.func @main(%q: {q}, %k: {k}, %v: {k}, {arguments}) -> {q} {{
        %mask = shapejit.loop over [s0, s1, {KEYS}] ins({reads})
            outs(affine_map<(b, m, n) -> (b, m, n)> : {mask}) {{
        ^bb0({scalars}):
          %m_ = shapejit.index 1
          %n_ = shapejit.index 2
          %query = arith.index_cast %m_ : index to i64
          %key = arith.index_cast %n_ : index to i64
          {"".join(line + chr(10) for line in lines)}
          shapejit.yield {seen} : i1
        }}
        %0 = shapejit.attention over [s0, 2, s1, {KEYS}, 4, 4]
          q(%q at {same} : {q}) k(%k at {shared} : {k}) v(%v at {shared} : {k})
          mask(%mask at affine_map<(b, h, m, n) -> (b, m, n)> : {mask})
          {{{causal}scale = 0.5 : f64}} -> {same} : {q}
        return %0 : {q}
      }}"""


def attention_of(module: ir.Module) -> ir.Operation:
    ops = sir.operations(sir.body(sir.functions(module)[0]))
    return next(op for op in ops if op.name == "shapejit.attention")


def check(
    names: Sequence[str],
    padded: bool,
    causal: str,
    sizes: tuple[int, int],
    positions: Sequence[int],
) -> str:
    """Compares the values before and after the pass; returns the text of the attention after it."""
    passes.register_all()
    batches, queries = sizes
    rng = np.random.default_rng(batches + 10 * queries)
    inputs = [
        rng.standard_normal((batches, 2, queries, 4)),
        *(rng.standard_normal((batches, 1, KEYS, 4)) for _ in range(2)),
        np.array(positions[0], np.int64),
        np.resize(np.array(positions, np.int32), batches),
        np.resize(np.array(positions[::-1], np.int64), queries),
        rng.random((batches, KEYS)) > 0.3,
    ]
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text_of(names, padded, causal))
        [before] = Interpreter(module).run(inputs)
        run_pipeline(
            module, "shapejit-limit-attention,shapejit-verify-shapes,canonicalize", stage="test"
        )
        [after] = Interpreter(module).run(inputs)
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-12)
        attention = attention_of(module)
        kinds = {CONDITIONS[name][2] for name in names}
        assert ("has_lengths" in attention.attributes) == bool(kinds & {"exact", "bound"})
        masks = len(attention.operands) - 3 - ("has_lengths" in attention.attributes)
        assert masks == (padded or len(names) > 1 or kinds != {"exact"})
        return str(attention)


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("position", [-20, -1, 0, 3, KEYS - 1, KEYS, 40, 1 << 30])
def test_every_position(name: str, position: int) -> None:
    """Before the first key, the first and the last one, beyond the last."""
    text = check([name], False, "", (2, 3), [position, position - 1, position + 1])
    assert ("from_end" in text) == (name.startswith("causal") or name == "batches")


@given(
    names=st.lists(st.sampled_from(list(CONDITIONS)), min_size=1, max_size=3, unique=True),
    padded=st.booleans(),
    sizes=st.tuples(st.integers(0, 3), st.integers(0, 12)),
    positions=st.lists(st.integers(-15, 15), min_size=1, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_any_conjunction(
    names: list[str], padded: bool, sizes: tuple[int, int], positions: list[int]
) -> None:
    check(names, padded, "", sizes, positions)


@pytest.mark.parametrize("position", [-1, 0, 4, 20])
def test_under_a_causal_limit(position: int) -> None:
    """A causal limit that is there stays; conditions become lengths beside it."""
    causal = "causal = affine_map<() -> (2)>, "
    assert "mask" not in check(["counts"], False, causal, (1, 5), [position])
    passes.register_all()
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text_of(["causal"], False, causal))
        run_pipeline(module, "shapejit-limit-attention", stage="test")
        attention = attention_of(module)
        assert len(attention.operands) == 5, "a mask, and lengths that bound it"
        assert "from_end" not in attention.attributes


def test_limits_from_the_end_stay() -> None:
    """Their meaning depends on the lengths."""
    passes.register_all()
    causal = "causal = affine_map<() -> (0)>, from_end, "
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text_of(["counts"], False, causal))
        run_pipeline(module, "shapejit-limit-attention", stage="test")
        assert "has_lengths" not in attention_of(module).attributes
