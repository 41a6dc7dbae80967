"""The spans of a rank (`run --trace spans`): kept after each trial, and gathered into one file for each reader.

All that is kept lies in one folder of the node, in memory, up to a limit (`room`). If the rank dies, it is packed into
the job's work folder (`archive`), from where `unfinished_spans` takes it.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import msgspec
import numpy as np

from dlio_bench import recorder
from dlio_bench.atomic_files import write_whole
from dlio_bench.components import COMPONENTS
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.free_space import SHARED_MEMORY, free_bytes
from dlio_bench.harness.cluster import clocks
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.tracing import SPANS
from dlio_bench.harness.commands.run.measured import runtime_rows
from dlio_bench.harness.commands.run.measured.observer import Observer, Rank, Running
from dlio_bench.harness.commands.run.measured.spans import (
    NOW,
    Kept,
    Now,
    Table,
    column,
    number_steps,
    trainer_rows,
    write_spans,
)
from dlio_bench.harness.commands.run.measured.times import TrialTimes
from dlio_bench.harness.machine import rescue
from dlio_bench.harness.machine.temp_folders import rescued_folder
from dlio_bench.harness.readers.session import Reader
from dlio_bench.harness.training.tf_trace import Traced
from dlio_bench.recorder import NOWHERE, ROW
from dlio_bench.reports.traces.timeline import (
    SCHEMA,
    SPANS_NAME,
    TRAINER,
    About,
    Clock,
    Column,
    Kind,
    Track,
    xplane_name,
)
from dlio_bench.tensorflow_operations import OPERATIONS

PREFIX = "dlio-bench-spans-"
AT_ONCE = 1 << 16  # spans of a rank that are sent at a time
SHARE = 0.25  # of the free memory of a host that all its ranks together may fill
LEAST_ROWS = 200_000  # that make a folder worth it: 10 MB


def room(ranks: int) -> tuple[Path, int]:
    """Where a rank of so many on this host records, and how many rows at most.

    All of them together may take a share of what is free in memory. A container may have 64 MB there: then they go to
    the temporary folder, where the same share holds.
    """
    rows = {}
    for below in (SHARED_MEMORY, Path(gettempdir())):
        rows[below] = int((free_bytes(below) or 0) * SHARE) // ranks // ROW.itemsize
        if rows[below] >= LEAST_ROWS:
            break
    below = max(rows, key=lambda place: rows[place])
    return below, min(rows[below], recorder.MOST_ROWS)


@contextmanager
def record_spans(job: Job, work: Path) -> Iterator[None]:
    """If the job asks for spans, record until the block is left what this process does and those that it starts.

    work: the job's folder, which gets it if this process dies before.
    """
    if SPANS not in job.options.trace:
        yield
        return
    below, rows = room(job.ranks if job.virtual else job.ranks_per_node)
    with rescued_folder(PREFIX, below, archive(work)) as folder:
        recorder.begin(folder, rows)
        try:
            yield
        finally:
            recorder.end()


def archive(work: Path) -> Path:
    """The file for what this process has recorded, if it dies."""
    return work / f"spans-{host_name()}-{os.getpid()}.zip"


class Spans(Observer):
    """The spans of all readers on this rank. All ranks call `write` together."""

    def __init__(self, dataset: Dataset, comm: Comm, folder: Path, trials: int) -> None:
        """folder: of the job. trials: of a reader, after which its spans are written there."""
        self._folder, self._trials = folder, trials
        self._dataset, self._comm = dataset, comm
        self._place = recorder.folder()
        self._taken: dict[tuple[int, int], int] = {}  # rows of other processes' threads that were kept already
        self._others_lost: dict[int, int] = {}  # spans of other processes
        self._readers: dict[str, Kept] = {}
        self._looks = [(time.perf_counter(), clocks.monotonic_offsets(comm))]

    def __exit__(self, *failed: object) -> None:
        """See Observer. Where trials failed, put what was recorded into the work folder: MPI kills all ranks next."""
        with suppress(OSError):
            if failed[0] is not None and self._place is not None and not archive(self._folder).exists():
                rescue.pack(self._place, archive(self._folder))

    def before_trial(self, trial: Running) -> None:
        """See Observer."""
        self.prepare(trial.name, trial.times.number, trial.reader)

    def after_trial(self, trial: Running) -> None:
        """See Observer."""
        self.store_trial(trial.name, trial.times.number, trial.times)
        if trial.times.number == self._trials - 1:
            self.write(trial.name, self._folder / f"{trial.name}-{SPANS_NAME}")

    def prepare(self, name: str, trial: int, reader: Reader) -> None:
        """Have room for the threads of a reader, before the clock of a trial starts."""
        self._write_state(reader=name, trial=trial, since=time.perf_counter())
        recorder.prepare(1 + max([0, *(number for name, number in reader.options.items() if "threads" in name)]))
        recorder.drain()  # what was done meanwhile belongs to no trial
        list(self._of_others())

    def _write_state(self, **at_work: Any) -> None:
        """Say in the folder what this rank is at."""
        if self._place is not None:
            rank = self._comm.rank
            now = Now(
                rank, host_name(), os.getpid(), threading.main_thread().native_id or 0, self._clock(rank),
                self._looks[-1][1][rank].seconds, **at_work,
            )  # fmt: skip
            with suppress(OSError):  # the folder is full: then nobody will know, if this rank dies
                (self._place / NOW).write_bytes(msgspec.json.encode(now))

    def store_trial(self, reader: str, trial: int, times: TrialTimes) -> None:
        """Take what was recorded since the last call as that of a trial, with what its trainer did.

        All ranks call it together.
        """
        kept = self._readers.setdefault(reader, Kept())
        kept.started[trial] = times.loops[0][0]
        before = self._looks[-1][1]
        self._looks.append((time.perf_counter(), clocks.monotonic_offsets(self._comm)))
        kept.ahead[trial] = clocks.interpolate(before[self._comm.rank], self._looks[-1][1][self._comm.rank]).seconds
        main = kept.track(os.getpid(), threading.main_thread().native_id or 0, TRAINER)
        of_trainer = trainer_rows(times)
        kept.tables.append((trial, main, _store_rows(reader, kept, trial, main, of_trainer)))
        recorded = [*recorder.drain(), *self._of_others()]
        if times.traced is not None:
            self._store_traced(reader, kept, times, times.traced, [rows.table for rows in recorded])
        for rows in recorded:
            is_main = (rows.process, rows.id) == kept.tracks[main][:2]
            track = main if is_main else kept.track(rows.process, rows.id, rows.thread)
            table = number_steps(rows.table, of_trainer, len(times.plan[0]))
            kept.tables.append((trial, track, _store_rows(reader, kept, trial, track, table)))
        self._write_state()
        recorder.forget_arrays()

    def _store_traced(
        self, reader: str, kept: Kept, times: TrialTimes, traced: Traced, recorded: Sequence[Table]
    ) -> None:
        """Take what TensorFlow's threads did, each as a track."""
        asked = runtime_rows.requested_bytes(times, traced.steps)
        threads, derived_from = runtime_rows.rows(traced, recorded, asked)
        for number, (name, table) in enumerate(threads):
            track = kept.track(os.getpid(), -1 - number, name)
            kept.tables.append((times.number, track, _store_rows(reader, kept, times.number, track, table)))
        kept.xplane = traced.file
        times.traced = None  # it has been taken
        kept.tensorflow = runtime_rows.trace_summary(traced, times, derived_from)

    def _of_others(self) -> Iterator[recorder.Rows]:
        """What processes that this one has started have recorded since the last call, in their own files."""
        if self._place is None:
            return
        counted: dict[tuple[int, int], int] = {}
        for rows in recorder.of_others(self._place, os.getpid()):
            key = rows.process, rows.id
            self._others_lost[rows.process] = max(rows.lost, self._others_lost.get(rows.process, 0))
            before = self._taken.get(key, 0) - counted.get(key, 0)  # a thread may have several files
            counted[key] = counted.get(key, 0) + len(rows.table)
            fresh = rows.table[max(0, before) :]
            if len(fresh):
                yield recorder.Rows(rows.process, rows.id, rows.thread, fresh)
        self._taken |= counted

    def write(self, reader: str, path: Path) -> None:
        """Write the spans of all ranks on rank 0, and forget them. The file is whole or absent. OSError on rank 0."""
        kept, comm = self._readers.pop(reader), self._comm
        here = [Track(comm.rank, host_name(), process, thread) for process, _, thread in kept.tracks]
        if kept.xplane:
            write_whole(path.with_name(f"{reader}-{xplane_name(comm.rank)}"), kept.xplane)
        lost = recorder.lost_spans() + sum(self._others_lost.values())
        everybody = comm.allgather((here, lost, kept.started, kept.tensorflow))
        first = sum(len(tracks) for tracks, *_ in everybody[: comm.rank])
        zeros = {trial: started + kept.ahead[trial] for trial, started in everybody[0][2].items()}
        counts = comm.allgather((kept.spans, kept.files))
        entries = self._dataset.manifest.files
        used = sorted({file for _, files in counts for file in files} - {NOWHERE})
        tracks = [track for of_rank, *_ in everybody for track in of_rank]
        traced = {rank: trace for rank, (*_, trace) in enumerate(everybody) if trace is not None}
        about = About(
            SCHEMA,
            comm.size,
            tracks,
            [Kind(component.name, component.kind) for component in (*COMPONENTS, *(OPERATIONS if traced else ()))],
            {file: entries[file].name for file in used},
            {track.host: self._clock(track.rank) for track in tracks},
            {rank: lost for rank, (_, lost, *_) in enumerate(everybody) if lost},
            traced,
        )
        spans = [count for count, _ in counts]

        def blocks(name: str, kind: "np.dtype[Any]") -> Iterator[Column]:
            return _gather_columns(comm, partial(_part, kept, name, first, zeros), kind, spans)

        write_spans(path if comm.rank == 0 else None, about, sum(spans), blocks)
        recorder.forget(reader)

    def _clock(self, rank: int) -> Clock:
        """What all estimates say of the clock of a rank's host."""
        (began, first), (ended, last) = self._looks[0], self._looks[-1]
        whole = clocks.interpolate(first[rank], last[rank])
        return Clock(whole.seconds, whole.within, last[rank].seconds - first[rank].seconds, ended - began)


