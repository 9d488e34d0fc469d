# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-widen-bodies: what one kernel computes stays in f32 until it is stored.

Why: PyTorch stores the result of every operator, so operators on bf16 or f16 are imported as f32
arithmetic that is rounded after each step. What has become one kernel does not store in between.
The roundings there cost an instruction each and accuracy: the error of a product that is rounded
before a residual is added is twice the error of one that is added to the sum, which is how cuBLAS
does it. Fused kernels of `torch.compile` keep f32 in the same way. A result is rounded once, when
it is stored; an overflow of f16 in between does not become an infinity.

Before::

    shapejit.gemm .. epilogue {
    ^bb0(%sum: f32, %bias: bf16):
      %0 = arith.truncf %sum : f32 to bf16
      %1 = arith.extf %0 : bf16 to f32
      %2 = arith.extf %bias : bf16 to f32
      %3 = arith.addf %1, %2 : f32
      %4 = arith.truncf %3 : f32 to bf16
      shapejit.yield %4 : bf16
    }

After::

    shapejit.gemm .. epilogue {
    ^bb0(%sum: f32, %bias: bf16):
      %2 = arith.extf %bias : bf16 to f32
      %3 = arith.addf %sum, %2 : f32
      %4 = arith.truncf %3 : f32 to bf16
      shapejit.yield %4 : bf16
    }

Bodies of loops are changed alike. What rounding commutes with (a choice, an extremum, a sign) is
done in the wide type, and an integer is converted to it at once.

Two kinds of rounding stay. What looks at single bits of its operands, as a comparison or a
conversion to integers does, sees them rounded: else 2.999 is 2, and numbers that are equal in bf16
are not. And a tensor that is stored in f32 and read through 16 bits was cast by the program itself,
unless it is a reduction: what PyTorch sums in 16 bits is imported as a sum in f32 that is rounded.

In a kernel, a tensor that one loop rounds and only other loops of the kernel read becomes one of
the wide type: such a tensor is no memory, its rows live in registers.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, register_pass
from shapejit.passes.analysis.accesses import weight_count
from shapejit.passes.fusion.bodies import drop_unused

_WITH_BODIES: Final = frozenset({"shapejit.conv", "shapejit.gemm", "shapejit.loop"})

# Operations that give the same whether their operands are rounded before or their result after.
_COMMUTE: Final = frozenset(
    {
        *(f"arith.{name}" for name in ("maximumf", "minimumf", "maxnumf", "minnumf", "negf")),
        "math.absf",
    }
)
_FROM_INTEGER: Final = frozenset({"arith.sitofp", "arith.uitofp"})

# Operations whose results jump: a rounding, however small, decides.
_EXACT: Final = frozenset(
    {
        *(f"arith.{name}" for name in ("bitcast", "cmpf", "fptosi", "fptoui", "remf")),
        *(f"math.{name}" for name in ("ceil", "floor", "round", "roundeven", "trunc")),
    }
)


def _is_half(value: Any) -> bool:
    return isinstance(value.type, (ir.BF16Type, ir.F16Type))


def _is_reduced(tensor: Any) -> bool:
    """Whether a loop combines elements to this tensor: sums of 16-bit numbers are made in f32."""
    loop = sir.defining_op(tensor)
    while loop is not None and loop.name == "shapejit.view":
        tensor = loop.operands[0]
        loop = sir.defining_op(tensor)
    if loop is None or loop.name != "shapejit.loop":
        return False
    kind: str = sir.kinds(loop)[ir.OpResult(tensor).result_number]
    return kind != "none"


