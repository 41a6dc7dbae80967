"""What the components of a trial took on all threads, and how many bytes they moved."""

from collections.abc import Iterator, Sequence
from statistics import fmean

import numpy as np
from msgspec import Struct

from dlio_bench.reports import accounting
from dlio_bench.reports.formatting import NOTHING, format_time
from dlio_bench.reports.timeline import TENSORFLOW, TRAINER, Timeline, spans
from dlio_bench.tensorflow_operations import REPORT_BYTES
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrapped

LONGEST = 21  # letters of a name


class Row(Struct, frozen=True):
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


def is_derived(component: str, size: int) -> bool:
    """Whether its bytes are not of the component itself, but of what we read meanwhile."""
    return bool(size) and component.startswith(TENSORFLOW) and component not in REPORT_BYTES


def component_rows(timeline: Timeline, trial: int) -> list[Row]:
    """The components of a trial, in the order of the file's table. trial: its number."""
    of_trial = timeline.part(timeline.trial == trial)
    trainers = np.array([track.thread == TRAINER for track in timeline.tracks], dtype=bool)
    alone = accounting.exclusive(spans(of_trial.part(trainers[of_trial.track]), trial))
    ranks, lasted = of_trial.rank, np.maximum(of_trial.end - of_trial.start, 0.0)
    rows = []
    for code in np.unique(of_trial.component).tolist():
        component, part = timeline.components[code], of_trial.component == code
        by_rank = np.bincount(ranks[part], lasted[part], timeline.ranks)
        size = int(of_trial.bytes[part].sum())
        row = Row(
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
    """At most 80 columns. trial: its number."""
    return "\n".join(_lines(component_rows(timeline, trial))) + "\n"


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    yield ""
    yield f"  {'component':<21} {'spans':>7} {'trainer':>7} {'threads':>7} {'of ranks':>15} {'bytes':>7}  {'mean':>7}"
    for row in rows:
        name, size = printable(row.component), row.mean_bytes
        name = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
        spread = f"{format_time(row.least)}-{format_time(row.most)}"
        alone, threads = format_time(row.trainer_seconds), format_time(row.seconds)
        moved = NOTHING if size is None else format_bytes(row.bytes)
        mark = "*" if row.derived else " "
        mean = NOTHING if size is None else format_bytes(size)
        yield f"  {name:<21} {row.spans:>7} {alone:>7} {threads:>7} {spread:>15} {moved:>7}{mark} {mean:>7}"
    yield from wrapped(
        "Mean of ranks. Trainer: on its thread, without the spans inside. Threads: all of a rank, added up; 'of ranks' "
        "is the least and the most of them.",
        "  ",
    )
    if any(row.derived for row in rows):
        yield "  * derived: TensorFlow reports no bytes of it; these stand in other rows too"
