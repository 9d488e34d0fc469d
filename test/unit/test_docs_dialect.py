# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""docs/dialect.md is what ODS says."""

from __future__ import annotations

from pathlib import Path

from shapejit._native import find_file

PAGE = Path(__file__).parents[2] / "docs" / "dialect.md"


def test_dialect_page_is_up_to_date() -> None:
    generated = find_file("_docs", "dialect.md").read_text()
    assert PAGE.read_text() == generated, "run `make docs` and commit docs/dialect.md"