class _Body:
    """The block of a contraction or loop, and the wide values of what is rounded in it.

    Args:
        op: the contraction or loop.
        widened: arguments of bodies that this pass has made wide.
    """

    def __init__(self, op: Any, widened: Container[Any]) -> None:
        self._block = sir.body(op)
        arguments = list(self._block.arguments)
        sums = {"shapejit.conv": 1, "shapejit.loop": 0}.get(op.name)
        elements = arguments[weight_count(op) if sums is None else sums :]
        read = list(op.operands)[len(op.operands) - len(elements) :]
        # Elements of tensors that are stored as they are: no sums, of whatever.
        self._stored = {
            element
            for element, tensor in zip(elements, read, strict=True)
            if element not in widened and not _is_reduced(tensor)
        }
        self._known: dict[tuple[Any, Any], Any | None] = {}

    def run(self) -> None:
        """Takes out the roundings that nothing but wider arithmetic sees."""
        for op in sir.operations(self._block):
            if op.name != "arith.extf":
                continue
            wide = self.wide(op.operands[0], op.results[0].type)
            if wide is None:
                continue
            for user, operand in sir.users(op.results[0]):
                if user.name not in _EXACT:
                    user.operands[operand] = wide
        drop_unused(self._block)

    def wide(self, value: Any, type_: Any) -> Any | None:
        """What a value was before it was rounded from `type_` to 16 bits; None if it was not."""
        if not _is_half(value):
            return None
        key = (value, type_)
        if key not in self._known:
            self._known[key] = self._find(value, type_)
        return self._known[key]

    def _find(self, value: Any, type_: Any) -> Any | None:
        op = sir.defining_op(value)
        if op is None:
            return None
        if op.name == "arith.truncf":
            source = op.operands[0]
            return source if source.type == type_ and source not in self._stored else None
        if op.name in _FROM_INTEGER:
            return self._again(op, list(op.operands), type_)
        if op.name == "arith.select":
            condition, *choices = op.operands
            widened = self._all(op, choices, type_)
            return None if widened is None else self._again(op, [condition, *widened], type_)
        if op.name in _COMMUTE:
            widened = self._all(op, list(op.operands), type_)
            return None if widened is None else self._again(op, widened, type_)
        return None

    def _all(self, op: Any, values: list[Any], type_: Any) -> list[Any] | None:
        """The values in the wide type; None if none of them was rounded."""
        found = [self.wide(value, type_) for value in values]
        if all(wide is None for wide in found):
            return None
        with ir.InsertionPoint(op), op.location:
            return [
                _converted("arith.extf", value, type_) if wide is None else wide
                for value, wide in zip(values, found, strict=True)
            ]

    def _again(self, op: Any, operands: list[Any], type_: Any) -> Any:
        """The operation's result in another type."""
        with ir.InsertionPoint(op), op.location:
            made = ir.Operation.create(
                op.name, results=[type_], operands=operands, attributes=sir.attributes(op)
            )
        return made.results[0]


def _converted(name: str, value: Any, type_: Any) -> Any:
    """A conversion at the insertion point."""
    return ir.Operation.create(name, results=[type_], operands=[value]).results[0]


# Tensors between the loops of a kernel ------------------------------------------------------------


def _widen_results(loop: Any, widened: set[Any]) -> None:
    """Gives a wide type to those results of a kernel's loop that were rounded only for a tensor.

    Args:
        widened: receives the arguments of bodies that read them.
    """
    end = sir.operations(sir.body(loop))[-1]
    body = _Body(loop, widened)
    for number, result in enumerate(loop.results):
        if any(user.name != "shapejit.loop" for user, _ in sir.users(result)):
            continue
        wide = body.wide(end.operands[number], ir.F32Type.get())
        if wide is None:
            continue
        end.operands[number] = wide
        result.set_type(sir.tensor_type(sir.shape_of(result), wide.type))
        for reader, operand in sir.users(result):
            _read_wide(sir.body(reader), operand, wide.type)
            widened.add(sir.body(reader).arguments[operand])
    drop_unused(sir.body(loop))


def _read_wide(block: Any, argument: int, type_: Any) -> None:
    """Makes an argument of a body wide; what read it reads it rounded, for the body to widen."""
    value = block.arguments[argument]
    narrow = value.type
    value.set_type(type_)
    with ir.InsertionPoint.at_block_begin(block), value.location:
        rounded = _converted("arith.truncf", value, narrow)
    value.replace_all_uses_except(rounded, rounded.owner.operation)


@register_pass("shapejit-widen-bodies", dialects=("arith", "math"))
@dataclass(frozen=True)
class WidenBodies(Pass):
    """Compute what one kernel computes without rounding in between."""

    def run(self, module: Any) -> None:
        widened: set[Any] = set()
        for op in sir.walk(module.operation):
            if op.name in _WITH_BODIES and len(op.regions[0].blocks):
                _Body(op, widened).run()
                parent = op.parent.operation
                if op.name == "shapejit.loop" and parent.name == "shapejit.kernel":
                    _widen_results(op, widened)
