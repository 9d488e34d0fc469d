# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-fold-views: index maps instead of copies.

Why: a view that stays a view costs a kernel that copies, and hides from fusion who reads what.
A reader that can address its operand through any map takes the view's map into its own, simplified
within the ranges of its indices; an attention or a convolution whose result is only read through
one view writes where the view would have read.

Before::

    %h = shapejit.view %q at affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 32 + d3)>
        : tensor<..[s0, s1, 384]..> -> tensor<..[s0, 12, s1, 32]..>
    %a = shapejit.attention over [s0, 12, s1, s1, 32, 32] q(%h at #id : ..) .. -> #id : ..
    %o = shapejit.view %a at affine_map<(d0, d1, d2) -> (d0, d2 floordiv 32, d1, d2 mod 32)>
        : tensor<..[s0, 12, s1, 32]..> -> tensor<..[s0, s1, 384]..>

After::

    %o = shapejit.attention over [s0, 12, s1, s1, 32, 32]
        q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 32 + d3)> : ..) ..
        -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 32 + d3)> : tensor<..[s0, s1, 384]..>

What is folded where:

* a view of a view always: the two become one map;
* a map that adds no division of the reader's indices: everywhere, except that a convolution leaves
  alone what only regroups contiguous dims, so that its images keep their dims, and a view without
  which the channels of its image would not be last;
* one that adds a division and only regroups contiguous dims: nowhere, because it costs nothing
  where it is (a launch may regroup the dims of what it passes), except into a loop that is the
  only reader of a pointwise loop, as the two will become one;
* one that adds a division and moves elements: into loops and the extras of a gemm or conv; into
  a gemm, a conv or an attention if no row, column, pixel, tap or contracted index is divided
  (those are the loops of its micro-kernel, which steps through memory by a constant stride).
  Else the view stays and is materialised.

A `tensor.extract` in a body takes a view's map if it needs no division.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, register_pass
from shapejit.passes.analysis.accesses import Access, accesses, set_access, weight_count
from shapejit.passes.analysis.index_values import IndexValues
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.symbolic import Expr, invert_map, is_reshape, linearize, map_exprs
from shapejit.symbolic.expr import AtomKind

# Ops that have a map for their result.
_WRITE_BY_MAP: Final = frozenset({"shapejit.attention", "shapejit.conv"})


def divided_dims(exprs: Sequence[Expr]) -> frozenset[int]:
    """The dims that occur in the dividend of a floordiv or mod."""
    return frozenset(
        dim
        for expr in exprs
        for atom in expr.atoms()
        if atom.kind is AtomKind.FLOORDIV
        for dim in atom.operands[0].dims()
    )


