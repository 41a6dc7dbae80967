"""Placements that copy whole files to node-local storage: which files a node keeps, who reads them, who sends them.

Files count from 0 within their split. Ranks fill node after node: node n has ranks [n * r, (n + 1) * r).
"""

from dataclasses import dataclass, field

import numpy as np

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.draws import Ids, Purpose, words

STAGED = ("stage-partition", "stage-replicate", "stage-subset")


@dataclass(frozen=True)
class StagePlan:
    """The staging of one job.

    nodes: for each node the files it keeps, ascending, int64. reads: rank -> the files it copies from the parallel
    file system (PFS), ascending; every rank has an entry. sends: (file, from rank, to rank), ordered by file then
    receiver: the reader of a file gives it to one rank of each other node that keeps it.

    A rank's own node keeps what it reads, except under stage-subset, where a reader may only pass a file on.
    """

    nodes: tuple[Ids, ...]
    reads: dict[int, Ids]
    sends: list[tuple[int, int, int]] = field(default_factory=list)


def stage_partition(files: int, nodes: int, node: int) -> Ids:
    """Every nodes-th file, floor(files / nodes) on every node; the remainder is on none, as `per_rank = len // size`.

    Source: the trimmed `.shard()` of the climate benchmark's readers. UsageError when there are fewer files than nodes.
    """
    if files < nodes:
        raise UsageError(
            f"stage-partition gives every node files of its own, but {nodes} nodes cannot share {files} files. Use "
            f"at most {files} nodes, more files, or --placement stage-replicate."
        )
    return np.arange(node, files - files % nodes, nodes, dtype=np.int64)


def stage_replicate(files: int, nodes: int, node: int) -> Ids:
    """All files on every node (CosmoFlow benchmark, utils/staging.py with as many file sets as nodes)."""
    del nodes, node
    return np.arange(files, dtype=np.int64)


def subset_count(files: int, ranks: int, count: int | None) -> int:
    """Files that each rank draws: `count`, or floor(files / ranks) as its fair share.

    UsageError when that is less than one, or more than there are.
    """
    chosen = files // ranks if count is None else count
    if not 0 < chosen <= files:
        raise UsageError(
            f"Each of {ranks} ranks cannot draw {chosen} different files of {files}. Use --order 'subset-shuffle(N)' "
            f"with N from 1 to {max(files, 1)}, or more files."
        )
    return chosen


def stage_subset(files: int, ranks: int, rank: int, count: int | None, seed: int) -> Ids:
    """The `count` files that this rank draws without replacement and independently of all others, ascending.

    So a file may be wanted by several ranks, or by none (Kurth et al., SC'18: 250 training files a process on Summit).
    `count` and UsageError as `subset_count`.
    """
    count = subset_count(files, ranks, count)
    drawn = words(Purpose.SUBSET, rank, 0, seed, files)
    # the files with the smallest words; [:count] for a tie at the edge, so that all machines agree
    return np.flatnonzero(drawn <= np.partition(drawn, count - 1)[count - 1])[:count].astype(np.int64, copy=False)


def stage_plan(
    placement: str, files: int, nodes: int, ranks_per_node: int, seed: int, count: int | None = None
) -> StagePlan:
    """Who keeps, reads and sends which file under this placement; `seed` and `count` matter to stage-subset only.

    stage-partition: the ranks of the owning node read its files in turn. stage-replicate: on every node the ranks read
    all files in turn. stage-subset: of all wanted files the i-th is read once, by rank i mod ranks, and handed on.
    UsageError for another placement, and as the placements say.
    """
    ranks = nodes * ranks_per_node
    if placement == "none":
        nothing = np.zeros(0, dtype=np.int64)
        return StagePlan((nothing,) * nodes, dict.fromkeys(range(ranks), nothing))
    if placement == "stage-subset":
        return _subset_plan(files, nodes, ranks_per_node, seed, count)
    if placement not in STAGED:
        raise UsageError(f"Placement '{placement}' stages no files. Use none, {', '.join(STAGED)}.")
    if placement == "stage-partition":
        kept = tuple(stage_partition(files, nodes, node) for node in range(nodes))
    else:  # one array for all nodes: they keep the same
        kept = (stage_replicate(files, nodes, 0),) * nodes
    reads = {rank: kept[rank // ranks_per_node][rank % ranks_per_node :: ranks_per_node] for rank in range(ranks)}
    return StagePlan(kept, reads)


def _subset_plan(files: int, nodes: int, ranks_per_node: int, seed: int, count: int | None) -> StagePlan:
    ranks = nodes * ranks_per_node
    wants = [stage_subset(files, ranks, rank, count, seed) for rank in range(ranks)]
    kept = tuple(
        np.unique(np.concatenate(wants[node * ranks_per_node : (node + 1) * ranks_per_node])) for node in range(nodes)
    )
    union = np.unique(np.concatenate(kept))
    sends: list[tuple[int, int, int]] = []
    for node, own in enumerate(kept):
        owners = np.searchsorted(union, own) % ranks
        foreign = np.flatnonzero(owners // ranks_per_node != node)
        # the ranks of a node receive in turn
        receivers = node * ranks_per_node + np.arange(len(foreign)) % ranks_per_node
        sends += zip(own[foreign].tolist(), owners[foreign].tolist(), receivers.tolist(), strict=True)
    return StagePlan(kept, {rank: union[rank::ranks] for rank in range(ranks)}, sorted(sends))
