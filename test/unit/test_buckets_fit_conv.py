# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The factors of convolutions: what they apply to, how they are read and fitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shapejit.passes.buckets import fit_conv
from shapejit.passes.buckets.constants import Constants
from shapejit.passes.buckets.conv_factors import (
    FIXED,
    HALO,
    IM2COL,
    LATENCY,
    SHARED,
    SPLIT,
    ConvFactors,
    conv_factors_of,
)
from shapejit.passes.buckets.device import H200
from shapejit.passes.buckets.fit_conv import Layer, predicted, product_of
from shapejit.passes.buckets.model import CostModel, fitting
from shapejit.passes.buckets.problem import GemmSizes, GemmTraits
from shapejit.passes.nvgpu.schedule import GemmSchedule

_RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
RESULTS = tuple(_RESULTS / f"conv{name}-h200.json" for name in ("-halo", "-choice", ""))
SCHEDULES = tuple(
    map(
        GemmSchedule.parse,
        (
            "persistent_128x128x64_s6_w2_turns",
            "small_m_64x64x64_s12_w1_r2",
            "halo_64x56x64_s12_w1",
            "halo_128x128x64_s6_w2",
        ),
    )
)


def test_of_schedules() -> None:
    """Sharing filters comes beside im2col mode, a schedule's own factor beside that of a halo."""
    text = str(SCHEDULES[3])
    factors = ConvFactors({IM2COL: 2.0, SHARED: 3.0, HALO: 5.0, text: 7.0})
    assert [factors.of(each) for each in SCHEDULES] == [2.0, 6.0, 5.0, 35.0]
    assert [ConvFactors().of(each) for each in SCHEDULES] == [1.0] * 4
    split = ConvFactors({IM2COL: 2.0, SPLIT: 3.0})
    texts = (
        "small_m_64x144x64_s7_w1_k2",
        "small_m_64x32x64_s7_w1_k4",
        "swapped_128x144x64_s6_w2_k3",
    )
    assert [split.of(GemmSchedule.parse(text)) for text in texts] == [6.0, 2.0, 2.0]


def test_rates() -> None:
    """Latency, and what does not grow with the steps; no rate."""
    rates = ConvFactors({LATENCY: 0.5, FIXED: 0.25, IM2COL: 2.0}).rates(Constants())
    plain = Constants()
    assert rates.latency == plain.latency / 2
    for name in ("launch", "cluster_launch", "epilogue", "split"):
        assert getattr(rates, name) == getattr(plain, name) / 4
    for name in ("fill_rate", "memory_rate", "step", "epilogue_rate"):
        assert getattr(rates, name) == getattr(plain, name)


def test_only_convolutions_have_them() -> None:
    sizes = GemmSizes(4096, 512, 4608)
    plain, conv = (
        CostModel(H200, SCHEDULES[:2], GemmTraits(conv=conv), conv_factors=None).times(sizes)[0]
        for conv in (False, True)
    )
    alone = CostModel(H200, SCHEDULES[:2], GemmTraits(conv=True), conv_factors=ConvFactors()).times(
        sizes
    )[0]
    assert alone.tolist() == plain.tolist() != conv.tolist()


def _layers(factors: ConvFactors) -> list[Layer]:
    """Layers whose times are just what the model says with some factors."""
    found = []
    for sizes in ((16, 28, 28, 256, 256), (1, 64, 64, 512, 512), (4, 56, 56, 128, 128)):
        problem = product_of(*sizes, 3, 1)
        usable = fitting(H200, SCHEDULES, problem.traits)
        layer = Layer(problem, usable, np.ones(len(usable)))
        found.append(Layer(problem, usable, predicted(layer, H200, factors)))
    return found


def test_factors_are_found_again() -> None:
    """Or others that say the same of what was measured."""
    given = ConvFactors({IM2COL: 0.8, SHARED: 1.6, HALO: 0.7})
    layers = _layers(given)
    found = fit_conv.Fit(H200, layers).run()
    for layer in layers:
        assert predicted(layer, H200, found) == pytest.approx(layer.times, rel=0.05)
    for schedule in SCHEDULES:
        assert found.of(schedule) == pytest.approx(given.of(schedule), rel=0.2)
    assert fit_conv.quality(H200, layers, found).loss == pytest.approx(0, abs=1e-3)


def _record(**changes: Any) -> dict[str, Any]:
    return {
        "group": "known", "kind": "3x3", "sizes": [1, 28, 28, 128, 128], "provider": "shapejit",
        "variant": str(SCHEDULES[0]), "burst_us": 4.0, "sustained_us": 9.0, **changes,
    }  # fmt: skip


def test_what_is_read(tmp_path: Path) -> None:
    """Schedules under a constant graph, of windows with taps that run as products of pixels."""
    records = [
        _record(),
        _record(provider=str(SCHEDULES[3]), variant=str(SCHEDULES[3]), burst_us=16.0),
        _record(provider="shapejit, by value", burst_us=1.0),
        _record(provider="cudnn", variant=None),
        _record(kind="1x1"),
        _record(kind="3x3, f16"),
        _record(kind="7x7/2, few channels", variant="patch_64x128x16_s2_w1"),
        _record(kind="depthwise 3x3", variant="depthwise_v8_r4"),
        _record(group="others", kind="3x3/2", sizes=[2, 15, 7, 72, 64]),
    ]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"records": records}))
    found = fit_conv.read(H200, path)
    [known], [other] = found["known"], found["others"]
    assert known.schedules == (SCHEDULES[0], SCHEDULES[3])
    assert known.times.tolist() == [6.0, 12.0]
    strided = other.sizes
    assert (strided.m, strided.n, strided.k) == (2 * 8 * 4, 64, 9 * 128)
    assert strided.traits.halo is None and strided.traits.conv
    path.write_text(json.dumps({"records": records[3:4]}))
    with pytest.raises(ValueError, match=r"no times of schedules of convolutions in .*run\.json"):
        fit_conv.read(H200, path)


def test_what_is_on_record() -> None:
    """By what was measured, held-out layers lose under 8 % against the best candidate."""
    layers = fit_conv.read(H200, *RESULTS)
    quality = fit_conv.quality(H200, layers[fit_conv.HELD_OUT], conv_factors_of("h200"))
    assert quality.shapes >= 30
    assert quality.loss < 0.08
    assert quality.spearman > 0.85
