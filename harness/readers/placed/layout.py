"""Where every sample lies. Each rank computes the same from the plan of all ranks, without messages."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.batches import Ids
from dlio_bench.harness.plan.placement.rule import Integers, NodeContents, Placement, Sizes

Ranks = npt.NDArray[np.int32]
NOWHERE = -1


class Sequences(Struct, frozen=True):
    """What the nodes read, in order, computed at each call and not kept.

    `of(rank, epoch)`: what a rank reads in an epoch, int64 [accesses], in order. Callers go through all ranks of an
    epoch before the next epoch, so that `of` may keep what ranks have in common. The ranks of a node read side by side:
    its sequence has the first access of each rank, then the second of each. Ranks that read the same take turns to be
    first, so that each fetches a part of the samples.
    """

    of: Callable[[int, int], Ids]
    ranks: int
    ranks_per_node: int
    epochs: Sequence[int]

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return self.ranks // self.ranks_per_node

    def ids(self, node: int, epoch: int) -> Integers:
        """What a node reads in an epoch, int32 [accesses]."""
        return self._side_by_side(node, epoch)[0]

    def asking(self, node: int, epoch: int) -> tuple[Integers, Ranks]:
        """The same, and the rank of the job that reads each, int32 [accesses]."""
        ids, places = self._side_by_side(node, epoch)
        return ids, (places + node * self.ranks_per_node).astype(np.int32)

    def by_epoch(self) -> Iterator[list[Integers]]:
        """What every node reads, epoch by epoch. Takes 4 bytes for each access of the job in an epoch."""
        for epoch in self.epochs:
            yield [self.ids(node, epoch) for node in range(self.nodes)]

    def whole(self) -> list[Integers]:
        """All that each node reads. Takes 4 bytes for each access of the job, and for those of one epoch more."""
        sequences = [np.zeros(0, np.int32) for _ in range(self.nodes)]
        places = [0] * self.nodes
        for number, epoch_sequences in enumerate(self.by_epoch()):
            for node, ids in enumerate(epoch_sequences):
                start, end = places[node], places[node] + len(ids)
                if end > len(sequences[node]):  # epochs mostly have one length: then this happens once
                    longer = np.empty(end + (len(self.epochs) - number - 1) * len(ids), np.int32)
                    longer[:start] = sequences[node][:start]
                    sequences[node] = longer
                sequences[node][start:end] = ids
                places[node] = end
        return [ids[:place] for ids, place in zip(sequences, places, strict=True)]

    def _side_by_side(self, node: int, epoch: int) -> tuple[Integers, Integers]:
        first = node * self.ranks_per_node
        streams = [np.asarray(self.of(first + place, epoch), np.int32) for place in range(self.ranks_per_node)]
        if len(streams) == 1:
            return streams[0], np.zeros(len(streams[0]), np.int32)
        if all(np.array_equal(streams[0], stream) for stream in streams[1:]):
            # nodes that read the same take turns sample by sample (see placement.cooperative), and so do their ranks
            accesses, ranks = len(streams[0]), np.arange(len(streams), dtype=np.int32)
            turns = np.arange(accesses, dtype=np.int32)[:, None] // self.nodes + ranks
            return np.repeat(streams[0], len(streams)), (turns % len(streams)).ravel()
        places = np.repeat(np.arange(len(streams), dtype=np.int32), [len(stream) for stream in streams])
        order = np.argsort(np.concatenate([np.arange(len(stream)) for stream in streams]), kind="stable")
        return np.concatenate(streams)[order], places[order]


class TierLayout(Struct, frozen=True):
    """One node's tiers, and which ranks have the samples that they do not keep. Arrays are [samples] if not said.

    number: place of the sample among all that the node keeps, tier by tier in fetch order; NOWHERE: not kept.
    keeper: the rank of this node that fetches the sample and answers requests for it; NOWHERE: not kept.
    holder, holder_tier, holder_place: the rank of another node that keeps the sample, its tier, and its place in the
    fetch order of that tier; NOWHERE: no other node keeps it.
    ids, tier, offset, size, copy [kept]: the sample, where the node keeps it, its bytes, whether it comes from another
    node. bounds [tiers + 1]: the first number of each tier. bytes: what each tier keeps.
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
    rule: Placement, read: Sequences, sizes: Sizes, training: int, capacities: Sequence[int], node: int
) -> TierLayout:
    """The layout of `node` for a policy. `sizes` [samples] and `capacities` (one a tier) in bytes.

    A placement that does not depend on what is read places only the first `training` samples: the samples of a
    validation pass must not change what training has.

    Memory: about 100 bytes a sample, and 4 bytes for each access that the placement needs at once. Those are none for
    placements by number, the job's accesses in one epoch for `cooperative`, and those in all epochs for `clairvoyant`
    and `lbann-dynamic`.

    DoesNotApplyError when the policy cannot work with tiers of these sizes.
    """
    contents = _contents(rule, read, sizes, training, capacities, node)
    brings = _fetching_ranks(rule, read, contents)
    samples = len(sizes)
    holder, holder_tier = np.full(samples, NOWHERE, np.int32), np.zeros(samples, np.int8)
    holder_place = np.zeros(samples, np.int64)
    best = np.full(samples, np.iinfo(np.int64).max)
    for other, kept in enumerate(contents):
        if other == node:
            continue
        first = 0
        for tier, (ids, copies) in enumerate(zip(kept.tiers, kept.copies, strict=True)):
            # prefer the fastest tier, then the earliest place, which is filled first and differs between nodes (SC'21,
            # section 5); never a copy: a rank that is asked must not have to ask another one
            places = np.arange(len(ids), dtype=np.int64)
            rank = (np.int64(tier) << np.int64(48)) + places
            better = ~copies & (rank < best[ids])
            chosen = ids[better]
            best[chosen], holder_tier[chosen] = rank[better], tier
            holder[chosen] = brings[other][first : first + len(ids)][better]
            holder_place[chosen] = places[better]
            first += len(ids)
    node_contents = contents[node]
    ids = node_contents.ids
    number, keeper = np.full(samples, NOWHERE, np.int64), np.full(samples, NOWHERE, np.int32)
    number[ids], keeper[ids] = np.arange(len(ids)), brings[node]
    lengths = [len(tier_ids) for tier_ids in node_contents.tiers]
    size = sizes[ids]
    offsets = [np.cumsum(sizes[tier_ids]) - sizes[tier_ids] for tier_ids in node_contents.tiers]
    return TierLayout(
        ids=ids,
        number=number,
        keeper=keeper,
        holder=holder,
        holder_tier=holder_tier,
        holder_place=holder_place,
        tier=np.repeat(np.arange(len(lengths), dtype=np.int8), lengths),
        offset=np.concatenate([np.zeros(0, np.int64), *offsets]),
        size=size,
        copy=np.concatenate([np.zeros(0, bool), *node_contents.copies]),
        bounds=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )


