# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A whole program as the bytes of a cache entry: what a saved program holds, but for weights.

::

    shapejit-program 2 5120                     (format, bytes of the description)
    {"artefacts": {...}, "gpu": {...}, "bind_gpu": {...}, "parts": [["object", 48872], ..]}
    <objects of the host program, machine code of each variant, the head kernel; the same of the
    bind part, which has no head kernel>

The cache has a checksum over all of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

from shapejit import manifest
from shapejit.artefacts import Artefacts
from shapejit.gpu.program_code import GpuCode

_MAGIC = b"shapejit-program 2 "
_OBJECT, _KERNEL, _HEAD = "object", "kernel", "head"
_BIND_OBJECT, _BIND_KERNEL = "bind object", "bind kernel"


class ProgramEntryError(ValueError):
    """An entry is not one of a program, or a program cannot be made one."""


def encode(artefacts: Artefacts) -> bytes:
    """The bytes of an entry.

    Raises:
        ProgramEntryError: torch cannot write the structure of an argument or result.
    """
    parts = list(_parts(artefacts))
    gpu = artefacts.gpu
    bind_gpu = None if artefacts.bind is None else artefacts.bind.program.gpu
    try:
        described = manifest.to_json(dataclasses.replace(artefacts, gpu=None, compile_seconds={}))
    except (NotImplementedError, TypeError) as error:
        raise ProgramEntryError(str(error)) from error
    record = {
        "artefacts": described,
        "gpu": None if gpu is None else gpu.to_json(),
        "bind_gpu": None if bind_gpu is None else bind_gpu.to_json(),
        "parts": [[kind, len(data)] for kind, data in parts],
    }
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"".join((_MAGIC, f"{len(text)}\n".encode(), text, *(data for _, data in parts)))


def decode(data: bytes) -> Artefacts:
    """The artefacts in the bytes of an entry, without leases.

    Raises:
        ProgramEntryError: it is not what `encode` gives here.
    """
    line, newline, _ = data[:64].partition(b"\n")
    size = line.removeprefix(_MAGIC)
    if not newline or size == line or not size.isdigit():
        raise ProgramEntryError("it does not begin as a program's entry does")
    start = len(line) + 1
    end = start + int(size)
    try:
        record = json.loads(data[start:end])
        kinds = (_OBJECT, _KERNEL, _HEAD, _BIND_OBJECT, _BIND_KERNEL)
        parts: dict[str, list[bytes]] = {kind: [] for kind in kinds}
        for kind, length in record["parts"]:
            parts[kind].append(data[end : end + length])
            end += length
        if end != len(data):
            raise ProgramEntryError(f"it has {len(data)} bytes where {end} are described")
        artefacts = manifest.from_json(record["artefacts"], tuple(parts[_OBJECT]))
        bind_gpu = record["bind_gpu"]
        if bind_gpu is not None:
            bind_gpu = GpuCode.from_record(bind_gpu, parts[_BIND_KERNEL])
        artefacts = manifest.with_bind_code(artefacts, tuple(parts[_BIND_OBJECT]), bind_gpu)
        if record["gpu"] is None:
            return artefacts
        head = parts[_HEAD][0] if parts[_HEAD] else None
        gpu = GpuCode.from_record(record["gpu"], parts[_KERNEL], head)
        return dataclasses.replace(artefacts, gpu=gpu)
    except manifest.UnregisteredTypeError as error:
        raise ProgramEntryError(f"it names the unregistered type {error.name}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProgramEntryError(f"its description cannot be understood ({error!r})") from error


def _parts(artefacts: Artefacts) -> Iterator[tuple[str, bytes]]:
    """The pieces of code, each with what it is."""
    yield from ((_OBJECT, code) for code in artefacts.objects)
    if artefacts.gpu is not None:
        yield from ((_KERNEL, variant.data) for variant in artefacts.gpu.variants)
        if artefacts.gpu.graph is not None:
            yield _HEAD, artefacts.gpu.graph.head
    if artefacts.bind is not None:
        bind = artefacts.bind.program
        yield from ((_BIND_OBJECT, code) for code in bind.objects)
        if bind.gpu is not None:
            yield from ((_BIND_KERNEL, variant.data) for variant in bind.gpu.variants)


__all__ = ["ProgramEntryError", "decode", "encode"]
