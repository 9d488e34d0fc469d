# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-lower-to-host: the launch program as native code.

Why: a call must cost next to nothing beside its kernels, so what depends on the sizes
(derived symbols, arena offsets, output sizes, checks of constraints, on a GPU the choice of
each kernel's variant) and the sequence of launches is compiled like the kernels are. The
function with the launches becomes a module `@shapejit_host` with two entry points of a C
interface:

``void shapejit_plan(const int64_t *symbols, int64_t *out)``
    `out` receives the arena's bytes, the sizes of every result in order, and last 0, or
    one plus the number of the first ``shapejit.constraint`` that does not hold.
``void shapejit_run(const int64_t *symbols, void **buffers, void *arena)``
    Runs the launches. `buffers` holds the inputs, the weights, the packed weights and
    the results, in this order; the arena is aligned to 64 bytes.

`symbols` has a value for every declared symbol in the order of ids; those of derived
symbols are ignored.

Before::

    func.func @main(%x: .. {shapejit.kind = "input"}, %w: .. {shapejit.kind = "weight"}) -> ..
        attributes {shapejit.arena = #shapejit.shape<[s0 * 32]>} {
      %0 = shapejit.launch @a #n (%x) {buffers = [#shapejit.buffer<arena 0>]} : ..
      %1 = shapejit.launch @b #n (%0, %w) {buffers = [#shapejit.buffer<output 0>]} : ..
      return %1

After::

    module @shapejit_host attributes {shapejit.target = "cpu"} {
      func.func private @a(!llvm.ptr, !llvm.ptr, i64)
      func.func private @b(!llvm.ptr, !llvm.ptr, !llvm.ptr, i64)
      func.func @shapejit_plan(%symbols: !llvm.ptr, %out: !llvm.ptr) { .. }
      func.func @shapejit_run(%symbols: !llvm.ptr, %buffers: !llvm.ptr, %arena: !llvm.ptr) { .. }
    }

In a module for a GPU (``shapejit.target = "cuda:.."``) whose kernels take their parameters by
value, launches are queued in a stream:

``int32_t shapejit_run(symbols, buffers, arena, void *const *kernels, void *stream)``
    Queues the launches until one fails; returns the status of that one, else 0. The arena
    is aligned to 256 bytes. `kernels` has the handles of the kernels' variants in the order
    of the module's attribute ``shapejit.kernels``, the names of ``gpu.module`` ops.

There `@a` and `@b` are functions that choose a variant, see `passes/host/launchers.py`. The
kernels need their ``shapejit.dispatch``, and each variant a ``gpu.module`` with its interface
(which may be empty otherwise: its code can be elsewhere).

Kernels in block form run under constant graphs, which the runtime has for each region of sizes; a
call only says in which region it lies, and what its *words* are (`passes/host/words.py`):

``int64_t shapejit_region(const int64_t *symbols)``
    The number of the region, see `passes/host/regions.py`.
``void shapejit_words(symbols, buffers, arena, int64_t *words)``
    Writes all words.

Attributes of the module say what the numbers mean: ``shapejit.words`` what each word is, of which
``shapejit.call_words`` are of a call; ``shapejit.launches``, for each launch, its kernel, the words
that are its operands, and for each of the kernel's variants the words that are its values;
``shapejit.regions``, for each region, the numbers (in ``shapejit.kernels``) of the variants that
are launched, and ``shapejit.units`` the most units of work that each of these launches has there,
beyond which CTAs would be idle (0: not known); ``shapejit.samples`` the symbols' values of a call
in some regions, in the order in which they are expected to be used. Where `shapejit-plan-branches`
lets launches run side by side, ``shapejit.orders`` has the number of each region's order (-1: one
by one), and ``shapejit.waits``, for each order and each launch, the numbers of the launches that it
waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlir.ir as ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, register_pass
from shapejit.passes.host.dispatches import interfaces
from shapejit.passes.host.graphs import GraphProgram
from shapejit.passes.host.program import HostProgram
from shapejit.passes.host.queued import QueuedProgram


def _form(module: Any) -> type[HostProgram]:
    """How the program of a module runs."""
    if "shapejit.target" not in module.attributes:
        return HostProgram
    target: str = ir.StringAttr(module.attributes["shapejit.target"]).value
    if not target.startswith("cuda"):
        return HostProgram
    try:
        forms = {interface.block for interface in interfaces(module).values()}
    except ValueError as error:
        raise PassFailure(module, str(error)) from error
    if len(forms) > 1:
        raise PassFailure(
            module,
            "some kernels take their parameters by value and some from a block; lower all of them "
            "with the same option parameters",
        )
    return GraphProgram if True in forms else QueuedProgram


@register_pass("shapejit-lower-to-host", dialects=("arith", "func", "gpu", "llvm", "scf"))
@dataclass(frozen=True)
class LowerToHost(Pass):
    """Turn the function of launches into the native host program."""

    def run(self, module: Any) -> None:
        functions = sir.functions(module)
        if len(functions) != 1:
            raise PassFailure(module, f"expected one function of launches, got {len(functions)}")
        _form(module)(module, functions[0]).lower()
