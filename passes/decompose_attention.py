# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-decompose-attention: attention of float32 as products and a softmax.

Why: the attention kernels of GPUs multiply on tensor cores, which have no products of float32. In
two products and loops over rows it is right in the arithmetic that products of float32 have, at the
price of scores in memory: ``batch * heads * queries * keys`` of them.

Before::

    %o = shapejit.attention over [s0, 12, s1, s1, 32, 32] q(%q ..) k(%k ..) v(%v ..) mask(%m ..)
        {scale = 0.17 : f64} -> tensor<.. [s0, 12, s1, 32]>

After::

    %s = shapejit.gemm over [s0, 12, s1, s1, 32] lhs(%q ..) rhs(%k ..)
    %t = shapejit.loop over [s0, 12, s1, s1] ins(%s .., %m ..)     // scaled, -inf where masked
    %x, %e, %z, %p = shapejit.loop ..                              // max, exp, sum, quotient
    %o = shapejit.gemm over [s0, 12, s1, 32, s1] lhs(%p ..) rhs(%v ..)

A query that sees no key gives 0. The pass runs before views are folded, so that everything that
follows fuses as it does elsewhere. Attention of other types, ragged attention and results that are
written through a map stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, register_pass
from shapejit.passes.analysis.pieces import insert, map_text, space_text, type_text
from shapejit.symbolic import Expr, map_exprs

_Input: TypeAlias = "tuple[str, Any, Sequence[Expr], str]"

_B, _H, _M, _N = map(Expr.dim, range(4))
_ROWS, _SCORES = (_B, _H, _M), (_B, _H, _M, _N)


@register_pass("shapejit-decompose-attention", dialects=("arith", "math"))
@dataclass(frozen=True)
class DecomposeAttention(Pass):
    """Make products and a softmax of attention of float32."""

    def run(self, module: Any) -> None:
        for function in sir.functions(module):
            for op in sir.operations(sir.body(function)):
                if op.name == "shapejit.attention" and _is_plain(op):
                    with op.context:
                        result = _Decomposition(op).emit()
                    op.results[0].replace_all_uses_with(result)
                    op.erase()


def _is_plain(op: Any) -> bool:
    """Whether an attention is one that this pass is for."""
    q, k, v = list(op.operands)[:3]
    if not all(isinstance(each.type.element_type, ir.F32Type) for each in (q, k, v)):
        return False
    space = sir.attr_sizes(op.attributes["space"])
    *_, result = (map_exprs(each) for each in sir.op_maps(op))
    shape = (*space[:3], space[5])
    identity = result == tuple(map(Expr.dim, range(4)))
    return "is_ragged" not in op.attributes and identity and sir.shape_of(op.results[0]) == shape


