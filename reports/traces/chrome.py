"""A trial in the Trace Event Format, for ui.perfetto.dev and for Chrome, written event by event.

The format: "Trace Event Format" by N. Duca and D. Sinclair, of Chromium's project Catapult. A rank is a process, and a
thread a thread; times are in microseconds.
"""

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dlio_bench.recorder import NO_EPOCH
from dlio_bench.reports.document.files import write_parts
from dlio_bench.reports.document.result import STEPS_NAME
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.run import tables
from dlio_bench.reports.traces.timeline import SPANS_NAME, TRAINER, Column, Timeline, Track
from dlio_bench.reports.traces.trainers import ITERATION, LOOP, Phase

MOST_SPANS = 1_000_000  # of a file: some 200 MB, which Perfetto opens within a browser's memory
POINTS = 500  # of a counter
TENSORFLOW = "tensorflow"  # how its threads are called
GZIP = 31  # what zlib calls a window of 32 KB with gzip's head
BLOCK = 1000  # events that are written at once
NANOSECONDS, MICROSECOND = 1e9, 1e3
BRIEFEST = 1e-6  # seconds that a span takes at least: one that took none has no rate
Event = dict[str, Any]
# What `otherData` says of a trace that was made of step times; see `about_timeline`.
ABOUT_STEPS = {
    "source": STEPS_NAME,
    "clock": "0 is when each rank left the barrier before its loop. Clocks of hosts are not compared",
}


def spans_of(spans: Timeline, trial: int, ranks: Sequence[int], steps: range | None) -> Timeline:
    """The spans of a trial and of some ranks; with `steps`, what was under way while any of them was in these steps.

    trial: its number; steps: numbers of steps of the whole trial. The span of the loop is left out with `steps`.
    """
    of_ranks = spans.part((spans.trial == trial) & np.isin(spans.rank, ranks))
    if steps is None:
        return of_ranks
    within = of_ranks.part(of_ranks.are_of(ITERATION) & (of_ranks.step >= steps.start) & (of_ranks.step < steps.stop))
    if not len(within):
        return within
    under_way = (of_ranks.end >= within.start.min()) & (of_ranks.start <= within.end.max())
    return of_ranks.part(under_way & ~of_ranks.are_of(LOOP))


def earliest_spans(spans: Timeline, count: int = MOST_SPANS) -> Timeline:
    """Of more spans than `count`, those that began first, on whatever rank."""
    return spans if len(spans) <= count else spans.part(np.sort(np.argsort(spans.start, kind="stable")[:count]))


def of_timeline(spans: Timeline) -> Iterator[Event]:
    """Names of ranks and threads, spans, and the bytes that each host's components moved in a second.

    Spans of a thread that overlap, as those of an asynchronous runtime do, get further rows. A span that ends before it
    begins is an instant event that tells so.
    """
    if not len(spans):
        return
    zero = origin(spans)
    start, end = (np.rint(times * NANOSECONDS).astype(np.int64) - zero for times in (spans.start, spans.end))
    encloses = np.array([component.kind == "step" for component in spans.components], dtype=bool)
    order = np.argsort(spans.track, kind="stable")
    used, firsts = np.unique(spans.track[order], return_index=True)
    spans_of = dict(zip(used.tolist(), np.split(order, firsts[1:]), strict=True))
    for rank in sorted({spans.tracks[number].rank for number in spans_of}):
        numbers = [number for number in spans_of if spans.tracks[number].rank == rank]
        numbers.sort(key=lambda number: _place(spans.tracks[number], number))
        first = spans.tracks[numbers[0]]  # the trainer, if it is here
        yield from _name_events("process", (rank, 0), f"rank {rank} on {first.host}", rank)
        thread = 0
        for number in numbers:
            track, at = spans.tracks[number], spans_of[number]
            name = track.thread if track.process == first.process else f"{track.thread} (process {track.process})"
            forwards, backwards = at[end[at] >= start[at]], at[end[at] < start[at]]
            rows = lanes(start[forwards], end[forwards], encloses[spans.component[forwards]])
            for row in range(rows.max(initial=0) + 1):
                thread += 1
                yield from _name_events("thread", (rank, thread), name if not row else f"{name}, row {row + 1}", thread)
                in_row = np.concatenate([forwards[rows == row], backwards[: 0 if row else None]])
                yield from _events(spans, in_row, (rank, thread), start, end)
    yield from _counters(spans, zero)


