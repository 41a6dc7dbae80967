"""The spans of a run that did not come to its end, from what its ranks have left in the job's work folder.

The command holds those of all ranks for one reader in memory while it writes them: 48 bytes a span, 240 MB a rank at
most (`recorder.MOST_ROWS`). Rank by rank, each archive would be unpacked once a column, and a job that met its time
limit is ended soon.
"""

import io
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from dlio_bench import recorder
from dlio_bench.batches import validation_after
from dlio_bench.components import COMPONENTS
from dlio_bench.harness.commands.run.measured.spans import (
    ITERATION,
    NOW,
    PASS,
    Kept,
    Now,
    column,
    number_steps,
    steps_rows,
    table_of,
    write_spans,
)
from dlio_bench.recorder import HEAD, NOWHERE, ROW
from dlio_bench.reports.traces.timeline import (
    SCHEMA,
    TRAINER,
    UNFINISHED_NAME,
    UNREADABLE,
    About,
    Column,
    Kind,
    Track,
)
from dlio_bench.reports.view.formatting import plural

PATIENCE = 20.0  # seconds for what dead ranks have left to be packed: less than Slurm has between SIGTERM and SIGKILL
LOOK_SECONDS = 0.05


class LeftSpans(Struct, frozen=True):
    """What one rank has left of one reader. steps: done and planned, of the trial that it was in."""

    now: Now
    kept: Kept
    steps: tuple[int, int] | None


def write(
    work: Path, ranks: int, readers: Sequence[str], files: Sequence[str], place: Callable[[str], Path]
) -> list[Path]:
    """Write the spans of unfinished readers, each into its place; the files. OSError.

    files: the names of the dataset's. Waits until all ranks have left theirs, but not long: a host may be gone.
    """
    archives = await_archives(work, ranks)
    written = []
    for reader in readers:
        parts = [part for path in archives if (part := unpack_left(path, reader)) is not None]
        parts = [part for part in parts if part.kept.spans]
        if parts:
            place(reader).mkdir(parents=True, exist_ok=True)
            written.append(place(reader) / UNFINISHED_NAME)
            _write(written[-1], reader, ranks, {part.now.rank: part for part in parts}, files)
    return written


def await_archives(work: Path, ranks: int) -> list[Path]:
    """What ranks have packed, as soon as all have, or after PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while len(archives := sorted(work.glob("spans-*.zip"))) < ranks and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return archives


def unpack_left(path: Path, reader: str) -> LeftSpans | None:
    """What the archive of a rank has of a reader; None where it cannot be read, or the rank had begun no trial."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            now = msgspec.json.decode(archive.read(NOW), type=Now)
            kept = Kept()
            for name in names:
                if name.endswith(recorder.STORED):
                    head, table = recorder.read_memory(archive.read(name))
                    if head["label"] == reader:
                        track = kept.track(int(head["process"]), int(head["id"]), str(head["thread"]))
                        kept.tables.append((int(head["trial"]), track, table))
                        kept.started[int(head["trial"])] = float(head["started"])
                        kept.ahead[int(head["trial"])] = float(head["ahead"])
            steps = _at_work(archive, names, now, kept) if now.reader == reader else None
    except (*UNREADABLE, msgspec.DecodeError, TypeError):
        return None
    return LeftSpans(now, kept, steps)


def _at_work(archive: zipfile.ZipFile, names: Sequence[str], now: Now, kept: Kept) -> tuple[int, int] | None:
    """Add what the rank had recorded of the trial that it was in. Returns the steps of it: done, and planned."""
    main = kept.track(now.process, now.main, TRAINER)
    of_trainer, steps, steps_of_epoch = [np.zeros(0, ROW)], None, 0
    for name in (name for name in names if name.endswith(recorder.ARRAY)):
        head, clock = _array(archive.read(name))
        if "epochs" in head:
            steps_of_epoch = len(clock) // int(str(head["epochs"]))
            epochs = np.arange(len(clock)) // steps_of_epoch
            of_trainer.append(steps_rows(clock, epochs, np.arange(len(clock)), ITERATION))
            steps = int((clock[:, -1] > 0).sum()), len(clock)
            if clock[0, 0]:
                kept.started[now.trial] = float(clock[0, 0])
        elif clock[0, 0]:
            epoch = np.full(len(clock), validation_after(int(str(head["passed"]))))
            of_trainer.append(steps_rows(clock, epoch, NOWHERE, None))
            if clock[-1, -1]:
                of_trainer.append(table_of([PASS], [clock[0, 0]], [clock[-1, -1]], epoch[:1]))
    trainer = np.concatenate(of_trainer)
    kept.tables.append((now.trial, main, trainer))
    for name in (name for name in names if name.endswith(recorder.SUFFIX)):
        content = archive.read(name)
        if not content[0]:  # ready, but never used
            continue
        head, table = recorder.read_memory(content)
        table = table[table["start"] >= now.since]
        is_main = (head["process"], head["id"]) == (now.process, now.main)
        track = main if is_main else kept.track(int(head["process"]), int(head["id"]), str(head["thread"]))
        kept.tables.append((now.trial, track, number_steps(table, trainer, steps_of_epoch) if len(trainer) else table))
    return steps


