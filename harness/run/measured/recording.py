"""The spans of a rank (`run --trace spans`): kept after each trial, and gathered into one file for each reader."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, field
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dlio_bench import recorder
from dlio_bench.atomic_files import write_whole
from dlio_bench.batches import validation_after
from dlio_bench.components import CODE, COMPONENTS
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.free_space import SHARED_MEMORY
from dlio_bench.harness.cluster import clocks
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.readers.session import Reader
from dlio_bench.harness.run.measured import runtime_rows, steps_file
from dlio_bench.harness.run.measured.trial import TrialTimes
from dlio_bench.harness.training.tf_trace import Traced
from dlio_bench.recorder import NO_EPOCH, NOWHERE, ROW
from dlio_bench.reports.timeline import (
    ABOUT,
    COLUMNS,
    SCHEMA,
    TRAINER,
    About,
    Clock,
    Column,
    Kind,
    RuntimeTrace,
    Track,
    xplane_name,
)
from dlio_bench.tensorflow_operations import OPERATIONS

PREFIX = "dlio-bench-spans-"
LOOP, ITERATION, PASS = (CODE[name] for name in ("Training Loop", "Training Iteration", "validation"))
OF_PHASES = tuple(  # what the phases of a step are, in the order of PHASES
    CODE[name] for name in ("Call to Next Batch", "check", "convert", "compute", "exchange", "Checkpoint Listener")
)
Table = npt.NDArray[np.void]
AT_ONCE = 1 << 16  # spans of a rank that are sent at a time


@contextmanager
def begun() -> Iterator[None]:
    """Record what this process does, and what processes do that it starts, until the block is left."""
    below = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(gettempdir())
    with temp_folder(PREFIX, below) as folder:
        recorder.begin(folder)
        try:
            yield
        finally:
            recorder.end()


@dataclass
class Kept:
    """The spans of a reader on one rank: tables of ROW by trial and thread."""

    tracks: list[tuple[int, int, str]] = field(default_factory=list)  # process, thread's number, its name
    tables: list[tuple[int, int, Table]] = field(default_factory=list)  # trial, index of the track, rows
    started: dict[int, float] = field(default_factory=dict)  # trial -> when this rank's first loop of it began
    tensorflow: RuntimeTrace | None = None
    xplane: bytes = b""  # TensorFlow's own file

    def track(self, process: int, thread: int, name: str) -> int:
        """The index of a thread."""
        key = (process, thread, name)
        if key not in self.tracks:
            self.tracks.append(key)
        return self.tracks.index(key)


class Spans:
    """The spans of all readers on this rank. All ranks call `write` together."""

    def __init__(self, dataset: Dataset, comm: Comm) -> None:
        self._dataset, self._comm = dataset, comm
        self._place = recorder.folder()
        self._taken: dict[tuple[int, int], int] = {}  # rows of other processes' threads that were kept already
        self._readers: dict[str, Kept] = {}
        self._clocks = clocks.monotonic_offsets(comm)

    def prepare(self, reader: Reader) -> None:
        """Have room for the threads of a reader, before a clock starts."""
        recorder.prepare(1 + max([0, *(number for name, number in reader.options.items() if "threads" in name)]))
        recorder.drain()  # what was done meanwhile belongs to no trial
        list(self._of_others())

    def keep(self, reader: str, trial: int, times: TrialTimes) -> None:
        """Take what was recorded since the last call as that of a trial, with what its trainer did."""
        kept = self._readers.setdefault(reader, Kept())
        kept.started[trial] = times.loops[0][0]
        main = kept.track(os.getpid(), threading.main_thread().native_id or 0, TRAINER)
        of_trainer = trainer_rows(times)
        kept.tables.append((trial, main, of_trainer))
        recorded = [*recorder.drain(), *self._of_others()]
        if times.traced is not None:
            self._keep_traced(kept, times, times.traced, [rows.table for rows in recorded])
        for rows in recorded:
            is_main = (rows.process, rows.id) == kept.tracks[main][:2]
            track = main if is_main else kept.track(rows.process, rows.id, rows.thread)
            kept.tables.append((trial, track, placed(rows.table, of_trainer, len(times.plan[0]))))

    def _keep_traced(self, kept: Kept, times: TrialTimes, traced: Traced, recorded: Sequence[Table]) -> None:
        """Take what TensorFlow's threads did, each as a track."""
        asked = runtime_rows.requested(times, traced.steps)
        threads, derived_from = runtime_rows.rows(traced, recorded, asked)
        for number, (name, table) in enumerate(threads):
            kept.tables.append((times.number, kept.track(os.getpid(), -1 - number, name), table))
        kept.xplane = traced.file
        times.traced = None  # it has been taken
        kept.tensorflow = runtime_rows.about(traced, times, derived_from)

    def _of_others(self) -> Iterator[recorder.Rows]:
        """What processes that this one has started have recorded since the last call."""
        if self._place is None:
            return
        counted: dict[tuple[int, int], int] = {}
        for rows in recorder.of_others(self._place, os.getpid()):
            key = rows.process, rows.id
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
        everybody = comm.allgather((here, recorder.lost(), kept.started, kept.tensorflow))
        first = sum(len(tracks) for tracks, *_ in everybody[: comm.rank])
        columns = _columns(kept, first, everybody[0][2], self._clocks[comm.rank].seconds)
        counts = comm.allgather((len(columns["start"]), np.unique(columns["file"]).tolist()))
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
            {track.host: Clock(*astuple(self._clocks[track.rank])) for track in tracks},
            {rank: lost for rank, (_, lost, *_) in enumerate(everybody) if lost},
            traced,
        )
        with steps_file.archive_of(path) if comm.rank == 0 else nullcontext() as archive:
            if archive is not None:
                text = np.frombuffer(msgspec.json.encode(about), dtype=np.uint8)
                steps_file.add(archive, ABOUT, text.dtype, text.shape, [text])
            total = sum(count for count, _ in counts)
            for name in COLUMNS:
                blocks = _gathered(comm, columns[name], [count for count, _ in counts])
                if archive is not None:
                    steps_file.add(archive, name, columns[name].dtype, (total,), blocks)
                else:
                    list(blocks)


