# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The fit finds constants again, reports what it should, and what is on record is reproducible."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapejit.passes.buckets import constants as kept
from shapejit.passes.buckets import fit
from shapejit.passes.buckets.constants import Constants
from shapejit.passes.buckets.device import DEVICES, H200, Device
from shapejit.passes.buckets.measurements import of_records, read
from shapejit.passes.buckets.model import CostModel
from shapejit.passes.buckets.problem import GemmSizes
from shapejit.passes.buckets.quality import Quality, assess, spearman
from shapejit.passes.nvgpu.schedule import CANDIDATES

RESULTS = Path(__file__).parents[2] / "bench" / "results"
TRUTH = dataclasses.replace(
    Constants(),
    launch=3.5,
    tensor_efficiency=0.6,
    memory_rate=3000.0,
    fill_rate=70.0,
    factors={"small_m_64x32x64_s7_w1": 1.3},
)


def synthetic() -> list[dict[str, object]]:
    """Records of a device with the constants `TRUTH`."""
    model = CostModel(H200, CANDIDATES, constants=TRUTH)
    records: list[dict[str, object]] = []
    for n, k in ((768, 768), (4096, 4096), (4096, 14336), (28672, 8192)):
        for m in (1, 16, 48, 100, 200, 700, 3000, 8192):
            times = model.times(GemmSizes(m, n, k))[0]
            records += [
                {"m": m, "n": n, "k": k, "batch": 1, "provider": "nvgpu", "schedule": str(schedule)}
                | {"burst_us": 0.8 * time, "sustained_us": time / 0.8}
                for schedule, time in zip(CANDIDATES, times, strict=True)
            ]
    return records


def test_a_fit_predicts_what_it_has_not_seen() -> None:
    measured = of_records(synthetic())
    constants = fit.Fit(H200, measured.part(0, 2), Constants()).run()
    held_out = fit.quality(H200, measured.part(1, 2), constants)
    before = fit.quality(H200, measured.part(1, 2), Constants())
    assert before.error > 0.15
    assert held_out.error < 0.05
    assert held_out.spearman > 0.97
    assert held_out.loss < 0.02
    assert constants.memory_rate == pytest.approx(TRUTH.memory_rate, rel=0.1)
    assert constants == fit.Fit(H200, measured.part(0, 2), Constants()).run()


def test_records_become_arrays() -> None:
    one = {"m": 2, "n": 8, "k": 8, "batch": 1, "schedule": str(CANDIDATES[0]), "burst_us": 4.0}
    other = {**one, "m": 1, "schedule": str(CANDIDATES[1]), "sustained_us": 9.0}
    measured = of_records([one, other])
    assert list(measured.shapes) == [(1, 8, 8, 1), (2, 8, 8, 1)]
    times = {
        (shape[0], str(schedule)): measured.times[i, j]
        for i, shape in enumerate(measured.shapes)
        for j, schedule in enumerate(measured.schedules)
    }
    assert times[2, str(CANDIDATES[0])] == pytest.approx(4.0)
    assert times[1, str(CANDIDATES[1])] == pytest.approx(6.0)  # the geometric mean of 4 and 9
    assert math.isnan(times[1, str(CANDIDATES[0])])
    with pytest.raises(ValueError, match=r"not a measurement, \['k'\] missing"):
        of_records([{key: value for key, value in one.items() if key != "k"}])
    with pytest.raises(ValueError, match="burst_us"):
        of_records([{**one, "burst_us": None}])
    with pytest.raises(ValueError, match="no measurements"):
        of_records([])


