"""The spans that a rank keeps of a reader: its trainer's, from the clock of the loop, and threads'; and their file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from dlio_bench.batches import validation_after
from dlio_bench.components import CODE
from dlio_bench.harness.commands.run.measured.documents import add_array, archive_of
from dlio_bench.harness.commands.run.measured.times import TrialTimes
from dlio_bench.recorder import NO_EPOCH, NOWHERE, ROW
from dlio_bench.reports.numbers.metrics import PHASES
from dlio_bench.reports.traces.timeline import (
    ABOUT,
    COLUMNS,
    About,
    Clock,
    Column,
    RuntimeTrace,
)

NOW = "now.json"
LOOP, ITERATION, PASS = (CODE[name] for name in ("Training Loop", "Training Iteration", "validation"))
OF_PHASES = tuple(  # what the phases of a step are, in the order of PHASES
    CODE[name] for name in ("Call to Next Batch", "check", "convert", "compute", "exchange", "Checkpoint Listener")
)
Table = npt.NDArray[np.void]


class Now(Struct, frozen=True):
    """What a rank is at: in a trial of a reader since a moment of time.perf_counter(), or in none (reader '')."""

    rank: int
    host: str
    process: int
    main: int  # the number of the trainer's thread
    clock: Clock  # of this host, by all looks at it so far
    ahead: float  # by the last one
    reader: str = ""
    trial: int = 0
    since: float = 0.0


class Kept(Struct):
    """The spans of a reader on one rank: tables of ROW by trial and thread."""

    tracks: list[tuple[int, int, str]] = field(default_factory=list)  # process, thread's number, its name
    tables: list[tuple[int, int, Table]] = field(default_factory=list)  # trial, index of the track, rows
    started: dict[int, float] = field(default_factory=dict)  # trial -> when this rank's first loop of it began
    tensorflow: RuntimeTrace | None = None
    xplane: bytes = b""  # TensorFlow's own file
    ahead: dict[int, float] = field(default_factory=dict)  # trial -> of this rank's clock

    def track(self, process: int, thread: int, name: str) -> int:
        """The index of a thread."""
        key = (process, thread, name)
        if key not in self.tracks:
            self.tracks.append(key)
        return self.tracks.index(key)

    @property
    def spans(self) -> int:
        """How many there are."""
        return sum(len(table) for _, _, table in self.tables)

    @property
    def files(self) -> list[int]:
        """Which files of the dataset they are about."""
        return sorted({file for _, _, table in self.tables for file in np.unique(table["file"]).tolist()})


def trainer_rows(times: TrialTimes) -> Table:
    """What the clock of the loop says of the trainer's thread: its loop, steps, their phases, validation passes."""
    steps = times.log.clock
    epochs = np.repeat(np.arange(len(times.plan)), [len(epoch) for epoch in times.plan])
    parts = [table_of(LOOP, *np.array(times.loops).T)]
    parts += [steps_rows(steps, epochs, np.arange(len(steps)), ITERATION)]
    missing = [code for name, code in zip(PHASES, OF_PHASES, strict=True) if name in times.missing_phases]
    for pass_ in times.passes:
        clock = pass_.log.clock
        epoch = np.full(len(clock), validation_after(pass_.epoch))
        parts += [table_of([PASS], [clock[0, 0]], [clock[-1, -1]], epoch[:1]), steps_rows(clock, epoch, NOWHERE, None)]
    table = np.concatenate(parts)
    return table[~np.isin(table["component"], missing)]


def steps_rows(clock: Column, epochs: Column, numbers: Any, whole: int | None) -> Table:
    """Spans of the rows of a StepLog's clock, [steps, 7]: each step, if it has a component, and its phases."""
    bounds = [(whole, 0, clock.shape[1] - 1)] if whole is not None else []
    bounds += [(code, column, column + 1) for column, code in enumerate(OF_PHASES)]
    parts = [table_of(code, clock[:, begin], clock[:, end], epochs, numbers) for code, begin, end in bounds]
    table = np.concatenate(parts)
    return table[table["end"] > table["start"]]


def table_of(component: Any, start: Any, end: Any, epoch: Any = NO_EPOCH, step: Any = NOWHERE) -> Table:
    """Rows of the trainer's thread: as many as there are starts."""
    table = np.zeros(len(start), ROW)
    table["component"], table["start"], table["end"], table["epoch"], table["step"] = component, start, end, epoch, step
    table["file"] = table["offset"] = NOWHERE
    return table


def number_steps(table: Table, of_trainer: Table, steps_of_epoch: int) -> Table:
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
    if not len(steps):
        return table
    within = np.searchsorted(steps["start"], table["start"], side="right") - 1
    at = steps[np.maximum(within, 0)]
    homeless = (within >= 0) & (table["epoch"] == NO_EPOCH)
    table["epoch"][homeless] = at["epoch"][homeless]
    behind = (within >= 0) & (table["step"] == NOWHERE) & (table["epoch"] == at["epoch"])
    table["step"][behind] = at["step"][behind]
    return table


def column(name: str, tables: Sequence[tuple[int, int, Table]], first_track: int, zeros: Mapping[int, float]) -> Column:
    """One column of rows of a rank: tables of trials and tracks. zeros: when each trial began, on the rank's clock."""
    lengths = [len(table) for _, _, table in tables]
    if name in ("trial", "track"):
        of_tables = [trial if name == "trial" else track + first_track for trial, track, _ in tables]
        return np.repeat(np.array(of_tables, np.int32), lengths)
    values: Column = np.concatenate([np.zeros(0, ROW[name]), *(table[name] for _, _, table in tables)])
    if name == "component":
        values -= 1
    if name in ("start", "end"):
        values -= np.repeat(np.array([zeros[trial] for trial, _, _ in tables], np.float64), lengths)
    return values


def write_spans(
    path: Path | None, about: About, spans: int, blocks: "Callable[[str, np.dtype[Any]], Iterable[Column]]"
) -> None:
    """Write a file of so many spans: `blocks` of each column, one after the other. OSError.

    path: None on a rank that only takes part in making the blocks. The file is whole or absent.
    """
    with nullcontext() if path is None else archive_of(path) as archive:
        text = np.frombuffer(msgspec.json.encode(about), dtype=np.uint8)
        add_array(archive, ABOUT, text.dtype, text.shape, [text])
        for name in COLUMNS:
            kind = column(name, [], 0, {}).dtype
            add_array(archive, name, kind, (spans,), blocks(name, kind))
