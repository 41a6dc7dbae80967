"""Which rank copies which file to node-local storage: pure functions of the files that each rank's plan wants.

They use what a session really reads, whatever its order, so that the untimed pass over the whole dataset is staged like
any other plan. Ranks fill node after node: node n has ranks [n * r, (n + 1) * r).
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from dlio_bench.batches import Ids


class Share(Struct, frozen=True):
    """What one rank does in a staging; file numbers, ascending.

    kept: files that its node keeps, the same on all ranks of the node. reads: files that the rank reads from the
    dataset's folder. sends: (file, rank to send it to), in this order. receives: (file, rank that sends it).
    """

    kept: Ids
    reads: Ids
    sends: list[tuple[int, int]] = field(default_factory=list)
    receives: list[tuple[int, int]] = field(default_factory=list)


def partition(wants: Sequence[Ids], files: int, ranks_per_node: int, rank: int) -> Share:
    """A node keeps the files that its ranks want; they take turns to read them. `wants`: rank -> file numbers."""
    del files
    return _split_over_ranks(_of_node(wants, ranks_per_node, rank // ranks_per_node), ranks_per_node, rank)


def replicate(wants: Sequence[Ids], files: int, ranks_per_node: int, rank: int) -> Share:
    """Every node keeps the files [0, files), whatever its ranks want; they take turns to read them.

    Source: the CosmoFlow benchmark's utils/staging.py, with as many file sets as nodes.
    """
    del wants
    return _split_over_ranks(np.arange(files, dtype=np.int64), ranks_per_node, rank)


def subset(wants: Sequence[Ids], files: int, ranks_per_node: int, rank: int) -> Share:
    """A node keeps the files that its ranks want, but only one rank of the job reads a file, and sends it to others.

    Of the sorted union of all wants, rank i reads every ranks-th file from the i-th on. The ranks of a node take turns
    to receive the files that none of them reads. Copies go around a ring: each rank sends to the next one all that this
    receives, then to the one behind it, so that all send and receive all the time.

    Source: utils/parallel_stagein.py of the climate benchmark of Kurth et al., SC'18 (owner = index mod size; a ring
    whose step grows from 1 to size - 1).
    """
    del files
    ranks, own_node = len(wants), rank // ranks_per_node
    union = np.unique(np.concatenate(wants))
    sends: list[tuple[int, int]] = []  # (receiver, file)
    receives: list[tuple[int, int]] = []
    kept = union[:0]
    for node in range(ranks // ranks_per_node):
        wanted = _of_node(wants, ranks_per_node, node)
        owners = np.searchsorted(union, wanted) % ranks
        foreign = owners // ranks_per_node != node
        files_in, owners_in = wanted[foreign], owners[foreign]
        receivers = node * ranks_per_node + np.arange(len(files_in)) % ranks_per_node
        if node == own_node:
            kept = wanted
            mine = receivers == rank
            receives = list(zip(files_in[mine].tolist(), owners_in[mine].tolist(), strict=True))
        else:
            mine = owners_in == rank
            sends += zip(receivers[mine].tolist(), files_in[mine].tolist(), strict=True)
    sends.sort(key=lambda send: ((send[0] - rank) % ranks, send[1]))
    return Share(kept, union[rank::ranks], [(file, receiver) for receiver, file in sends], receives)


def _of_node(wants: Sequence[Ids], ranks_per_node: int, node: int) -> Ids:
    return np.unique(np.concatenate(wants[node * ranks_per_node : (node + 1) * ranks_per_node]))


def _split_over_ranks(kept: Ids, ranks_per_node: int, rank: int) -> Share:
    return Share(kept, kept[rank % ranks_per_node :: ranks_per_node])
