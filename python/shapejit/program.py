# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A compiled model: a `torch.nn.Module` that runs native code."""

from __future__ import annotations

import ctypes
import dataclasses
import operator
import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec

from shapejit import logs, report
from shapejit.arena import ArenaError
from shapejit.artefacts import (
    Artefacts,
    ConstantOutput,
    InputOutput,
    SizeOutput,
    TensorOutput,
)
from shapejit.background import Completion
from shapejit.bind_program import BindProgram
from shapejit.changes import Changes, own_copy
from shapejit.diagnosis import named, values_text
from shapejit.errors import ErrorId, quote
from shapejit.execution import Execution, Place, execution_for
from shapejit.native_calls import Inputs
from shapejit.outputs import GivenOutputs
from shapejit.report_graphs import GraphStats
from shapejit.shape_calls import OutputSpec, ShapeCall, ShapeCalls
from shapejit.signature import Signature
from shapejit.size_limits import MOST_BYTES, SizeLimits
from shapejit.weights import Buffers, Weights, as_readable

_LOG = logs.logger("runtime")


class _Counters:
    """Counts calls; thread-safe. An object of its own, as a module sets attributes slowly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._copies = 0
        self._shapes: set[tuple[int, ...]] = set()

    def count(self, call: ShapeCall, copies: int) -> None:
        """One more call, and the number of inputs copied."""
        with self._lock:
            self._calls += 1
            self._copies += copies
            if not call.counted:
                call.counted = True
                if len(self._shapes) < report.MAX_SHAPES:
                    self._shapes.add(tuple(call.symbols))

    def read(self) -> tuple[int, int, int]:
        """Calls, distinct shapes, inputs copied."""
        with self._lock:
            return self._calls, len(self._shapes), self._copies


class _Tables:
    """Tables of addresses with those of the weights filled in; thread-safe.

    A call borrows one and writes the addresses of its inputs and outputs.

    Args:
        weights: what the kernels read.
        inputs, outputs: how many come before and after the weights.
    """

    def __init__(self, weights: Buffers, inputs: int, outputs: int) -> None:
        self.weights = weights
        self._pointers = (*([0] * inputs), *weights.pointers, *([0] * outputs))
        self._type = ctypes.c_void_p * len(self._pointers)
        self._idle: list[Any] = []

    def borrow(self) -> Any:
        """A table for one call alone."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._type(*self._pointers)

    def give_back(self, table: Any) -> None:
        """Takes a table back that native code does not read any more."""
        self._idle.append(table)


