"""What the components of recorded spans took on all threads: of one trial, or of a whole file of spans."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from dlio_bench.reports.traces.accounting import exclusive
from dlio_bench.reports.traces.tables import as_text, shorten
from dlio_bench.reports.traces.timeline import TENSORFLOW, TRAINER, Clock, Timeline, spans
from dlio_bench.reports.view.formatting import NOTHING, format_time, plural
from dlio_bench.reports.view.lines import fit
from dlio_bench.reports.view.table import table_lines
from dlio_bench.tensorflow_operations import REPORT_BYTES
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrap

HEADS = ("spans", "trainer", "threads", "of ranks", "bytes")


class ComponentRow(Struct, frozen=True):
    """One component. spans, bytes: of all ranks. Seconds are those of a rank: its threads are added up.

    seconds: mean of ranks; least, most: of the rank with the fewest, and with the most; trainer_seconds: what the
    component itself took on the trainer's thread, without spans inside it, mean of ranks. derived: TensorFlow reports
    no bytes of it; these are of our spans inside it, or of counters, and stand in the rows of our components too.
    """

    component: str
    kind: str
    spans: int
    seconds: float
    least: float
    most: float
    trainer_seconds: float
    bytes: int
    derived: bool

    @property
    def mean_bytes(self) -> float | None:
        """Bytes of a span; None where the component moves none."""
        return self.bytes / self.spans if self.bytes else None

    def cells(self, between: str) -> list[str]:
        """As texts, see HEADS. between: the rank with the fewest seconds and that with the most."""
        return [
            str(self.spans),
            format_time(self.trainer_seconds),
            format_time(self.seconds),
            f"{format_time(self.least)}{between}{format_time(self.most)}",
            format_bytes(self.bytes) if self.bytes else NOTHING,
        ]


def is_derived(component: str, size: int) -> bool:
    """Whether its bytes are not of the component itself, but of what we read meanwhile."""
    return bool(size) and component.startswith(TENSORFLOW) and component not in REPORT_BYTES


def component_rows(timeline: Timeline, trial: int) -> list[ComponentRow]:
    """The components of a trial, in the order of the file's table. trial: its number."""
    of_trial = timeline.part(timeline.trial == trial)
    trainers = np.array([track.thread == TRAINER for track in timeline.tracks], dtype=bool)
    alone = exclusive(spans(of_trial.part(trainers[of_trial.track]), trial))
    ranks, lasted = of_trial.rank, np.maximum(of_trial.end - of_trial.start, 0.0)
    rows = []
    for code in np.unique(of_trial.component).tolist():
        component, part = timeline.components[code], of_trial.component == code
        by_rank = np.bincount(ranks[part], lasted[part], timeline.ranks)
        size = int(of_trial.bytes[part].sum())
        row = ComponentRow(
            component=component.name,
            kind=component.kind,
            spans=int(part.sum()),
            seconds=float(by_rank.mean()),
            least=float(by_rank.min()),
            most=float(by_rank.max()),
            trainer_seconds=fmean(alone.get(rank, {}).get(component.name, 0.0) for rank in range(timeline.ranks)),
            bytes=size,
            derived=is_derived(component.name, size),
        )
        rows.append(row)
    return rows


def render(timeline: Timeline, trial: int) -> str:
    """The table of a trial, at most 80 columns, and the clocks of several hosts. trial: its number."""
    return as_text(_lines(component_rows(timeline, trial), clock_lines(timeline)))


def _lines(rows: Sequence[ComponentRow], clocks: Sequence[str]) -> Iterator[str]:
    yield ""
    table = []
    for row in rows:
        *cells, moved = row.cells("-")
        mean = NOTHING if row.mean_bytes is None else format_bytes(row.mean_bytes)
        table.append((shorten(printable(row.component), 21), *cells, f"{moved}{'*' if row.derived else ' '}", mean))
    yield from table_lines(["component", *HEADS[:-1], "bytes ", "mean"], table)
    yield from wrap(
        "Mean of ranks. Trainer: on its thread, without the spans inside. Threads: all of a rank, added up; 'of ranks' "
        "is the least and the most of them.",
        "  ",
    )
    if any(row.derived for row in rows):
        yield "  * derived: TensorFlow reports no bytes of it; these stand in other rows too"
    yield from ["", *(line for clock in clocks for line in wrap(clock, "  "))] if clocks else []


def clock_lines(timeline: Timeline) -> list[str]:
    """What is known of the clocks of several hosts, a line each; nothing of that of rank 0's, which is the measure."""
    clocks = timeline.clocks.items() if len(timeline.clocks) > 1 else ()
    return [printable(_clock_line(host, clock)) for host, clock in clocks]


def _clock_line(host: str, clock: Clock) -> str:
    if clock == Clock(0.0, 0.0, 0.0, clock.apart):
        return f"clock of {host}: that of rank 0"
    drift = f", {clock.drift * 1e6:+.0f} us of it came in {format_time(clock.apart)}" if clock.apart else ""
    return (
        f"clock of {host}: {clock.ahead * 1e3:+.3f} ms +- {clock.within * 1e6:.0f} us{drift}; taken off. No headline "
        "number compares hosts"
    )


def file_text(timeline: Timeline, name: str) -> str:
    """How much a file of spans has, by whose clocks, what is wrong, and its components over all ranks and trials."""
    return as_text(_file_lines(timeline, name))


def _file_lines(timeline: Timeline, name: str) -> Iterator[str]:
    ranks, trials = plural(timeline.ranks, "rank"), plural(len(np.unique(timeline.trial)), "trial")
    yield printable(name)
    yield f"  recorded  {plural(len(timeline), 'span')} of {ranks}, {trials}"
    for clock in clock_lines(timeline):
        yield from wrap(clock, "  clock     ", whole_words=True)
    for problem in timeline.problems:
        yield from wrap(printable(problem), "  problem   ", whole_words=True)
    rows = [
        (
            fit(printable(row["component"]), 25),
            row["ranks"],
            row["spans"],
            format_time(row["seconds"]),
            format_bytes(row["bytes"]) if row["bytes"] else "",
        )
        for row in _file_rows(timeline)
    ]
    yield from table_lines(["component", "ranks", "spans", "seconds", "bytes"], rows)


def file_document(timeline: Timeline) -> dict[str, Any]:
    """The same, as JSON."""
    return {
        "spans": len(timeline),
        "ranks": timeline.ranks,
        **clock_document(timeline),
        "problems": list(timeline.problems),
        "components": list(_file_rows(timeline)),
    }


def clock_document(timeline: Timeline) -> dict[str, Any]:
    """The clocks of hosts, and the spans that were lost, as JSON."""
    return {
        "clocks": {host: asdict(clock) for host, clock in timeline.clocks.items()},
        "lost": {str(rank): lost for rank, lost in timeline.lost.items()},
    }


def _file_rows(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Of each component: its name, how many ranks and spans it has, and their seconds and bytes added up."""
    rank, seconds = timeline.rank, np.maximum(timeline.end - timeline.start, 0.0)
    for code, component in enumerate(timeline.components):
        chosen = timeline.component == code
        if chosen.any():
            yield {
                "component": component.name, "ranks": len(np.unique(rank[chosen])), "spans": int(chosen.sum()),
                "seconds": float(seconds[chosen].sum()), "bytes": int(timeline.bytes[chosen].sum()),
            }  # fmt: skip
