"""How an epoch is cut: samples in files, ranks on nodes, steps of one batch a rank."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.errors import UsageError, unknown

Ids = npt.NDArray[np.int64]

JOB, PIPELINE, KEEP = "job", "pipeline", "keep"
SHARDS = ("rank", "node", JOB, PIPELINE)
ONE_ORDER = (JOB, PIPELINE)  # of these all ranks go through the whole dataset together
LASTS = ("drop", "pad", KEEP)


class Shape(Struct, frozen=True, eq=False):
    """An epoch of `samples` over `ranks` in local batches of `batch`. Every rank has the same number of steps.

    bounds: int64 [files + 1]; file f holds samples [bounds[f], bounds[f + 1]). None: one file a sample.
    ranks_per_node: ranks fill node after node. shard: each "rank" or each "node" has a share of its own. With "job"
    all ranks read the whole dataset in one order, like ranks that hold parts of one model; with "pipeline" too, and
    each reads the fields that its stage needs (`model_parallel.stage_view`).
    last: what happens to samples that do not fill the last step. "drop" leaves them out; "pad" fills the step up with
    the first samples of the epoch, which then come twice; "keep" makes the last batches smaller.
    first: id of the first sample: not 0 for a validation split behind a training split. bounds count from it.
    cut: (steps, different samples) of an epoch if the order does not cut by samples alone; `Order.fit` sets it.

    UsageError for an unknown shard or last, and for ranks that do not fill their nodes.
    """

    samples: int
    ranks: int
    batch: int
    bounds: Ids | None = None
    ranks_per_node: int = 1
    shard: str = "rank"
    last: str = "drop"
    first: int = 0
    cut: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.shard not in SHARDS:
            raise unknown("--shard", self.shard, SHARDS)
        if self.last not in LASTS:
            raise unknown("--last", self.last, LASTS)
        if self.ranks % self.ranks_per_node:
            raise UsageError(
                f"{self.ranks} ranks do not fill nodes of {self.ranks_per_node} ranks. Use a multiple of "
                f"{self.ranks_per_node} ranks, or other ranks per node."
            )
        bounds = self.bounds
        if bounds is not None and (bounds[0] != 0 or bounds[-1] != self.samples or (np.diff(bounds) < 0).any()):
            raise ValueError(f"bounds must rise from 0 to the {self.samples} samples")

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return self.ranks // self.ranks_per_node

    @property
    def files(self) -> int:
        """Files that hold the samples."""
        return self.samples if self.bounds is None else len(self.bounds) - 1

    @property
    def copies(self) -> int:
        """Ranks that each sample goes to."""
        return self.ranks if self.shard in ONE_ORDER else 1

    @property
    def step(self) -> int:
        """Different samples of a step over all ranks."""
        return self.ranks // self.copies * self.batch

    @property
    def steps(self) -> int:
        """Steps in an epoch, on every rank."""
        if self.cut is not None:
            return self.cut[0]
        return self.samples // self.step if self.last == "drop" else -(-self.samples // self.step)

    @property
    def delivered(self) -> int:
        """Samples that an epoch delivers; one that comes twice counts twice. Each goes to `copies` ranks."""
        return self.different if self.last == KEEP else self.steps * self.step

    @property
    def different(self) -> int:
        """Different samples that an epoch delivers."""
        return min(self.samples, self.steps * self.step) if self.cut is None else self.cut[1]

    @property
    def dropped(self) -> int:
        """Samples an epoch leaves out."""
        return self.samples - self.different

    @property
    def padded(self) -> int:
        """Samples that an epoch delivers again."""
        return self.delivered - self.different

    def samples_of(self, files: Ids) -> tuple[Ids, Ids]:
        """(samples in the order of these files, counted from `first`; for each of them the position of its file)."""
        if self.bounds is None:
            return files, np.arange(len(files), dtype=np.int64)
        starts = self.bounds[files]
        sizes = self.bounds[files + 1] - starts
        place = np.repeat(np.arange(len(files), dtype=np.int64), sizes)
        within = np.arange(len(place), dtype=np.int64) - (np.cumsum(sizes) - sizes)[place]
        return starts[place] + within, place

    def sizes(self, files: int) -> Ids:
        """Samples in each of the first `files` files, int64; after the last file it continues at the first."""
        if self.bounds is None:
            return np.broadcast_to(np.int64(1), files)
        return np.resize(np.diff(self.bounds), files).astype(np.int64, copy=False)
