"""The columns of the table PLACEMENTS; its rows are in `harness/plan/policies.py`."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.files import Share
from dlio_bench.units import format_bytes

# What one node keeps: sample ids per tier, in the order in which they are fetched.
#
# Every rank computes the placement of every node from the plan alone, so it knows the holder of a sample without a
# message. (Dryden et al., SC'21, section 5, compute it once and share it.)

Integers = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Sizes = npt.NDArray[np.int64]  # [samples], stored bytes
Mask = npt.NDArray[np.bool_]


class DoesNotApplyError(UsageError):
    """The policy cannot work here: its tiers are too small for what it must keep. The message says how."""


class NodeContents(Struct, frozen=True):
    """One node's share of a placement.

    tiers: for each tier behind the staging buffer (RAM first) int64 ids in fetch order, each id in one tier only.
    copies: bool of the same lengths, true where the sample is taken from another node that keeps it, not from the PFS.
    """

    tiers: tuple[Ids, ...]
    copies: tuple[Mask, ...]

    @property
    def ids(self) -> Ids:
        """All that the node keeps, tier by tier."""
        return np.concatenate(self.tiers) if self.tiers else np.empty(0, np.int64)


def from_file_system(tiers: Sequence[Ids]) -> NodeContents:
    """A node that takes all it keeps from the parallel file system."""
    return NodeContents(tuple(tiers), tuple(np.zeros(len(ids), bool) for ids in tiers))


def cut_into_tiers(ids: Integers, sizes: Sizes, capacities: Sequence[int]) -> list[Ids]:
    """Cut `ids`, in their order, into tiers. A tier takes ids until the next one would overflow it.

    Returns one int64 array for each capacity (bytes), without the ids that fit into no tier. A sample that is too large
    for the rest of a tier closes that tier, as published (SC'21, section 5.1).
    """
    ends = np.cumsum(sizes[ids])
    tiers, first = [], 0
    for capacity in capacities:
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + capacity, side="right"))
        tiers.append(ids[first:last].astype(np.int64, copy=False))
        first = last
    return tiers


def must_fit_in_ram(who: str, nodes: int, sizes: Sizes, capacities: Sequence[int]) -> None:
    """DoesNotApplyError unless the RAM of all nodes holds the dataset (S <= N d_1, the published condition)."""
    if int(sizes.sum()) > nodes * capacities[0]:
        raise DoesNotApplyError(
            f"{who} keeps the whole dataset in RAM: {format_bytes(int(sizes.sum()))} on {nodes} nodes of "
            f"{format_bytes(capacities[0])} each. Use more nodes or a larger RAM tier."
        )


# (sequences of all nodes, sizes, capacities, accesses an epoch) -> what each node keeps
KeepSamples = Callable[[Sequence[Integers], Sizes, Sequence[int], int], list[NodeContents]]
# (for each epoch what every node reads, nodes, a node, what it reads in each epoch, sizes, capacities) -> what each
# node keeps, without the copies of other nodes
SeenByNode = Callable[
    [Iterable[Sequence[Integers]], int, int, Iterable[Integers], Sizes, Sequence[int]], list[NodeContents]
]
# (what each node keeps, node, accesses, accesses an epoch, seed) -> the ids that the node reads instead
Redraw = Callable[[Sequence[NodeContents], int, int, int, int], Ids]
# (files that each rank wants, files of the dataset, ranks a node, rank) -> what this rank copies
ShareFiles = Callable[[Sequence[Ids], int, int, int], Share]


class Behaviour(Struct, frozen=True):
    """What a reader does with the samples that nodes keep.

    With any behaviour the trainer reads a sample that is not staged in time on demand, from the fastest source that has
    it, if the reader would deliver it later.

    ahead: threads fill the staging buffer in the order of the accesses (`Policy.behaviour` takes it from the delivery).
    ahead_remote: they may read from other nodes. ahead_pfs: they may read the PFS. They skip what they may not read.
    waits: they wait for the planned copy, first for this node's, and do not read the PFS meanwhile.
    guesses: on files, a node asks others only for samples that they probably have by now, and they fetch nothing for
    it. (On the model every node knows what others have.)
    """

    ahead: bool = True
    ahead_remote: bool = False
    ahead_pfs: bool = True
    waits: bool = False
    guesses: bool = False


class FileCopies(Struct, frozen=True):
    """Whole files that ranks copy to node-local storage before the first batch.

    share: what each rank copies, and sends to ranks of other nodes. description: what a node gets, in words.
    by_wants: depends on the files that ranks want. handed_over: a file that several nodes keep is read once.
    """

    share: ShareFiles
    description: str
    by_wants: bool = True
    handed_over: bool = False


class Placement(Struct, frozen=True):
    """One row of PLACEMENTS.

    keep: which samples each node keeps in its tiers, for `readers/placed` on files and the simulator on the model.
    files: `readers/staged` copies whole files instead; the simulator then uses `keep` (None: it has no such policy).
    first: the tiers are filled before the first step, with samples that do not depend on what is read; else during the
    run.
    seen: `keep` computed from one epoch after the other, if that is possible.
    redraw: draws the order of a node from what it keeps.
    order: the only order under which a node needs no other files than it keeps. None: any order.
    of_one_node: depends on the accesses of one node alone, so that nodes which read the same keep the same.
    """

    name: str
    keep: KeepSamples | None = None
    behaviour: Behaviour = Behaviour()
    first: bool = False
    seen: SeenByNode | None = None
    redraw: Redraw | None = None
    files: FileCopies | None = None
    order: str | None = None
    of_one_node: bool = False

    @property
    def keeps_samples(self) -> bool:
        """Whether readers keep samples in tiers, not files."""
        return self.keep is not None and self.files is None

    @property
    def draws_order(self) -> bool:
        """Whether the order of a run is drawn from what its nodes keep."""
        return self.keeps_samples and self.redraw is not None
