# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-merge-products: products of one input with several weights become one product.

Why: q, k and v of an attention are three products of the same rows. Each has few columns, so that
at few rows most of a GPU idles, and each costs a launch. As one product over the weights joined
along n they read the rows once and cost one launch. What reads the results reads slices of it.

Before::

    %q = shapejit.gemm over [s0, 384, 384] lhs(%x ..) rhs(%wq ..) extras(%bq at #n ..) ..
    %k = shapejit.gemm over [s0, 384, 384] lhs(%x ..) rhs(%wk ..) extras(%bk at #n ..) ..
    %a = shapejit.attention .. q(%q at affine_map<(d0, d1, d2, d3) -> (d2, d1 * 32 + d3)> ..)
        k(%k at affine_map<(d0, d1, d2, d3) -> (d2, d1 * 32 + d3)> ..) ..

After::

    %w = shapejit.join %wq, %wk along 0 : .. -> tensor<768x384xbf16, ..>
    %b = shapejit.join %bq, %bk along 0 : .. -> tensor<768xbf16, ..>
    %qk = shapejit.gemm over [s0, 768, 384] lhs(%x ..) rhs(%w ..) extras(%b at #n ..) ..
    %a = shapejit.attention .. q(%qk at affine_map<(d0, d1, d2, d3) -> (d2, d1 * 32 + d3)> ..)
        k(%qk at affine_map<(d0, d1, d2, d3) -> (d2, d1 * 32 + d3 + 384)> ..) ..

Products are merged that

* read the same lhs alike, over the same sizes but n, and n is constant;
* have one weight each, an argument of the function that is read whole and alike;
* have equal epilogues, whose extras are the same ones, or weights along n;
* are read by loops, products and attentions alone, through maps that divide no index: these can
  take a slice, anything else would copy it;
* have rows of a multiple of 16 bytes, so that every slice starts where TMA can read it.

The joined weights are a copy, beside weights that the caller keeps. What a merge saves, about 2 us
a launch, does not grow with the weights, what the copy takes does: up to `max-bytes` are joined in
one, which take a GPU about 10 us to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, option, register_pass
from shapejit.passes.analysis.accesses import Access, accesses, space_of, weight_count
from shapejit.passes.analysis.precision import may_round
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.canonical.spaces import make_view
from shapejit.passes.fold_views import ViewFolder, divided_dims
from shapejit.passes.fusion.readers import readers
from shapejit.symbolic import Expr, map_exprs

# Bytes to which the start of every slice is aligned: TMA and vector loads need it.
SLICE_ALIGNMENT: Final = 16

# Ops that can read a slice through their maps.
_SLICE_READERS: Final = frozenset({"shapejit.loop", "shapejit.gemm", "shapejit.attention"})

_Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Product:
    """A gemm that can be merged with others of an equal key.

    Attributes:
        gemm: the operation.
        key: what products that become one have in common.
        columns: its size n.
        joined: for each operand that is a weight along n, the dim of the weight that is n.
    """

    gemm: Any
    key: _Key
    columns: int
    joined: dict[int, int]

    def bytes(self) -> int:
        """Of its weights that would be joined."""
        total = 0
        for operand in self.joined:
            size = sir.bytes_of(self.gemm.operands[operand].type).constant
            assert size is not None, "weights have constant sizes"
            total += size
        return total


# Matching -----------------------------------------------------------------------------------------


def _product(gemm: Any, weights: set[Any]) -> Product | None:
    """A gemm as a product that can be merged; None if it cannot be.

    Args:
        weights: the function's arguments that are weights.
    """
    space = space_of(gemm)
    n = len(space) - 2
    columns = space[n].constant
    if columns is None or weight_count(gemm) != 1:
        return None
    width = sir.element_bytes(gemm.results[0].type.element_type)
    if columns == 0 or columns * width % SLICE_ALIGNMENT or not _takes_slices(gemm.results[0]):
        return None
    lhs, weight, *extras = accesses(gemm)
    joined: dict[int, int] = {}
    operands = [_shared(lhs)]
    for access in (weight, *extras):
        dim = _joined_dim(access, n) if access.value in weights else None
        if dim is not None:
            assert access.operand is not None
            joined[access.operand] = dim
            operands.append(_along_columns(access, dim))
        elif access is weight or any(n in index.dims() for index in access.exprs):
            return None
        else:
            operands.append(_shared(access))
    key = (
        (*space[:n], *space[n + 1 :]),
        tuple(operands),
        gemm.results[0].type.element_type,
        sir.attributes(gemm).get("accumulate"),
        may_round(gemm),
        _epilogue_key(gemm),
    )
    return Product(gemm, key, columns, joined)


def _joined_dim(access: Access, n: int) -> int | None:
    """The dim of a weight that is n, if n is that whole dim and nothing else depends on it."""
    found = [dim for dim, index in enumerate(access.exprs) if n in index.dims()]
    if len(found) != 1 or access.exprs[found[0]].dim_index != n:
        return None
    return found[0] if sir.shape_of(access.value)[found[0]] == access.space[n] else None


def _shared(access: Access) -> _Key:
    """What merged products have in common of an operand that is one for all."""
    return access.value, access.exprs


def _along_columns(access: Access, dim: int) -> _Key:
    """What merged products have in common of an operand that is joined along a dim."""
    sizes = sir.shape_of(access.value)
    return access.value.type.element_type, access.exprs, (*sizes[:dim], *sizes[dim + 1 :])


def _epilogue_key(gemm: Any) -> _Key:
    """A value that is equal for epilogues that compute the same."""
    blocks = gemm.regions[0].blocks
    if not len(blocks):
        return ()
    names: dict[Any, Any] = {value: number for number, value in enumerate(blocks[0].arguments)}
    found = []
    for op in sir.operations(blocks[0]):
        operands = tuple(names.get(value, value) for value in op.operands)
        types = tuple(result.type for result in op.results)
        attributes = tuple(sir.attributes(op).items())
        found.append((op.name, operands, types, attributes))
        names.update({result: (len(found), place) for place, result in enumerate(op.results)})
    return tuple(found)


def _takes_slices(value: Any) -> bool:
    """Whether all that reads a value, through views or not, can read a slice of another one."""
    for reader in readers(value):
        if reader.op.name == "shapejit.view":
            if divided_dims(map_exprs(reader.op.attributes["map"].value)):
                return False
            if not _takes_slices(reader.op.results[0]):
                return False
        elif reader.op.name not in _SLICE_READERS:
            return False
    return True


# Merging ------------------------------------------------------------------------------------------


class _Merger:
    """Merges the products of one function; equal joins are made once."""

    def __init__(self, function: Any, max_bytes: int) -> None:
        self._function, self._max_bytes = function, max_bytes
        self._joins: dict[tuple[Any, ...], Any] = {}

    def run(self) -> bool:
        """Merges what can be merged; whether there was anything."""
        groups = [group for group in self._groups() if len(group) > 1]
        for group in groups:
            self._merge(group)
        return bool(groups)

    def _groups(self) -> Iterator[list[Product]]:
        """Products of equal keys, each in program order, as many as the bound on bytes allows."""
        arguments = sir.body(self._function).arguments
        weights = {
            argument
            for number, argument in enumerate(arguments)
            if sir.argument_kind(self._function, number) == "weight"
        }
        groups: dict[_Key, list[Product]] = {}
        for op in sir.operations(sir.body(self._function)):
            product = _product(op, weights) if op.name == "shapejit.gemm" else None
            if product is None:
                continue
            group = groups.setdefault(product.key, [])
            if sum(other.bytes() for other in group) + product.bytes() > self._max_bytes:
                yield group
                group = groups[product.key] = []
            group.append(product)
        yield from groups.values()

    def _merge(self, group: Sequence[Product]) -> None:
        """One gemm in the place of the first; the results become views of its result."""
        first = group[0].gemm
        with ir.Location.fused([product.gemm.location for product in group]):
            whole = self._whole(group)
            start = 0
            for product in group:
                result = product.gemm.results[0]
                with ir.InsertionPoint(product.gemm):
                    sizes = sir.shape_of(result)
                    *outer, column = map(Expr.dim, range(len(sizes)))
                    view = make_view(whole, sizes, [*outer, column + start])
                view.set_type(result.type)  # the same sizes, in the spelling that readers know
                result.replace_all_uses_with(view)
                start += product.columns
        for product in group[1:]:
            product.gemm.erase()
        first.erase()

    def _whole(self, group: Sequence[Product]) -> Any:
        """The result of all products in one, in front of the first one."""
        first = group[0].gemm
        columns = Expr.const(sum(product.columns for product in group))
        space = list(space_of(first))
        space[-2] = columns
        operands = list(first.operands)
        with ir.InsertionPoint(first):
            for operand, dim in group[0].joined.items():
                sources = [product.gemm.operands[operand] for product in group]
                operands[operand] = self._join(sources, dim)
            gemm = ir.Operation.create(
                "shapejit.gemm",
                results=[sir.tensor_type(space[:-1], first.results[0].type.element_type)],
                operands=operands,
                attributes=sir.attributes(first) | {"space": sir.shape_attr(space)},
                regions=1,
            )
        if len(first.regions[0].blocks):
            sir.body(first).append_to(gemm.regions[0])
        return gemm.results[0]

    def _join(self, sources: Sequence[Any], dim: int) -> Any:
        """The weights joined along a dim, at the insertion point of the first that needs them."""
        key = (*sources, dim)
        if key not in self._joins:
            sizes = list(sir.shape_of(sources[0]))
            sizes[dim] = sum((sir.shape_of(source)[dim] for source in sources), Expr.const(0))
            join = ir.Operation.create(
                "shapejit.join",
                results=[sir.tensor_type(sizes, sources[0].type.element_type)],
                operands=sources,
                attributes={"dim": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)},
            )
            self._joins[key] = join.results[0]
        return self._joins[key]


@register_pass("shapejit-merge-products")
@dataclass(frozen=True)
class MergeProducts(Pass):
    """Make one product of those that multiply one input by several weights."""

    max_bytes: int = option(32 << 20, help="bytes of weights that are joined into one, at most")

    def run(self, module: Any) -> None:
        if self.max_bytes < 0:
            raise PassFailure(module, f"max-bytes must not be negative, got {self.max_bytes}")
        facts = SymbolFacts.of(module)
        for function in sir.functions(module):
            if _Merger(function, self.max_bytes).run():
                ViewFolder(function, facts).run()
