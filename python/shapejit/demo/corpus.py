# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The texts of the demo, from single words to paragraphs."""

from __future__ import annotations

from importlib.resources import files


def load_corpus() -> list[str]:
    """Returns the texts of ``corpus.txt`` in order, without its headings and blank lines."""
    text = files("shapejit.demo").joinpath("corpus.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]
