# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""shapejit: one compile for all sizes."""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trace_workload import Request, dynamic_shapes, example

import shapejit
from peers.base import System


class ShapeJit(System):
    """``shapejit.compile`` of the model with the ranges of its axes.

    Attributes:
        program: the compiled model, once it is built.
    """

    program: shapejit.program.Program

    def build(self) -> dict[str, Any]:
        setting = self.setting
        start = time.perf_counter()
        # A program outlives the block that it was compiled in.
        with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
            warnings.simplefilter("ignore")
            self.program = shapejit.compile(
                setting.model,
                setting.inputs(example(setting.workload)),
                dynamic_shapes=dynamic_shapes(setting.workload),
            )
        setting.place.synchronize()
        seconds = round(time.perf_counter() - start, 3)
        stats = self.program.stats()
        stages = stats.compile_seconds
        return {
            "compile_s": seconds,
            "origin": stats.origin,
            "stages_s": {stage: round(value, 3) for stage, value in stages.items()},
        }

    def __call__(self, *inputs: Tensor) -> Tensor:
        result: Tensor = self.program(*inputs)
        return result

    def region(self, request: Request) -> str:
        """The variants that serve a request, kernel by kernel: equal in one region of shapes."""
        explained = self.program.explain(*self.setting.inputs(request))
        return ";".join(
            f"{kernel.name}:{number}"
            for kernel in explained.kernels
            for number, bucket in enumerate(kernel.buckets)
            if bucket.launches
        )

    def details(self) -> dict[str, Any]:
        stats = self.program.stats().to_dict()
        stats.pop("compile_seconds", None)
        # The regions in the order in which the trace reaches them, each with its first request.
        regions: dict[str, int] = {}
        for number, request in enumerate(self.setting.requests):
            regions.setdefault(self.region(request), number)
        inputs = self.setting.inputs(self.setting.requests[0])
        return {
            "stats": stats,
            "first_requests_of_regions": list(regions.values()),
            "launches": self.program.explain(*inputs).launches,
            "load_s": self._load_seconds(),
        }

    def _load_seconds(self) -> float:
        """Seconds to load the program, saved, with the weights that the model has already."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "program.sjit")
            self.program.save(path, weights=False)
            start = time.perf_counter()
            shapejit.load(path, weights=self.program.named_weights())
            return round(time.perf_counter() - start, 3)
