"""What is counted around the loops of a trial: the state of caches, bytes from storage, processor time, clocks."""

import time
from itertools import pairwise

from msgspec.structs import replace

from dlio_bench.harness.cluster.clocks import drift, wall_ahead
from dlio_bench.harness.commands.run.measured.observer import Observer, Rank, Segment
from dlio_bench.harness.commands.run.measured.site import Delivered
from dlio_bench.harness.storage.cache import HostCpu, host_cpu


class Caches(Observer):
    """Brings caches into the state that was asked for, while readers rest: between sessions, and in the pauses of a
    session of ours."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def before_segment(self, segment: Segment) -> None:
        """See Observer. All ranks of a host do their share together."""
        rank = self._rank
        segment.trial.times.residency.append(rank.site.prepare_cache(rank.comm, rank.job.cache))


class Counters(Observer):
    """Bytes that storage delivered by epoch, processor time of this process and its host, and how clocks ran apart."""

    def __init__(self, rank: Rank) -> None:
        self._comm, self._site = rank.comm, rank.site
        self._delivered: list[Delivered] = []  # so far, at the bounds of epochs
        self._host: HostCpu | None = None
        self._wall, self._cpu = (0.0, 0.0), 0.0

    def before_loop(self, segment: Segment) -> None:
        """See Observer."""
        self._delivered.clear()
        self._count(segment)  # no rank reads before all are in the loop
        self._host, self._wall, self._cpu = host_cpu(), wall_ahead(), time.process_time()

    def at_epoch(self, segment: Segment, epoch: int) -> None:
        """See Observer."""
        if epoch != segment.epochs[0]:
            self._count(segment)

    def after_loop(self, segment: Segment) -> None:
        """See Observer."""
        times = segment.trial.times
        times.cpu_seconds += time.process_time() - self._cpu
        if self._comm.host_rank == 0:
            times.host_cpu.append((self._host, host_cpu()))

    def after_segment(self, segment: Segment) -> None:
        """See Observer."""
        trial = segment.trial
        self._count(segment)
        self._comm.barrier()  # until all have counted: the next reads of a rank must not count here with its node
        trial.times.clock_drift += drift(self._wall, wall_ahead())
        by_epoch = [after - before for before, after in pairwise(self._delivered)]
        if trial.copies and not self._site.emulated and self._site.dataset.store is None:
            by_epoch = [replace(delivery, device=None) for delivery in by_epoch]
        trial.times.delivered += by_epoch

    def _count(self, segment: Segment) -> None:
        self._delivered.append(self._site.delivered(segment.trial.reader.processes))
