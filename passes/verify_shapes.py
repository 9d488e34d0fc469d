# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-verify-shapes: every size and index of the module is right at every legal size.

Why: the verifiers of single ops see neither the symbols' ranges nor a launch's bindings. This pass
does, so it can be run after any other to find the pass that broke a shape. It changes nothing.

It checks that symbols have dense ids; that every ranked tensor carries its sizes; that only
declared symbols are used; that no size is negative; that every index map stays inside its tensor;
that attention and convolutions write each element of their result once; that a convolution has as
many output pixels as its window gives; and that what is passed to a kernel has the number of
elements that the kernel expects. (Other result sizes follow from the iteration space in the op's
own verifier.) A kernel is checked under the bindings of each of its launches.

A statement is first tried as a proof over expressions. One that cannot be proved is tested at
sample values of the symbols, and rejected if any of them is a counterexample: so an error always
comes with the values that show it.

Rejected::

    shapejit.symbol @n {id = 0, min = 1, max = 8}
    %0 = shapejit.view %x at affine_map<(d0) -> (d0 + 1)>
        : tensor<?xf32, #shapejit.shape<[s0]>> -> tensor<?xf32, #shapejit.shape<[s0]>>

    error: source: index 0 (d0 + 1) is 1 at (0), where s0 = 1; dimension 0 has size s0 = 1
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, register_pass
from shapejit.passes.analysis.accesses import Access, Sizes, accesses
from shapejit.passes.analysis.samples import Assignment, describe, sample_symbols
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.symbolic import Expr, invert_map, map_exprs, product
from shapejit.windows import Window

# Index tuples of one space that are tried at one sample.
_MAX_POINTS: Final = 64


class Scope:
    """A function, or a kernel under the bindings of one launch.

    Args:
      root: the func.func or shapejit.kernel.
      declared: the symbols that may be used in it.
      facts: about these symbols; resolved expressions are over the module's symbols.
      samples: legal values of the module's symbols.
      note: ends every error, to say which launch it is about.
    """

    def __init__(
        self,
        root: Any,
        declared: frozenset[int],
        facts: SymbolFacts,
        samples: Sequence[Assignment],
        note: str = "",
    ) -> None:
        self.root = root
        self.facts = facts
        self.samples = samples
        self._declared = declared
        self._note = note
        self._checked_types: set[Any] = set()

    def check(self) -> None:
        """Checks every op inside. Raises PassFailure at the first that is wrong."""
        for block in self.root.regions[0].blocks:
            for i, argument in enumerate(block.arguments):
                self._check_value(self.root, f"argument {i}", argument)
        for op in sir.walk(self.root):
            for i, result in enumerate(op.results):
                self._check_value(op, f"result {i}", result)
            self._check_symbols(op)
            rule = _RULES.get(op.name)
            if rule is not None:
                rule(self, op)

    def fail(self, op: Any, message: str) -> PassFailure:
        """The error to raise."""
        return PassFailure(op, message + self._note)

    def resolve_all(self, exprs: Iterable[Expr]) -> Sizes:
        """Expressions of the scope's symbols as expressions of the module's."""
        return tuple(map(self.facts.resolve, exprs))

    def counterexample(self, violated: Callable[[Assignment], bool]) -> Assignment | None:
        """Legal values of the symbols that violate something."""
        return next((values for values in self.samples if violated(values)), None)

    # Checks of every op ---------------------------------------------------------------------------

    def _check_value(self, op: Any, name: str, value: Any) -> None:
        type_ = value.type
        if not isinstance(type_, ir.RankedTensorType) or type_ in self._checked_types:
            return
        self._checked_types.add(type_)
        if not sir.has_shape(type_):
            raise self.fail(
                op, f"{name} has type {type_}; every ranked tensor carries a #shapejit.shape"
            )
        self._check_declared(op, name, sir.shape_of(type_))
        for i, size in enumerate(self.facts.sizes(type_)):
            self.check_size(op, f"dimension {i} of {name}", size)

    def check_size(self, op: Any, name: str, size: Expr) -> None:
        if self.facts.over(()).is_nonnegative(size):
            return
        values = self.counterexample(lambda values: size.evaluate(values) < 0)
        if values is not None:
            raise self.fail(
                op, f"{name} has size {size} = {size.evaluate(values)} {describe([size], values)}"
            )

    def _check_symbols(self, op: Any) -> None:
        for name in op.attributes:
            attribute = op.attributes[name]
            if name in ("space", "image"):
                self._check_declared(op, f"the {name}", sir.attr_sizes(attribute))
            maps = attribute if isinstance(attribute, ir.ArrayAttr) else [attribute]
            for entry in maps:
                if isinstance(entry, ir.AffineMapAttr):
                    self._check_declared(op, f"'{name}'", map_exprs(entry.value))

    def _check_declared(self, op: Any, name: str, exprs: Iterable[Expr]) -> None:
        for expr in exprs:
            unknown = sorted(expr.symbols() - self._declared)
            if unknown:
                where = "kernel" if op.name == "shapejit.kernel" or self._note else "module"
                raise self.fail(
                    op,
                    f"{name} uses s{unknown[0]}, which the {where} does not declare; it declares "
                    f"{_id_range(self._declared)}",
                )


