"""The cooperative placement: every sample has a holder before any has two."""

from collections.abc import Sequence

import numpy as np

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.frequency import counted
from dlio_bench.harness.plan.placement.keeps import Integers, Keeps, Mask, Sizes, cut


def first_holders(own: Sequence[Integers], sizes: Sizes, capacity: int, per_epoch: int) -> tuple[Ids, ...]:
    """The samples each node holds because it reads them first, in the order it reads them: int64 ids a node.

    Epoch by epoch, a node is offered the samples of its own sequence that nobody holds yet, and takes them in order
    until its `capacity` (bytes) is full. So no sample has two holders, and a sample whose first reader is full goes
    to the first later reader with room. `per_epoch` is the length of an epoch in each sequence; in an epoch no sample
    has two readers.
    """
    held = np.zeros(len(sizes), bool)
    taken: list[list[Ids]] = [[] for _ in own]
    room = np.full(len(own), capacity, np.int64)
    for start in range(0, len(own[0]), per_epoch):
        if held.all() or not (room > 0).any():
            break
        for node, sequence in enumerate(own):
            offered = np.asarray(sequence[start : start + per_epoch], np.int64)
            (new,) = cut(offered[~held[offered]], sizes, [int(room[node])])
            held[new] = True
            room[node] -= int(sizes[new].sum())
            taken[node].append(new)
    return tuple(np.concatenate(ids) for ids in taken)


def cooperative(own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int], per_epoch: int) -> list[Keeps]:
    """Who reads a sample first keeps it while there is room anywhere; copies fill what is left (this project).

    The clairvoyant placement lets every node choose for itself, so popular samples lie on many nodes and others on none.
    Here the tiers of all nodes are one cache first: each sample is read from the PFS once, by its holder. What room a
    node has left it fills with copies of the samples it reads most often, taken from their holders. First holdings go
    into the fastest tier first, in the order they are read; copies come behind them in each tier, by first access.
    """
    total = sum(capacities)
    firsts = first_holders(own, sizes, total, per_epoch)
    held = np.zeros(len(sizes), bool)
    for ids in firsts:
        held[ids] = True
    return [_node(node, ids, held, sizes, capacities) for node, ids in zip(own, firsts, strict=True)]


def _node(own: Integers, holdings: Ids, held: Mask, sizes: Sizes, capacities: Sequence[int]) -> Keeps:
    tiers = cut(holdings, sizes, capacities)
    left = [capacity - int(sizes[ids].sum()) for ids, capacity in zip(tiers, capacities, strict=True)]
    ids, counts, first = counted(own)
    mine = np.zeros(len(sizes), bool)
    mine[np.concatenate(tiers)] = True
    wanted = np.flatnonzero(~mine[ids] & held[ids])
    wanted = wanted[np.lexsort((first[wanted], -counts[wanted]))]
    kept, copied = [], []
    for tier, copies in zip(tiers, cut(wanted, sizes[ids], left), strict=True):
        behind = ids[copies[np.argsort(first[copies], kind="stable")]]
        kept.append(np.concatenate([tier, behind]))
        copied.append(np.arange(len(tier) + len(behind)) >= len(tier))
    return Keeps(tuple(kept), tuple(copied))
