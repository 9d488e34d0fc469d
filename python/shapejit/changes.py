# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What calls of a program change in place: buffers that it holds (its *states*), and inputs.

Kernels write into the tensors' own memory. So none of them may share memory with another tensor of
the call. Memory that kernels cannot write (a strided tensor) is copied before and after.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from shapejit.artefacts import Artefacts, TensorInput, WeightSpec
from shapejit.errors import ErrorId
from shapejit.native_calls import has_memory


class Changes:
    """The states of a program, and which leaves of a call change.

    Args:
        artefacts: of the program.
        states: the tensors of `artefacts.states`, in order; they are held, not copied.
        device: where they must be.

    Attributes:
        states: the tensors.
        leaves: numbers of the leaves that change; states count after the leaves.
        lock: calls that change states run one after the other.

    Raises:
        LoadError: a state has another dtype, shape or device than its spec (SJ-LOAD-008).
        ExportError: two states share memory (SJ-EXPORT-014).
    """

    def __init__(
        self, artefacts: Artefacts, states: Sequence[Tensor], device: torch.device
    ) -> None:
        self.states = tuple(states)
        self.leaves = frozenset(
            (*artefacts.updates, *(len(artefacts.inputs) + i for i in range(len(self.states))))
        )
        self.lock = threading.RLock()
        self._specs, self._inputs = artefacts.states, len(artefacts.inputs)
        self._names = [spec.path for spec in artefacts.inputs]
        self._names += [spec.name for spec in artefacts.states]
        self._tensors = [i for i, spec in enumerate(artefacts.inputs) if _is_tensor(spec)]
        self._tensors += range(len(artefacts.inputs), len(self._names))
        self._checked: tuple[tuple[int, int], ...] | None = None
        for spec, tensor in zip(artefacts.states, self.states, strict=True):
            _check_state(spec, tensor, device)
        for first, second in overlaps(self.states, range(len(self.states))):
            names = [artefacts.states[number].name for number in (first, second)]
            raise ErrorId.SJ_EXPORT_014.error(buffer=names[0], other=names[1])

    def check(self, leaves: Sequence[object]) -> None:
        """Checks the leaves of a call, states included.

        Raises:
            ArgumentError: one that changes shares memory with another, or has elements that share
                memory (SJ-ARG-010), or a state's storage was emptied (SJ-ARG-012).
        """
        tensors = [leaf for i in self._tensors if isinstance(leaf := leaves[i], Tensor)]
        place = tuple((tensor.data_ptr(), tensor.numel()) for tensor in tensors)
        if place == self._checked and all(map(Tensor.is_contiguous, tensors)):
            return
        for name, state in zip(self._names[self._inputs :], self.states, strict=True):
            if not has_memory(state):
                raise ErrorId.SJ_ARG_012.error(argument=name, kind=type(state).__name__)
        changed = [n for n, i in enumerate(self._tensors) if i in self.leaves]
        for number in changed:
            if any(s == 0 and n > 1 for s, n in zip(*_layout(tensors[number]), strict=True)):
                self._refuse(number, number)
        for first, second in overlaps(tensors, changed):
            self._refuse(first, second)
        self._checked = place

    def assign(self, number: int, value: Tensor, errors: list[str]) -> None:
        """Write `value` into a state in place, or add to `errors` why it cannot be."""
        spec, state = self._specs[number], self.states[number]
        if value.shape != state.shape:
            errors.append(
                f"size mismatch for {spec.name}: {list(value.shape)} in the state dict, "
                f"{list(state.shape)} in the program"
            )
            return
        with torch.no_grad(), self.lock:
            state.copy_(value)

    def _refuse(self, first: int, second: int) -> None:
        name, other = (self._names[self._tensors[number]] for number in (first, second))
        shared = "with itself: it is expanded" if first == second else f'with "{other}"'
        # A state is not passed: the other tensor is.
        own = other if self._tensors[first] >= self._inputs else name
        raise ErrorId.SJ_ARG_010.error(argument=name, shared=shared, own=own)

    def mark(self, leaves: Sequence[Tensor]) -> None:
        """Tells autograd that the leaves that change have changed."""
        changed = [leaf for i in self.leaves if not (leaf := leaves[i]).is_inference()]
        torch.autograd.graph.increment_version(changed)


def own_copy(tensor: Tensor, readable: Tensor) -> Tensor:
    """A copy of a tensor that can be written: `readable` is one, unless it has the same memory."""
    same = readable.data_ptr() == tensor.data_ptr() and tensor.numel()
    return readable.clone(memory_format=torch.contiguous_format) if same else readable


def _is_tensor(spec: object) -> bool:
    return isinstance(spec, TensorInput)


def _layout(tensor: Tensor) -> tuple[Sequence[int], Sequence[int]]:
    return tensor.stride(), tensor.shape


def _span(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's memory begins and ends; it is empty if the tensor is."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    last = sum(stride * (size - 1) for stride, size in zip(*_layout(tensor), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def overlaps(tensors: Sequence[Tensor], changed: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of tensors that share memory of which the first one changes."""
    spans = [_span(tensor) for tensor in tensors]
    found, writes = [], set(changed)
    order = sorted(range(len(spans)), key=lambda number: spans[number])
    for position, number in enumerate(order):
        for other in order[position + 1 :]:
            if spans[other][0] >= spans[number][1]:
                break
            if spans[other][0] < spans[other][1] and writes & {number, other}:
                found.append((number, other) if number in writes else (other, number))
    return found


def _check_state(spec: WeightSpec, tensor: Tensor, device: torch.device) -> None:
    found = (str(tensor.dtype), tuple(tensor.shape), tensor.device)
    expected = (f"torch.{spec.dtype}", tuple(spec.shape), device)
    memory = "" if has_memory(tensor) else " without memory"
    if found != expected or tensor.layout is not torch.strided or memory:
        raise ErrorId.SJ_LOAD_008.error(
            weight=spec.name,
            value=f"{found[0]} {list(found[1])} on {found[2]}{memory}",
            expected=f"{expected[0]} {list(expected[1])} on {expected[2]}",
        )
