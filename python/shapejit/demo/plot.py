# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The plot of the demo: latency over the size of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shapejit.demo.measure import COMPILED, EAGER, OURS, Result, Summary

COLORS = {OURS: "#0b7285", EAGER: "#e8590c", COMPILED: "#7048e8"}
INK = "#343a40"


def plot_latency(results: Sequence[Result], summary: Summary, setting: str, path: Path) -> None:
    """Writes a PNG: medians of all systems over tokens, and below it their ratios to ours.

    Args:
        setting: one line on type, hardware, versions and threads, shown under the title.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes = [result.shape.batch * result.shape.tokens for result in results]
    figure, (latency, ratio) = plt.subplots(
        2, 1, figsize=(9, 7), height_ratios=(3, 2), sharex=True, layout="constrained"
    )
    # Ours last, on top of the others.
    for name in sorted(results[0].timings, key=lambda name: name == OURS):
        label = "shapejit, one compile" if name == OURS else name
        medians = [r.timings[name].median for r in results]
        latency.scatter(sizes, medians, s=14, color=COLORS[name], label=label)
    latency.set(xscale="log", yscale="log", ylabel="median latency, ms")
    latency.legend(frameon=False)
    latency.set_title(
        f"all-MiniLM-L6-v2, {summary.shapes} distinct shapes\n{setting}", fontsize=11, color=INK
    )
    for name, mean in summary.speedups.items():
        label = f"{name} / shapejit, geometric mean {mean:.2f}"
        speedups = [r.speedup(name) for r in results]
        ratio.scatter(sizes, speedups, s=14, color=COLORS[name], label=label)
        ratio.axhline(mean, color=COLORS[name], linewidth=1, linestyle="--")
    ratio.axhline(1, color=INK, linewidth=1)
    ratio.legend(frameon=False)
    ratio.set(xlabel="tokens in the batch (batch size x length)", ylabel="times faster")
    ratio.set_yscale("log", base=2)
    ratio.yaxis.set_major_formatter("{x:g}")
    for axes in (latency, ratio):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
