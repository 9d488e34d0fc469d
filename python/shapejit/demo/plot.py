# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The plot of the demo: latency over the size of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shapejit.demo.measure import Result, Summary

OURS, EAGER, INK = "#0b7285", "#e8590c", "#343a40"


def plot_latency(results: Sequence[Result], summary: Summary, setting: str, path: Path) -> None:
    """Writes a PNG: medians of both systems over tokens, and below it their ratio.

    Args:
        setting: one line on hardware, versions and threads, shown under the title.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes = [result.shape.batch * result.shape.tokens for result in results]
    figure, (latency, ratio) = plt.subplots(
        2, 1, figsize=(9, 7), height_ratios=(3, 2), sharex=True, layout="constrained"
    )
    latency.scatter(
        sizes, [r.eager.median for r in results], s=14, color=EAGER, label="PyTorch eager"
    )
    latency.scatter(
        sizes, [r.ours.median for r in results], s=14, color=OURS, label="shapejit, one compile"
    )
    latency.set(xscale="log", yscale="log", ylabel="median latency, ms")
    latency.legend(frameon=False)
    latency.set_title(
        f"all-MiniLM-L6-v2, f32, {summary.shapes} distinct shapes\n{setting}",
        fontsize=11,
        color=INK,
    )
    ratio.scatter(sizes, [r.speedup for r in results], s=14, color=OURS)
    ratio.axhline(1, color=INK, linewidth=1)
    ratio.axhline(summary.geomean_speedup, color=OURS, linewidth=1, linestyle="--")
    ratio.set(
        xlabel="tokens in the batch (batch size x length)",
        ylabel=f"PyTorch eager / shapejit\ngeometric mean {summary.geomean_speedup:.2f}",
    )
    ratio.set_yscale("log", base=2)
    ratio.yaxis.set_major_formatter("{x:g}")
    for axes in (latency, ratio):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
