# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What compilation produces: native code, and all that is known about calling it.

`Artefacts` is the hand-over from the pipeline to `shapejit.program.Program` and to the archive.
It holds no tensors and no MLIR: dtypes are torch's names ("float32"), sizes are `Expr` over the
module's symbols, structures are torch's treespecs. So it turns into JSON and back.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shapejit.symbolic import Expr

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec

    from shapejit.cache import Lease
    from shapejit.gpu.program_code import GpuCode

Sizes = tuple[Expr, ...]
Scalar = bool | int | float | str | None

ENTRY_RUN = "shapejit_run"
ENTRY_PLAN = "shapejit_plan"
ENTRY_REGION = "shapejit_region"
ENTRY_WORDS = "shapejit_words"


@dataclass(frozen=True)
class Derivation:
    """How a derived symbol follows from those before it: ``kind(lhs, rhs)``."""

    kind: Literal["max", "min", "floordiv", "ceildiv", "mod"]
    lhs: Expr
    rhs: Expr

    def evaluate(self, symbols: Sequence[int]) -> int:
        """The value, given those of the symbols before it."""
        lhs, rhs = self.lhs.evaluate(symbols=symbols), self.rhs.evaluate(symbols=symbols)
        return _DERIVATIONS[self.kind](lhs, rhs)