class ViewFolder:
    """Folds the views of one function; see the module's docstring for the rules.

    Args:
      function: a func.func.
      facts: about the module's symbols.
    """

    def __init__(self, function: Any, facts: SymbolFacts) -> None:
        self._block = sir.body(function)
        self.facts = facts

    def run(self) -> None:
        """Folds and sinks all views that can be, and erases those that are read no more."""
        # In program order, so that the source of a view is never a view that could be composed.
        for op in sir.operations(self._block):
            if op.name == "shapejit.view":
                self.fold(op)
        self.erase_dead_views()
        self.sink()

    def sink(self) -> None:
        """Lets producers write where the only view of their result reads."""
        for op in sir.operations(self._block):
            if op.name == "shapejit.view":
                self._sink(op)
        self.erase_dead_views()

    def fold(self, view: Any) -> None:
        """Folds a view into those of its readers that can take it."""
        self._compose(view)
        if self._is_identity(view):
            view.results[0].replace_all_uses_with(view.operands[0])
            return
        for user, operand in sir.users(view.results[0]):
            rule = _RULES.get(user.name)
            if rule is not None:
                rule(self, view, user, operand)

    def _compose(self, view: Any) -> None:
        """Reads the source's source, if the source is a view; simplifies the map."""
        [access] = accesses(view)
        source, exprs = access.value, access.exprs
        producer = sir.defining_op(source)
        if producer is not None and producer.name == "shapejit.view":
            inner = dict(enumerate(exprs))
            exprs = tuple(
                e.substitute(dims=inner) for e in map_exprs(producer.attributes["map"].value)
            )
            source = producer.operands[0]
        simple = tuple(map(self.facts.over(access.space).simplify, exprs))
        if source != access.value or simple != access.exprs:
            set_access(view, access, source, simple)

    def _is_identity(self, view: Any) -> bool:
        if view.results[0].type != view.operands[0].type:
            return False
        [access] = accesses(view)
        # A dim of size one has one index, however it is written.
        return all(
            expr.dim_index == i or size == 1
            for i, (expr, size) in enumerate(zip(access.exprs, access.space, strict=True))
        )

    def erase_dead_views(self) -> None:
        """Erases the views that nobody reads."""
        for op in reversed(sir.operations(self._block)):
            if op.name == "shapejit.view" and not list(op.results[0].uses):
                op.erase()

    # Into readers ---------------------------------------------------------------------------------

    def composed(self, view: Any, access: Access) -> tuple[tuple[Expr, ...], frozenset[int]]:
        """Where the reader's access to `view` reads the view's source.

        Returns:
          The composed indices, and the reader's dims that the view makes it divide.
        """
        inner = dict(enumerate(access.exprs))
        outer = map_exprs(view.attributes["map"].value)
        simplify = self.facts.over(access.space).simplify
        exprs = tuple(simplify(e.substitute(dims=inner)) for e in outer)
        return exprs, divided_dims(exprs) if divided_dims(outer) else frozenset()

    def regroups(self, view: Any) -> bool:
        """Whether the view keeps all elements in their order in memory."""
        exprs = map_exprs(view.attributes["map"].value)
        source, result = map(self.facts.sizes, (view.operands[0], view.results[0]))
        return is_reshape(exprs, source, result, self.facts.symbol_ranges)

    # Into the producer ----------------------------------------------------------------------------

    def _sink(self, view: Any) -> None:
        """Lets an attention or a conv write where its only reader, a view, would have read."""
        producer = sir.defining_op(view.operands[0])
        if producer is None or producer.name not in _WRITE_BY_MAP:
            return
        if producer.name == "shapejit.conv" and self.regroups(view):
            return
        if len(list(producer.results[0].uses)) != 1:
            return
        inverse = invert_map(
            map_exprs(view.attributes["map"].value),
            self.facts.sizes(producer.results[0]),
            self.facts.sizes(view.results[0]),
            self.facts.symbol_ranges,
        )
        if inverse is None:
            return
        access = accesses(producer)[-1]
        written = dict(enumerate(access.exprs))
        simplify = self.facts.over(access.space).simplify
        exprs = [simplify(e.substitute(dims=written)) for e in inverse]
        if divided_dims(exprs):
            return
        set_access(producer, access, None, exprs)
        producer.results[0].set_type(view.results[0].type)
        view.results[0].replace_all_uses_with(producer.results[0])


# Rules, by reader ---------------------------------------------------------------------------------

_Rule = Callable[[ViewFolder, Any, Any, int], None]
_RULES: dict[str, _Rule] = {}


def _rule(name: str) -> Callable[[_Rule], _Rule]:
    def register(function: _Rule) -> _Rule:
        _RULES[name] = function
        return function

    return register


@_rule("shapejit.loop")
def _into_loop(folder: ViewFolder, view: Any, loop: Any, operand: int) -> None:
    access = accesses(loop)[operand]
    exprs, divided = folder.composed(view, access)
    if not divided or _will_be_inlined(view) or not folder.regroups(view):
        set_access(loop, access, view.operands[0], exprs)


