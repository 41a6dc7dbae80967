"""What every reader of a rank is given, whole: what it may use, and its place in the job."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from dlio_bench.harness.cluster.comm import Comm, Solo
from dlio_bench.harness.cluster.interfaces import LOOPBACK
from dlio_bench.harness.readers.options import ReaderOptions
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.readers.session import OpenFetcher
from dlio_bench.harness.storage.direct import Alignment
from dlio_bench.harness.streams.crew import Crew

NO_TIERS, NO_OPTIONS = Tiers(), ReaderOptions()


class Resources(Struct, frozen=True):
    """What a reader may use: threads, and bytes of staging buffer. `batch_bytes`: of its largest batch (see `opened`).

    most_threads: how many may read ahead while storage keeps them waiting, if that is not always `threads`.
    """

    threads: int
    staging_bytes: int
    batch_bytes: int = 0
    step_seconds: float = 0.0  # that the trainer computes between two batches
    options: ReaderOptions = NO_OPTIONS  # as the user gave them; the sizes that they come to are above
    staged: Mapping[int, Path] = field(default_factory=dict)  # file -> its copy on node-local storage
    tiers: Tiers = NO_TIERS  # of a node, for placements of samples
    fetcher: OpenFetcher | None = None  # the source of samples, if not their files
    most_threads: int | None = None
    inline_queue: int = 0  # batches that a producer in this process has ready; 0: other ranks publish
    alignment: Alignment | None = None  # of direct reads of the dataset's files; None: reads are buffered


class RankContext(Struct, frozen=True):
    """The place of a rank in the job: ranks fill node after node. `tier`: the node's folder on node-local storage.

    `address`: on which the rank serves samples to others. crew: this rank among those that publish streams.
    """

    comm: Comm
    ranks_per_node: int = 1
    tier: Path | None = None
    address: str = LOOPBACK
    crew: Crew | None = None

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return self.comm.size // self.ranks_per_node

    @property
    def node(self) -> int:
        """This rank's node."""
        return self.comm.rank // self.ranks_per_node


ALONE = RankContext(Solo())
