"""The cooperative placement: every sample has a holder before any has two."""

from collections.abc import Sequence

import numpy as np

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.frequency import counted
from dlio_bench.harness.plan.placement.keeps import Integers, Keeps, Mask, Sizes, cut


def first_holders(
    own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int], per_epoch: int
) -> tuple[list[Ids], ...]:
    """The samples each node holds because it reads them first: its tiers, int64 ids in the order it reads them.

    Epoch by epoch, a node is offered the samples of its own sequence that nobody holds yet, and takes them in order
    until its tiers (`capacities`, bytes) are full. So no sample has two holders, and one whose first reader is full
    goes to the first later reader with room. `per_epoch` is the length of an epoch in each sequence; in an epoch
    no sample has two readers, or all nodes read the same (ranks that hold parts of one model): then they take turns.
    """
    held = np.zeros(len(sizes), bool)
    tiers = [[np.empty(0, np.int64)] * len(capacities) for _ in own]
    for start in range(0, len(own[0]), per_epoch):
        offers = [np.asarray(sequence[start : start + per_epoch], np.int64) for sequence in own]
        turns = _in_turn(offers) if _alike(offers) else []
        for node, offered in [*enumerate(turns), *enumerate(offers)]:
            wanted = np.concatenate([*tiers[node], _firsts(offered[~held[offered]])])
            tiers[node] = cut(wanted, sizes, capacities)  # what was taken before comes first and stays where it is
            held[np.concatenate(tiers[node])] = True
        if held.all():
            break
    return tuple(tiers)


def _alike(offers: Sequence[Ids]) -> bool:
    return len(offers) > 1 and all(np.array_equal(offers[0], one) for one in offers[1:])


def _in_turn(offers: Sequence[Ids]) -> list[Ids]:
    """What all nodes read, dealt to them one by one."""
    ids = _firsts(offers[0])
    return [ids[node :: len(offers)] for node in range(len(offers))]


def _firsts(ids: Ids) -> Ids:
    """Each id once, where it first comes: ranks of a node may read the same, and padding repeats samples."""
    found: Ids = ids[np.sort(np.unique(ids, return_index=True)[1])]
    return found


def cooperative(own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int], per_epoch: int) -> list[Keeps]:
    """Who reads a sample first keeps it while there is room anywhere; copies fill what is left (this project).

    The clairvoyant placement lets every node choose for itself, so popular samples lie on many nodes, others on none.
    Here the tiers of all nodes are one cache first: each sample is read from the PFS once, by its holder. What room a
    node has left it fills with copies of the samples it reads most often, taken from their holders. First holdings go
    into the fastest tier first, in the order they are read; copies come behind them in each tier, by first access.
    """
    firsts = first_holders(own, sizes, capacities, per_epoch)
    held = np.zeros(len(sizes), bool)
    for tiers in firsts:
        held[np.concatenate(tiers)] = True
    return [_node(node, tiers, held, sizes, capacities) for node, tiers in zip(own, firsts, strict=True)]


def _node(own: Integers, tiers: Sequence[Ids], held: Mask, sizes: Sizes, capacities: Sequence[int]) -> Keeps:
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
