# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The weights of a program and the packed copies that its kernels read.

Kernels read a weight in place, or a copy packed into panels, or both. Every call compares each
weight's address, and the version counter of those that are copied, with what was seen before;
after an in-place update (``load_state_dict``, ``weight.copy_``) the copies are made again. A
tensor created in inference mode has no version counter: of such a weight only a new address is
noticed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shapejit import logs
from shapejit.artefacts import PackSpec, WeightSpec
from shapejit.errors import ErrorId

_LOG = logs.logger("runtime")

Stamp = tuple[int, int]


@dataclass(frozen=True)
class Buffers:
    """What the kernels read, as of one moment; a running call keeps it alive.

    Attributes:
        pointers: addresses of the weights (0 unless read in place), then of the packed copies.
        in_place: weights read in place; contiguous copies stand in for those that are not.
        packed: packed copies.
        copied_bytes: memory of all copies among them.
    """

    pointers: tuple[int, ...]
    in_place: tuple[Tensor | None, ...]
    packed: tuple[Tensor, ...]
    copied_bytes: int


class Weights:
    """The tensors of a program by place, and their prepared form.

    Args:
        specs: what the program expects of each weight.
        packs: the packed copies to make.
        tensors: the weights; they are held, not copied.
        device: where they must be.
        free_original: empty the tensors of which only packed copies are read.

    Raises:
        LoadError: a tensor has another dtype, shape or device than its spec (SJ-LOAD-008).
    """

    def __init__(
        self,
        specs: Sequence[WeightSpec],
        packs: Sequence[PackSpec],
        tensors: Sequence[Tensor],
        device: torch.device,
        *,
        free_original: bool = False,
    ) -> None:
        self.specs = tuple(specs)
        self.packs = tuple(packs)
        self.tensors: list[Tensor] = list(tensors)
        self._device = device
        self._freed: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self._stamps: list[Stamp | None] = [None] * len(self.specs)
        self._buffers = Buffers((), (None,) * len(self.specs), (), 0)
        self._refresh()
        if free_original:
            self._free_packed_only()

    def current(self) -> Buffers:
        """The buffers to read, with copies made again of weights that changed. Thread-safe."""
        if self._changed():
            with self._lock:
                if self._changed():
                    self._refresh()
        return self._buffers

    @property
    def copied_bytes(self) -> int:
        """Memory that packed and contiguous copies take, in bytes."""
        return self._buffers.copied_bytes

    @property
    def bytes(self) -> int:
        """Memory of the weights' own tensors, in bytes; one used twice counts once."""
        tensors = {self.tensors[index].data_ptr(): self.tensors[index] for index in self._live()}
        return sum(tensor.nbytes for tensor in tensors.values())

    def assign(self, index: int, value: Tensor, errors: list[str]) -> None:
        """Write `value` into a weight in place, or add to `errors` why it cannot be."""
        spec = self.specs[index]
        if index in self._freed:
            errors.append(f"weight {spec.name} was freed (free_original=True) and cannot be set")
        elif tuple(value.shape) != tuple(spec.shape):
            errors.append(
                f"size mismatch for {spec.name}: {list(value.shape)} in the state dict, "
                f"{list(spec.shape)} in the program"
            )
        else:
            with torch.no_grad():
                self.tensors[index].copy_(value)

    def requires_grad(self) -> str | None:
        """Name of a weight that requires grad, or None."""
        for index in self._live():
            if self.tensors[index].requires_grad:
                return self.specs[index].name
        return None

    def value(self, index: int) -> Tensor:
        """The weight's value: its tensor, or a new one from a packed copy if that was freed."""
        if index not in self._freed:
            return self.tensors[index]
        number = next(n for n, pack in enumerate(self.packs) if pack.weight == index)
        return unpack_panels(
            self._buffers.packed[number], self.packs[number], self.specs[index].shape
        )

    def _live(self) -> list[int]:
        return [index for index in range(len(self.specs)) if index not in self._freed]

    def _changed(self) -> bool:
        """Whether a weight has moved, or one with copies was written; runs on every call."""
        if list(map(Tensor.data_ptr, self._watched)) != self._pointers:
            return True
        return [tensor._version for tensor in self._copied] != self._versions

    def _refresh(self) -> None:
        """Check the weights that changed since the last time, and make their copies."""
        for index in self._live():
            self._check(index)
        # Taken before copying, so that a change made meanwhile is noticed by the next call.
        stamps = [self._stamp(index) for index in range(len(self.specs))]
        changed = {n for n, stamp in enumerate(stamps) if stamp != self._stamps[n]}
        start = time.perf_counter()
        self._buffers = self._make_buffers(changed)
        _LOG.info(
            "%d weights are new or changed, %d packed in %.3f s",
            len(changed),
            sum(pack.weight in changed for pack in self.packs),
            time.perf_counter() - start,
        )
        self._stamps = stamps
        self._watch()

    def _stamp(self, index: int) -> Stamp | None:
        """What tells one state of a weight from the next; None once it is freed."""
        if index in self._freed:
            return None
        tensor = self.tensors[index]
        return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version

    def _watch(self) -> None:
        """Set what `_changed` compares: all addresses, and the versions of copied weights."""
        live = self._live()
        copied = {pack.weight for pack in self.packs} | {
            index for index in live if self._is_copy(index, self._buffers.in_place[index])
        }
        versioned = [
            index for index in live if index in copied and not self.tensors[index].is_inference()
        ]
        self._watched = [self.tensors[index] for index in live]
        self._copied = [self.tensors[index] for index in versioned]
        stamps = self._stamps
        self._pointers = [stamp[0] for index in live if (stamp := stamps[index]) is not None]
        self._versions = [stamp[1] for index in versioned if (stamp := stamps[index]) is not None]

    def _is_copy(self, index: int, tensor: Tensor | None) -> bool:
        return tensor is not None and tensor is not self.tensors[index]

    def _make_buffers(self, changed: set[int]) -> Buffers:
        """The buffers, with new copies of the changed weights and the old ones of the rest."""
        old = self._buffers
        in_place = tuple(
            (_as_readable(self.tensors[index]) if index in changed else old.in_place[index])
            if spec.read_in_place
            else None
            for index, spec in enumerate(self.specs)
        )
        packed = tuple(
            pack_panels(self.tensors[pack.weight], pack)
            if pack.weight in changed
            else old.packed[number]
            for number, pack in enumerate(self.packs)
        )
        copies = [
            copy
            for index, copy in enumerate(in_place)
            if copy is not None and self._is_copy(index, copy)
        ]
        return Buffers(
            pointers=tuple(0 if t is None else t.data_ptr() for t in (*in_place, *packed)),
            in_place=in_place,
            packed=packed,
            copied_bytes=sum(tensor.nbytes for tensor in (*copies, *packed)),
        )

    def _check(self, index: int) -> None:
        spec, tensor = self.specs[index], self.tensors[index]
        found = (str(tensor.dtype), tuple(tensor.shape), tensor.device)
        expected = (f"torch.{spec.dtype}", tuple(spec.shape), self._device)
        if found != expected or tensor.layout is not torch.strided:
            layout = "" if tensor.layout is torch.strided else f" with layout {tensor.layout}"
            raise ErrorId.SJ_LOAD_008.error(
                weight=spec.name,
                value=f"{found[0]} {list(found[1])} on {found[2]}{layout}",
                expected=f"{expected[0]} {list(expected[1])} on {expected[2]}",
            )

    def _free_packed_only(self) -> None:
        """Empty each tensor that no kernel reads in place, unless it is also another weight."""
        kept = {
            id(self.tensors[index])
            for index, spec in enumerate(self.specs)
            if spec.read_in_place or all(pack.weight != index for pack in self.packs)
        }
        self._freed = frozenset(
            index for index, tensor in enumerate(self.tensors) if id(tensor) not in kept
        )
        for index in self._freed:
            tensor = self.tensors[index]
            tensor.data = tensor.new_empty(0)
            self._stamps[index] = None
        self._watch()


def pack_panels(weight: Tensor, pack: PackSpec) -> Tensor:
    """`weight` ([N, K], or [K, N] if `pack.dim` is 1) as panels ``[ceil(N / panel), K, panel]``."""
    rows = weight.detach() if pack.dim == 0 else weight.detach().t()
    n, k = rows.shape
    panels = -(-n // pack.panel)
    out = rows.new_zeros((panels, k, pack.panel))
    whole = n // pack.panel
    cut = whole * pack.panel
    out[:whole].copy_(rows[:cut].reshape(whole, pack.panel, k).transpose(1, 2))
    if cut < n:
        out[whole, :, : n - cut].copy_(rows[cut:].t())
    return out


def unpack_panels(packed: Tensor, pack: PackSpec, shape: Sequence[int]) -> Tensor:
    """The inverse of `pack_panels`: a contiguous tensor of `shape`."""
    rows = packed.transpose(1, 2).flatten(0, 1)[: shape[pack.dim]]
    return (rows if pack.dim == 0 else rows.t()).contiguous()


def _as_readable(tensor: Tensor) -> Tensor:
    """`tensor` itself if kernels can read its memory as row-major elements, else such a copy."""
    if tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_neg().contiguous()