class Program(nn.Module):
    """A compiled model. Call it as the model was called when compiling, at any sizes in range.

    Calls may run at the same time in several threads; each has working memory of its own, on a GPU
    each stream, within bounds (`shapejit.arena`). Outputs are new contiguous tensors. Inputs that
    are not contiguous, or for a GPU not aligned to 16 bytes, are copied first (counted in `stats`).
    A weight changed in place, through the original module or through `load_state_dict`, is seen by
    the next call. What the model changes in place, buffers and inputs, the program does, too: in
    their own memory, which no other tensor of the call may share. Such calls run one by one.

    On a GPU a call queues its kernels in the current stream and does not wait for them. It may be
    captured into a CUDA graph, which then keeps what it needs of the program, but for the weights.
    Weights are looked at while a call runs already; it runs again if one has changed. The memory of
    a weight that moved is therefore given back by the next call.

    As a submodule, a program contributes the model's weights to the state dict under their own
    names, but they are not its `parameters()`: it computes no gradients.

    Args:
        artefacts: native code and what is known about calling it.
        weights: the tensors of `artefacts.tensors`, in order; they are held, not copied.
        free_original: give back the memory of weights of which only packed copies are read.
        compiles: compilations that this process did for it: 0 for a loaded program.
        execution: the native code, ready to run; by default on the device of the weights.
        origin: where it came from: "built", found as a whole in the cache's "memory" or on its
            "disk", "shared" with another compilation at the same time, or a saved "file".

    Raises:
        LoadError: a weight does not fit (SJ-LOAD-008).
        LLVMError: the native code does not load.
        TargetError: there is no GPU that the program was built for (SJ-TARGET-006).
        CudaError: the GPU's driver refuses its code.
    """

    def __init__(
        self,
        artefacts: Artefacts,
        weights: Sequence[Tensor],
        *,
        free_original: bool = False,
        compiles: int = 1,
        execution: Execution | None = None,
        origin: str = "built",
    ) -> None:
        super().__init__()
        super().train(False)
        logs.configure()
        self._execution = execution or execution_for(artefacts, _device_of(weights))
        device = self._execution.device
        self.artefacts = artefacts
        self.signature = Signature(
            artefacts.parameters, artefacts.inputs, artefacts.symbols, device
        )
        self._compiles = compiles
        self._origin = origin
        part = artefacts.bind
        bind = None if part is None else BindProgram(part, self._execution.beside(part.program))
        self._bind = bind
        held, states = weights[: len(artefacts.weights)], weights[len(artefacts.weights) :]
        self._weights = Weights(
            artefacts.weights,
            artefacts.packs,
            held,
            device,
            alignment=self._execution.alignment,
            free_original=free_original,
            bind=bind,
        )
        # Which leaf each tensor input is, and whether its values may be lazily negated.
        self._tensor_inputs = [
            (index, getattr(torch, spec.dtype).is_floating_point)
            for index, spec in self.signature.tensors
        ]
        # States follow the leaves of a call. Few programs change anything in place.
        self._changes = Changes(artefacts, states, device)
        self._changed = self._changes.leaves
        self._tensor_inputs += [
            (len(artefacts.inputs) + number, state.is_floating_point())
            for number, state in enumerate(states)
        ]
        self._outputs = _tensor_outputs(artefacts, device)
        self._limits = SizeLimits(artefacts)
        self._given = GivenOutputs(
            [spec.dtype for spec in artefacts.outputs if isinstance(spec, TensorOutput)],
            device,
            self._execution.alignment,
        )
        # An argument of the model's that is called `out` is the model's.
        self._takes_out = all(parameter.name != "out" for parameter in artefacts.parameters)
        self._only_tensors = all(isinstance(spec, TensorOutput) for spec in artefacts.outputs)
        self._structure = _structurer(artefacts.output_tree)
        self._symbols_type = ctypes.c_int64 * max(len(artefacts.symbols), 1)
        self._plan_type = ctypes.c_int64 * (2 + sum(artefacts.output_ranks))
        self._read_plan = struct.Struct(f"{2 + sum(artefacts.output_ranks)}q").unpack
        self._tables = self._new_tables(self._weights.last)
        self._first_output = len(self._tensor_inputs) + len(self._weights.last.pointers)
        self._native_inputs = Inputs(
            self._tensor_inputs, self._execution.alignment, self._execution.for_empty
        )
        self._calls = ShapeCalls(self._execution)
        self._counters = _Counters()
        self._copies_logged = False
        self._completion: Completion | None = None
        self._replacements = 0
        self._execution.prepare(self._tables.borrow())

    # Calls.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result, in the structure that the model returns.

        Args:
            *args, **kwargs: as the model takes them. Besides, `out` may be given, unless the model
                takes an argument of that name: a contiguous tensor, or a sequence of as many as
                the program computes, which receive the results and are returned in their place.
                They share no memory with inputs, weights or one another.

        Raises:
            ShapeJitError: the call is not one that the program was compiled for, or `out` does not
                fit the result (SJ-ARG-011).
        """
        out = kwargs.pop("out", None) if kwargs and self._takes_out else None
        leaves = self.signature.flatten(args, kwargs)
        sizes = self.signature.sizes_of(leaves)
        # Another thread may replace what runs; a call ends with what it began with.
        calls = self._calls
        call = calls.find(sizes) or self._first_call(calls, sizes, leaves)
        if torch.is_grad_enabled():
            self._check_grad(leaves)
        if self._changed:
            leaves = [*leaves, *self._changes.states]
            outputs = self._execute_changes(calls.execution, leaves, call, out)
        else:
            outputs = self._execute(calls.execution, leaves, call, out)
        if not self._only_tensors:
            outputs = self._all_outputs(outputs, leaves, call.symbols)
        return self._structure(outputs)

    def _check_grad(self, leaves: Sequence[Any]) -> None:
        self.signature.check_grad(leaves)
        weight = self._weights.requires_grad()
        if weight is not None:
            raise ErrorId.SJ_GRAD_001.error(what=f"weight {quote(weight)}")

    def _first_call(
        self, calls: ShapeCalls, sizes: tuple[int, ...], leaves: Sequence[Any]
    ) -> ShapeCall:
        """What calls of these sizes need."""
        symbols = self.signature.solve(sizes, leaves)
        native = self._symbols_type(*symbols)
        plan = self._planned(calls.execution, native, symbols)
        call = ShapeCall(symbols, native, plan[0], [output.at(plan) for output in self._outputs])
        calls.add(sizes, call)
        return call

    def _execute_changes(
        self, execution: Execution, leaves: Sequence[Any], call: ShapeCall, out: Any
    ) -> list[Any]:
        """As `_execute`, of a program that changes some of the leaves in place."""
        with self._changes.lock:
            self._changes.check(leaves)
            outputs = self._execute(execution, leaves, call, out)
            self._changes.mark(leaves)
        return outputs

    def _execute(
        self, execution: Execution, leaves: Sequence[Any], call: ShapeCall, out: Any
    ) -> list[Any]:
        """Run the native code: the tensor outputs."""
        # All of this is done for every call, so little is called from here. Where the native code
        # only queues work, weights are looked at while that runs already.
        place = execution.place()
        # What changes inputs cannot run again.
        late = place is not None and not place[1] and not self._changed
        # Held until the native code was called.
        weights = self._weights.last if late else self._weights.current()
        if out is None:
            outputs = self._allocate_outputs(call)
        else:
            outputs = self._given_outputs(out, call, leaves, weights)
        try:
            copied = self._run(execution, weights, leaves, outputs, call, place)
            if late and (current := self._weights.current()) is not weights:
                # What was queued before is overwritten.
                self._run(execution, current, leaves, outputs, call, place)
        except ArenaError as error:
            self._raise_memory(f"{call.arena_bytes} bytes of working memory", call.symbols, error)
        if place is not None and place[1]:
            execution.keep(self._weights.copies(weights))
        self._counters.count(call, copied)
        if out is not None:
            torch.autograd.graph.increment_version([t for t in outputs if not t.is_inference()])
        return outputs

    def _run(
        self,
        execution: Execution,
        weights: Buffers,
        leaves: Sequence[Any],
        outputs: Sequence[Tensor],
        call: ShapeCall,
        place: Place | None,
    ) -> int:
        """Run the native code with these weights: how many inputs had to be copied."""
        inputs = self._native_inputs
        if execution.run_tensors(inputs, leaves, weights.words, outputs, call, place):
            return 0
        tables = self._tables
        if tables.weights is not weights:
            tables = self._tables = self._new_tables(weights)
        table = tables.borrow()
        odd, for_empty = execution.alignment - 1, execution.for_empty
        copied: list[Tensor] = []  # which live until the native code was called
        written: list[tuple[Tensor, Tensor]] = []  # changed tensors and the copies that were
        for position, (index, floating) in enumerate(self._tensor_inputs):
            tensor = leaves[index]
            address = tensor.data_ptr()
            if address & odd or not tensor.is_contiguous() or (floating and tensor.is_neg()):
                copied.append(as_readable(tensor, odd + 1))
                address = copied[-1].data_ptr()
                if index in self._changed:
                    copied[-1] = own_copy(tensor, copied[-1])
                    address = copied[-1].data_ptr()
                    written.append((tensor, copied[-1]))
            table[position] = address or for_empty
        for position, tensor in enumerate(outputs, self._first_output):
            address = tensor.data_ptr()
            if not address and tensor.numel():
                kind = type(tensor).__name__
                raise ErrorId.SJ_ARG_012.error(argument="the result", kind=kind)
            table[position] = address or for_empty
        execution.run(call.native, table, call.arena_bytes, place)
        tables.give_back(table)
        for tensor, copy in written:
            tensor.copy_(copy)
        if copied and not self._copies_logged:
            self._log_copies(len(copied))
        return len(copied)

    def _new_tables(self, weights: Buffers) -> _Tables:
        return _Tables(weights, len(self._tensor_inputs), len(self._outputs))

    def _log_copies(self, count: int) -> None:
        self._copies_logged = True
        _LOG.info("%d inputs cannot be read in place and are copied; not said again", count)

    def _planned(
        self, execution: Execution, native_symbols: Any, symbols: list[int]
    ) -> Sequence[int]:
        """What shapejit_plan says: bytes of the arena, then the sizes of all tensor outputs."""
        native_plan = self._plan_type()
        execution.plan(native_symbols, native_plan)
        plan: tuple[int, ...] = self._read_plan(native_plan)
        if plan[-1]:
            self._raise_constraint(plan[-1], symbols)
        if self._limits.unbounded:
            self._check_limits(symbols)
        return plan

    def _check_limits(self, symbols: list[int]) -> None:
        excess = self._limits.excess(self.signature.with_derived(symbols))
        if excess is not None:
            raise ErrorId.SJ_SHAPE_010.error(
                values=values_text(symbols, self.artefacts.symbols),
                what=f"{excess} bytes of working memory or for a result",
                reason=f"no more than {MOST_BYTES} are counted",
            )

    def _raise_constraint(self, code: int, symbols: list[int]) -> NoReturn:
        specs, constraints = self.artefacts.symbols, self.artefacts.constraints
        values = values_text(symbols, specs)
        if not 1 <= code <= len(constraints):
            raise ErrorId.SJ_INTERNAL_004.error(values=values, code=code)
        broken = constraints[code - 1]
        raise ErrorId.SJ_SHAPE_008.error(
            values=values, rule=named(broken.rule, specs), location=broken.location
        )

    def _allocate_outputs(self, call: ShapeCall) -> list[Any]:
        try:
            return [make(size, strides, dtype) for make, size, strides, dtype in call.outputs]
        except RuntimeError as error:
            sizes = [list(size) for _, size, _, _ in call.outputs]
            self._raise_memory(f"outputs of sizes {sizes}", call.symbols, error)

    def _given_outputs(
        self, out: Any, call: ShapeCall, leaves: Sequence[Any], weights: Buffers
    ) -> list[Any]:
        """The tensors that the caller wants results in, checked."""
        read = [leaves[index] for index, _ in self._tensor_inputs]
        read += [tensor for tensor in weights.in_place if tensor is not None]
        read += [tensor for tensor in weights.hoisted if tensor is not None]
        sizes = [size for _, size, _, _ in call.outputs]
        return list(self._given.checked(out, sizes, read))

    def _raise_memory(self, what: str, symbols: list[int], error: RuntimeError) -> NoReturn:
        values = values_text(symbols, self.artefacts.symbols)
        reason = str(error).splitlines()[0].rstrip(".")
        raise ErrorId.SJ_SHAPE_010.error(values=values, what=what, reason=reason) from error

    def _all_outputs(
        self, tensors: Sequence[Tensor], leaves: Sequence[Any], symbols: list[int]
    ) -> list[Any]:
        """All leaves of the result, given those that the native code computed."""
        computed = iter(tensors)
        values = self.signature.with_derived(symbols)
        result: list[Any] = []
        for spec in self.artefacts.outputs:
            match spec:
                case TensorOutput():
                    result.append(next(computed))
                case InputOutput(index):
                    result.append(leaves[index])
                case SizeOutput(size):
                    result.append(size.evaluate(symbols=values))
                case ConstantOutput(value):
                    result.append(value)
        return result

    # Reports.

    def stats(self) -> report.Stats:
        """Counters since the program was made, and the memory it holds."""
        calls, shapes, copies = self._counters.read()
        return report.Stats(
            calls=calls,
            compiles=self._compiles,
            origin=self._origin,
            distinct_shapes=shapes,
            input_copies=copies,
            arena_bytes=self._execution.arena_bytes,
            weight_bytes=self._weights.bytes,
            packed_bytes=self._weights.copied_bytes,
            hoisted_bytes=self._weights.hoisted_bytes,
            bind_runs=self._weights.bind_runs,
            replacements=self._replacements,
            is_complete=self._completion is None or self._completion.is_over,
            code_bytes=self._code_bytes,
            compile_seconds=dict(self.artefacts.compile_seconds),
            graphs=GraphStats.of(self._execution.graph_use()),
        )

    @property
    def _code_bytes(self) -> int:
        """Machine code in the memory of a GPU."""
        bind = 0 if self._bind is None else self._bind.code_bytes
        return self._execution.code_bytes + bind

    def explain(self, *args: Any, **kwargs: Any) -> report.Explanation:
        """What a call with these arguments would run, without running it."""
        leaves = self.signature.flatten(args, kwargs)
        symbols = self.signature.bind(leaves)
        artefacts = self.artefacts
        plan = self._planned(self._execution, self._symbols_type(*symbols), symbols)
        return report.explain(
            artefacts,
            self.signature.with_derived(symbols),
            plan,
            self._weights.copied_bytes,
            self._origin,
            self._held_bytes(),
        )

    def _held_bytes(self) -> dict[str, int]:
        """Memory that the program holds whatever the sizes of a call, by what it is for."""
        use = self._execution.graph_use()
        held = {
            "weights": self._weights.bytes,
            "copies of weights": self._weights.copied_bytes,
            "computed from weights": self._weights.hoisted_bytes,
            "machine code": self._code_bytes,
        }
        if use is not None:
            held["blocks of parameters, all streams"] = use.block_bytes
            held["tables of changes, all graphs"] = use.table_bytes
        return {what: count for what, count in held.items() if count}

    def __repr__(self) -> str:
        target = self.artefacts.target
        dims = ", ".join(
            f"{spec.name}={spec.min}..{'' if spec.max is None else spec.max}"
            for spec in self.artefacts.symbols
            if spec.derived is None and spec.equal_to is None
        )
        launches = sum(len(kernel.launches) for kernel in self.artefacts.kernels)
        return (
            f"Program{self.signature.names} for {target.kind} ({target.name}): "
            f"{dims or 'static shapes'}; {len(self.artefacts.kernels)} kernels, "
            f"{launches} launches"
        )

    # Code that comes later.

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all code of the program is in place, or known not to come; see
        `CompileOptions.background`. Calls need not wait.

        Args:
            seconds: at most so many; None for as long as it takes.

        Returns:
            Whether there is nothing more to come.
        """
        return self._completion is None or self._completion.wait(seconds)

    def complete_with(self, completion: Completion) -> None:
        """Notes that more code is on its way."""
        self._completion = completion

    def replace_code(self, artefacts: Artefacts) -> Execution:
        """Load other code of the same program, and have calls use it from now on.

        Args:
            artefacts: of the same model, with the same kernels in other variants.

        Returns:
            What ran until now, and may still be run by calls that began before.

        Raises:
            LLVMError, CudaError: the code does not load; the program stays as it is.
        """
        before, known = self._execution, self.artefacts
        assert artefacts.packs == known.packs and artefacts.weights == known.weights
        execution = before.successor(artefacts)
        execution.prepare(self._new_tables(self._weights.last).borrow())
        seconds = {**known.compile_seconds, **artefacts.compile_seconds}
        self.artefacts = dataclasses.replace(artefacts, bind=known.bind, compile_seconds=seconds)
        self._execution = execution
        self._calls = ShapeCalls(execution)
        self._replacements += 1
        return before

    # Weights and saving.

    def named_weights(self) -> dict[str, Tensor]:
        """The model's weights by their names in its state dict, constants left out."""
        tensors = zip(self.artefacts.tensors, self.all_weights(), strict=True)
        return {spec.name: tensor for spec, tensor in tensors if not spec.constant}

    def all_weights(self) -> list[Tensor]:
        """The values of weights, constants and states, in the order of `artefacts.tensors`."""
        weights = [self._weights.value(index) for index in range(len(self.artefacts.weights))]
        return [*weights, *self._changes.states]

    def save(self, path: str | os.PathLike[str], *, weights: bool = True) -> None:
        """Write the program to one file, which `shapejit.load` reads. Code that is still being
        built is waited for.

        Args:
            path: the file; one that exists is replaced, in one step.
            weights: write the weights too; without them, `load` needs to be given them.

        Raises:
            LoadError: the file cannot be written, or the program cannot be saved (SJ-LOAD-012).
        """
        from shapejit import archive

        self.wait()
        archive.save(self, path, weights=weights)

    def train(self, mode: bool = True) -> Program:
        """Programs are for inference: `mode` True is an error (SJ-TRAIN-003)."""
        if mode:
            raise ErrorId.SJ_TRAIN_003.error()
        return super().train(False)

    def __getstate__(self) -> NoReturn:
        raise ErrorId.SJ_LOAD_012.error(
            path="a pickle",
            reason="it holds native code",
            remedy="Use program.save(path) and shapejit.load(path)",
        )

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        for name, tensor in self.named_weights().items():
            destination[prefix + name] = tensor if keep_vars else tensor.detach()

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        names = {
            spec.name: index
            for index, spec in enumerate(self.artefacts.tensors)
            if not spec.constant
        }
        count = len(self.artefacts.weights)
        for name, index in names.items():
            if prefix + name in state_dict:
                value = state_dict[prefix + name]
                if index < count:
                    self._weights.assign(index, value, error_msgs)
                else:
                    self._changes.assign(index - count, value, error_msgs)
            elif strict:
                missing_keys.append(prefix + name)
        if strict:
            unexpected_keys += [
                key
                for key in state_dict
                if key.startswith(prefix) and key[len(prefix) :] not in names
            ]


def _device_of(weights: Sequence[Tensor]) -> torch.device | None:
    return next((tensor.device for tensor in weights if tensor.is_cuda), None)


def _tensor_outputs(artefacts: Artefacts, device: torch.device) -> list[OutputSpec]:
    """The tensors of the result; the plan has their sizes one after the other."""
    found: list[OutputSpec] = []
    start = 1
    for spec in artefacts.outputs:
        if isinstance(spec, TensorOutput):
            end = start + len(spec.dims)
            found.append(OutputSpec(getattr(torch, spec.dtype), start, end, device))
            start = end
    return found


def _structurer(tree: TreeSpec) -> Callable[[list[Any]], Any]:
    """A function from the leaves of a result to the result; quick for flat ones."""
    if tree.is_leaf():
        return operator.itemgetter(0)
    if any(not child.is_leaf() for child in tree.children()):
        return tree.unflatten
    if tree.type is tuple:
        return tuple
    if tree.type is dict:
        keys = list(tree.context)
        return lambda leaves: dict(zip(keys, leaves, strict=True))
    return tree.unflatten
