# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What parts of a depthwise convolution's time cost: how it is read, fitted and kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shapejit.passes.buckets import depthwise_rates, fit_depthwise
from shapejit.passes.buckets.depthwise_rates import DepthwiseRates, depthwise_rates_of
from shapejit.passes.buckets.device import H200

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results" / "conv-depthwise-h200.json"


def _record(**changes: Any) -> dict[str, Any]:
    return {
        "group": "depthwise", "kind": "depthwise 3x3", "sizes": [2, 28, 20, 64, 64],
        "provider": "shapejit", "variant": "depthwise_v4_2x4", "burst_us": 4.0,
        "sustained_us": 9.0, **changes,
    }  # fmt: skip


def test_what_is_read(tmp_path: Path) -> None:
    """Schedules under a constant graph of depthwise layers, strided or not; the later time."""
    first, later = tmp_path / "first.json", tmp_path / "later.json"
    records = [
        _record(),
        _record(provider="depthwise_v2_1x1", variant="depthwise_v2_1x1", burst_us=16.0),
        _record(provider="shapejit, by value", burst_us=1.0),
        _record(provider="cudnn", variant=None),
        _record(kind="3x3", variant="halo_64x56x64_s12_w1"),
        _record(kind="depthwise 5x5/2"),
    ]
    first.write_text(json.dumps({"records": records}))
    later.write_text(json.dumps({"records": [_record(burst_us=16.0)]}))
    plain, strided = fit_depthwise.read(H200, first, later)
    assert plain.schedules == ("depthwise_v4_2x4", "depthwise_v2_1x1")
    assert plain.times.tolist() == [12.0, 12.0]
    assert strided.schedules == ("depthwise_v4_2x4",)
    # Bytes that are read or written first: 14 x 10 pixels of a 28 x 20 image.
    first_bytes = 1 + DepthwiseRates.names()[1:].index("first")
    clock = H200.clock_ghz * 1e3 * H200.multiprocessors
    moved = 2 * 2 * 64 * (28 * 20 + 14 * 10)
    assert strided.parts[0][first_bytes] * clock == pytest.approx(moved)
    later.write_text(json.dumps({"records": records[3:5]}))
    with pytest.raises(ValueError, match=r"no times of depthwise convolutions in .*later\.json"):
        fit_depthwise.read(H200, later)


def test_costs_are_found_again() -> None:
    """Of layers whose times are just what the model says with other costs."""
    given = DepthwiseRates(launch=1.4, latency=300.0, multiply=1.8, load=9.0, every=0.02)
    layers = [
        replace(each, times=each.parts @ np.array(given.values))
        for each in fit_depthwise.read(H200, RESULTS)
    ]
    found = fit_depthwise.Fit(layers).run()
    for layer in layers:
        assert layer.parts @ np.array(found.values) == pytest.approx(layer.times, rel=0.1)
    assert fit_depthwise.quality(layers, found).loss < 0.01


def test_what_is_on_record() -> None:
    """The report is that of the measurements; held-out layers lose under 10 %."""
    layers, rates = fit_depthwise.read(H200, RESULTS), depthwise_rates_of("h200")
    found = fit_depthwise.quality(layers[1::2], rates)
    record = json.loads(depthwise_rates._file("h200").read_text())["fit"]["held_out"]
    assert found.shapes >= 9 and found.points >= 90
    assert (found.loss, found.error) == pytest.approx((record["loss"], record["error"]), abs=2e-3)
    assert found.loss < 0.1 and found.error < 0.15 and found.spearman > 0.7


def test_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depthwise_rates, "_DATA", tmp_path)
    rates = DepthwiseRates(launch=1.23456)
    depthwise_rates.write("some", rates, {"sources": []})
    record = json.loads((tmp_path / "some-depthwise.json").read_text())
    assert DepthwiseRates(**record["rates"]) == replace(rates, launch=1.235)
