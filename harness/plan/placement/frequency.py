"""Placements by what a node will read: clairvoyant, and LBANN's dynamic store."""

from collections.abc import Iterable, Sequence
from math import exp, floor, lgamma, log

import numpy as np

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.contents import (
    Integers,
    NodeContents,
    Sizes,
    cut,
    from_file_system,
    must_fit_in_ram,
)


def counted_in(parts: Iterable[Integers], samples: int) -> tuple[Ids, Ids, Ids]:
    """As `counted`, of a sequence that comes in parts (an epoch each, say), of ids below `samples`.

    It takes some 20 bytes a sample, and what a part needs; the parts before are not held.
    """
    counts, first, at = np.zeros(samples, np.int64), np.full(samples, -1, np.int64), 0
    for part in parts:
        np.add.at(counts, part.astype(np.int64, copy=False), np.int64(1))
        new = np.flatnonzero(first[part] < 0)[::-1]
        first[part[new]] = at + new  # the earliest is written last
        at += len(part)
    ids = np.flatnonzero(counts).astype(np.int64, copy=False)
    return ids, counts[ids], first[ids]


def counted(own: Integers) -> tuple[Ids, Ids, Ids]:
    """The distinct ids of an access sequence, how often each is read, and the position of its first access."""
    ids, first, counts = np.unique(own, return_index=True, return_counts=True)
    return ids.astype(np.int64, copy=False), counts.astype(np.int64), first.astype(np.int64)


def counted_once(own: Integers, samples: int) -> tuple[Ids, Ids, Ids]:
    """As `counted`, of ids below `samples`, by the way that takes less time and memory."""
    if len(own) <= samples:
        return counted(own)
    return counted_in((own[at : at + samples] for at in range(0, len(own), samples)), samples)


def clairvoyant_node(own: Integers, sizes: Sizes, capacities: Sequence[int], first_id: int = 0) -> NodeContents:
    """What one node keeps by `clairvoyant`; it depends on this node's sequence alone.

    Among samples read equally often it takes them from `first_id` upwards, around the end of the dataset.
    """
    ids, counts, first = counted_once(own, len(sizes))
    ranked = np.lexsort(((ids - first_id) % len(sizes), -counts))
    tiers = cut(ranked, sizes[ids], capacities)  # positions in `ids`
    return from_file_system([ids[tier[np.argsort(first[tier], kind="stable")]] for tier in tiers])


def clairvoyant(own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node keeps what it reads most often over all epochs, fastest tier first (Dryden et al., SC'21, section 5.1).

    Inside a tier samples are fetched in the order of their first access (rule 1 of Cao et al., SIGMETRICS'95). The
    published text leaves ties open. Here each node starts at its own share of the ids: nodes then keep different
    samples, and early and late ones alike (preferring early ones makes the tier's threads late in the first epoch).
    """
    nodes, samples = len(own), len(sizes)
    return [clairvoyant_node(sequence, sizes, capacities, node * samples // nodes) for node, sequence in enumerate(own)]


def lbann_dynamic(own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node keeps in RAM the first samples / nodes that it reads, as it reads them (Jacobs et al., CLUSTER'19).

    A sample that another node reads before is that node's (an epoch may leave out samples that do not fill a step).
    DoesNotApplyError unless the RAM of all nodes holds the dataset: the data store has no other source.
    """
    nodes, samples = len(own), len(sizes)
    must_fit_in_ram("LBANN's data store", nodes, sizes, capacities)
    share = samples // nodes
    empty = [np.empty(0, np.int64) for _ in capacities[1:]]
    contents = []
    for node in own:
        head = np.asarray(node[:share], np.int64)
        _, first = np.unique(head, return_index=True)
        contents.append(from_file_system([head[np.sort(first)], *empty]))
    return contents


def expected_above(samples: int, nodes: int, epochs: int, excess: float) -> float:
    """Expected number of samples that one node reads more than (1 + excess) * epochs / nodes times.

    A node reads a sample Binomial(epochs, 1 / nodes) times (SC'21, section 3.1). The inequality is strict: the printed
    figures come out so, although the printed sum starts one term earlier where the bound is whole.
    """
    least = floor((1 + excess) * epochs / nodes + 1e-9) + 1
    if nodes == 1:
        return float(samples) if least <= epochs else 0.0
    return samples * sum(_binomial(epochs, 1 / nodes, count) for count in range(least, epochs + 1))


def _binomial(trials: int, p: float, hits: int) -> float:
    choose = lgamma(trials + 1) - lgamma(hits + 1) - lgamma(trials - hits + 1)
    return exp(choose + hits * log(p) + (trials - hits) * log(1 - p))
