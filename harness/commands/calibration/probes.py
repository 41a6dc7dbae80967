"""Timed random reads of test files by so many threads on so many nodes: rates of a file system."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.storage_bench import reading
from dlio_bench.harness.commands.storage_bench.plan import Reads
from dlio_bench.harness.plan.orders import permutation
from dlio_bench.harness.storage import cache
from dlio_bench.harness.storage.pfs.board import Board

SECONDS = 0.5  # of a trial, as far as the test files have bytes for it
TRIALS = 3
LEAST_READS = 2  # of a thread in a trial


class Place(Struct, frozen=True):
    """Test files as this rank sees them, and what makes reads of them cold.

    origin: the same files below an emulated file system, which are kept in memory; board: its counters. cold False:
    they lie in memory or are to stay there.
    """

    paths: tuple[str, ...]
    file_bytes: int
    node: int
    origin: tuple[str, ...] | None = None
    board: Path | None = None
    cold: bool = True

    def chill(self, comm: Comm) -> None:
        """Take what earlier reads left out of the caches, on all ranks together."""
        comm.barrier()
        mine = [Path(path) for path in (self.origin or self.paths)[comm.host_rank :: comm.host_size]]
        if self.board is not None:
            if cache.residency(mine).share < 1:
                cache.fill(mine)
            with Board.open(self.board) as board:
                board.drop_cache(self.node)
        elif self.cold:
            cache.drop(mine)
        comm.barrier()


def rate(comm: Comm, place: Place, size: int, readers: Sequence[int], seed: int, open_seconds: float = 0.0) -> float:
    """Bytes a second of random reads of `size`; readers: threads on each rank, of which some may be 0.

    The median of some trials; none reads a byte twice. `open_seconds`: what an open takes, to be left out of account.
    EnvironmentFailure.
    """
    samples = pieces(place, size)
    buffers = reading.buffers(max(readers[comm.rank], 1), size)
    most = len(samples) // sum(readers)
    count = min(LEAST_READS, most)
    rates: list[float] = []
    for trial in range(TRIALS + 1):
        order = permutation(len(samples), trial, seed)
        first = sum(readers[: comm.rank])
        work = [
            (samples[order[reader * count : (reader + 1) * count]], buffer)
            for reader, buffer in zip(range(first, first + readers[comm.rank]), buffers, strict=False)
        ]
        place.chill(comm)
        # a rank without readers still takes part in the barriers
        seconds = reading.timed(comm, work or [(samples[:0], buffers[0])], place.paths, size)
        opened = max((len(np.unique(reads[:, 0])) for reads, _ in work), default=0)
        seconds -= open_seconds * max(comm.allgather(opened))
        rates.append(sum(readers) * count * size / max(seconds, 1e-9))
        if trial == 0:  # the first trial tells how many reads fill the next ones
            wanted = SECONDS * rates.pop() / (sum(readers) * size)
            count = max(1, min(most, max(LEAST_READS, int(wanted))))
    return statistics.median(rates)


def pieces(place: Place, size: int) -> Reads:
    """int64 [n, 3] = file, offset, bytes: the files cut into pieces of `size`."""
    each = place.file_bytes // size
    number = np.arange(each * len(place.paths), dtype=np.int64)
    file, row = np.divmod(number, each)
    return np.stack([file, row * size, np.full_like(number, size)], axis=1)
