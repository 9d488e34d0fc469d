# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Which operations of a function run as one kernel, and in what order kernels run.

A *row cluster* is a set of loops over the same rows: the leading dims of one space, of which at
least one loop reduces all the others. Softmax, norms with the sums before them, and embeddings with
their norm are row clusters; each row is then read once. Every other operation is a kernel of its
own.

A loop joins the cluster of a loop that makes one of its inputs if

* both run over one space, or the loop only over its rows (the mean, from the sum);
* it reads what the cluster makes at its own row and column, or a scalar of its own row;
* it reduces, if it does, to the rows of the cluster;
* no value leaves the cluster and comes back through another kernel.

One row in all is no cluster: its loops could not be spread over threads.

A scatter computes what it writes, and where, itself: pointwise loops that nobody else reads join
it.

A launch on a GPU costs about as much as a small kernel runs. There, with `merge`, three kinds of
groups that do not need to be apart become one kernel, if no value leaves them and comes back:

* two clusters over the same rows, with columns of their own, of which one reads row scalars that
  the other makes: the number of tokens, by which a mean is divided;
* a cluster and a pointwise loop over its rows alone: a mask beside the embedding;
* two neighbours in the order of kernels that are single pointwise loops over spaces of one rank:
  sine and cosine, the rotation of q and of k.

Such a kernel has at most `MOST_TENSORS` tensors: each is a parameter, and what all of them need has
to fit into the registers and the instruction cache together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shapejit import ir as sir
from shapejit.passes.fusion.codec import Codec, Sizes, dims
from shapejit.symbolic import product

KERNEL_OPS: Final = frozenset(
    {
        *("shapejit.loop", "shapejit.gemm", "shapejit.conv", "shapejit.attention"),
        *("shapejit.scan", "shapejit.scatter", "shapejit.sort"),
    }
)


#: That a kernel of merged groups reads and writes.
MOST_TENSORS: Final = 32


@dataclass(eq=False)
class Node:
    """An operation of a function and those that make what it reads.

    Attributes:
        op: the operation.
        inputs: the values that it reads as operands.
        captured: the values that its body reads.
        producers: nodes of the operations that make these, or have to run before for other reasons.
        earlier: the latter.
    """

    op: Any
    inputs: list[Any]
    captured: list[Any]
    producers: list[Node]
    earlier: list[Node] = field(default_factory=list)


@dataclass(eq=False)
class Group:
    """Operations that run as one kernel, in program order, or one that needs none.

    Attributes:
        nodes: the operations.
        space: of the loops with columns; None if no loop can join.
        rows: how many leading dims are the rows; None as long as no loop reduces.
    """

    nodes: list[Node]
    space: Sizes | None = None
    rows: int | None = None

    @property
    def is_kernel(self) -> bool:
        """Whether the group needs a kernel; views and packs of weights do not."""
        return self.nodes[0].op.name in KERNEL_OPS


@dataclass(frozen=True)
class RowForm:
    """A loop as part of a row cluster: its space, and its rows if it reduces."""

    space: Sizes
    rows: int | None


def _is_pointwise_loop(group: Group) -> bool:
    """Whether a group is a single loop that reduces nothing and could be part of a cluster."""
    return len(group.nodes) == 1 and group.rows is None and group.space is not None


def _is_read_only_by(maker: Any, reader: Any) -> bool:
    """Whether all results of an operation are operands of one other alone."""
    own = sir.key(reader)
    return all(sir.key(user) == own for result in maker.results for user, _ in sir.users(result))


def row_form(loop: Any, codec: Codec) -> RowForm | None:
    """How a loop fits into a row cluster; None if it fits into none."""
    space = codec.space(loop)
    kept: set[int] = set()
    results = codec.maps(loop)[len(loop.operands) :]
    for indices, kind in zip(results, sir.kinds(loop), strict=True):
        if indices != dims(len(indices)):
            return None
        if kind != "none":
            kept.add(len(indices))
    if not kept:
        return RowForm(space, None)
    if len(kept) > 1:
        return None
    (rows,) = kept
    return None if product(space[:rows]).constant == 1 else RowForm(space, rows)