def earliest_phases(phases: Sequence[Phase], count: int = MOST_SPANS) -> list[Phase]:
    """As `earliest_spans`."""
    return sorted(sorted(phases, key=lambda entry: entry.start)[:count], key=lambda entry: (entry.rank, entry.start))


def origin(spans: Timeline) -> int:
    """Nanoseconds that are taken off all times, as no event may lie before 0."""
    return min(0, int(np.floor(spans.start.min(initial=0.0) * NANOSECONDS)))


def of_phases(phases: Iterable[Phase], hosts: Sequence[str]) -> Iterator[Event]:
    """The trainers of a run without spans. hosts: of the ranks."""
    rank = -1
    for entry in phases:
        if entry.rank != rank:
            rank = entry.rank
            yield from _name_events("process", (rank, 0), f"rank {rank} on {hosts[rank]}", rank)
            yield from _name_events("thread", (rank, 1), TRAINER, 1)
        begin, end = round(entry.start * NANOSECONDS), round((entry.start + entry.seconds) * NANOSECONDS)
        yield {
            "name": entry.name, "cat": TRAINER, "ph": "X", "pid": rank, "tid": 1,
            "ts": begin / MICROSECOND, "dur": (end - begin) / MICROSECOND,
            "args": {"epoch": entry.epoch} | ({} if entry.step < 0 else {"step": entry.step}),
        }  # fmt: skip


def about_timeline(spans: Timeline) -> dict[str, Any]:
    """What `otherData` says of the clock, of spans that were lost, and of what is wrong with the file."""
    begins = -origin(spans) / NANOSECONDS
    return {
        "source": SPANS_NAME,
        "clock": f"0 is {begins:.6f} s before rank 0 began its loop, by its host's clock. 'clocks' has how far "
        "hosts' clocks are ahead of it, which is taken off, and within how many seconds that is known",
        "clocks": {
            host: {"ahead_seconds": clock.ahead, "within_seconds": clock.within} for host, clock in spans.clocks.items()
        },
        "lost": {f"rank {rank}": lost for rank, lost in spans.lost.items()},
        "tensorflow": {
            f"rank {rank}": {"within_seconds": runtime.within, "dropped": runtime.dropped}
            for rank, runtime in spans.tensorflow.items()
        },
    }


def about_result(result: Result, trial: int) -> dict[str, Any]:
    """Whose trace it is; trials count from 1. trial: position in the result."""
    return {
        "result": tables.labels([result])[0],
        "workload": result.workload.name,
        "trial": result.trials[trial].trial + 1,
        "created": result.created,
    }


def write(path: Path, events: Iterable[Event], about: Mapping[str, Any]) -> None:
    """Write a trace as a whole, compressed if its name ends in .gz. EnvironmentFailure."""
    parts = _parts(events, about)
    write_parts(path, _gzip(parts) if path.suffix == ".gz" else parts)


def _parts(events: Iterable[Event], about: Mapping[str, Any]) -> Iterator[bytes]:
    head = msgspec.json.encode({"displayTimeUnit": "ms", "otherData": about})
    encoder = msgspec.json.Encoder()
    block = [head[:-1] + b',"traceEvents":[\n']
    between = b""
    for event in events:
        block += (between, encoder.encode(event))
        between = b",\n"
        if len(block) > 2 * BLOCK:
            yield b"".join(block)
            block = []
    yield b"".join([*block, b"\n]}\n"])


def _gzip(parts: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=GZIP)
    for part in parts:
        yield packer.compress(part)
    yield packer.flush()


def _name_events(what: str, place: tuple[int, int], name: str, order: int) -> Iterator[Event]:
    """The name of a process or thread, and where it stands among others."""
    about = {"ph": "M", "pid": place[0], "tid": place[1]}
    yield {"name": f"{what}_name", "args": {"name": name}} | about
    yield {"name": f"{what}_sort_index", "args": {"sort_index": order}} | about


def _place(track: Track, number: int) -> tuple[object, ...]:
    """Where a thread stands among those of its rank: the trainer first, TensorFlow's last, others by name."""
    words = re.split(r"(\d+)", track.thread)  # numbers at odd places
    name = [int(word) if place % 2 else word for place, word in enumerate(words)]
    return track.thread != TRAINER, track.thread.startswith(TENSORFLOW), name, track.process, number