def test_a_later_run_counts_by_what_cublas_took_beside(tmp_path: Path) -> None:
    def file(name: str, cublas: float, times: dict[int, float]) -> Path:
        sizes = {"m": 2, "n": 8, "k": 8, "batch": 1, "dtype": "bf16"}
        records = [{**sizes, "provider": "cublas", "schedule": None, "burst_us": cublas}]
        records += [
            {**sizes, "provider": "nvgpu", "schedule": str(CANDIDATES[i]), "burst_us": time}
            for i, time in times.items()
        ]
        path = tmp_path / name
        path.write_text(json.dumps(records))
        return path

    first, later = file("first", 10.0, {0: 8.0, 1: 9.0}), file("later", 11.0, {1: 8.8, 2: 22.0})
    measured = read(first, later)
    times = dict(zip(map(str, measured.schedules), measured.times[0], strict=True))
    expected = {str(CANDIDATES[i]): time for i, time in ((0, 8.0), (1, 8.0), (2, 20.0))}
    assert times == pytest.approx(expected)
    assert read(later).of(CANDIDATES[1:2]).times.tolist() == [[pytest.approx(8.8)]]
    assert not read(later).of(CANDIDATES[:1]).shapes


@given(st.lists(st.integers(0, 5), min_size=2, max_size=12), st.randoms())
def test_rank_correlation(values: list[int], random: Random) -> None:
    first = np.array(values, dtype=np.float64)
    assert math.isnan(spearman(first, np.zeros(len(first))))
    if len(set(values)) > 1:
        assert spearman(first, first**3) == pytest.approx(1)
        assert spearman(first, -first) == pytest.approx(-1)
    second = np.array(random.sample(values, len(values)), dtype=np.float64)
    ranks = [[(np.sum(v < x) + np.sum(v <= x)) / 2 for x in v] for v in (first, second)]
    with np.errstate(invalid="ignore"):
        expected = np.corrcoef(ranks)[0, 1] if np.ptp(first) else np.nan
    np.testing.assert_allclose(spearman(first, second), expected, atol=1e-12)


def test_quality() -> None:
    measured = np.array([[1.0, 2.0, 4.0], [3.0, 2.0, np.nan]])
    predicted = np.array([[1.0, 2.0, 4.0], [1.5, 4.0, 0.1]])
    found = assess(predicted, measured)
    assert (found.shapes, found.points) == (2, 5)
    assert found.spearman == pytest.approx(1)
    assert found.error == pytest.approx(2 ** (2 / 5) - 1)
    assert found.worst == pytest.approx(0.5)
    assert found.loss == pytest.approx(1.5**0.5 - 1)


def test_the_command_writes_what_it_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kept, "_DATA", tmp_path)
    file = tmp_path / "measured.json"
    others = [{"provider": "cublas", "schedule": None}]
    others += [{"provider": "nvgpu", "schedule": "dispatched"}]
    file.write_text(json.dumps({"records": synthetic()[::7] + others}))
    assert fit.main([str(file)]) == 0
    assert not kept.data_file("h200").exists()
    assert fit.main([str(file), "--write"]) == 0
    assert "held_out: " in capsys.readouterr().out
    record = json.loads(kept.data_file("h200").read_text())
    assert record["fit"]["sources"] == ["measured.json"]
    constants = Constants.of_record(record["constants"])
    held_out = fit.quality(H200, read(file).part(1, 2), constants)
    assert record["fit"]["held_out"] == held_out.record()


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_constants_on_record_are_as_good_as_they_say(device: Device) -> None:
    record = json.loads(kept.data_file(device.name).read_text())
    measured = read(*(RESULTS / name for name in record["fit"]["sources"])).of(CANDIDATES)
    constants = Constants.of_record(record["constants"])
    for name, start in (("fitted", 0), ("held_out", 1)):
        found = fit.quality(device, measured.part(start, 2), constants).record()
        assert found == pytest.approx(record["fit"][name], abs=2e-5), name


def test_the_page_names_all_constants_and_the_error_on_record() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cost-model.md").read_text()
    for name in (*Constants.names(), "factors"):
        assert f"`{name}`" in page, name
    for device in DEVICES:
        report = json.loads(kept.data_file(device.name).read_text())["fit"]
        assert all(name in page for name in report["sources"])
        for part in ("fitted", "held_out"):
            values = {k: math.nan if v is None else v for k, v in report[part].items()}
            assert str(Quality(**values)) in page, part
