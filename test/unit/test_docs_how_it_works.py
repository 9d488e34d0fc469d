# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""docs/how-it-works.md is what the compiler does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_how_it_works_is_up_to_date(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    subprocess.run([sys.executable, DOCS / "gen_how_it_works.py", page], check=True)
    assert (DOCS / "how-it-works.md").read_text() == page.read_text(), (
        "run `make docs` and commit docs/how-it-works.md"
    )
