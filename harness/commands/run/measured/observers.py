"""What takes part in a run beside its readers, trainer and loop: rank and trial know these lists alone."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.clocks import drift, wall_ahead
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured import producing, recording, validation
from dlio_bench.harness.commands.run.measured.checkpoints_beside import checkpoints_beside
from dlio_bench.harness.commands.run.measured.observer import Behind, Observer, Rank, Segment
from dlio_bench.harness.commands.run.measured.outlook import open_outlook
from dlio_bench.harness.commands.run.measured.runtime_rows import RuntimeTraces
from dlio_bench.harness.commands.run.measured.site import Delivered
from dlio_bench.harness.storage.cache import HostCpu, host_cpu
from dlio_bench.harness.streams.crew import Crew


class Caches(Observer):
    """Brings caches into the state that was asked for, while readers rest: between sessions, and in the pauses of a
    session of ours."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def before_segment(self, segment: Segment) -> None:
        """See Observer. All ranks of a host do their share together."""
        rank = self._rank
        segment.trial.times.residency.append(rank.site.prepare_cache(rank.comm, rank.job.cache))


class CounterObserver(Observer):
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
        by_epoch = [after.since(before) for before, after in pairwise(self._delivered)]
        if trial.copies and not self._site.emulated and self._site.dataset.store is None:
            by_epoch = [delivery._replace(device=None) for delivery in by_epoch]
        trial.times.delivered += by_epoch

    def _count(self, segment: Segment) -> None:
        self._delivered.append(self._site.delivered_bytes(segment.trial.reader.processes))


# Around all that the process of a rank does, before it knows of other ranks.
PROCESSES: tuple[Callable[[Job, Path], AbstractContextManager[None]], ...] = (recording.record_spans,)
# Parts the launched ranks into those that train, with their place among all, and others, which get None when they are
# done: producers of streams.
COMPANY: Callable[[Job, Dataset, Path, Comm], AbstractContextManager[tuple[Comm, Crew | None] | None]] = (
    producing.split_producers
)
# What the reader of each name delivers behind epochs: passes over the validation split.
BEHIND_EPOCHS: Callable[[Job, Dataset], dict[str, list[Behind]]] = validation.behind_epochs
# Each one's moments lie around those of the next.
OBSERVERS: tuple[Callable[[Rank], AbstractContextManager[Observer | None]], ...] = (
    Caches,  # brings caches into the state that was asked for
    recording.open_spans,  # the spans of --trace
    producing.Publishing,  # what producers of streams have read
    RuntimeTraces,  # TensorFlow's operations
    CounterObserver,  # bytes, processor time, clocks
    checkpoints_beside,  # --checkpoint-load
    validation.Validating,  # passes over the validation split
    open_outlook,  # what rank 0 tells while it is at work
)