def _id_range(ids: frozenset[int]) -> str:
    if not ids:
        return "no symbols"
    return f"s0 to s{max(ids)}" if len(ids) > 1 else "s0"


# Rules --------------------------------------------------------------------------------------------

_RULES: dict[str, Callable[[Scope, Any], None]] = {}


def _rule(*names: str) -> Callable[[Callable[[Scope, Any], None]], Callable[[Scope, Any], None]]:
    def register(function: Callable[[Scope, Any], None]) -> Callable[[Scope, Any], None]:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


@_rule("shapejit.view", "shapejit.loop", "shapejit.gemm", "shapejit.scatter")
def _mapped_op(scope: Scope, op: Any) -> None:
    for access in accesses(op):
        _check_access(scope, op, access)


@_rule("shapejit.scan", "shapejit.sort")
def _row_op(scope: Scope, op: Any) -> None:
    """The input is read within its sizes; a head is no longer than its row."""
    _mapped_op(scope, op)
    row = scope.resolve_all(sir.attr_sizes(op.attributes["space"]))[-1]
    head = scope.facts.sizes(op.results[0].type)[-1]
    if scope.facts.over(()).is_nonnegative(row - head):
        return
    values = scope.counterexample(lambda values: head.evaluate(values) > row.evaluate(values))
    if values is not None:
        raise scope.fail(
            op,
            f"gives the first {head} = {head.evaluate(values)} elements of rows of {row} = "
            f"{row.evaluate(values)}, {describe([head, row], values)}",
        )


@_rule("shapejit.attention")
def _attention(scope: Scope, op: Any) -> None:
    _mapped_op(scope, op)
    _check_written_once(scope, op, "attention")


@_rule("shapejit.conv")
def _conv(scope: Scope, op: Any) -> None:
    image = sir.attr_sizes(op.attributes["image"])
    for i, size in enumerate(scope.resolve_all(image)):
        scope.check_size(op, f"dimension {i} of the image", size)
    _check_output_pixels(scope, op, image)
    _mapped_op(scope, op)
    _check_written_once(scope, op, "the convolution")


def _check_output_pixels(scope: Scope, op: Any, image: Sizes) -> None:
    """Each spatial dim of the space is what the window gives, 0 where that is negative."""
    space, rank = sir.attr_sizes(op.attributes["space"]), len(image)
    sizes = scope.resolve_all(image)
    wanted = Window.of(op).output_sizes(sizes, scope.resolve_all(space[4 + rank :]))
    pixels = scope.resolve_all(space[2 : 2 + rank])
    for i, (have, want, size) in enumerate(zip(pixels, wanted, sizes, strict=True)):
        if scope.facts.over(()).simplify(have - want).constant != 0:
            _try_pixels(scope, op, i, have, want, size)


def _try_pixels(scope: Scope, op: Any, dim: int, have: Expr, want: Expr, image: Expr) -> None:
    def violated(values: Assignment) -> bool:
        if image.evaluate(values) == 0:  # the window says nothing of an empty image
            return False
        return have.evaluate(values) != max(want.evaluate(values), 0)

    values = scope.counterexample(violated)
    if values is not None:
        raise scope.fail(
            op,
            f"has {have} = {have.evaluate(values)} output pixels in spatial dimension {dim} but "
            f"its window gives {want} = {max(want.evaluate(values), 0)}, "
            f"{describe([have, want], values)}",
        )


def _check_written_once(scope: Scope, op: Any, name: str) -> None:
    """The map of the only result, the op's last, takes each element once."""
    result = accesses(op)[-1]
    exprs, space = scope.resolve_all(result.exprs), scope.resolve_all(result.space)
    sizes = scope.facts.sizes(result.value.type)
    _check_count(scope, op, "the result", sizes, f"{name} computes", space)
    if invert_map(exprs, sizes, space, scope.facts.symbol_ranges) is not None:
        return
    for values in scope.samples:
        written: dict[tuple[int, ...], tuple[int, ...]] = {}
        for point in _points(space, values):
            index = tuple(e.evaluate(values, point) for e in exprs)
            other = written.setdefault(index, point)
            if other != point:
                raise scope.fail(
                    op,
                    f"result: ({_list(exprs)}) writes {index} both at {other} and at {point}, "
                    f"{describe([*exprs, *space], values)}; each element is written once",
                )


