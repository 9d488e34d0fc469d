# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The weights of a program and the copies of them that its kernels read.

Kernels read a weight in place, or a copy, or both: a weight packed into panels, or several joined
into one tensor. What depends on weights alone is *hoisted*: computed once, by the program's bind
part, and read, packed and joined like a weight. Every call compares each weight's address, and the
version counter of those that are copied or computed with, with what was seen before; after an
in-place update (``load_state_dict``, ``weight.copy_``) the copies and the hoisted tensors are made
again. A tensor created in inference mode has no version counter: of such a weight only a new
address is noticed, and what the program's own ``load_state_dict`` writes.
"""

from __future__ import annotations

import functools
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shapejit import logs
from shapejit.artefacts import CopySpec, JoinSpec, PackSpec, WeightSpec
from shapejit.errors import ErrorId
from shapejit.native_calls import has_memory

if TYPE_CHECKING:
    from shapejit.bind_program import BindProgram

_LOG = logs.logger("runtime")

Stamp = tuple[int, int]

# An address at which no weight is.
_NOWHERE = 1

# Whether tensors lie at these addresses, at once for all of them: builds of torch for CUDA have it,
# for the inputs of torch's own graphs.
_compare_addresses: Callable[[list[Tensor], list[int], list[int]], bool] | None = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", None
)


@dataclass(frozen=True)
class Buffers:
    """What the kernels read, as of one moment; a running call keeps it alive.

    Attributes:
        pointers: addresses of the weights and the hoisted tensors (0 unless read in place), then of
            the packed and joined copies.
        in_place: weights read in place; copies stand in for those that cannot be.
        packed: packed and joined copies.
        copied_bytes: memory of all copies among them.
        hoisted: tensors computed from weights; None for one of which only copies are read.
        storages: of the weights read in place. Kernels that are queued before it is noticed that a
            weight has moved read what it was; its memory has to be there.
    """

    pointers: tuple[int, ...]
    in_place: tuple[Tensor | None, ...]
    packed: tuple[Tensor, ...]
    copied_bytes: int
    storages: tuple[torch.UntypedStorage, ...] = ()
    hoisted: tuple[Tensor | None, ...] = ()

    @functools.cached_property
    def words(self) -> bytes:
        """The addresses as native code reads them."""
        return struct.pack(f"{len(self.pointers)}Q", *self.pointers)

    @property
    def hoisted_bytes(self) -> int:
        """Memory of the hoisted tensors."""
        return sum(tensor.nbytes for tensor in self.hoisted if tensor is not None)


class _Seen:
    """What calls compare the weights with. It is exchanged as a whole, as other threads look at it.

    Args:
        watched: the weights that can move.
        addresses: where they were.
        copied: those of which there are copies.
        versions: that they had.
    """

    def __init__(
        self,
        watched: list[Tensor],
        addresses: list[int],
        copied: list[Tensor],
        versions: list[int],
    ) -> None:
        self._watched = watched
        self._addresses = addresses
        self._numbers = list(range(len(watched)))
        self._copied = copied
        self._versions = versions

    def differs(self) -> bool:
        """Whether a weight has moved, or one with copies was written."""
        if _compare_addresses is None:
            if list(map(Tensor.data_ptr, self._watched)) != self._addresses:
                return True
        elif not _compare_addresses(self._watched, self._addresses, self._numbers):
            return True
        return [tensor._version for tensor in self._copied] != self._versions


class Weights:
    """The tensors of a program by place, and their prepared form.

    Args:
        specs: what the program expects of each weight.
        packs: the packed and joined copies to make.
        tensors: the weights; they are held, not copied.
        device: where they must be.
        alignment: bytes that the addresses which kernels read are multiples of.
        free_original: empty the tensors of which only packed or joined copies are read, and that
            nothing is computed with.
        bind: computes what depends on them alone; None if nothing does.

    Raises:
        LoadError: a tensor has another dtype, shape or device than its spec (SJ-LOAD-008).
    """

    def __init__(
        self,
        specs: Sequence[WeightSpec],
        packs: Sequence[CopySpec],
        tensors: Sequence[Tensor],
        device: torch.device,
        *,
        alignment: int = 1,
        free_original: bool = False,
        bind: BindProgram | None = None,
    ) -> None:
        self._bind = bind
        self.specs = tuple(specs)
        self.packs = tuple(packs)
        self.tensors: list[Tensor] = list(tensors)
        self._device = device
        self._alignment = alignment
        # On a GPU a copy that is made again goes where it was: graphs have its address. Calls that
        # are queued in other streams must be over then, as for weights that are read in place.
        self._copies_stay = device.type == "cuda"
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
    def last(self) -> Buffers:
        """What `current` gave last; weights may have changed since."""
        return self._buffers

    def copies(self, buffers: Buffers | None = None) -> list[Tensor]:
        """The copies of weights that kernels read.

        Args:
            buffers: those of the kernels' call; by default the last ones.
        """
        read = self._buffers if buffers is None else buffers
        in_place = enumerate(read.in_place)
        copied = [t for index, t in in_place if t is not None and self._is_copy(index, t)]
        hoisted = [tensor for tensor in read.hoisted if tensor is not None]
        return [*copied, *hoisted, *read.packed]

    @property
    def hoisted_bytes(self) -> int:
        """Memory of what was computed from weights, in bytes."""
        return self._buffers.hoisted_bytes

    @property
    def bind_runs(self) -> int:
        """How often what depends on weights alone was computed."""
        return 0 if self._bind is None else self._bind.runs

    @property
    def copied_bytes(self) -> int:
        """Memory that packed, joined and contiguous copies take, in bytes."""
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
            if self.tensors[index].is_inference():
                self._note_written(self.tensors[index])

    def requires_grad(self) -> str | None:
        """Name of a weight that requires grad, or None."""
        for index in self._live():
            if self.tensors[index].requires_grad:
                return self.specs[index].name
        return None

    def value(self, index: int) -> Tensor:
        """The weight's value: its tensor, or a new one from a copy if that was freed."""
        if index not in self._freed:
            return self.tensors[index]
        number = next(n for n, pack in enumerate(self.packs) if index in sources(pack))
        pack, copy = self.packs[number], self._buffers.packed[number]
        if isinstance(pack, PackSpec):
            return unpack_panels(copy, pack, self.specs[index].shape)
        place = pack.weights.index(index)
        before = sum(self.specs[weight].shape[pack.dim] for weight in pack.weights[:place])
        part = copy.narrow(pack.dim, before, self.specs[index].shape[pack.dim])
        return part.clone(memory_format=torch.contiguous_format)

    def _live(self) -> list[int]:
        return [index for index in range(len(self.specs)) if index not in self._freed]

    def _changed(self) -> bool:
        """Whether a weight has moved, or one with copies was written; runs on every call."""
        return self._seen.differs()

    def _refresh(self) -> None:
        """Check the weights that changed since the last time, and make their copies."""
        for index in self._live():
            self._check(index)
        # Taken before copying, so that a change made meanwhile is noticed by the next call.
        stamps = [self._stamp(index) for index in range(len(self.specs))]
        changed = {n for n, stamp in enumerate(stamps) if stamp != self._stamps[n]}
        count = len(changed)  # hoisted tensors that are computed again come to them
        start = time.perf_counter()
        buffers = self._make_buffers(changed)
        copied = len(changed) > count or self._copies_of(changed, buffers)
        if self._device.type == "cuda" and copied:
            # Calls in other streams read the copies, too. A capture, which cannot wait, fails here
            # instead of reading copies that are made when it is replayed.
            torch.cuda.current_stream(self._device).synchronize()
        # Not before: a call in another stream that had these would think that they are written.
        self._buffers = buffers
        _LOG.info(
            "%d weights are new or changed, %d copies made in %.3f s",
            count,
            sum(not changed.isdisjoint(sources(pack)) for pack in self.packs),
            time.perf_counter() - start,
        )
        self._stamps = stamps
        self._watch()

    def _note_written(self, tensor: Tensor) -> None:
        """Lets the next call see that a weight without a version counter was written."""
        memory = tensor.untyped_storage().data_ptr()
        with self._lock:
            for index in self._live():
                if self.tensors[index].untyped_storage().data_ptr() == memory:
                    self._stamps[index] = None
            self._seen = _Seen([tensor], [_NOWHERE], [], [])

    def _copies_of(self, changed: set[int], buffers: Buffers) -> bool:
        """Whether there are copies of some of these weights or hoisted tensors."""
        in_place = enumerate(buffers.in_place)
        return any(
            index in changed and self._is_copy(index, tensor) for index, tensor in in_place
        ) or not all(changed.isdisjoint(sources(pack)) for pack in self.packs)

    def _stamp(self, index: int) -> Stamp | None:
        """What tells one state of a weight from the next; None once it is freed."""
        if index in self._freed:
            return None
        tensor = self.tensors[index]
        return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version

    def _watch(self) -> None:
        """Set what `_changed` compares: all addresses, and the versions of copied weights."""
        live = self._live()
        copied = {index for pack in self.packs for index in sources(pack)} | {
            index for index in live if self._is_copy(index, self._buffers.in_place[index])
        }
        copied.update(() if self._bind is None else self._bind.weights)
        versioned = [
            index for index in live if index in copied and not self.tensors[index].is_inference()
        ]
        stamps = self._stamps
        self._seen = _Seen(
            [self.tensors[index] for index in live],
            [stamp[0] for index in live if (stamp := stamps[index]) is not None],
            [self.tensors[index] for index in versioned],
            [stamp[1] for index in versioned if (stamp := stamps[index]) is not None],
        )

    def _is_copy(self, index: int, tensor: Tensor | None) -> bool:
        return tensor is not None and tensor is not self.tensors[index]

    def _make_buffers(self, changed: set[int]) -> Buffers:
        """The buffers, with new copies of the changed weights and the old ones of the rest.

        Args:
            changed: numbers of the weights; those of hoisted tensors that changed are added.
        """
        old = self._buffers
        in_place = tuple(
            (self._readable(index) if index in changed else old.in_place[index])
            if spec.read_in_place
            else None
            for index, spec in enumerate(self.specs)
        )
        hoisted = self._hoisted(changed, in_place)
        packed = tuple(
            old.packed[number] if changed.isdisjoint(sources(pack)) else self._copy(number, hoisted)
            for number, pack in enumerate(self.packs)
        )
        kept = self._kept(hoisted)
        copies = [
            copy
            for index, copy in enumerate(in_place)
            if copy is not None and self._is_copy(index, copy)
        ]
        return Buffers(
            pointers=tuple(0 if t is None else t.data_ptr() for t in (*in_place, *kept, *packed)),
            in_place=in_place,
            packed=packed,
            copied_bytes=sum(tensor.nbytes for tensor in (*copies, *packed)),
            storages=tuple(t.untyped_storage() for t in in_place if t is not None),
            hoisted=kept,
        )

    def _hoisted(
        self, changed: set[int], in_place: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        """The hoisted tensors, computed again if a weight that they depend on is in `changed`.

        Their numbers are then added to it.

        Args:
            changed: numbers of the weights that are new.
            in_place: the weights, as kernels read them; None for those that calls do not read.
        """
        bind, old = self._bind, self._buffers.hoisted
        if bind is None:
            return ()
        first = len(self.specs)
        numbers = range(first, first + len(bind.hoisted))
        # One of which only copies are read is not there any more for a copy with a new weight.
        missing = {number for number, t in zip(numbers, old, strict=False) if t is None}
        needed = {
            number
            for pack in self.packs
            if not changed.isdisjoint(sources(pack))
            for number in sources(pack)
        }
        if changed.isdisjoint(bind.weights) and missing.isdisjoint(needed) and old:
            return old
        changed.update(numbers)
        given = old if old and self._copies_stay else (None,) * len(numbers)
        with torch.inference_mode(False), torch.no_grad():
            readable = [
                as_readable(self.tensors[index], self._alignment) if tensor is None else tensor
                for index in bind.weights
                for tensor in (in_place[index],)
            ]
            return tuple(bind.run(readable, given))

    def _kept(self, hoisted: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """The hoisted tensors that kernels read; of the others there are copies."""
        specs = () if self._bind is None else self._bind.hoisted
        return tuple(
            tensor if spec.read_in_place else None
            for spec, tensor in zip(specs, hoisted, strict=True)
        )

    def _readable(self, index: int) -> Tensor:
        """A weight that kernels read, or a copy of it."""
        tensor, old = self.tensors[index], self._buffers.in_place[index]
        # What was made in inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            if (
                old is not None
                and self._copies_stay
                and self._is_copy(index, old)
                and not is_readable(tensor, self._alignment)
            ):
                return old.copy_(tensor)
            return as_readable(tensor, self._alignment)

    def _copy(self, number: int, hoisted: Sequence[Tensor | None]) -> Tensor:
        """The copy that a spec describes, made of the weights as they are now.

        Args:
            number: of the spec.
            hoisted: all hoisted tensors that the copy is made of.
        """
        pack = self.packs[number]
        with torch.inference_mode(False), torch.no_grad():
            old = self._buffers.packed
            if isinstance(pack, PackSpec):
                made = pack_panels(self._source(pack.weight, hoisted), pack)
                return old[number].copy_(made) if old and self._copies_stay else made
            # A weight that was freed is still part of the copy before.
            parts = [self._source(index, hoisted).detach() for index in pack.weights]
            if old and self._copies_stay:
                return torch.cat(parts, pack.dim, out=old[number])
            return torch.cat(parts, pack.dim)

    def _source(self, index: int, hoisted: Sequence[Tensor | None]) -> Tensor:
        """What a copy is made of: a weight, or a hoisted tensor."""
        if index < len(self.specs):
            return self.value(index)
        tensor = hoisted[index - len(self.specs)]
        assert tensor is not None, "what a copy needs was computed again"
        return tensor

    def _check(self, index: int) -> None:
        spec, tensor = self.specs[index], self.tensors[index]
        found = (str(tensor.dtype), tuple(tensor.shape), tensor.device)
        expected = (f"torch.{spec.dtype}", tuple(spec.shape), self._device)
        odd = "" if tensor.layout is torch.strided else f" with layout {tensor.layout}"
        if not odd and not has_memory(tensor):
            odd = " without memory"
        if found != expected or odd:
            raise ErrorId.SJ_LOAD_008.error(
                weight=spec.name,
                value=f"{found[0]} {list(found[1])} on {found[2]}{odd}",
                expected=f"{expected[0]} {list(expected[1])} on {expected[2]}",
            )

    def _free_packed_only(self) -> None:
        """Empty each tensor that no kernel reads in place, unless it is also another weight."""
        copied = {index for pack in self.packs for index in sources(pack)}
        copied.difference_update(() if self._bind is None else self._bind.weights)
        kept = {
            id(self.tensors[index])
            for index, spec in enumerate(self.specs)
            if spec.read_in_place or index not in copied
        }
        self._freed = frozenset(
            index for index, tensor in enumerate(self.tensors) if id(tensor) not in kept
        )
        for index in self._freed:
            tensor = self.tensors[index]
            tensor.data = tensor.new_empty(0)
            self._stamps[index] = None
        self._watch()


def sources(pack: CopySpec) -> tuple[int, ...]:
    """The numbers of the weights that a copy is made of."""
    return pack.weights if isinstance(pack, JoinSpec) else (pack.weight,)


def pack_panels(weight: Tensor, pack: PackSpec) -> Tensor:
    """`weight` as panels, see `PackSpec`: ``[ceil(N / panel), K, panel]`` of a matrix [N, K]."""
    pack = pack.over(weight.shape)
    rows = _flipped(_spread(weight.detach().contiguous(), pack), pack).movedim(pack.dim, -1)
    shape = list(pack.sizes)
    shape[pack.dim] = -(-shape[pack.dim] // pack.panel)
    out = weight.new_zeros((*shape, pack.panel))
    panels = out.movedim(pack.dim, -2)
    whole, rest = divmod(rows.shape[-1], pack.panel)
    cut = whole * pack.panel
    kept = rows[..., :cut].reshape(*rows.shape[:-1], whole, pack.panel)
    panels[..., :whole, :].copy_(kept)
    if rest:
        panels[..., whole, :rest].copy_(rows[..., cut:])
    return out


def unpack_panels(packed: Tensor, pack: PackSpec, shape: Sequence[int]) -> Tensor:
    """The inverse of `pack_panels`: a contiguous tensor of `shape`."""
    pack = pack.over(shape)
    rows = packed.movedim(pack.dim, -2).flatten(-2)[..., : pack.sizes[pack.dim]]
    out = packed.new_empty(tuple(shape))
    _spread(out, pack).copy_(_flipped(rows.movedim(-1, pack.dim), pack))
    return out


def _spread(weight: Tensor, pack: PackSpec) -> Tensor:
    """A contiguous weight as a tensor of the pack's sizes; dims of negative stride run forwards."""
    turned = [
        stride * (size - 1)
        for size, stride in zip(pack.sizes, pack.strides, strict=True)
        if stride < 0
    ]
    return weight.as_strided(pack.sizes, [abs(s) for s in pack.strides], pack.offset + sum(turned))


def _flipped(rows: Tensor, pack: PackSpec) -> Tensor:
    """Turns the dims of negative stride around."""
    dims = [dim for dim, stride in enumerate(pack.strides) if stride < 0]
    return rows.flip(dims) if dims else rows


def is_readable(tensor: Tensor, alignment: int) -> bool:
    """Whether kernels can read a tensor's memory: row-major elements at an aligned address."""
    return (
        tensor.is_contiguous() and not tensor.is_neg() and not tensor.data_ptr() & (alignment - 1)
    )


def as_readable(tensor: Tensor, alignment: int) -> Tensor:
    """`tensor` itself if kernels can read it, else a copy.

    Args:
        tensor: any one.
        alignment: of its address in bytes, a power of 2.
    """
    if is_readable(tensor, alignment):
        return tensor
    plain = tensor.detach().resolve_neg().contiguous()
    return plain if is_readable(plain, alignment) else plain.clone()