def _array(content: bytes) -> tuple[Mapping[str, object], Column]:
    head = msgspec.json.decode(content[:HEAD].rstrip(b"\0"))
    return head, np.frombuffer(io.BytesIO(content).getbuffer(), np.float64, offset=HEAD).reshape(head["shape"])


def _write(path: Path, reader: str, ranks: int, parts: Mapping[int, LeftSpans], files: Sequence[str]) -> None:
    """One file of spans, as those of a run that is finished. OSError."""
    everybody = [parts[rank] for rank in sorted(parts)]
    trials = sorted({trial for part in everybody for trial, _, _ in part.kept.tables})
    zeros = {trial: _zero(everybody, trial) for trial in trials}
    tracks = [
        Track(part.now.rank, part.now.host, process, name)
        for part in everybody
        for process, _, name in part.kept.tracks
    ]
    firsts = np.cumsum([0, *(len(part.kept.tracks) for part in everybody)]).tolist()
    about = About(
        SCHEMA,
        ranks,
        tracks,
        [Kind(component.name, component.kind) for component in COMPONENTS],
        {file: files[file] for part in everybody for file in part.kept.files if 0 <= file < len(files)},
        {part.now.host: part.now.clock for part in everybody},
        {},
        unfinished=_sentences(reader, ranks, parts),
    )

    def values(name: str, _: object) -> Iterator[Column]:
        for part, first in zip(everybody, firsts, strict=False):
            of_rank = {trial: zero + _clock_offset(part, trial) for trial, zero in zeros.items()}
            yield np.ascontiguousarray(column(name, part.kept.tables, first, of_rank))

    write_spans(path, about, sum(part.kept.spans for part in everybody), values)


def _zero(parts: Sequence[LeftSpans], trial: int) -> float:
    """When a trial began, on the clock of rank 0's host: when rank 0 did, or the first rank of which that is known."""
    for part in parts:
        if trial in part.kept.started:
            return part.kept.started[trial] - _clock_offset(part, trial)
    return min(
        float(table["start"].min()) - _clock_offset(part, trial)
        for part in parts
        for number, _, table in part.kept.tables
        if number == trial and len(table)
    )


def _clock_offset(part: LeftSpans, trial: int) -> float:
    """How far the clock of a rank's host was ahead of that of rank 0's host in a trial, seconds."""
    return part.kept.ahead.get(trial, part.now.ahead)


def _sentences(reader: str, ranks: int, parts: Mapping[int, LeftSpans]) -> list[str]:
    """How far the run had come."""
    at_work = {rank: part.steps for rank, part in parts.items() if part.steps is not None}
    told = [f"the run ended before {reader} had done all its trials: this is what was recorded until then"]
    if at_work:
        number = max(part.now.trial for part in parts.values()) + 1
        planned = max(steps for _, steps in at_work.values())
        done = {rank: steps for rank, (steps, _) in at_work.items()}
        least, most = min(done, key=lambda rank: done[rank]), max(done, key=lambda rank: done[rank])
        ends = f"rank {least} had done {done[least]}, rank {most} {done[most]}"
        if done[least] == done[most]:
            ends = f"each rank had done {done[least]}"
        told.append(f"in trial {number}, of {plural(planned, 'step')}, {ends}")
    if missing := [rank for rank in range(ranks) if rank not in parts]:
        told.append(f"nothing is left of ranks {', '.join(map(str, missing))}: the host or its helper was ended too")
    return told
