# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tables and plots of the records that `gemm.py` measures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: The provider that is `ops.gemm` as users call it.
DISPATCHED = "nvgpu, dispatched"
#: Single schedules.
SINGLE = "nvgpu"
PEERS = ("cublas", "torch.compile", "max-autotune")

Shape = tuple[int, int, int]
Record = dict[str, Any]


def shapes_of(records: Sequence[Record]) -> list[Shape]:
    """The shapes of the records, in ascending order."""
    return sorted({(r["m"], r["n"], r["k"]) for r in records})


def times(records: Sequence[Record], shape: Shape, key: str) -> dict[str, dict[str, float]]:
    """Microseconds of a shape: by provider, and by name of schedule for single ones."""
    found: dict[str, dict[str, float]] = {}
    for record in records:
        if (record["m"], record["n"], record["k"]) == shape:
            name = record["schedule" if record["provider"] == SINGLE else "provider"]
            found.setdefault(record["provider"], {})[name] = record[key]
    return found


def line(records: Sequence[Record], shape: Shape) -> str:
    """What a shape took in bursts, and the best peer's time over it."""
    found = times(records, shape, "burst_us")
    peers = {name: found[name][name] for name in PEERS if name in found}
    best = min(peers.values())
    own = [(t, "dispatched") for t in found.get(DISPATCHED, {}).values()]
    own += sorted((t, name) for name, t in found.get(SINGLE, {}).items())[:3]
    theirs = ", ".join(f"{name} {t:.1f}" for name, t in peers.items())
    ours = ", ".join(f"{name} {t:.1f} ({best / t:.3f})" for t, name in own)
    return f"{shape}: {theirs} | {ours}"


def ratios(records: Sequence[Record], key: str, provider: str) -> dict[Shape, float]:
    """The best peer's time over that of a provider, or of its best schedule."""
    found = {}
    for shape in shapes_of(records):
        of_shape = times(records, shape, key)
        peers = [t for name in PEERS for t in of_shape.get(name, {}).values()]
        own = of_shape.get(provider, {}).values()
        if peers and own:
            found[shape] = min(peers) / min(own)
    return found


def summary(records: Sequence[Record], regimes: Sequence[str]) -> dict[str, Any]:
    """Geometric means and worst cells by provider, regime and size."""
    result: dict[str, Any] = {}
    for provider, title in ((DISPATCHED, "dispatched"), (SINGLE, "best schedule measured")):
        for regime in regimes:
            found = ratios(records, f"{regime}_us", provider)
            for name, wanted in (("m <= 128", (1, 128)), ("m > 128", (129, 1 << 31))):
                part = [r for shape, r in found.items() if wanted[0] <= shape[0] <= wanted[1]]
                if part:
                    result[f"{title}, {regime}, {name}"] = {
                        "geomean": round(statistics.geometric_mean(part), 4),
                        "worst": round(min(part), 4),
                        "shapes": len(part),
                        "under 0.93": sum(r < 0.93 for r in part),
                        "under 0.88": sum(r < 0.88 for r in part),
                    }
    return result


def plot(records: Sequence[Record], regimes: Sequence[str], path: Path) -> None:
    """The ratio of what is dispatched over M."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for regime in regimes:
        found = ratios(records, f"{regime}_us", DISPATCHED)
        axes.scatter([shape[0] for shape in found], list(found.values()), s=14, label=regime)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("rows M")
    axes.set_ylabel("best peer's time / shapejit's")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=140)
