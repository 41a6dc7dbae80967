"""The cooperative placement: every sample has a holder before any has two."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.contents import Integers, Mask, NodeContents, Sizes, cut, from_file_system
from dlio_bench.harness.plan.placement.frequency import counted_in, counted_once


def first_holders(
    epochs: Iterable[Sequence[Integers]], nodes: int, sizes: Sizes, capacities: Sequence[int]
) -> tuple[list[Ids], ...]:
    """The samples each node holds because it reads them first: its tiers, int64 ids in the order it reads them.

    `epochs`: for each epoch what every node reads in it; no sample has two readers in an epoch, or all nodes read the
    same (ranks that hold parts of one model): then they take turns. A node is offered the samples of its own sequence
    that nobody holds yet, and takes them in order until its tiers (`capacities`, bytes) are full. So no sample has two
    holders, and one whose first reader is full goes to the first later reader with room. No more epochs are asked for
    than decide, mostly two: until all samples are held, or all nodes are full. Where no sample comes twice, as in a
    single epoch, with or without validation, nothing is held.
    """
    held = np.zeros(len(sizes), bool)
    tiers = [[np.empty(0, np.int64)] * len(capacities) for _ in range(nodes)]
    coming = iter(epochs)
    opening = _until_read_again(coming, len(sizes))
    for own in chain(opening, coming):
        offers = [np.asarray(sequence, np.int64) for sequence in own]
        turns = _in_turn(offers) if _alike(offers) else []
        for node, offered in [*enumerate(turns), *enumerate(offers)]:
            wanted = np.concatenate([*tiers[node], _firsts(offered[~held[offered]])])
            tiers[node] = cut(wanted, sizes, capacities)  # what was taken before comes first and stays where it is
            held[np.concatenate(tiers[node])] = True
        if held.all() or all(_is_full(node, sizes, capacities, int(sizes[~held].min())) for node in tiers):
            break
    return tuple(tiers)


def _is_full(tiers: Sequence[Ids], sizes: Sizes, capacities: Sequence[int], smallest: int) -> bool:
    """Whether a node takes no sample more, the `smallest` that is left included. A tier behind a used one is closed."""
    last = max((tier for tier, ids in enumerate(tiers) if len(ids)), default=0)
    rooms = zip(tiers[last:], capacities[last:], strict=True)
    return all(capacity - int(sizes[ids].sum()) < smallest for ids, capacity in rooms)


def _until_read_again(epochs: Iterator[Sequence[Integers]], samples: int) -> list[Sequence[Integers]]:
    """The first epochs, up to that in which a sample comes for the second time; none where no sample does."""
    found = []
    seen = np.zeros(samples, bool)
    for own in epochs:
        found.append(own)
        if seen[np.concatenate(own)].any() or _alike(own) or _is_doubled(own):
            return found
        seen[np.concatenate(own)] = True
    return []


def _alike(offers: Sequence[Integers]) -> bool:
    return len(offers) > 1 and all(np.array_equal(offers[0], one) for one in offers[1:])


def _is_doubled(own: Sequence[Integers]) -> bool:
    """Whether the ranks of a node read the same."""
    return len(own[0]) > 0 and 2 * len(np.unique(own[0])) <= len(own[0])


def _in_turn(offers: Sequence[Ids]) -> list[Ids]:
    """What all nodes read, dealt to them one by one."""
    ids = _firsts(offers[0])
    return [ids[node :: len(offers)] for node in range(len(offers))]


def _firsts(ids: Ids) -> Ids:
    """Each id once, where it first comes: ranks of a node may read the same, and padding repeats samples."""
    found: Ids = ids[np.sort(np.unique(ids, return_index=True)[1])]
    return found


def cooperative(own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int], per_epoch: int) -> list[NodeContents]:
    """Who reads a sample first keeps it while there is room anywhere; copies fill what is left (this project).

    The clairvoyant placement lets every node choose for itself, so popular samples lie on many nodes, others on none.
    Here the tiers of all nodes are one cache first: each sample is read from the PFS once, by its holder. What room a
    node has left it fills with copies of the samples it reads most often, twice at least, taken from their holders.
    First holdings go into the fastest tier first, in the order they are read; copies come behind them in each tier, by
    first access.
    """
    epochs = ([node[start : start + per_epoch] for node in own] for start in range(0, len(own[0]), per_epoch))
    firsts = first_holders(epochs, len(own), sizes, capacities)
    held = held_by_all(firsts, len(sizes))
    return [
        node_contents(counted_once(node, len(sizes)), tiers, held, sizes, capacities)
        for node, tiers in zip(own, firsts, strict=True)
    ]


def seen_by_node(
    epochs: Iterable[Sequence[Integers]],
    nodes: int,
    node: int,
    own: Iterable[Integers],
    sizes: Sizes,
    capacities: Sequence[int],
) -> list[NodeContents]:
    """What `node` must know of `cooperative`: all that it keeps itself, and of the others all but their copies.

    `own`: what it reads, epoch by epoch, in all of them. Of other nodes it takes a few epochs (see first_holders).
    """
    firsts = first_holders(epochs, nodes, sizes, capacities)
    contents = [from_file_system(tiers) for tiers in firsts]
    reads = counted_in(own, len(sizes))
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
    """What a node keeps: what it holds, `tiers`, and copies of what others hold. `reads`: its sequence, `counted`."""
    left = [capacity - int(sizes[ids].sum()) for ids, capacity in zip(tiers, capacities, strict=True)]
    ids, counts, first = reads
    mine = np.zeros(len(sizes), bool)
    mine[np.concatenate(tiers)] = True
    wanted = np.flatnonzero(~mine[ids] & held[ids] & (counts > 1))
    wanted = wanted[np.lexsort((first[wanted], -counts[wanted]))]
    kept, copied = [], []
    for tier, copies in zip(tiers, cut(wanted, sizes[ids], left), strict=True):
        behind = ids[copies[np.argsort(first[copies], kind="stable")]]
        kept.append(np.concatenate([tier, behind]))
        copied.append(np.arange(len(tier) + len(behind)) >= len(tier))
    return NodeContents(tuple(kept), tuple(copied))
