# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""shapejit's results at many more shapes than a trace has, right and always the same."""

from __future__ import annotations

import copy
import random
import time
from typing import Any

import torch
from peers.base import Setting
from peers.ours import ShapeJit
from torch import Tensor
from trace_exact import least_error, overall_ratio, relative_error
from trace_workload import Request

_TRIPLES = 100
_ALTERNATIONS = 2000
_SHAPES = 40
_BURST = 25
_MOST_SECONDS = 60.0


def check_widely(setting: Setting, deadline: float, seed: int) -> dict[str, Any]:
    """Compares with float64 at random shapes, then alternates shapes.

    Args:
        deadline: of `time.monotonic`; checks that it leaves no time for are left out.
    """
    system = ShapeJit(setting)
    system.build()
    rows = _against_exact(system, setting, min(deadline, time.monotonic() + _MOST_SECONDS), seed)
    calls, mismatches = _alternating(system, setting, deadline, seed)
    return {
        "rows": rows,
        "overall_ratio": overall_ratio(rows),
        "worst_ratio": max((row["ratio"] for row in rows), default=None),
        "alternating_calls": calls,
        "mismatches": mismatches,
    }


def _requests(setting: Setting, count: int, seed: int) -> list[Request]:
    """Corners of the ranges, then sizes drawn evenly, odd ones and 1 among them."""
    rng = random.Random(seed)
    axes = setting.workload.axes
    found: dict[Request, None] = {
        tuple(a.low for a in axes): None,
        tuple(a.high for a in axes): None,
        **{tuple(a.low if a is b else a.high for a in axes): None for b in axes},
    }
    while len(found) < count:
        found[tuple(a.divisor * rng.randint(a.low // a.divisor, a.high // a.divisor)
                    for a in axes)] = None  # fmt: skip
    return list(found)


def _against_exact(
    system: ShapeJit, setting: Setting, deadline: float, seed: int
) -> list[dict[str, Any]]:
    exact_model = copy.deepcopy(setting.model).double()
    rows = []
    for request in _requests(setting, _TRIPLES, seed):
        if time.monotonic() > deadline:
            break
        inputs = setting.inputs(request)
        exact = exact_model(*(x.double() if x.is_floating_point() else x for x in inputs))
        result = system(*inputs)
        error = relative_error(result, exact)
        eager = relative_error(setting.model(*inputs), exact)
        ratio = round(error / max(eager, least_error(result)), 4)
        rows.append({"request": list(request), "error": error, "eager": eager, "ratio": ratio})
    return rows


def _alternating(system: ShapeJit, setting: Setting, deadline: float, seed: int) -> tuple[int, int]:
    """Calls at random among a few shapes, queued in bursts: how many, and how many differed.

    Each result is compared, bit for bit, with that of the shape's first call. Memory that a result
    may get is filled with NaN before.
    """
    rng = random.Random(seed)
    cases: list[tuple[tuple[Tensor, ...], Tensor]] = []
    for request in _requests(setting, 4, seed)[:4] + setting.workload.new_requests(_SHAPES, seed):
        inputs = setting.inputs(request)
        cases.append((inputs, system(*inputs)))
    mismatches = torch.zeros((), dtype=torch.int64, device=setting.place.kind)
    calls = 0
    while calls < _ALTERNATIONS and time.monotonic() < deadline:
        for inputs, expected in rng.choices(cases, k=_BURST):
            poison = torch.full_like(expected, float("nan"))
            del poison
            mismatches += (system(*inputs) != expected).any()
        setting.place.synchronize()
        calls += _BURST
    return calls, int(mismatches)