def _gathered(comm: Comm, values: Column, counts: Sequence[int]) -> Iterator[Column]:
    """Everybody's values on rank 0, a part of all ranks at a time: those of a rank in their order."""
    for first in range(0, max(counts, default=0), AT_ONCE):
        part = np.zeros(min(AT_ONCE, max(counts) - first), dtype=values.dtype)
        part[: max(0, min(len(part), len(values) - first))] = values[first : first + len(part)]
        rank = 0
        for block in comm.blocks(part):
            for row in block:
                yield np.ascontiguousarray(row[: max(0, min(len(row), counts[rank] - first))])
                rank += 1


def _columns(kept: Kept, first_track: int, origins: Mapping[int, float], ahead: float) -> dict[str, Column]:
    """The columns of one rank. origins: when rank 0 began each trial; ahead: of its clock."""
    tables = [table for _, _, table in kept.tables]
    rows = np.concatenate([np.zeros(0, ROW), *tables])
    lengths = [len(table) for table in tables]
    trial = np.repeat(np.array([trial for trial, _, _ in kept.tables], np.int32), lengths)
    zero = np.repeat([origins[trial] + ahead for trial, _, _ in kept.tables], lengths)
    track = np.repeat(np.array([track for _, track, _ in kept.tables], np.int32), lengths) + np.int32(first_track)
    return {
        "trial": trial,
        "track": track,
        "component": rows["component"] - np.int32(1),
        **{name: np.ascontiguousarray(rows[name]) for name in ("epoch", "step", "file", "bytes", "offset")},
        "start": rows["start"] - zero,
        "end": rows["end"] - zero,
    }


def trainer_rows(times: TrialTimes) -> Table:
    """What the clock of the loop says of the trainer's thread: its loop, steps, their phases, validation passes."""
    steps = times.log.clock
    epochs = np.repeat(np.arange(len(times.plan)), [len(epoch) for epoch in times.plan])
    parts = [_table(LOOP, *np.array(times.loops).T)]
    parts += [_steps(steps, epochs, np.arange(len(steps)), ITERATION)]
    for pass_ in times.passes:
        clock = pass_.log.clock
        epoch = np.full(len(clock), validation_after(pass_.epoch))
        parts += [_table([PASS], [clock[0, 0]], [clock[-1, -1]], epoch[:1]), _steps(clock, epoch, NOWHERE, None)]
    return np.concatenate(parts)


def _steps(clock: Column, epochs: Column, numbers: Any, whole: int | None) -> Table:
    """Spans of the rows of a StepLog's clock, [steps, 7]: each step, if it has a component, and its phases."""
    bounds = [(whole, 0, clock.shape[1] - 1)] if whole is not None else []
    bounds += [(code, column, column + 1) for column, code in enumerate(OF_PHASES)]
    parts = [_table(code, clock[:, begin], clock[:, end], epochs, numbers) for code, begin, end in bounds]
    table = np.concatenate(parts)
    return table[table["end"] > table["start"]]


def _table(component: Any, start: Any, end: Any, epoch: Any = NO_EPOCH, step: Any = NOWHERE) -> Table:
    table = np.zeros(len(start), ROW)
    table["component"], table["start"], table["end"], table["epoch"], table["step"] = component, start, end, epoch, step
    table["file"] = table["offset"] = NOWHERE
    return table


def placed(table: Table, of_trainer: Table, steps_of_epoch: int) -> Table:
    """Spans with the steps of the trial, as the trainer's have them, and not those of an epoch, as threads record them.

    Spans without an epoch get the epoch and step that the trainer was at when they began; without a step alone, the
    step, where it is of the same epoch.
    """
    steps = of_trainer[(of_trainer["component"] == OF_PHASES[0])]
    steps = steps[np.argsort(steps["start"])]
    table = table.copy()
    numbered = (table["step"] != NOWHERE) & (table["epoch"] >= 0)
    table["step"][numbered] += table["epoch"][numbered] * np.int32(steps_of_epoch)
    table["step"][table["epoch"] < 0] = NOWHERE  # those of validation passes have no number
    within = np.searchsorted(steps["start"], table["start"], side="right") - 1
    at = steps[np.maximum(within, 0)]
    homeless = (within >= 0) & (table["epoch"] == NO_EPOCH)
    table["epoch"][homeless] = at["epoch"][homeless]
    behind = (within >= 0) & (table["step"] == NOWHERE) & (table["epoch"] == at["epoch"])
    table["step"][behind] = at["step"][behind]
    return table