@_rule("shapejit.gemm")
def _into_gemm(folder: ViewFolder, view: Any, gemm: Any, operand: int) -> None:
    access = accesses(gemm)[operand]
    k = len(accesses(gemm)[0].space) - 1
    m, n = k - 2, k - 1
    if operand == 0:
        kept = {m, k}
    elif operand <= weight_count(gemm):
        kept = {n, k}
    else:
        kept = set()
    _into_heavy_op(folder, view, gemm, access, frozenset(kept))


def channels_are_last(access: Access, facts: SymbolFacts) -> bool:
    """Whether a conv reads its input so that neighbouring channels are neighbours in memory."""
    offset = linearize(access.exprs, facts.sizes(access.value))
    _, groups, *_, channels = access.space
    last = len(access.space) - 1
    return (channels == 1 or offset.stride(last) == 1) and (
        groups == 1 or offset.stride(1) == channels
    )


@_rule("shapejit.conv")
def _into_conv(folder: ViewFolder, view: Any, conv: Any, operand: int) -> None:
    if folder.regroups(view):
        return
    access = accesses(conv)[operand]
    if operand == 0 and channels_are_last(access, folder.facts):
        exprs, _ = folder.composed(view, access)
        folded = replace(access, value=view.operands[0], exprs=exprs)
        if not channels_are_last(folded, folder.facts):
            return
    # Maps are over (n, g, p.., c) and (g, f, c, t..).
    first = {0: 2, 1: 1}.get(operand, len(access.space))
    _into_heavy_op(folder, view, conv, access, frozenset(range(first, len(access.space))))


@_rule("shapejit.attention")
def _into_attention(folder: ViewFolder, view: Any, attention: Any, operand: int) -> None:
    access = accesses(attention)[operand]
    # Maps are over (b, h, row, column); a mask is read row by row.
    kept = {3} if access.name == "mask" else {2, 3}
    _into_heavy_op(folder, view, attention, access, frozenset(kept))


@_rule("shapejit.scatter")
def _into_scatter(folder: ViewFolder, view: Any, scatter: Any, operand: int) -> None:
    if operand == len(scatter.operands) - 1:
        return  # dest is memory that is written, as a whole
    access = accesses(scatter)[operand]
    exprs, divided = folder.composed(view, access)
    if not divided:
        set_access(scatter, access, view.operands[0], exprs)


def _into_heavy_op(
    folder: ViewFolder, view: Any, op: Any, access: Access, kept: frozenset[int]
) -> None:
    """Folds unless an index in `kept`, over which the micro-kernel steps, is divided."""
    exprs, divided = folder.composed(view, access)
    if not divided or (divided.isdisjoint(kept) and not folder.regroups(view)):
        set_access(op, access, view.operands[0], exprs)


@_rule("tensor.extract")
def _into_extract(folder: ViewFolder, view: Any, extract: Any, operand: int) -> None:
    exprs = map_exprs(view.attributes["map"].value)
    if divided_dims(exprs):
        return
    with ir.InsertionPoint(extract), extract.location:
        values = IndexValues(list(extract.operands)[1:])
        indices = [e.build(values) for e in exprs]
        element = ir.Operation.create(
            "tensor.extract",
            results=[extract.results[0].type],
            operands=[view.operands[0], *indices],
        )
    extract.results[0].replace_all_uses_with(element.results[0])
    extract.erase()


def _will_be_inlined(view: Any) -> bool:
    """Whether the view is the only reader of a pointwise loop and has one reader itself."""
    producer = sir.defining_op(view.operands[0])
    if producer is None or not sir.is_pointwise(producer) or len(producer.results) != 1:
        return False
    return len(list(producer.results[0].uses)) == 1 and len(list(view.results[0].uses)) == 1


# The pass -----------------------------------------------------------------------------------------


@register_pass("shapejit-fold-views", dialects=("arith",))
@dataclass(frozen=True)
class FoldViews(Pass):
    """Fold views into the index maps of what reads and writes them."""

    def run(self, module: Any) -> None:
        facts = SymbolFacts.of(module)
        for function in sir.functions(module):
            ViewFolder(function, facts).run()