def graph(function: Any, before: Mapping[int, Sequence[Any]]) -> list[Node]:
    """The operations of a function but its terminator, in program order.

    Args:
        function: the function.
        before: by an operation's key, those that have to run before it though it reads nothing of
            theirs.
    """
    nodes: list[Node] = []
    made: dict[Any, Node] = {}
    by_key: dict[int, Node] = {}
    for op in sir.operations(sir.body(function))[:-1]:
        inputs = list(op.operands)
        captured = sir.captured_values(op) if len(op.regions) else []
        producers = dict.fromkeys(made[v] for v in (*inputs, *captured) if v in made)
        earlier = [by_key[sir.key(other)] for other in before.get(sir.key(op), ())]
        producers |= dict.fromkeys(earlier)
        node = by_key[sir.key(op)] = Node(op, inputs, captured, list(producers), earlier)
        made.update(dict.fromkeys(op.results, node))
        nodes.append(node)
    return nodes


class Grouping:
    """Groups of the nodes of a function.

    Args:
        nodes: in program order.
        codec: of the module.
        merge: whether to save launches by kernels of several parts; see the file's docstring.
    """

    def __init__(self, nodes: Sequence[Node], codec: Codec, *, merge: bool = False) -> None:
        self._codec = codec
        self._group: dict[Node, Group] = {}
        self._maker = {value: node for node in nodes for value in node.op.results}
        self._position = {node: number for number, node in enumerate(nodes)}
        for node in nodes:
            self._place(node)
        self._dissolve()
        self._fuse_into_scatters(nodes)
        if merge:
            self._merge_clusters()
            self._merge_row_loops()
            self._merge_neighbours()

    def groups(self) -> list[Group]:
        """All groups, each after those that make what it reads."""
        last = {self._group[node]: position for node, position in self._position.items()}
        ordered: dict[Group, None] = {}

        def visit(group: Group) -> None:
            if group in ordered:
                return
            for before in sorted(self._needs(group), key=last.__getitem__):
                visit(before)
            ordered[group] = None

        for group in sorted(last, key=last.__getitem__):
            visit(group)
        return list(ordered)

    # Construction ---------------------------------------------------------------------------------

    def _place(self, node: Node) -> None:
        """Puts a node into the groups that it can join, which become one, or into its own."""
        form = row_form(node.op, self._codec) if node.op.name == "shapejit.loop" else None
        own = Group([node]) if form is None else Group([node], form.space, form.rows)
        self._group[node] = own
        if form is None:
            return
        for group in reversed(list(dict.fromkeys(self._group[p] for p in node.producers))):
            if self._may_join(own, group) and not self._is_cyclic(own, group):
                own = self._merged(own, group)

    def _may_join(self, own: Group, other: Group) -> bool:
        """Whether the group of the newest node and one that it reads from form one cluster."""
        if other.space is None or own.space is None:
            return False
        rows = other.rows if own.rows is None else own.rows
        if other.rows is not None and other.rows != rows:
            return False
        is_rows = own.rows is None and rows is not None and own.space == other.space[:rows]
        if own.space != other.space and not is_rows:
            return False
        ranks = {len(other.space), rows}
        return self._reads_own_row(own, other, ranks) and self._reads_own_row(other, own, ranks)

    def _reads_own_row(self, reader: Group, maker: Group, ranks: set[int | None]) -> bool:
        """Whether what one group reads from the other is at the loops' own row and column."""
        for node in reader.nodes:
            maps = self._codec.maps(node.op)
            for value, indices in zip(node.inputs, maps, strict=False):
                own_place = len(indices) in ranks and indices == dims(len(indices))
                if self._makes(maker, value) and not own_place:
                    return False
            if any(self._makes(maker, value) for value in node.captured):
                return False
        return True

    def _makes(self, group: Group, value: Any) -> bool:
        node = self._maker.get(value)
        return node is not None and self._group[node] is group

    def _merged(self, own: Group, other: Group) -> Group:
        """`other` with the nodes of `own`."""
        other.rows = own.rows if other.rows is None else other.rows
        other.nodes = sorted([*other.nodes, *own.nodes], key=self._position.__getitem__)
        for node in own.nodes:
            self._group[node] = other
        own.nodes = []
        return other

    def _is_cyclic(self, *groups: Group) -> bool:
        """Whether a value that leaves the groups would come back to them."""
        pending = [need for group in groups for need in self._needs(group) if need not in groups]
        seen: set[Group] = set()
        while pending:
            group = pending.pop()
            if group in groups:
                return True
            if group not in seen:
                seen.add(group)
                pending.extend(self._needs(group))
        return False

    def _needs(self, group: Group) -> set[Group]:
        """The other groups that a group reads from."""
        return {self._group[p] for node in group.nodes for p in node.producers} - {group}

    # Scatters -------------------------------------------------------------------------------------

    def _fuse_into_scatters(self, nodes: Sequence[Node]) -> None:
        """Lets scatters compute what they write and where, if nobody else reads it.

        What reads the tensor that is updated must have done so before: it stays apart.
        """
        for node in nodes:
            if node.op.name != "shapejit.scatter":
                continue
            makers = [self._maker[v] for v in node.inputs[:-1] if v in self._maker]
            for maker in dict.fromkeys(makers):
                group = self._group[maker]
                if (
                    _is_pointwise_loop(group)
                    and maker not in node.earlier
                    and _is_read_only_by(maker.op, node.op)
                    and not self._is_cyclic(self._group[node], group)
                ):
                    self._merged(group, self._group[node])

    # Groups that need not be apart ----------------------------------------------------------------

    def _merge_clusters(self) -> None:
        """Merges clusters with those whose row scalars they read."""
        for group in self.groups():
            for other in sorted(self._needs(group), key=self._first):
                if self._share_rows(group, other) and not self._is_cyclic(group, other):
                    group = self._merged(group, other)

    def _share_rows(self, group: Group, other: Group) -> bool:
        """Whether a cluster has the rows of another one and reads but scalars of its row there."""
        if group.space is None or other.space is None or group.rows is None:
            return False
        if not self._has_room(group, other):
            return False
        rows = group.rows
        if other.rows != rows or group.space[:rows] != other.space[:rows]:
            return False
        return self._reads_own_row(group, other, {rows})

    def _merge_row_loops(self) -> None:
        """Merges pointwise loops over rows alone into the first cluster of these rows that can."""
        groups = self.groups()
        clusters = [group for group in groups if group.rows is not None]
        for group in filter(_is_pointwise_loop, groups):
            for other in clusters:
                if self._has_rows(group, other) and not self._is_cyclic(group, other):
                    self._merged(group, other)
                    break

    def _has_rows(self, group: Group, cluster: Group) -> bool:
        assert cluster.space is not None
        rows = cluster.space[: cluster.rows]
        alike = group.space == rows and self._has_room(group, cluster)
        return alike and self._are_independent(group, cluster)

    def _merge_neighbours(self) -> None:
        """Merges pointwise loops that are neighbours in the order of kernels."""
        kernels = [group for group in self.groups() if group.is_kernel]
        first = kernels[0] if kernels else None
        for group in kernels[1:]:
            if first is not None and self._are_alike(first, group):
                self._merged(group, first)
            else:
                first = group

    def _are_alike(self, first: Group, group: Group) -> bool:
        if first.rows is not None or first.space is None or not _is_pointwise_loop(group):
            return False
        if group.space is None or len(group.space) != len(first.space):
            return False
        if not self._has_room(first, group):
            return False
        return self._are_independent(first, group) and not self._is_cyclic(first, group)

    def _has_room(self, *groups: Group) -> bool:
        """Whether groups have few enough tensors to be one kernel."""
        nodes = [node for group in groups for node in group.nodes]
        tensors = {value for node in nodes for value in (*node.inputs, *node.captured)}
        return len(tensors.union(*(node.op.results for node in nodes))) <= MOST_TENSORS

    def _are_independent(self, group: Group, other: Group) -> bool:
        """Whether neither of two groups reads directly from the other."""
        return other not in self._needs(group) and group not in self._needs(other)

    def _first(self, group: Group) -> int:
        return min(map(self._position.__getitem__, group.nodes))

    def _dissolve(self) -> None:
        """Gives each operation of a group that reduces nothing a group of its own."""
        for group in set(self._group.values()):
            if group.rows is None and len(group.nodes) > 1:
                for node in group.nodes:
                    self._group[node] = Group([node], group.space)