@_rule("shapejit.launch")
def _launch(scope: Scope, op: Any) -> None:
    module = scope.root.parent
    name = ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
    kernel = sir.kernels(module).get(name)
    if kernel is None:
        return  # lowered already
    local = scope.resolve_all(map_exprs(op.attributes["sizes"].value))
    bindings = dict(enumerate(local))
    for i, size in enumerate(local):
        scope.check_size(op, f"s{i} of @{name}", size)
    body = sir.body(kernel)
    yielded = sir.operations(body)[-1].operands
    passed = [(f"operand {i}", v) for i, v in enumerate(op.operands)]
    passed += [(f"result {i}", v) for i, v in enumerate(op.results)]
    for (what, outer), inner in zip(passed, [*body.arguments, *yielded], strict=True):
        expected = [e.substitute(symbols=bindings) for e in sir.shape_of(inner)]
        _check_count(scope, op, what, scope.facts.sizes(outer.type), f"@{name} expects", expected)


def _check_count(
    scope: Scope, op: Any, what: str, sizes: Sequence[Expr], other: str, expected: Sequence[Expr]
) -> None:
    """The two shapes have equally many elements."""
    have, want = product(sizes), product(expected)
    if have == want:
        return
    values = scope.counterexample(lambda v: have.evaluate(v) != want.evaluate(v))
    if values is not None:
        raise scope.fail(
            op,
            f"{what} has {have} = {have.evaluate(values)} elements but {other} {want} = "
            f"{want.evaluate(values)}, {describe([have, want], values)}",
        )


def _check_access(scope: Scope, op: Any, access: Access) -> None:
    """Every index lies within its dimension."""
    exprs, space = scope.resolve_all(access.exprs), scope.resolve_all(access.space)
    ranges = scope.facts.over(space)
    for i, (index, size) in enumerate(
        zip(exprs, scope.facts.sizes(access.value.type), strict=True)
    ):
        dim = index.dim_index
        if dim is not None and space[dim] == size:
            continue
        if ranges.is_nonnegative(index) and ranges.is_nonnegative(size - 1 - index):
            continue
        for values in scope.samples:
            for point in _points(space, values):
                value, limit = index.evaluate(values, point), size.evaluate(values)
                if not 0 <= value < limit:
                    raise scope.fail(
                        op,
                        f"{access.name}: index {i} ({index}) is {value} at ({_list(point)}), "
                        f"{describe([index, size, *space], values)}; dimension {i} has size "
                        f"{size} = {limit}",
                    )


def _points(space: Sequence[Expr], values: Assignment) -> Iterator[tuple[int, ...]]:
    """Points of a space: corners first, as an extreme index is mostly found at one."""
    sizes = [size.evaluate(values) for size in space]
    if any(size <= 0 for size in sizes):
        return
    ends = [sorted({0, size - 1}) for size in sizes]
    yield from itertools.islice(itertools.product(*ends), _MAX_POINTS)
    inner = [range(0, size, max(1, size // 5)) for size in sizes]
    yield from itertools.islice(itertools.product(*inner), _MAX_POINTS)


def _list(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


# The pass -----------------------------------------------------------------------------------------


def _check_ids(module: Any) -> frozenset[int]:
    """Ids are 0, 1, 2, .. in the order of declaration."""
    ids: list[int] = []
    for op in sir.operations(sir.module_block(module)):
        if op.name == "shapejit.symbol":
            found = ir.IntegerAttr(op.attributes["id"]).value
            if found != len(ids):
                raise PassFailure(op, f"symbol {len(ids)} of the module has id {found}")
            ids.append(found)
    return frozenset(ids)


def _kernel_scopes(
    module: Any, facts: SymbolFacts, samples: Sequence[Assignment]
) -> Iterator[Scope]:
    """Each kernel once for each distinct binding of its symbols."""
    kernels = sir.kernels(module)
    seen: set[tuple[str, Sizes]] = set()
    for op in (op for function in sir.functions(module) for op in sir.walk(function)):
        if op.name != "shapejit.launch":
            continue
        name = ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
        local = tuple(map(facts.resolve, map_exprs(op.attributes["sizes"].value)))
        if name not in kernels or (name, local) in seen:
            continue
        seen.add((name, local))
        bound = ", ".join(f"s{i} = {size}" for i, size in enumerate(local))
        note = f" (in @{name}, launched with its {bound})" if bound else f" (in @{name})"
        bindings = SymbolFacts(facts.symbol_ranges, dict(enumerate(local)))
        yield Scope(kernels[name], frozenset(range(len(local))), bindings, samples, note)
    launched = {name for name, _ in seen}
    for name, kernel in kernels.items():
        if name not in launched:
            ids = frozenset(range(ir.IntegerAttr(kernel.attributes["symbols"]).value))
            yield Scope(kernel, ids, SymbolFacts({}, {}), [], f" (in @{name}, never launched)")


@register_pass("shapejit-verify-shapes")
@dataclass(frozen=True)
class VerifyShapes(Pass):
    """Check every size, symbol and index map of the module."""

    def run(self, module: Any) -> None:
        declared = _check_ids(module)
        facts, samples = SymbolFacts.of(module), sample_symbols(module)
        for function in sir.functions(module):
            Scope(function, declared, facts, samples).check()
        for scope in _kernel_scopes(module, facts, samples):
            scope.check()
