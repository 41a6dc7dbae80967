"""Where every sample lies: worked out by each rank alike from the plan of all ranks, so that nobody has to tell."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dlio_bench.batches import Ids
from dlio_bench.harness.plan.placement.keeps import Integers, Keeps, Sizes
from dlio_bench.harness.plan.placement.rows import Row

Ranks = npt.NDArray[np.int32]
NOWHERE = -1


@dataclass(frozen=True)
class Sequences:
    """What the nodes read, in order, every epoch behind the last: ids[n], and ranks[n], which rank of the job asks.

    per_epoch: accesses of a node in an epoch, the most there are. All together they take 8 bytes an access of the job.
    """

    ids: tuple[Integers, ...]
    ranks: tuple[Ranks, ...]
    per_epoch: int


def sequences(of: Callable[[int, int], Ids], ranks: int, ranks_per_node: int, epochs: Sequence[int]) -> Sequences:
    """The accesses of every node. `of(rank, epoch)`: what a rank reads in an epoch, int64 [accesses], in order.

    The ranks of a node read side by side: its sequence has the first access of each, then the second of each. Ranks
    that read the same take turns to be the first, so that each brings a part of it.
    Epochs are asked for one after the other, for all ranks each, so that `of` may keep what ranks have in common.
    """
    nodes = ranks // ranks_per_node
    parts: list[list[tuple[Integers, Ranks]]] = [[] for _ in range(nodes)]
    for epoch in epochs:
        for node, found in enumerate(parts):
            own = range(node * ranks_per_node, (node + 1) * ranks_per_node)
            found.append(_side_by_side([of(rank, epoch) for rank in own], own.start, nodes))
    lengths = [len(ids) for found in parts for ids, _ in found]
    none = np.zeros(0, np.int32)
    return Sequences(
        tuple(np.concatenate([none, *(ids for ids, _ in found)]) for found in parts),
        tuple(np.concatenate([none, *(who for _, who in found)]) for found in parts),
        max([1, *lengths]),
    )


def _side_by_side(own: Sequence[Ids], first_rank: int, nodes: int) -> tuple[Integers, Ranks]:
    if len(own) > 1 and all(np.array_equal(own[0], one) for one in own[1:]):
        # nodes that read the same take turns sample by sample (see the cooperative placement), and in each its ranks
        turns = np.arange(len(own[0]), dtype=np.int32)[:, None] // nodes + np.arange(len(own), dtype=np.int32)
        return np.repeat(np.asarray(own[0], np.int32), len(own)), (first_rank + turns % len(own)).ravel()
    ids = np.concatenate([np.asarray(one, np.int32) for one in own])
    who = np.repeat(np.arange(first_rank, first_rank + len(own), dtype=np.int32), [len(one) for one in own])
    if len(own) == 1:
        return ids, who
    order = np.argsort(np.concatenate([np.arange(len(one)) for one in own]), kind="stable")
    return ids[order], who[order]


@dataclass(frozen=True)
class Layout:
    """One node's tiers, and whom to ask for what they do not keep. Arrays [samples] unless they say other.

    number: place of the sample among all that the node keeps, tier by tier in fetch order; NOWHERE for others.
    keeper: the rank that brings the sample to this node and answers for it, of this node; NOWHERE for others.
    holder, holder_tier, holder_place: the rank of another node that keeps it, in which tier, at which place of its
    fetch order; NOWHERE where no other node does.
    tier, offset, size, copy [kept]: where the node keeps it, its bytes, whether it is taken from another node.
    bounds [tiers + 1]: the numbers of a tier. bytes: of each tier, what it keeps.
    """

    ids: Ids
    number: Ids
    keeper: Ranks
    holder: Ranks
    holder_tier: npt.NDArray[np.int8]
    holder_place: Ids
    tier: npt.NDArray[np.int8]
    offset: Ids
    size: Ids
    copy: npt.NDArray[np.bool_]
    bounds: Ids

    @property
    def bytes(self) -> list[int]:
        """What each tier keeps."""
        return [int(self.size[first:last].sum()) for first, last in pairwise(self.bounds.tolist())]


def lay_out(
    row: Row, read: Sequences, sizes: Sizes, training: int, capacities: Sequence[int], node: int, per_node: int
) -> Layout:
    """The layout of `node` for a policy. `sizes` [samples] and `capacities` (one a tier) in bytes.

    Where the placement does not depend on what is read, it is one of the first `training` samples alone: those that
    validation reads beside them must not change what training has.

    DoesNotApplyError when the policy cannot work with tiers of these sizes.
    """
    assert row.placement is not None
    keeps = row.placement(read.ids, sizes[:training] if row.first else sizes, capacities, read.per_epoch)
    samples = len(sizes)
    holder, holder_tier = np.full(samples, NOWHERE, np.int32), np.zeros(samples, np.int8)
    holder_place = np.zeros(samples, np.int64)
    best = np.full(samples, np.iinfo(np.int64).max)
    for other, kept in enumerate(keeps):
        if other == node:
            continue
        brings = _keepers(kept, read.ids[other], read.ranks[other], samples, other * per_node, per_node, row)
        for tier, (ids, copies) in enumerate(zip(kept.tiers, kept.copies, strict=True)):
            # the fastest tier, then the place nearest to its front, which is filled first and differs between nodes
            # (SC'21, section 5); never a copy: whoever is asked must not have to ask in turn
            places = np.arange(len(ids), dtype=np.int64)
            rank = (np.int64(tier) << np.int64(48)) + places
            better = ~copies & (rank < best[ids])
            chosen = ids[better]
            best[chosen], holder[chosen], holder_tier[chosen] = rank[better], brings[chosen], tier
            holder_place[chosen] = places[better]
    own = keeps[node]
    ids = own.ids
    number = np.full(samples, NOWHERE, np.int64)
    number[ids] = np.arange(len(ids))
    lengths = [len(one) for one in own.tiers]
    size = sizes[ids]
    offsets = [np.cumsum(sizes[one]) - sizes[one] for one in own.tiers]
    return Layout(
        ids=ids,
        number=number,
        keeper=_keepers(own, read.ids[node], read.ranks[node], samples, node * per_node, per_node, row),
        holder=holder,
        holder_tier=holder_tier,
        holder_place=holder_place,
        tier=np.repeat(np.arange(len(lengths), dtype=np.int8), lengths),
        offset=np.concatenate([np.zeros(0, np.int64), *offsets]),
        size=size,
        copy=np.concatenate([np.zeros(0, bool), *own.copies]),
        bounds=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )


def _keepers(kept: Keeps, own: Integers, ranks: Ranks, samples: int, first: int, per_node: int, row: Row) -> Ranks:
    """For each kept sample the rank that brings it: its first reader; in turn, where that is done before the run."""
    found = np.full(samples, NOWHERE, np.int32)
    ids = kept.ids
    found[ids] = first + np.arange(len(ids)) % per_node
    if per_node > 1 and not row.first:
        readers = np.full(samples, NOWHERE, np.int32)
        readers[own[::-1]] = ranks[::-1]
        read = ids[readers[ids] != NOWHERE]
        found[read] = readers[read]
    return found
