"""Where a rank's bytes come from: the dataset as its node sees it, the caches on the way, and the byte counters."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import VALIDATION
from dlio_bench.harness.cluster.comm import Comm, run_on_all_ranks
from dlio_bench.harness.commands.run.asked.job import Job, files_of
from dlio_bench.harness.commands.run.asked.options import WARM
from dlio_bench.harness.ground.options import DIRECT
from dlio_bench.harness.machine.memory import memory_bytes
from dlio_bench.harness.machine.mounts import cache_beyond
from dlio_bench.harness.plan.policies import WEBDATASET
from dlio_bench.harness.readers import web_shards
from dlio_bench.harness.readers.resources import RankContext, Resources
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.storage import cache
from dlio_bench.harness.storage.cache import device_bytes
from dlio_bench.harness.storage.direct import alignment_of
from dlio_bench.harness.storage.pfs.board import Board
from dlio_bench.harness.storage.pfs.process import EmulatedAccess
from dlio_bench.harness.storage.pfs.spec import PROCESS, PfsSpec
from dlio_bench.harness.streams.crew import Crew
from dlio_bench.reports.document.marks import COLD_BEFORE

BEYOND = "an object store has no page cache on this machine; caches of its own cannot be seen"
KEPT_WARM = 0.5  # of the machine's memory: smaller datasets stay in memory below an emulated file system


class Delivered(NamedTuple):
    """Bytes so far: from the device or the emulated PFS, and from the emulated client cache. None: not known."""

    device: int | None
    client_cache: int | None

    def since(self, *before: tuple[int | None, int | None]) -> "Delivered":
        """Bytes beyond these."""
        return total([self, *((None if a is None else -a, None if b is None else -b) for a, b in before)])


class RankSite(Struct, frozen=True):
    """A rank's place. dataset: in the folder where this node sees it; origin: in its folder below an emulation.

    direct: whether readers pass the page cache. access: how files are read, where this process emulates a file system.
    """

    context: RankContext
    dataset: Dataset
    origin: Dataset
    pfs: PfsSpec | None
    board: Board | None
    files: tuple[int, ...] = ()  # that the job reads: of training, and of validation if it validates
    sharded: tuple[str, ...] = ()  # the fields that WebDataset reads, from shards beside these files
    direct: bool = False
    access: EmulatedAccess | None = None

    @classmethod
    def of(cls, job: Job, comm: Comm, dataset: Dataset, address: str, crew: Crew | None = None) -> "RankSite":
        """The site of this rank, which serves samples on `address`. crew: with it, where ranks publish streams.

        Tables of the dataset come from `origin`: emulated files cannot be memory-mapped."""
        node = comm.rank // job.ranks_per_node
        tier = Path(job.tier_folders[node]) if job.tier_folders else None
        context = RankContext(
            comm, job.ranks_per_node, tier, address, None if crew is None else replace(crew, board=job.board)
        )
        part = dataset.part(VALIDATION) if job.validation else None
        files = (*range(len(files_of(job, dataset))), *(() if part is None else part.files))
        if job.pfs is None or job.store:
            return cls(context, dataset, dataset, None, None, files, direct=job.options.io == DIRECT)
        board, place = Board.open(Path(job.board)), Path(job.mounts[node])
        if job.pfs.via != PROCESS:
            return cls(context, replace(dataset, folder=place), dataset, job.pfs, board, files)
        access = EmulatedAccess(job.pfs, dataset, place, _row(board, node))
        return cls(context, replace(dataset, access=access), dataset, job.pfs, board, files, access=access)

    @property
    def emulated(self) -> bool:
        """Whether the dataset is read through an emulated file system."""
        return self.board is not None

    def delivered_bytes(self, processes: Sequence[int]) -> Delivered:
        """What storage has delivered to this rank and its child processes.

        Under emulation the first rank of a node counts for the node, and the others count nothing. Where ranks of the
        node begin the next epoch before it has counted, up to a batch of each is counted with the epoch before.
        """
        if self.board is not None:
            first = self.context.comm.rank % self.context.ranks_per_node == 0
            return emulated_delivery(self.board, self.context.node, counts=first)
        if self.dataset.store is not None:
            return Delivered(objects.delivered_bytes(), None)
        # network file systems count no device reads, and a zero would look like a cache hit
        return Delivered(device_bytes(processes) if cache_beyond(self.dataset.folder) is None else None, None)

    def prepare_cache(self, comm: Comm, mode: str) -> cache.Residency:
        """Bring the caches into the state `mode` while no reader works, and return what is resident then.

        Each rank of a host (under emulation: of a node) does its share of the files.
        """
        comm.barrier()
        residency = self._page_cache(comm, mode) if self.board is None else self._client_cache(comm, mode)
        comm.barrier()
        return residency

    def _page_cache(self, comm: Comm, mode: str) -> cache.Residency:
        if self.dataset.store is not None:
            entries = [self.dataset.manifest.files[file] for file in self.files[comm.host_rank :: comm.host_size]]
            return cache.Residency(sum(entry.bytes for entry in entries), 0, attestable=True, note=BEYOND)
        share = self._paths(self.dataset)[comm.host_rank :: comm.host_size]
        if self.direct and mode in COLD_BEFORE:
            return cache.direct_residency(share)
        if mode in COLD_BEFORE:
            cache.drop(share)
        elif mode == "warm":
            cache.fill(share)
        comm.barrier()
        return cache.residency(share)

    def _client_cache(self, comm: Comm, mode: str) -> cache.Residency:
        """Prepare the emulated client cache of this node.

        The files below the emulation stay in memory, so that the emulation sets the pace and not this machine's disk.
        """
        assert self.board is not None
        assert self.pfs is not None
        share = self._paths(self.origin)[comm.host_rank :: comm.host_size]
        stored = sum(path.stat().st_size for path in self._paths(self.origin))
        if stored < KEPT_WARM * memory_bytes() and cache.residency(share).share < 1:
            cache.fill(share)
        ranks, local = self.context.ranks_per_node, comm.rank % self.context.ranks_per_node
        if mode in COLD_BEFORE and local == 0:
            if self.access is None:
                self.board.drop_cache(_row(self.board, self.context.node))
            else:
                self.access.drop_cache()
        if mode == "warm":
            cache.fill(self._paths(self.dataset)[local::ranks], self.dataset.access)
        share_bytes = sum(path.stat().st_size for path in share)
        resident = min(1.0, self.pfs.cache_bytes / max(stored, 1)) if mode == WARM else 0.0
        made = "left as it was" if mode == "as-is" else f"made {'warm' if mode == WARM else 'cold'}"
        note = f"the client cache is emulated; {made}"
        return cache.Residency(
            share_bytes, int(share_bytes * resident), mode != "as-is", memory_backed=False, note=note
        )

    def _paths(self, dataset: Dataset) -> list[Path]:
        shards = web_shards.paths(dataset, self.sharded, self.files) if self.sharded else []
        return [*map(dataset.path, self.files), *shards]


def _row(board: Board, node: int) -> int:
    """Of a node on the board, which has one for each node of this machine."""
    return 0 if board.nodes == 1 else node


def emulated_delivery(board: Board, node: int, *, counts: bool) -> Delivered:
    """What an emulated file system has delivered to a node. counts: whether this rank counts for its node."""
    counters = board.counters(_row(board, node)) if counts else None
    return Delivered(0, 0) if counters is None else Delivered(counters.pfs_bytes, counters.cache_bytes)


def total(parts: Iterable[tuple[int | None, int | None]]) -> Delivered:
    """The sum, not known where a part is not."""
    device, cache = (None if None in counts else sum(filter(None, counts)) for counts in zip(*parts, strict=True))
    return Delivered(device, cache)


def sharded_fields(job: Job, views: Mapping[str, SampleView]) -> tuple[str, ...]:
    """The fields in tar shards, where a reader has some."""
    return next((views[name].fields for name, row in job.readers.items() if row.delivery == WEBDATASET), ())


def resources(job: Job, dataset: Dataset, comm: Comm) -> Resources:
    """What a reader may use on this rank. EnvironmentFailure, the same on all, where one cannot read directly."""
    alignments = run_on_all_ranks(comm, lambda: alignment_of(dataset) if job.options.io == DIRECT else None)
    # the step time of a network is not known before the run
    computing = math.inf if job.has_network else job.step_seconds
    return Resources(
        job.threads,
        job.staging_bytes,
        step_seconds=computing,
        options=job.options,
        tiers=job.tiers,
        most_threads=job.most_threads,
        inline_queue=job.streaming.queue if job.streaming is not None and job.streaming.inline else 0,
        alignment=alignments[comm.rank],
    )