def _contents(
    rule: Placement, read: Sequences, sizes: Sizes, training: int, capacities: Sequence[int], node: int
) -> Sequence[NodeContents]:
    assert rule.keep is not None
    if rule.first:
        return rule.keep([np.zeros(0, np.int32)] * read.nodes, sizes[:training], capacities, 1)
    if rule.seen is not None:
        node_epochs = (read.ids(node, epoch) for epoch in read.epochs)
        return rule.seen(read.by_epoch(), read.nodes, node, node_epochs, sizes, capacities)
    sequences = read.whole()
    return rule.keep(sequences, sizes, capacities, max(1, len(sequences[0]) // max(1, len(read.epochs))))


def _fetching_ranks(rule: Placement, read: Sequences, contents: Sequence[NodeContents]) -> list[Ranks]:
    """The rank that fetches each sample that a node keeps, int32 [kept]: its first reader, found in as few epochs as
    possible. If tiers are filled before the run, the ranks of the node take turns.
    """
    per_node = read.ranks_per_node
    bringers: list[Ranks] = [
        (node * per_node + np.arange(len(kept.ids)) % per_node).astype(np.int32) for node, kept in enumerate(contents)
    ]
    if per_node == 1 or rule.first:
        return bringers
    orders = [np.argsort(kept.ids) for kept in contents]
    ordered = [kept.ids[order] for kept, order in zip(contents, orders, strict=True)]
    missing = [np.ones(len(kept.ids), bool) for kept in contents]
    for epoch in read.epochs:
        for node, ids in enumerate(ordered):
            if not missing[node].any():
                continue
            accesses, ranks = read.asking(node, epoch)
            places = np.minimum(np.searchsorted(ids, accesses), len(ids) - 1)
            hit = ids[places] == accesses
            first = np.full(len(ids), NOWHERE, np.int32)
            first[places[hit][::-1]] = ranks[hit][::-1]  # the earliest is written last
            kept = orders[node]
            new = (first != NOWHERE) & missing[node][kept]
            bringers[node][kept[new]] = first[new]
            missing[node][kept[new]] = False
        if not any(absent.any() for absent in missing):
            break
    return bringers
