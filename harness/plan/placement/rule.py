"""What a placement is: the columns of the table PLACEMENTS, whose rows are in `harness/plan/policies.py`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.contents import Integers, NodeContents, Sizes
from dlio_bench.harness.plan.placement.files import Share

# (sequences of all nodes, sizes, capacities, accesses an epoch) -> what each node keeps
KeepSamples = Callable[[Sequence[Integers], Sizes, Sequence[int], int], list[NodeContents]]
# (epochs, in each what every node reads; nodes, a node, what it reads in each epoch, sizes, capacities) -> what each
# node keeps, the copies of other nodes left out
SeenByNode = Callable[
    [Iterable[Sequence[Integers]], int, int, Iterable[Integers], Sizes, Sequence[int]], list[NodeContents]
]
# (what each node keeps, node, accesses, accesses an epoch, seed) -> the ids that the node reads instead
Redraw = Callable[[Sequence[NodeContents], int, int, int, int], Ids]
# (files that each rank wants, files of the dataset, ranks a node, rank) -> what this rank copies
ShareFiles = Callable[[Sequence[Ids], int, int, int], Share]


@dataclass(frozen=True)
class Behaviour:
    """What a reader does with the samples that nodes keep.

    Whatever it is, a sample that is not there when it is asked for is read on demand from the fastest source that has
    it, if that is sooner than the reader would deliver it.

    ahead: threads fill the staging buffer in the order of the accesses. (`Policy.behaviour` has it of the delivery.)
    ahead_remote: they may read from other nodes. ahead_pfs: they may read the PFS; what they may not read is skipped.
    waits: they wait for the copy that is planned, this node's first, instead of reading the PFS beside it.
    guesses: on files, other nodes are asked only for what they are guessed to have by now, and do not fetch what they
    are asked for. (On the model every node knows what others have.)
    """

    ahead: bool = True
    ahead_remote: bool = False
    ahead_pfs: bool = True
    waits: bool = False
    guesses: bool = False


@dataclass(frozen=True)
class FileCopies:
    """Whole files that ranks copy to node-local storage before the first batch.

    share: what each rank copies, and hands to ranks of other nodes. told: what a node gets, in words.
    by_wants: it depends on the files that ranks want. handed_over: a file that several nodes keep is read once.
    """

    share: ShareFiles
    told: str
    by_wants: bool = True
    handed_over: bool = False


@dataclass(frozen=True)
class Placement:
    """One row of PLACEMENTS.

    keep: which samples each node keeps in its tiers. `readers/placed` carries it out on files, the simulator on the
    performance model.
    files: `readers/staged` copies whole files instead, and `keep` (None: nothing is) stands for that on the model.
    first: the tiers are filled before the first step, with what does not depend on what is read; else beside the run.
    seen: `keep` from epochs that come one at a time, where that is enough.
    redraw: the order that each node reads, drawn from what it keeps.
    order: the only one that asks a node for no other files than it keeps. None: any.
    of_one_node: it follows from what one node reads, so that nodes which read the same would all keep the same.
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
        """Whether what a run reads is drawn from what its nodes keep."""
        return self.keeps_samples and self.redraw is not None