class _Decomposition:
    """The ops that replace one attention."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self._space = sir.attr_sizes(op.attributes["space"])
        operands, maps = list(op.operands), [map_exprs(each) for each in sir.op_maps(op)]
        self._q, self._k, self._v = zip(operands[:3], maps[:3], strict=True)
        others = list(zip(operands[3:], maps[3:-1], strict=True))
        self._lengths = others.pop() if "has_lengths" in op.attributes else None
        self._mask = others[0] if others else None

    def emit(self) -> Any:
        """Puts the ops in front of the attention; gives its result."""
        b, h, m, n, depth, width = self._space
        scores = self._product((b, h, m, n, depth), self._q, self._k, "score")
        weights = self._softmax(self._masked(scores))
        lhs = (weights, (_B, _H, _M, _N))
        return self._product((b, h, m, width, n), lhs, self._v, "sum", columns_last=True)

    def _product(
        self,
        space: Sequence[Expr],
        lhs: tuple[Any, Sequence[Expr]],
        rhs: tuple[Any, Sequence[Expr]],
        name: str,
        *,
        columns_last: bool = False,
    ) -> Any:
        """A batched product; maps are over (b, h, m, k) and (b, h, n, k), or (b, h, k, n)."""
        k = Expr.dim(4)
        columns = {2: k, 3: _N} if columns_last else {2: _N, 3: k}
        left = map_text(5, [each.substitute(dims={3: k}) for each in lhs[1]])
        right = map_text(5, [each.substitute(dims=columns) for each in rhs[1]])
        body = f"""
          %{name} = shapejit.gemm over {space_text(space)}
              lhs(%lhs at {left} : {lhs[0].type}) rhs(%rhs at {right} : {rhs[0].type})
              -> {type_text(space[:4], "f32")}"""
        [result] = insert(self._op, {"lhs": lhs[0], "rhs": rhs[0]}, body, [name])
        return result

    # Scores ---------------------------------------------------------------------------------------

    def _masked(self, scores: Any) -> Any:
        """The scaled scores, -inf where a query does not see a key."""
        op = self._op
        shape = self._space[:4]
        type_ = type_text(shape, "f32")
        scale = ir.FloatAttr(op.attributes["scale"]).value
        inputs: list[_Input] = [("scores", scores, _SCORES, "f32")]
        lines = [f"%scale = arith.constant {scale!r} : f32", "%x0 = arith.mulf %v0, %scale : f32"]
        value, seen = "%x0", ""
        if self._mask is not None:
            mask, indices = self._mask
            element = str(mask.type.element_type)
            inputs.append(("mask", mask, indices, element))
            if element == "i1":
                seen = "%v1"
            else:
                lines += [
                    _as_f32("%added", "%v1", element),
                    f"%x1 = arith.addf {value}, %added : f32",
                ]
                value = "%x1"
        if self._lengths is not None:
            length, indices = self._lengths
            inputs.append(("lengths", length, indices, str(length.type.element_type)))
        more, seen = self._visible(seen, len(inputs) - 1)
        lines += more
        if seen:
            lines += [
                "%never = arith.constant 0xFF800000 : f32",
                f"%kept = arith.select {seen}, {value}, %never : f32",
            ]
            value = "%kept"
        return self._loop(inputs, shape, [("", _SCORES, type_)], lines, value)

    def _visible(self, seen: str, last: int) -> tuple[list[str], str]:
        """Lines that compute whether a query sees a key, and the value; "" if it always does.

        Args:
            seen: the value so far.
            last: number of the input that the lengths are, if there are.
        """
        attributes = self._op.attributes
        lines: list[str] = []

        def also(condition: str) -> str:
            if not seen:
                return condition
            lines.append(f"{condition}_also = arith.andi {seen}, {condition} : i1")
            return f"{condition}_also"

        if self._lengths is None and "causal" not in attributes:
            return lines, seen
        lines.append("%key = shapejit.index 3")
        if self._lengths is not None:
            element = self._lengths[0].type.element_type
            lines += [
                f"%length = arith.index_cast %v{last} : {element} to index",
                "%inside = arith.cmpi slt, %key, %length : index",
            ]
            seen = also("%inside")
        if "causal" in attributes:
            [offset] = map_exprs(attributes["causal"].value)
            from_end = "from_end" in attributes
            if from_end:
                offset = offset - self._space[2]
                if self._lengths is None:
                    offset = offset + self._space[3]
            lines += [
                "%query = shapejit.index 2",
                f"%offset = shapejit.size {map_text(0, [offset])}",
                "%end = arith.addi %query, %offset : index",
            ]
            end = "%end"
            if from_end and self._lengths is not None:
                lines.append("%last = arith.addi %end, %length : index")
                end = "%last"
            lines.append(f"%causal = arith.cmpi sle, %key, {end} : index")
            seen = also("%causal")
        return lines, seen

    def _softmax(self, scores: Any) -> Any:
        """Over the keys."""
        shape = self._space[:4]
        whole, rows = type_text(shape, "f32"), type_text(shape[:3], "f32")
        given = ("scores", scores, _SCORES, "f32")
        most = self._loop([given], shape, [("max", _ROWS, rows)], [], "%v0")
        lines = [
            "%never = arith.constant 0xFF800000 : f32",
            "%zero = arith.constant 0.0 : f32",
            "%left = arith.subf %v0, %v1 : f32",
            "%power = math.exp %left : f32",
            "%none = arith.cmpf oeq, %v0, %never : f32",
            "%e = arith.select %none, %zero, %power : f32",
        ]
        inputs = [given, ("most", most, _ROWS, "f32")]
        powers = self._loop(inputs, shape, [("", _SCORES, whole)], lines, "%e")
        given = ("powers", powers, _SCORES, "f32")
        total = self._loop([given], shape, [("add", _ROWS, rows)], [], "%v0")
        lines = [
            "%zero = arith.constant 0.0 : f32",
            "%quotient = arith.divf %v0, %v1 : f32",
            "%none = arith.cmpf oeq, %v1, %zero : f32",
            "%w = arith.select %none, %zero, %quotient : f32",
        ]
        inputs = [given, ("total", total, _ROWS, "f32")]
        return self._loop(inputs, shape, [("", _SCORES, whole)], lines, "%w")

    def _loop(
        self,
        inputs: Sequence[_Input],
        space: Sequence[Expr],
        outputs: Sequence[tuple[str, Sequence[Expr], str]],
        lines: Sequence[str],
        result: str,
    ) -> Any:
        """A loop with one result.

        Args:
            inputs: name, value, indices and element type; in the body they are %v0, %v1, ..
            outputs: combine, indices and type.
            lines: of the body.
            result: what it yields.
        """
        reads = ", ".join(
            f"%{name} at {map_text(4, indices)} : {value.type}"
            for name, value, indices, _ in inputs
        )
        [(kind, indices, type_)] = outputs
        arguments = ", ".join(f"%v{i}: {element}" for i, (*_, element) in enumerate(inputs))
        text = "\n".join(lines)
        body = f"""
          %made = shapejit.loop over {space_text(space)} ins({reads})
              outs({kind} {map_text(4, indices)} : {type_}) {{
            ^bb0({arguments}):
              {text}
              shapejit.yield {result} : f32
            }}"""
        [made] = insert(self._op, {name: value for name, value, *_ in inputs}, body, ["made"])
        return made


def _as_f32(result: str, value: str, element: str) -> str:
    """A line that converts a float to f32."""
    if element == "f32":
        return f"{result} = arith.bitcast {value} : f32 to f32"
    cast = "truncf" if element == "f64" else "extf"
    return f"{result} = arith.{cast} {value} : {element} to f32"
