# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""One cache entry as bytes: a line that identifies it, a readable header, the payload.

::

    shapejit-cache-entry 1 1432 9f86d081...      (format, bytes of the header, its SHA-256)
    {
     "record": {...},                            (the key, whose digest names the file)
     "payload": {"bytes": 48872, "sha256": "..."},
     "seconds": 0.41,                            (what it took to build)
     "created": 1764445200.0,                    (seconds since the epoch)
     "note": "..."                               (free text for the reader)
    }
    <payload>

Every byte is covered by a checksum, and the record by the name of the file, so that neither damage
nor a file under another's name can pass. The checksums are no defence against someone who may write
to the folder; that is what `shapejit.cache.storage` checks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shapejit.cache.key import record_digest

FORMAT = 1
MAX_NOTE = 64 * 1024
"""Longest note in characters; a longer one is cut."""

_MAGIC = b"shapejit-cache-entry"
_MAX_FIRST_LINE = 128
_MAX_HEADER = 1 << 20

MAX_HEAD = _MAX_FIRST_LINE + _MAX_HEADER
"""The header lies within this many bytes from the start."""


class CorruptEntryError(Exception):
    """The bytes are not a whole entry of this format with the name they have."""


@dataclass(frozen=True)
class Header:
    """What an entry says of its payload.

    Attributes:
        record: the key's record.
        seconds: wall time that the payload took to build.
        created: when, in seconds since the epoch.
        note: free text that explains it.
    """

    record: Mapping[str, Any]
    seconds: float
    created: float
    note: str = ""


def encode(header: Header, payload: bytes) -> bytes:
    """The bytes of an entry.

    Raises:
        ValueError: the header is larger than a megabyte, or not finite.
    """
    fields = {
        "record": header.record,
        "payload": {"bytes": len(payload), "sha256": _sha256(payload)},
        "seconds": round(float(header.seconds), 6),
        "created": float(header.created),
        "note": header.note[:MAX_NOTE].encode(errors="replace").decode(),
    }
    text = json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    if len(text) > _MAX_HEADER:
        raise ValueError(f"the record of a key takes {len(text)} bytes, at most {_MAX_HEADER} fit")
    line = f"{_MAGIC.decode()} {FORMAT} {len(text)} {_sha256(text)}\n"
    return b"".join((line.encode(), text, payload))


def decode(data: bytes, digest: str) -> tuple[Header, bytes]:
    """Header and payload of the entry in `data`, after all checks.

    Args:
        data: the whole file.
        digest: the digest of the key, by which the file was found.

    Raises:
        CorruptEntryError: a check failed; the text says which, as "it ...".
    """
    fields, start = _fields(data, digest)
    payload = data[start:]
    stated = fields["payload"]
    if len(payload) != stated["bytes"]:
        raise CorruptEntryError(
            f"its payload has {len(payload)} bytes where its header states {stated['bytes']}"
        )
    if _sha256(payload) != stated["sha256"]:
        raise CorruptEntryError("its payload does not have the checksum that its header states")
    return _header(fields), payload


def decode_header(data: bytes, digest: str) -> Header:
    """The header of the entry of which `data` has the first `MAX_HEAD` bytes.

    Raises:
        CorruptEntryError: it is damaged, or of another key.
    """
    return _header(_fields(data, digest)[0])


def _header(fields: Mapping[str, Any]) -> Header:
    return Header(fields["record"], fields["seconds"], fields["created"], fields["note"])


def _fields(data: bytes, digest: str) -> tuple[dict[str, Any], int]:
    """The header's JSON, and where the payload starts."""
    line, newline, _ = data[:_MAX_FIRST_LINE].partition(b"\n")
    words = line.split(b" ")
    if not newline or words[0] != _MAGIC or len(words) != 4:
        raise CorruptEntryError("it does not begin as a cache entry does")
    if words[1] != b"%d" % FORMAT:
        raise CorruptEntryError(
            f"it has format {words[1].decode(errors='replace')}, this shapejit reads {FORMAT}"
        )
    size = int(words[2]) if words[2].isdigit() else _MAX_HEADER + 1
    start = len(line) + 1
    text = data[start : start + size]
    if size > _MAX_HEADER or len(text) != size or _sha256(text).encode() != words[3]:
        raise CorruptEntryError("its header is damaged or cut short")
    fields = _parse(text)
    if _digest_of(fields["record"]) != digest:
        raise CorruptEntryError("it holds another key than its name says")
    return fields, start + size


def _parse(text: bytes) -> dict[str, Any]:
    kinds = {"record": dict, "payload": dict, "seconds": float, "created": float, "note": str}
    try:
        fields: dict[str, Any] = json.loads(text)
        fits = fields.keys() == kinds.keys() and all(
            isinstance(fields[name], kind) for name, kind in kinds.items()
        )
        payload = fields["payload"]
        fits = fits and isinstance(payload["bytes"], int) and isinstance(payload["sha256"], str)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise CorruptEntryError("its header is not one of this format")
    return fields


def _digest_of(record: Mapping[str, Any]) -> str | None:
    try:
        return record_digest(record)
    except (ValueError, RecursionError):
        return None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
