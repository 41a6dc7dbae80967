"""Placements by sample id: a node keeps a share of the dataset, whatever it will read."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.rule import (
    DoesNotApplyError,
    Integers,
    NodeContents,
    Sizes,
    cut_into_tiers,
    from_file_system,
    must_fit_in_ram,
)
from dlio_bench.units import format_bytes


def lbann_preload(sequences: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node loads its share of the ids into RAM before the first step (Jacobs et al., CLUSTER'19).

    `sequences` [nodes]: the ids that each node reads. `sizes` [samples]: bytes. `capacities`: bytes of RAM and of the
    tiers behind it. All placements share these arguments. DoesNotApplyError unless the RAM of all nodes holds the
    dataset: the data store has no other source.
    """
    must_fit_in_ram("LBANN's data store", len(sequences), sizes, capacities)
    return [from_file_system([ids, *_empty_tiers(capacities)[1:]]) for ids in _shares(sequences, sizes)]


def deepio(sequences: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node fills its RAM with consecutive ids before the first step (Zhu et al., MASCOTS'18).

    If the RAM of all nodes is smaller than the dataset, this is DeepIO's hybrid mode: every node's RAM is full, and the
    other samples stay on the PFS. Both of DeepIO's orders, kept and opportunistic, place samples like this.
    """
    shares = _shares(sequences, sizes)
    return [
        from_file_system([cut_into_tiers(ids, sizes, capacities[:1])[0], *_empty_tiers(capacities)[1:]])
        for ids in shares
    ]


def locality_aware(sequences: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node fills its node-local storage with its share of the ids, as far as it goes (Yang and Cong, HiPC'19)."""
    shares = _shares(sequences, sizes)
    return [
        from_file_system([*_empty_tiers(capacities)[:-1], cut_into_tiers(ids, sizes, capacities[-1:])[0]])
        for ids in shares
    ]


def parallel_staging(sequences: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node fills its node-local storage: its share from the PFS, then copies of the ids that follow, from others.

    Parallel data staging of Kurth et al., SC'18, as Dryden et al., SC'21, model it. A node fetches copies after all
    that comes from the PFS, and copies only what another node staged from the PFS.
    """
    nodes = len(sequences)
    first = [cut_into_tiers(ids, sizes, capacities[-1:])[0] for ids in _shares(sequences, sizes)]
    contents = []
    stored = [int(sizes[ids].sum()) for ids in first]
    for node in range(nodes):
        enough, room = [], capacities[-1]  # of the shares from the node's own on
        for step in range(nodes):
            enough.append(first[(node + step) % nodes])
            room -= stored[(node + step) % nodes]
            if room < 0:
                break
        kept = cut_into_tiers(np.concatenate(enough), sizes, capacities[-1:])[0]
        copies = np.arange(len(kept)) >= len(first[node])
        empty = _empty_tiers(capacities)[:-1]
        contents.append(NodeContents((*empty, kept), (*(np.zeros(0, bool) for _ in empty), copies)))
    return contents


def stage_partition(sequences: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node stages its share of the ids, in RAM and then behind it, and reads nothing else (Kurth et al., SC'18).

    DoesNotApplyError unless every node's tiers hold its share.
    """
    shares = _shares(sequences, sizes)
    cuts = [cut_into_tiers(ids, sizes, capacities) for ids in shares]
    for node, (ids, tiers) in enumerate(zip(shares, cuts, strict=True)):
        if sum(map(len, tiers)) < len(ids):
            raise DoesNotApplyError(
                f"Staging keeps a node's whole share in its tiers. Node {node} has {format_bytes(sum(capacities))} "
                f"for {format_bytes(int(sizes[ids].sum()))}. Use more nodes or larger tiers."
            )
    return [from_file_system(tiers) for tiers in cuts]


def _shares(sequences: Sequence[Integers], sizes: Sizes) -> list[Ids]:
    """The ids cut into one contiguous share a node, whatever the nodes read."""
    nodes, samples = len(sequences), len(sizes)
    bounds = [node * samples // nodes for node in range(nodes + 1)]
    return [np.arange(first, last, dtype=np.int64) for first, last in pairwise(bounds)]


def _empty_tiers(capacities: Sequence[int]) -> list[Ids]:
    return [np.empty(0, np.int64) for _ in capacities]
