# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Choices among schedules, kept in the cache: to make one takes as long as all else that a new
process does for kernels that it finds on disk."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from shapejit.cache import fingerprint, object_cache
from shapejit.cache.key import CHOICE, record_digest
from shapejit.passes.buckets.table import ScheduleTable


class ChoiceKey:
    """Key of what a `ScheduleTable` chooses for some sizes.

    Args:
        record: of all that decides on it, as JSON values.
    """

    kind = CHOICE

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = {**record, "kind": self.kind}

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the record in hexadecimal."""
        return record_digest(self._record)

    def record(self) -> dict[str, Any]:
        """The record as JSON values."""
        return self._record


def recall(table: ScheduleTable, n: int, k: int, batch: int) -> None:
    """Has a table know what it chooses for all m: from the cache, or made and kept there.

    Args:
        table: of the product.
        n, k, batch: its sizes.
    """
    if table.knows(n, k, batch):
        return
    key = ChoiceKey(
        {
            **table.description(),
            "n": n,
            "k": k,
            "batch": batch,
            "toolchain": dict(fingerprint.toolchain()),
            "passes": fingerprint.pass_digest(),
        }
    )

    def made() -> bytes:
        intervals = table.intervals(n, k, batch)
        return json.dumps([[each.low, str(each.schedule)] for each in intervals]).encode()

    fetched = object_cache().get_or_build(key, made, note="low m, schedule")
    table.adopt(n, k, batch, json.loads(fetched.data))


__all__ = ["ChoiceKey", "recall"]
