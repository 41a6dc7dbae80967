"""What every rank of a run is told."""

from dataclasses import dataclass
from typing import Any

from dlio_bench.harness.cluster.job import SavedJob
from dlio_bench.harness.plan.shape import JOB

CACHE_MODES = ("cold", "cold-epochs", "warm", "as-is")
SYNC_MODES = ("step", "epoch", "none")


@dataclass(frozen=True)
class Job(SavedJob):
    """The measurement that was asked for. Sizes in bytes, times in seconds; all readers share one plan and dataset."""

    workload: str
    readers: tuple[str, ...]
    nodes: int
    ranks_per_node: int
    virtual: bool
    tiny: bool  # shrunken samples: a smoke test, whose speed nobody judges
    dataset: str  # folder
    dataset_digest: str
    code_digest: str
    view: tuple[str, ...]
    batch: int
    epochs: int
    trials: int
    warmup_trials: int
    seed: int
    cache: str
    sync: str
    step_seconds: float  # asked of the emulated compute, 0 for none
    threads: int
    staging_bytes: int
    verify: bool
    tier_folders: tuple[str, ...]  # node -> its local-tier folder
    shard: str = "rank"
    last: str = "drop"
    decode: bool = False  # deliver what the application makes of the view
    check_crc: bool = False  # in the reader's threads, every delivered field
    validation: int = 0  # epochs from one validation pass to the next; 0: there are none
    validation_sample_seconds: float = 0.0  # asked of the emulated compute of a pass
    pfs: dict[str, Any] | None = None  # the emulated parallel file system, as pfs.spec.to_dict
    mounts: tuple[str, ...] = ()  # node -> where it sees the dataset's folder through the emulation
    ram_bytes: int = 0  # of a node's tiers that keep samples
    disk_bytes: int = 0
    rates: dict[str, float] | None = None  # bytes a second of a thread by source, where a description gives them
    steps: int = 0  # most of an epoch; 0: all
    parted: bool = False  # epochs of so many steps are parts of a pass over the samples: each goes on where one ended
    train: dict[str, Any] | None = None  # what is trained and how, as training.Training; None: nothing is
    infer: dict[str, Any] | None = None  # through what network samples go forward, as inference.Inference; None: none
    most_threads: int | None = None  # that read ahead where storage keeps them waiting; None: `threads`
    board: str = ""  # the file of the mounts' counters

    @property
    def ranks(self) -> int:
        """Ranks in the whole job."""
        return self.nodes * self.ranks_per_node

    @property
    def copies(self) -> int:
        """Ranks that each sample goes to: all, where they hold parts of one model."""
        return self.ranks if self.shard == JOB else 1

    @property
    def trainers(self) -> int:
        """Ranks that read apart from each other, or one that all of them are together."""
        return self.ranks // self.copies

    @property
    def heading(self) -> str:
        """What and where, for a progress line: 'cdb  2x1 ranks'."""
        ranks = "1 rank" if self.ranks == 1 else f"{self.nodes}x{self.ranks_per_node} ranks"
        return f"{self.workload}  {ranks}"

    @property
    def all_trials(self) -> int:
        """Trials of a reader, those that warm up included."""
        return self.warmup_trials + self.trials

    @property
    def all_epochs(self) -> int:
        """Epochs of all trials of all readers."""
        return self.all_trials * len(self.readers) * self.epochs
