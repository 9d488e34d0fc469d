# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the tests on a GPU compare with is itself right, and can be made where there is none."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from gpu.kernel_samples import Sample, samples
from gpu.many_kinds import problems, reference

SAMPLES = {(sample.epilogue, sample.dtype, sample.schedule.family): sample for sample in samples()}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=lambda sample: sample.name)
def test_references_of_samples(sample: Sample) -> None:
    given = sample.operands()
    found = sample.reference()
    assert found.dtype is torch.float64
    rows = slice(0, 3)
    expected = given.a[rows].float() @ given.b.float()
    if sample.epilogue:
        assert given.bias is not None and given.residual is not None
        expected = functional.gelu(expected + given.bias.float()) + given.residual[rows].float()
    torch.testing.assert_close(found[rows].float(), expected, rtol=1e-4, atol=1e-3)


def test_references_of_kinds() -> None:
    found = problems(12)
    assert len({problem.kind()[0] for problem in found}) == 12
    assert {problem.gated for problem in found} == {True, False}
    for problem in found:
        given = problem.operands("cpu")
        expected = given.a.float() @ given.b.float()
        if given.bias is not None:
            expected = expected + given.bias.float()
        match given.activation:
            case None:
                pass
            case "gelu_tanh":
                expected = functional.gelu(expected, approximate="tanh")
            case name:
                expected = getattr(functional, name)(expected)
        if given.gate is not None:
            expected = expected * (given.a.float() @ given.gate.float())
        if given.residual is not None:
            expected = expected + given.residual.float()
        close = torch.testing.assert_close
        close(reference(given).float(), expected, rtol=1e-3, atol=1e-2)
