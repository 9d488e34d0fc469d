# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Draws the README's figure: what varying shapes cost in PyTorch today.

    python docs/figures/dynamic_shapes_today.py

Reads ``dynamic_shapes_today.json`` and writes ``dynamic_shapes_today.svg`` beside this file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
COLORS = {
    "eager": "#868e96",
    "torch.compile, dynamic=True": "#e8590c",
    "torch.compile, automatic dynamic": "#f59f00",
    "manual buckets + CUDA graphs": "#1971c2",
}
PANELS = (
    ("worst stall, ms (log scale)", "log"),
    ("warm median latency, ms", "linear"),
    ("memory reserved, MiB", "linear"),
)
INK = "#343a40"


def draw(data: dict[str, Any], path: Path) -> None:
    """Writes one SVG with a panel a measure; text stays text and nothing in it is random."""
    plt.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "shapejit", "font.size": 10, "text.color": INK}
    )
    models = data["models"]
    figure, panels = plt.subplots(1, len(PANELS), figsize=(13, 4.6), sharey=True)
    for column, (axes, (label, scale)) in enumerate(zip(panels, PANELS, strict=True)):
        position, ticks = 0.0, []
        for model, systems in models.items():
            ticks.append((position + (len(systems) - 1) / 2, model))
            for system, values in systems.items():
                value = values[column]
                axes.barh(position, value, color=COLORS[system], height=0.85)
                axes.annotate(
                    f"{value:,}".replace(",", " "),
                    (value, position),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=9,
                )
                position += 1
            position += 0.8
        axes.set_xscale(scale)
        axes.margins(x=0.22)
        axes.set_title(label, fontsize=11, color=INK)
        axes.set_yticks([at for at, _ in ticks], [name.replace(", ", "\n") for _, name in ticks])
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[0].invert_yaxis()
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
    figure.legend(handles, COLORS, loc="lower center", ncols=4, frameon=False)
    figure.text(0.5, 0.965, data["setting"], ha="center", fontsize=9)
    figure.subplots_adjust(left=0.11, right=0.985, top=0.87, bottom=0.16, wspace=0.08)
    figure.savefig(path, facecolor="white", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    record = json.loads((HERE / "dynamic_shapes_today.json").read_text())
    draw(record, HERE / "dynamic_shapes_today.svg")
