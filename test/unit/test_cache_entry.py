# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The file of an entry: what was written is read, and nothing else is."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapejit.cache.entry import (
    MAX_NOTE,
    CorruptEntryError,
    Header,
    decode,
    decode_header,
    encode,
)
from unit.cache_samples import content, examples, header, sample_key

KEY = sample_key()
WHOLE = encode(header(KEY), content(KEY, 300))


@examples(80)
@given(st.binary(max_size=200), st.text(max_size=50), st.floats(0, 1e6))
def test_what_is_written_is_read(payload: bytes, note: str, seconds: float) -> None:
    data = encode(Header(KEY.record(), seconds, 1.5e9, note), payload)
    read, read_payload = decode(data, KEY.digest)
    assert read_payload == payload
    assert read.seconds == pytest.approx(seconds, abs=1e-6)
    assert read.note == note
    assert dict(read.record) == json.loads(json.dumps(KEY.record()))
    assert decode_header(data, KEY.digest) == read


def test_the_head_of_a_file_is_readable() -> None:
    line, _, rest = WHOLE.partition(b"\n")
    assert line.startswith(b"shapejit-cache-entry 1 ")
    text = rest[: int(line.split()[2])].decode()
    assert json.loads(text)["record"]["target"]["cpu"] == "znver4"
    assert '"note": "made for a test"' in text


@examples(300)
@given(st.integers(0, len(WHOLE) * 8 - 1))
def test_a_flipped_bit_is_noticed(bit: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptEntryError):
        decode(bytes(damaged), KEY.digest)


@examples(80)
@given(st.integers(0, len(WHOLE) - 1))
def test_a_cut_file_is_noticed(size: int) -> None:
    with pytest.raises(CorruptEntryError):
        decode(WHOLE[:size], KEY.digest)


@examples(80)
@given(st.binary(min_size=1, max_size=20))
def test_more_than_there_should_be_is_noticed(more: bytes) -> None:
    with pytest.raises(CorruptEntryError, match="where its header states 300"):
        decode(WHOLE + more, KEY.digest)


@examples(80)
@given(st.binary(max_size=200))
def test_anything_else_is_noticed(data: bytes) -> None:
    with pytest.raises(CorruptEntryError):
        decode(data, KEY.digest)


def test_an_entry_under_another_name_is_noticed() -> None:
    with pytest.raises(CorruptEntryError, match="another key than its name says"):
        decode(WHOLE, sample_key(1).digest)


def test_another_format_is_named() -> None:
    with pytest.raises(CorruptEntryError, match="it has format 2, this shapejit reads 1"):
        decode(WHOLE.replace(b"entry 1", b"entry 2", 1), KEY.digest)


def with_header(fields: Any) -> bytes:
    """An entry with the right checksums around a header of any shape."""
    text = json.dumps(fields).encode()
    line = f"shapejit-cache-entry 1 {len(text)} {hashlib.sha256(text).hexdigest()}\n"
    return line.encode() + text


GOOD = {
    "record": KEY.record(),
    "payload": {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()},
    "seconds": 1.0,
    "created": 1.0,
    "note": "",
}


@pytest.mark.parametrize(
    "fields",
    [
        [],
        7,
        {},
        {**GOOD, "more": 1},
        {**GOOD, "record": []},
        {**GOOD, "seconds": "1"},
        {**GOOD, "payload": {"bytes": "0", "sha256": ""}},
        {**GOOD, "payload": {}},
        {**GOOD, "record": {"kind": "\ud800"}},
        {**GOOD, "record": {"kind": float("nan")}},
    ],
    ids=repr,
)
def test_a_header_of_another_shape_is_noticed(fields: Any) -> None:
    with pytest.raises(CorruptEntryError):
        decode(with_header(fields), KEY.digest)


def test_a_deeply_nested_header_is_noticed() -> None:
    text = b"[" * 500_000
    line = f"shapejit-cache-entry 1 {len(text)} {hashlib.sha256(text).hexdigest()}\n"
    with pytest.raises(CorruptEntryError):
        decode(line.encode() + text, KEY.digest)


def test_a_well_formed_header_is_read() -> None:
    assert decode(with_header(GOOD), KEY.digest)[1] == b""


def test_a_long_note_is_cut_and_an_odd_one_kept_readable() -> None:
    data = encode(Header(KEY.record(), 0.0, 0.0, "n" * (MAX_NOTE + 5)), b"")
    assert decode(data, KEY.digest)[0].note == "n" * MAX_NOTE
    data = encode(Header(KEY.record(), 0.0, 0.0, "caf\udce9.py"), b"")
    assert decode(data, KEY.digest)[0].note == "caf?.py"


def test_a_huge_record_is_refused() -> None:
    with pytest.raises(ValueError, match="the record of a key takes"):
        encode(Header({"kind": "x" * (1 << 20)}, 0.0, 0.0), b"")
