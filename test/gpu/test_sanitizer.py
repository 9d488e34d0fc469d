# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of every family under ``compute-sanitizer``: no bad access, no bad barrier."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("mlir")

from gpu.kernel_samples import prepare
from gpu.sanitize import find_sanitizer, sanitize, small_samples
from shapejit.gpu.device import Device


@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
def test_nothing_is_found(device: Device, tmp_path: Path, tool: str) -> None:
    program = find_sanitizer()
    if program is None:
        pytest.skip("needs compute-sanitizer")
    wanted = small_samples()
    prepare(tmp_path, wanted, device.arch)
    found = sanitize(program, tool, tmp_path, [sample.name for sample in wanted])
    if not found.works:
        pytest.skip(f"compute-sanitizer does not work here: {found.text[-300:]}")
    assert found.clean, found.text[-4000:]
    assert found.text.count(": right") == len(wanted)