def open_spans(rank: Rank) -> AbstractContextManager[Spans | None]:
    """The spans of a rank, if the job asks for them."""
    job = rank.job
    if SPANS not in job.options.trace:
        return nullcontext()
    return Spans(rank.site.dataset, rank.comm, rank.folder, job.all_trials)


def _store_rows(reader: str, kept: Kept, trial: int, track: int, table: Table) -> Table:
    """Put rows of a trial where they outlive this process."""
    process, thread, name = kept.tracks[track]
    about = {"trial": trial, "process": process, "id": thread, "thread": name}
    return recorder.store(table, reader, **about, started=kept.started[trial], ahead=kept.ahead[trial])


def _gather_columns(
    comm: Comm, values: Callable[[int], Column], kind: "np.dtype[Any]", counts: Sequence[int]
) -> Iterator[Column]:
    """Everybody's values on rank 0, a part of all ranks at a time: those of a rank in their order.

    values: those of this rank from a row on, AT_ONCE at most.
    """
    for first in range(0, max(counts, default=0), AT_ONCE):
        part = np.zeros(min(AT_ONCE, max(counts) - first), dtype=kind)
        here = values(first)
        part[: len(here)] = here
        rank = 0
        for block in comm.blocks(part):
            for row in block:
                yield np.ascontiguousarray(row[: max(0, min(len(row), counts[rank] - first))])
                rank += 1


def _part(kept: Kept, name: str, first_track: int, zeros: Mapping[int, float], first: int) -> Column:
    """One column of the rows of a rank from row `first` on, AT_ONCE at most."""
    chosen = []
    for trial, track, table in kept.tables:
        part = table[max(0, first) : max(0, first + AT_ONCE)]
        if len(part):
            chosen.append((trial, track, part))
        first -= len(table)
    return column(name, chosen, first_track, zeros)
