"""Placements by sample id: a node keeps a share of the dataset, whatever it will read."""

from collections.abc import Sequence

import numpy as np

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.contents import (
    DoesNotApplyError,
    Integers,
    NodeContents,
    Sizes,
    cut,
    from_file_system,
    must_fit_in_ram,
)
from dlio_bench.units import format_bytes


def share(samples: int, nodes: int, node: int) -> Ids:
    """Node `node`'s contiguous share of range(samples): [node * samples // nodes, (node + 1) * samples // nodes)."""
    return np.arange(node * samples // nodes, (node + 1) * samples // nodes, dtype=np.int64)


def lbann_preload(own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node loads its share of the ids into RAM before the first step (Jacobs et al., CLUSTER'19).

    `own` [nodes] ids a node reads, `sizes` [samples] bytes, `capacities` bytes of RAM and the tiers behind it: all
    placements share these arguments. DoesNotApplyError unless the RAM of all nodes holds the dataset: the data
    store has no other source.
    """
    nodes = len(own)
    shares = [share(len(sizes), nodes, node) for node in range(nodes)]
    must_fit_in_ram("LBANN's data store", nodes, sizes, capacities)
    return [from_file_system([ids, *_nothing(capacities)[1:]]) for ids in shares]


def deepio(own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node fills its RAM with consecutive ids before the first step (Zhu et al., MASCOTS'18).

    Where the RAM of all nodes is smaller than the dataset this is DeepIO's hybrid mode: every node's RAM is full, and
    the ids that no node has are left on the PFS. Both of its orders, kept and opportunistic, place so.
    """
    nodes = len(own)
    shares = [share(len(sizes), nodes, node) for node in range(nodes)]
    return [from_file_system([cut(ids, sizes, capacities[:1])[0], *_nothing(capacities)[1:]]) for ids in shares]


def locality_aware(own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node fills its node-local storage with its share of the ids, as far as it goes (Yang and Cong, HiPC'19)."""
    nodes = len(own)
    shares = [share(len(sizes), nodes, node) for node in range(nodes)]
    return [from_file_system([*_nothing(capacities)[:-1], cut(ids, sizes, capacities[-1:])[0]]) for ids in shares]


def parallel_staging(own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node fills its node-local storage: its share from the PFS, then copies of the ids that follow, from others.

    Parallel data staging of Kurth et al., SC'18, as Dryden et al., SC'21, model it. Copies stand behind all that comes
    from the PFS; only what another node staged from the PFS is copied.
    """
    nodes, samples = len(own), len(sizes)
    first = [cut(share(samples, nodes, node), sizes, capacities[-1:])[0] for node in range(nodes)]
    contents = []
    for node in range(nodes):
        others = np.concatenate([first[(node + step) % nodes] for step in range(nodes)])
        kept = cut(others, sizes, capacities[-1:])[0]
        copies = np.arange(len(kept)) >= len(first[node])
        empty = _nothing(capacities)[:-1]
        contents.append(NodeContents((*empty, kept), (*(np.zeros(0, bool) for _ in empty), copies)))
    return contents


def stage_partition(own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int]) -> list[NodeContents]:
    """Each node stages its share of the ids, in RAM and then behind it, and reads nothing else (Kurth et al., SC'18).

    DoesNotApplyError unless every node's tiers hold its share.
    """
    nodes = len(own)
    shares = [share(len(sizes), nodes, node) for node in range(nodes)]
    cuts = [cut(ids, sizes, capacities) for ids in shares]
    for node, (ids, tiers) in enumerate(zip(shares, cuts, strict=True)):
        if sum(map(len, tiers)) < len(ids):
            raise DoesNotApplyError(
                f"Staging keeps a node's whole share in its tiers. Node {node} has {format_bytes(sum(capacities))} "
                f"for {format_bytes(int(sizes[ids].sum()))}. Use more nodes or larger tiers."
            )
    return [from_file_system(tiers) for tiers in cuts]


def _nothing(capacities: Sequence[int]) -> list[Ids]:
    return [np.empty(0, np.int64) for _ in capacities]
