"""Placements by what a node will read: clairvoyant, and LBANN's dynamic store."""

from collections.abc import Iterable, Sequence

import numpy as np

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.rule import (
    Integers,
    NodeContents,
    Sizes,
    cut_into_tiers,
    from_file_system,
    must_fit_in_ram,
)


def count_in_parts(parts: Iterable[Integers], samples: int) -> tuple[Ids, Ids, Ids]:
    """`count_accesses` for a sequence that comes in parts (for example epochs) and has ids below `samples`.

    Takes about 20 bytes a sample and the memory of one part.
    """
    counts, first, at = np.zeros(samples, np.int64), np.full(samples, -1, np.int64), 0
    for part in parts:
        np.add.at(counts, part.astype(np.int64, copy=False), np.int64(1))
        new = np.flatnonzero(first[part] < 0)[::-1]
        first[part[new]] = at + new  # the earliest is written last
        at += len(part)
    ids = np.flatnonzero(counts).astype(np.int64, copy=False)
    return ids, counts[ids], first[ids]


def count_accesses(sequence: Integers) -> tuple[Ids, Ids, Ids]:
    """The distinct ids of an access sequence, how often each is read, and the position of its first access."""
    ids, first, counts = np.unique(sequence, return_index=True, return_counts=True)
    return ids.astype(np.int64, copy=False), counts.astype(np.int64), first.astype(np.int64)


def count_in_one(sequence: Integers, samples: int) -> tuple[Ids, Ids, Ids]:
    """`count_accesses` for ids below `samples`, by the method that takes less time and memory."""
    if len(sequence) <= samples:
        return count_accesses(sequence)
    return count_in_parts((sequence[at : at + samples] for at in range(0, len(sequence), samples)), samples)


def clairvoyant_node(sequence: Integers, sizes: Sizes, capacities: Sequence[int], first_id: int = 0) -> NodeContents:
    """What one node keeps under `clairvoyant`. It depends on this node's sequence alone.

    Among samples that it reads equally often, the node takes those from `first_id` on, then those from 0 on.
    """
    ids, counts, first = count_in_one(sequence, len(sizes))
    ranked = np.lexsort(((ids - first_id) % len(sizes), -counts))
    tiers = cut_into_tiers(ranked, sizes[ids], capacities)  # positions in `ids`
    return from_file_system([ids[tier[np.argsort(first[tier], kind="stable")]] for tier in tiers])


def clairvoyant(sequences: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node keeps what it reads most often over all epochs, fastest tier first (Dryden et al., SC'21, section 5.1).

    A tier fetches its samples in the order of their first access (rule 1 of Cao et al., SIGMETRICS'95). The published
    text leaves ties open. Here each node starts at its own share of the ids. So nodes keep different samples, from all
    parts of the epoch: with early ones only, the tier's threads would be late in the first epoch.
    """
    nodes, samples = len(sequences), len(sizes)
    return [
        clairvoyant_node(sequence, sizes, capacities, node * samples // nodes)
        for node, sequence in enumerate(sequences)
    ]


def lbann_dynamic(sequences: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node keeps in RAM the first samples / nodes that it reads, as it reads them (Jacobs et al., CLUSTER'19).

    A sample that another node reads before is that node's (an epoch may leave out samples that do not fill a step).
    DoesNotApplyError unless the RAM of all nodes holds the dataset: the data store has no other source.
    """
    nodes, samples = len(sequences), len(sizes)
    must_fit_in_ram("LBANN's data store", nodes, sizes, capacities)
    share = samples // nodes
    empty = [np.empty(0, np.int64) for _ in capacities[1:]]
    contents = []
    for sequence in sequences:
        head = np.asarray(sequence[:share], np.int64)
        _, first = np.unique(head, return_index=True)
        contents.append(from_file_system([head[np.sort(first)], *empty]))
    return contents
