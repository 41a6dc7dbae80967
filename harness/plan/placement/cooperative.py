"""The cooperative placement: every sample has a holder before any has two."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.frequency import count_in_one, count_in_parts
from dlio_bench.harness.plan.placement.rule import Integers, Mask, NodeContents, Sizes, cut_into_tiers, from_file_system


def first_holders(
    epochs: Iterable[Sequence[Integers]], nodes: int, sizes: Sizes, capacities: Sequence[int]
) -> tuple[list[Ids], ...]:
    """The samples each node holds because it reads them first: its tiers, int64 ids in the order it reads them.

    `epochs`: for each epoch, what every node reads. In an epoch either no two nodes read the same sample, or all nodes
    read the same ones (ranks that hold parts of one model) and take turns. A node takes the samples of its sequence
    that no node holds yet, in order, until its tiers (`capacities`, bytes) are full. So no sample has two holders. If
    the first reader of a sample is full, the first later reader with room holds it. The function stops at the epoch in
    which all samples are held or all nodes are full, mostly the second. If no sample comes twice, as in a single epoch
    with or without validation, no node holds anything.
    """
    held = np.zeros(len(sizes), bool)
    tiers = [[np.empty(0, np.int64)] * len(capacities) for _ in range(nodes)]
    coming = iter(epochs)
    opening = _until_read_again(coming, len(sizes))
    for sequences in chain(opening, coming):
        offers = [np.asarray(sequence, np.int64) for sequence in sequences]
        turns = _in_turn(offers) if _are_equal(offers) else []
        for node, offered in [*enumerate(turns), *enumerate(offers)]:
            wanted = np.concatenate([*tiers[node], _first_occurrences(offered[~held[offered]])])
            # samples taken before come first and stay where they are
            tiers[node] = cut_into_tiers(wanted, sizes, capacities)
            held[np.concatenate(tiers[node])] = True
        smallest = sizes[~held].min(initial=np.iinfo(np.int64).max)
        if held.all() or all(_is_full(node, sizes, capacities, int(smallest)) for node in tiers):
            break
    return tuple(tiers)


def _is_full(tiers: Sequence[Ids], sizes: Sizes, capacities: Sequence[int], smallest: int) -> bool:
    """Whether a node has no room for the `smallest` sample left. The tiers before the last used one are closed."""
    last = max((tier for tier, ids in enumerate(tiers) if len(ids)), default=0)
    rooms = zip(tiers[last:], capacities[last:], strict=True)
    return all(capacity - int(sizes[ids].sum()) < smallest for ids, capacity in rooms)


def _until_read_again(epochs: Iterator[Sequence[Integers]], samples: int) -> list[Sequence[Integers]]:
    """The first epochs, up to the one in which a sample comes for the second time; none if no sample comes twice."""
    opening = []
    seen = np.zeros(samples, bool)
    for sequences in epochs:
        opening.append(sequences)
        if seen[np.concatenate(sequences)].any() or _are_equal(sequences) or _is_doubled(sequences):
            return opening
        seen[np.concatenate(sequences)] = True
    return []


def _are_equal(offers: Sequence[Integers]) -> bool:
    return len(offers) > 1 and all(np.array_equal(offers[0], other) for other in offers[1:])


def _is_doubled(sequences: Sequence[Integers]) -> bool:
    """Whether the ranks of a node read the same samples."""
    return len(sequences[0]) > 0 and 2 * len(np.unique(sequences[0])) <= len(sequences[0])


def _in_turn(offers: Sequence[Ids]) -> list[Ids]:
    """What all nodes read, dealt to them one by one."""
    ids = _first_occurrences(offers[0])
    return [ids[node :: len(offers)] for node in range(len(offers))]


def _first_occurrences(ids: Ids) -> Ids:
    """Each id once, where it first comes: ranks of a node may read the same, and padding repeats samples."""
    distinct: Ids = ids[np.sort(np.unique(ids, return_index=True)[1])]
    return distinct


def cooperative(
    sequences: Sequence[Integers], sizes: Sizes, capacities: Sequence[int], per_epoch: int
) -> list[NodeContents]:
    """The first reader of a sample keeps it while there is room on any node; copies fill the rest (this project).

    Under the clairvoyant placement every node chooses for itself, so many nodes keep popular samples and none keeps
    others. Here the tiers of all nodes first form one cache: the holder of a sample reads it from the PFS, once. A node
    then fills the room it has left with copies, taken from their holders, of the samples that it reads most often, at
    least twice. In each tier the samples that the node holds come first, in the order it reads them, and copies follow
    in the order of their first access. Both fill the fastest tier first.
    """
    epochs = (
        [sequence[start : start + per_epoch] for sequence in sequences]
        for start in range(0, len(sequences[0]), per_epoch)
    )
    firsts = first_holders(epochs, len(sequences), sizes, capacities)
    held = held_by_all(firsts, len(sizes))
    return [
        node_contents(count_in_one(sequence, len(sizes)), tiers, held, sizes, capacities)
        for sequence, tiers in zip(sequences, firsts, strict=True)
    ]


def seen_by_node(
    epochs: Iterable[Sequence[Integers]],
    nodes: int,
    node: int,
    own_epochs: Iterable[Integers],
    sizes: Sizes,
    capacities: Sequence[int],
) -> list[NodeContents]:
    """What `node` must know of `cooperative`: all that it keeps itself, and what other nodes keep without their copies.

    `own_epochs`: what the node reads in each epoch. Of `epochs` it takes only the first few (see first_holders).
    """
    firsts = first_holders(epochs, nodes, sizes, capacities)
    contents = [from_file_system(tiers) for tiers in firsts]
    reads = count_in_parts(own_epochs, len(sizes))
    contents[node] = node_contents(reads, firsts[node], held_by_all(firsts, len(sizes)), sizes, capacities)
    return contents


def held_by_all(firsts: Sequence[Sequence[Ids]], samples: int) -> Mask:
    """bool [samples]: whether any node holds each."""
    held = np.zeros(samples, bool)
    for tiers in firsts:
        held[np.concatenate(tiers)] = True
    return held


def node_contents(
    reads: tuple[Ids, Ids, Ids], tiers: Sequence[Ids], held: Mask, sizes: Sizes, capacities: Sequence[int]
) -> NodeContents:
    """What a node keeps: `tiers`, which it holds, and copies of what others hold. `reads`: its sequence, `counted`."""
    left = [capacity - int(sizes[ids].sum()) for ids, capacity in zip(tiers, capacities, strict=True)]
    ids, counts, first = reads
    mine = np.zeros(len(sizes), bool)
    mine[np.concatenate(tiers)] = True
    wanted = np.flatnonzero(~mine[ids] & held[ids] & (counts > 1))
    wanted = wanted[np.lexsort((first[wanted], -counts[wanted]))]
    kept, copied = [], []
    for tier, copies in zip(tiers, cut_into_tiers(wanted, sizes[ids], left), strict=True):
        behind = ids[copies[np.argsort(first[copies], kind="stable")]]
        kept.append(np.concatenate([tier, behind]))
        copied.append(np.arange(len(tier) + len(behind)) >= len(tier))
    return NodeContents(tuple(kept), tuple(copied))