def _events(spans: Timeline, at: Column, place: tuple[int, int], start: Column, end: Column) -> Iterator[Event]:
    """Spans by their numbers. place: rank and thread; start, end: of all spans, in nanoseconds."""
    names = ("component", "epoch", "step", "file", "bytes", "offset", "start", "end")
    columns = (values[at].tolist() for values in (*(getattr(spans, name) for name in names), start, end))
    for code, epoch, step, file, nbytes, offset, began, ended, begin, until in zip(*columns, strict=True):
        args: dict[str, Any] = {}
        if epoch >= 0:
            args["epoch"] = epoch
        elif epoch != NO_EPOCH:
            args["validation after epoch"] = ~epoch
        if step >= 0:
            args["step"] = step
        if file >= 0:
            args["file"] = spans.files.get(file, f"file {file}")
        if nbytes:
            args["bytes"] = nbytes
        if offset >= 0:
            args["offset"] = offset
        component = spans.components[code]
        event = {"name": component.name, "cat": component.kind, "pid": place[0], "tid": place[1], "args": args}
        if until >= begin:
            yield event | {"ph": "X", "ts": begin / MICROSECOND, "dur": (until - begin) / MICROSECOND}
        else:
            args["ends before it begins, seconds"] = ended - began
            yield event | {"ph": "i", "s": "t", "ts": begin / MICROSECOND}


def _counters(spans: Timeline, zero: int) -> Iterator[Event]:
    """Bytes a second by host and component; each host is a process of its own, behind the ranks."""
    moving = spans.part((spans.bytes > 0) & (spans.end >= spans.start))
    if not len(moving):
        return
    begin, end = moving.start.min(), moving.end.max()
    edges = np.linspace(begin, max(end, begin + BRIEFEST), POINTS + 1)
    times = [(round(edge * NANOSECONDS) - zero) / MICROSECOND for edge in edges.tolist()]
    hosts = np.array([track.host for track in spans.tracks])[moving.track]
    for number, host in enumerate(np.unique(hosts).tolist(), start=spans.ranks):
        yield from _name_events("process", (number, 0), f"{host}: bytes a second", number)
        of_host = moving.part(hosts == host)
        for code in np.unique(of_host.component).tolist():
            values = [*np.round(rates(of_host.part(of_host.component == code), edges)).tolist(), 0.0]
            changes = [at for at, value in enumerate(values) if not at or value != values[at - 1]]
            for at in changes:
                yield {
                    "name": spans.components[code].name, "ph": "C", "pid": number, "tid": 0, "ts": times[at],
                    "args": {"B/s": values[at]},
                }  # fmt: skip


def lanes(start: Column, end: Column, encloses: Column) -> Column:
    """The row of each span of a thread, from 0, int64 [spans]. No span ends before it begins.

    Two spans of a row do not overlap, unless one lies inside the other. A row further down is used where no row above
    has room. encloses: bool [spans], which is outside where two take the very same time.
    """
    rows = np.zeros(len(start), dtype=np.int64)
    open_until: list[list[float]] = []  # of each row, the ends of the spans that are under way, outermost first
    order = np.lexsort((~encloses, -end, start))
    for at, begins, ends in zip(order.tolist(), start[order].tolist(), end[order].tolist(), strict=True):
        while True:
            if rows[at] == len(open_until):
                open_until.append([])
            under_way = open_until[rows[at]]
            while under_way and under_way[-1] <= begins:
                under_way.pop()
            if not under_way or ends <= under_way[-1]:
                break
            rows[at] += 1
        under_way.append(ends)
    return rows


def rates(spans: Timeline, edges: Column) -> Column:
    """Bytes a second between edges [points + 1], float [points]. A span's bytes are spread evenly over its time."""
    lasted = np.maximum(spans.end - spans.start, BRIEFEST)
    slopes = spans.bytes / lasted
    moments = np.concatenate([spans.start, spans.start + lasted])
    order = np.argsort(moments, kind="stable")
    moments, slope = moments[order], np.cumsum(np.concatenate([slopes, -slopes])[order])
    moved = np.concatenate([[0.0], np.cumsum(np.diff(moments) * slope[:-1])])
    by_edge: Column = np.interp(edges, moments, moved)
    per_second: Column = np.diff(by_edge) / np.diff(edges)
    return per_second
