# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Exact results in float64, and how far from them eager PyTorch is: what right means here.

They are made once, in eager PyTorch's process after all that it measures, since the float64 model
would be in the way of that, and kept in files. Of large results a sample of the elements is kept.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peers.base import Setting
from torch import Tensor
from trace_workload import Request

CHECKED = 16
"""Requests whose results are compared."""

KEPT = 2**22
"""Most elements of a result that are compared."""

WRONG = 3.0
"""A result that is so many times as far from the exact one as eager PyTorch's is wrong."""


class WrongResultError(Exception):
    """A system gave a wrong result; the message says at which request, and how wrong."""


def checked_requests(requests: Sequence[Request], count: int = CHECKED) -> list[Request]:
    """Distinct requests, evenly spread from the smallest to the largest."""
    ordered = sorted(set(requests), key=lambda request: (math.prod(request), request))
    if len(ordered) <= count:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]


def sample(result: Tensor) -> Tensor:
    """At most `KEPT` elements of a result, evenly spread.

    They are an odd number of elements apart, so that all rows and columns are met, whose lengths
    are often even.
    """
    step = -(-result.numel() // KEPT) | 1
    return result.flatten()[::step].clone()


def from_the_ends(requests: Sequence[Request]) -> list[Request]:
    """The first, the last, the second, the last but one and so on."""
    waiting, found = list(requests), []
    while waiting:
        found.append(waiting.pop(-(len(found) % 2)))
    return found


def relative_error(result: Tensor, exact: Tensor) -> float:
    """In the Frobenius norm; infinite for a result of another shape or with no numbers in it."""
    if result.shape != exact.shape:
        return math.inf
    if not exact.numel():
        return 0.0
    error = ((result.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()
    return error if math.isfinite(error) else math.inf


def least_error(result: Tensor) -> float:
    """What rounding alone may leave, below which two errors are not compared."""
    unit: float = torch.finfo(result.dtype).eps / 2
    # A few elements can be right by luck.
    return unit if result.numel() < 64 else unit / 4


@dataclass(frozen=True)
class Exact:
    """Files of exact results, on the CPU."""

    folder: Path

    @property
    def complete(self) -> bool:
        return (self.folder / "errors.json").exists()

    def make(self, setting: Setting, deadline: float = math.inf) -> None:
        """Computes and writes all of them.

        Args:
            deadline: of `time.monotonic`; those that it leaves no time for are left out, but for
                the smallest and the largest.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        exact_model = copy.deepcopy(setting.model).double()
        errors: dict[str, float] = {}
        with torch.inference_mode():
            for number, request in enumerate(from_the_ends(checked_requests(setting.requests))):
                if number > 1 and time.monotonic() > deadline:
                    break
                inputs = setting.inputs(request)
                wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
                exact = exact_model(*wide)
                kept = {"shape": tuple(exact.shape), "elements": sample(exact).cpu()}
                eager = sample(setting.model(*inputs)).cpu()
                errors[_key(request)] = relative_error(eager, kept["elements"])
                torch.save(kept, self.folder / f"{_key(request)}.pt")
        # Written last: it says that the others are there.
        (self.folder / "errors.json").write_text(json.dumps(errors))

    def check(self, request: Request, result: Tensor) -> dict[str, Any] | None:
        """Compares a result if the exact one is known.

        Returns:
            its error, eager's, and their ratio; None if nothing is known.

        Raises:
            WrongResultError: it is wrong.
        """
        if not self.complete:
            return None
        errors = json.loads((self.folder / "errors.json").read_text())
        if _key(request) not in errors:
            return None
        kept = torch.load(self.folder / f"{_key(request)}.pt", weights_only=True)
        fits = tuple(result.shape) == kept["shape"]
        error = relative_error(sample(result.cpu()), kept["elements"]) if fits else math.inf
        eager = errors[_key(request)]
        ratio = error / max(eager, least_error(result))
        if not ratio <= WRONG:
            raise WrongResultError(
                f"wrong at {request}: relative error {error:.2e}, eager PyTorch's is {eager:.2e}"
            )
        return {"request": list(request), "error": error, "eager": eager, "ratio": round(ratio, 4)}


def overall_ratio(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Root of the summed squared errors over that of eager PyTorch's; None without any.

    Over many shapes: at a single one, of few elements, either may be off by luck.
    """
    ours = sum(row["error"] ** 2 for row in rows)
    eager = sum(row["eager"] ** 2 for row in rows)
    return round(math.sqrt(ours / eager), 4) if eager else None


def _key(request: Request) -> str:
    return "x".join(map(str, request))