_DERIVATIONS: dict[str, Callable[[int, int], int]] = {
    "max": max,
    "min": min,
    "floordiv": operator.floordiv,
    "ceildiv": lambda lhs, rhs: -(-lhs // rhs),
    "mod": operator.mod,
}


@dataclass(frozen=True)
class SymbolSpec:
    """One module symbol; its id is its place in `Artefacts.symbols`.

    Attributes:
        name: the user's name of the dim.
        min, max: range that a call may use, both included; no `max` means unbounded.
        opt: size to expect most, a hint.
        divisor: every value is a multiple of it.
        equal_to: id of the symbol that this one was merged into.
        derived: how the host program computes it, for one that no input determines.
    """

    name: str
    min: int = 0
    max: int | None = None
    opt: int | None = None
    divisor: int = 1
    equal_to: int | None = None
    derived: Derivation | None = None


@dataclass(frozen=True)
class TensorInput:
    """A tensor among the flattened inputs of a call.

    Attributes:
        path: the argument as the user writes it: ``ids``, ``batch["ids"]``, ``states[0]``.
        dtype: torch's name of the dtype.
        dims: size of each dim over the module's symbols.
    """

    path: str
    dtype: str
    dims: Sizes


@dataclass(frozen=True)
class SizeInput:
    """An int among the flattened inputs that may vary; it is a size, and no buffer."""

    path: str
    size: Expr


@dataclass(frozen=True)
class ConstantInput:
    """A leaf among the flattened inputs that is no tensor; calls must pass an equal value."""

    path: str
    value: Scalar


@dataclass(frozen=True)
class Parameter:
    """One argument of the call.

    Attributes:
        name: the user's name of it.
        keyword: it was passed by keyword when compiling.
        tree: its structure; None for a single leaf.
    """

    name: str
    keyword: bool
    tree: TreeSpec | None


@dataclass(frozen=True)
class WeightSpec:
    """A tensor of the model.

    Attributes:
        name: fully-qualified name in the module's state dict, or a name of its own for a constant.
        dtype: torch's name of the dtype.
        shape: its sizes.
        constant: it is in no state dict (a non-persistent buffer or a literal tensor), so a saved
            program always holds it.
        read_in_place: kernels read the tensor itself, not only packed copies of it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    constant: bool = False
    read_in_place: bool = True


@dataclass(frozen=True)
class PackSpec:
    """A panel-packed copy of a weight, made at load time.

    The weight, row-major, is seen as a tensor of `sizes` whose element (i0, i1, ..) lies at
    ``offset + i0 * strides[0] + ..``. Its dim `dim`, of size N, is cut into panels whose columns
    come last, zero past the end: the copy of ``[N, K]`` is ``[ceil(N / panel), K, panel]``.

    Without `sizes` the weight is a matrix, and its dim `dim` is the first one.
    """

    weight: int
    dim: int
    panel: int
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0

    def over(self, shape: Sequence[int]) -> PackSpec:
        """The same with sizes and strides given, for a weight of this shape."""
        if self.sizes:
            return self
        rows, columns = shape
        sizes, strides = (rows, columns), (columns, 1)
        if self.dim == 1:
            sizes, strides = sizes[::-1], strides[::-1]
        return PackSpec(self.weight, 0, self.panel, sizes, strides)


@dataclass(frozen=True)
class JoinSpec:
    """Several weights as one tensor, made at load time.

    Attributes:
        weights: numbers of the weights, in order; one may occur twice.
        dim: the dim along which they lie one after the other; their other sizes are equal.
    """

    weights: tuple[int, ...]
    dim: int


@dataclass(frozen=True)
class HoistedSpec:
    """A tensor that is computed from weights alone, once when a program is bound to them.

    Attributes:
        name: in reports.
        dtype: torch's name of the dtype.
        shape: its sizes.
        weights: numbers of the weights that it is computed from.
        sources: operators that it is the result of, with their source lines.
        read_in_place: kernels of calls read the tensor itself, not only copies of it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    weights: tuple[int, ...]
    sources: tuple[str, ...] = ()
    read_in_place: bool = True


@dataclass(frozen=True)
class BindPart:
    """What a program computes when it is bound to weights, and again when one of them changed.

    Attributes:
        program: its inputs are weights, its outputs the hoisted tensors; it has no weights itself.
        weights: numbers of the weights that are its inputs, in order.
        hoisted: its outputs, in order.
    """

    program: Artefacts
    weights: tuple[int, ...]
    hoisted: tuple[HoistedSpec, ...]


@dataclass(frozen=True)
class TensorOutput:
    """A leaf of the result that the program computes; `dims` are for reports."""

    dtype: str
    dims: Sizes


@dataclass(frozen=True)
class InputOutput:
    """A leaf of the result that is the flattened input number `input`, the same object; a state if
    there are fewer inputs."""

    input: int


@dataclass(frozen=True)
class SizeOutput:
    """A leaf of the result that is an int computed from sizes."""

    size: Expr


@dataclass(frozen=True)
class ConstantOutput:
    """A leaf of the result that is the same for every call."""

    value: Scalar


CopySpec = PackSpec | JoinSpec
InputSpec = TensorInput | SizeInput | ConstantInput
OutputSpec = TensorOutput | InputOutput | SizeOutput | ConstantOutput


@dataclass(frozen=True)
class LaunchInfo:
    """One launch of a kernel.

    Attributes:
        symbols: the kernel's local symbols over the module's symbols.
        sources: operators it computes, with their source lines: ``aten.linear model.py:41``.
    """

    symbols: Sizes
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelInfo:
    """One kernel, for reports.

    Attributes:
        name: name of the kernel in the IR.
        kind: the op that leads it: gemm, attention, loop.
        why: why its ops form one kernel, in a few words.
        fuses: the ops in it, in order: ``gemm``, ``gelu``, ``layer_norm``.
        sizes: its iteration space over its local symbols.
        launches: where the program launches it, in program order.
        origin: where its code came from when the program was compiled: "built", or found in the
            cache's "memory" or on its "disk"; "shared" with another compilation at the same time.
    """

    name: str
    kind: str
    why: str
    fuses: tuple[str, ...]
    sizes: Sizes
    launches: tuple[LaunchInfo, ...]
    origin: str = "built"


@dataclass(frozen=True)
class ConstraintInfo:
    """A rule between sizes that `shapejit_plan` checks; its code is its place in the list + 1.

    Attributes:
        rule: the rule over the module's symbols: ``s0 - s1 >= 0``.
        location: ``file:line`` of the operator that sets it, if known.
    """

    rule: str
    location: str | None = None


@dataclass(frozen=True)
class TargetInfo:
    """What the native code was built for.

    Attributes:
        kind: where the kernels run; the host program runs on a CPU in any case.
        triple: LLVM's name of the machine and system.
        cpu: LLVM's name of the CPU.
        features: LLVM's names of the features that the code may use, without signs.
        arch: architecture of the GPU, ``sm_90a``; empty for kind "cpu".
    """

    kind: Literal["cpu", "cuda"]
    triple: str
    cpu: str
    features: tuple[str, ...]
    arch: str = ""

    @property
    def name(self) -> str:
        """The processor, for people: ``znver4``, ``sm_90a``."""
        return self.arch or self.cpu


@dataclass(frozen=True)
class Artefacts:
    """All that a program consists of, but for the values of its weights.

    The host program in `objects` has two entry points, ``void shapejit_plan(const int64_t
    *symbols, int64_t *out)`` and ``void shapejit_run(const int64_t *symbols, void **buffers, void
    *arena)``. `symbols` has one value a module symbol (a derived one is ignored). `out` receives
    the arena's size in bytes, the sizes of every `TensorOutput` in order, and last 0 or the code
    of a `ConstraintInfo` that fails. `buffers` holds the tensor inputs, the weights and the hoisted
    tensors (null unless read in place), the packed weights and the tensor outputs, in the order of
    this record; after the tensor inputs come the states. Where weights are numbered, as in `packs`,
    the hoisted tensors come after them.

    For a GPU the second one is ``int32_t shapejit_run(.., void *const *kernels, void *stream)``
    with the same first arguments: it queues the launches in a stream and returns the status of the
    first one that failed, or 0. `kernels` has a handle for each of `gpu.variants`. Or, under
    constant graphs, there are ``int64_t shapejit_region(symbols)`` and ``void shapejit_words(
    symbols, buffers, arena, int64_t *words)`` instead, see `gpu.graph`.

    Attributes:
        objects: relocatable objects, the host program among them.
        gpu: what runs on a GPU; None if nothing does.
        output_tree: structure of the result.
        compile_seconds: seconds by stage.
        leases: keep the objects findable in the cache for as long as the program lives.
        states: buffers that calls change in place. For the native code they are inputs, after those
            of the call.
        updates: leaves of the arguments that calls change in place.
        arena: slots of working memory: the sizes of each in bytes, of which the largest counts.
        bind: what is computed from weights alone; None if nothing is.
        kept: operators that depend on weights alone and still run in every call, with the reasons.
    """

    objects: tuple[bytes, ...]
    target: TargetInfo
    symbols: tuple[SymbolSpec, ...]
    parameters: tuple[Parameter, ...]
    inputs: tuple[InputSpec, ...]
    weights: tuple[WeightSpec, ...]
    packs: tuple[CopySpec, ...]
    outputs: tuple[OutputSpec, ...]
    output_tree: TreeSpec
    kernels: tuple[KernelInfo, ...] = ()
    constraints: tuple[ConstraintInfo, ...] = ()
    compile_seconds: Mapping[str, float] = field(default_factory=dict)
    leases: tuple[Lease, ...] = field(default=(), repr=False, compare=False)
    gpu: GpuCode | None = None
    states: tuple[WeightSpec, ...] = ()
    updates: tuple[int, ...] = ()
    arena: tuple[Sizes, ...] = ()
    bind: BindPart | None = None
    kept: tuple[str, ...] = ()

    @property
    def hoisted(self) -> tuple[HoistedSpec, ...]:
        """The tensors that are computed from weights alone."""
        return () if self.bind is None else self.bind.hoisted

    @property
    def tensors(self) -> tuple[WeightSpec, ...]:
        """All tensors of the model that the program holds: the weights, then the states."""
        return (*self.weights, *self.states)

    @property
    def output_ranks(self) -> tuple[int, ...]:
        """Rank of each tensor output, in order."""
        return tuple(len(spec.dims) for spec in self.outputs if isinstance(spec, TensorOutput))
