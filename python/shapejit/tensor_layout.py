# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where torch keeps what the address and the version of a tensor depend on.

A program looks at all of its weights in every call, see `shapejit.weights`. torch can be asked,
weight by weight; that is a good part of what a call of a small model costs. So native code reads
the few words that say it (``runtime/include/shapejit_rt/tensors.h``). Where these lie differs
between versions of torch: it is found by looking for known values in tensors made for that, through
``/proc/self/mem``, where a wrong guess is an error and no crash. What is found must be the same for
several tensors, and must notice every kind of change; else torch is asked.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from shapejit import logs, threads

_LOG = logs.logger("runtime")

# How much of an object, a tensor's body, its storage and its version counter is looked through.
_OBJECT, _BODY, _STORAGE, _COUNTER = 64, 256, 128, 32


class Layout(ctypes.Structure):
    """``ShapejitRtTensorLayout``"""

    _fields_ = tuple(
        (name, c_int64) for name in ("body", "storage", "start", "counter", "data", "version")
    )


class State(ctypes.Structure):
    """``ShapejitRtTensorState``"""

    _fields_ = (
        ("object", c_void_p),
        ("body", c_void_p),
        ("storage", c_void_p),
        ("data", c_void_p),
        ("start", c_int64),
        ("counter", c_void_p),
        ("version", c_int64),
    )


class Watch:
    """The state of tensors as of now. It is to be used with the interpreter lock alone.

    Args:
        layout: where torch keeps it.
        tensors: they are held.
        versioned: for each, whether its version matters; such a one must have one.
    """

    def __init__(
        self, layout: Layout, tensors: Sequence[Tensor], versioned: Sequence[bool]
    ) -> None:
        self._tensors = tuple(tensors)
        self._layout = layout
        states = [
            State(object=id(tensor), counter=1 if has_version else None)
            for tensor, has_version in zip(tensors, versioned, strict=True)
        ]
        self._states = (State * max(len(states), 1))(*states)
        read, changed = _functions()
        read(layout, self._states, len(states))
        self.changed: Callable[[], int] = functools.partial(
            changed, layout, self._states, len(states)
        )
        """Not 0 if a tensor has moved or was written."""


@functools.cache
def _functions() -> tuple[Callable[..., None], Callable[..., int]]:
    # They read what the interpreter lock guards, so they keep it.
    library = ctypes.PyDLL(threads.library()._name)
    for name, result in (("Read", None), ("Changed", ctypes.c_int32)):
        function = getattr(library, f"shapejitRtTensors{name}")
        function.argtypes = (POINTER(Layout), POINTER(State), c_int64)
        function.restype = result
    return library.shapejitRtTensorsRead, library.shapejitRtTensorsChanged


@functools.cache
def layout() -> Layout | None:
    """Where torch keeps the state of tensors; None if that cannot be said for sure."""
    try:
        with _Memory() as memory:
            found = _find(memory)
        if found is not None and _notices_changes(found):
            return found
    except (OSError, AttributeError, RuntimeError, struct.error):
        pass
    _LOG.info("it is not known where this torch keeps addresses: it is asked for each weight")
    return None


class _Memory:
    """The memory of this process, to be read where there may be none."""

    def __enter__(self) -> _Memory:
        self._file = os.open("/proc/self/mem", os.O_RDONLY)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def words(self, address: int, size: int) -> list[int]:
        """The words of 8 bytes from an address on; none where there is no memory."""
        try:
            data = os.pread(self._file, size, address)
        except (OSError, OverflowError):
            return []
        return list(struct.unpack(f"{len(data) // 8}Q", data[: len(data) // 8 * 8]))

    def halves(self, address: int, size: int) -> list[int]:
        """The same in words of 4 bytes."""
        return [half for w in self.words(address, size) for half in (w & 0xFFFFFFFF, w >> 32)]


def _probes() -> Iterator[Tensor]:
    """Tensors with values of their own wherever one is looked for."""
    for start, version in ((70001, 37), (80003, 61), (90007, 83)):
        # Its memory is not torch's, so that the address is in the storage just once.
        base = torch.frombuffer(bytearray(400_000), dtype=torch.float32)
        tensor = base[start:]
        for _ in range(version):
            tensor.zero_()
        yield tensor


def _find(memory: _Memory) -> Layout | None:
    probes = list(_probes())
    places = [
        _Places(memory, probe, probe._cdata, probe.untyped_storage()._cdata) for probe in probes
    ]
    common = functools.reduce(set.__and__, (place.all() for place in places))
    by_name: dict[str, list[int]] = {name: [] for name, _ in Layout._fields_}
    counters = [(slot, at) for name, slot, at in common if name == "counter"]
    for name, slot, _ in common:
        if name != "counter":
            by_name[name].append(slot)
    if len(counters) != 1:
        return None
    [(by_name["counter"], by_name["version"])] = [([slot], [at]) for slot, at in counters]
    if any(len(slots) != 1 for slots in by_name.values()):
        return None
    return Layout(**{name: slots[0] for name, slots in by_name.items()})


class _Places:
    """Where the values of one tensor are found."""

    def __init__(self, memory: _Memory, tensor: Tensor, body: int, storage: int) -> None:
        self._memory = memory
        self._tensor = tensor
        self._body = body
        self._storage = storage

    def all(self) -> set[tuple[str, int, int]]:
        """Names of what is found, with its offset; of the counter also that of the version."""
        tensor = self._tensor
        return {
            *self._of("body", id(tensor), _OBJECT, self._body),
            *self._of("storage", self._body, _BODY, self._storage),
            *self._of("start", self._body, _BODY, tensor.storage_offset()),
            *self._of("data", self._storage, _STORAGE, tensor.untyped_storage().data_ptr()),
            *self._counters(),
        }

    def _of(self, name: str, base: int, size: int, value: int) -> Iterator[tuple[str, int, int]]:
        for number, word in enumerate(self._memory.words(base, size)):
            if word == value:
                yield name, 8 * number, 0

    def _counters(self) -> Iterator[tuple[str, int, int]]:
        version = self._tensor._version
        for number, word in enumerate(self._memory.words(self._body, _BODY)):
            if word % 8 or word in (0, self._storage):
                continue
            for place, half in enumerate(self._memory.halves(word, _COUNTER)):
                if half == version:
                    yield "counter", 8 * number, 4 * place


def _notices_changes(found: Layout) -> bool:
    """Whether a watch of tensors sees what happens to them, and nothing else."""
    changes: list[Callable[[Any], Any]] = [
        lambda t: setattr(t, "data", t.data.clone()),
        lambda t: t.set_(torch.zeros(8)),
        lambda t: t.set_(t.untyped_storage(), 1, (4,)),
        lambda t: t.add_(1),
        lambda t: t.copy_(torch.ones_like(t)),
        lambda t: t[2:].zero_(),
    ]
    parameters = [torch.nn.Parameter(torch.zeros(8), requires_grad=False) for _ in changes]
    others = [torch.nn.Parameter(torch.zeros(8)), torch.zeros(8)]
    for parameter, change in zip(parameters, changes, strict=True):
        watch = Watch(found, [*others, parameter], [False, True, True])
        _ = parameter.sum(), parameter[1:], parameter.detach()
        if watch.changed():
            return False
        change(parameter)
        if not watch.changed():
            return False
    return not Watch(found, [*others, *parameters], [True] * (2 + len(parameters))).changed()


__all__ = ["Layout", "Watch", "layout"]
