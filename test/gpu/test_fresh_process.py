# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every kernel as the first one that a process launches.

Code is loaded lazily, and barriers in shared memory start as they are found: a kernel that only
works after another one shows itself here. The processes start side by side and take turns on the
GPU. They are as many as there are CPUs, so the tests run when no others do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from gpu.kernel_samples import Sample, prepare, samples  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402

pytestmark = pytest.mark.alone

_SECONDS = 240
Runs = dict[str, Future["subprocess.CompletedProcess[str]"]]


@pytest.fixture(scope="module")
def runs(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A process for each sample, all begun."""
    folder = tmp_path_factory.mktemp("samples")
    prepare(folder, samples(), device.arch)
    test = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (test, os.environ.get("PYTHONPATH"))))

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpu.kernel_samples", str(folder), name]
        return subprocess.run(
            [*command, "--lock", str(folder / "lock")],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
        )

    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    found = {sample.name: pool.submit(run, sample.name) for sample in samples()}
    pool.shutdown(wait=False)
    return found


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.name)
def test_first_of_a_process(runs: Runs, sample: Sample) -> None:
    done = runs[sample.name].result()
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"{sample.name}: right" in done.stdout
