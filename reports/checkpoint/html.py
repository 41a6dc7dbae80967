"""Checkpoints as one self-contained HTML page, like the pages of results."""

import shlex
from pathlib import Path

from dlio_bench.reports.checkpoint import text as checkpoint_text
from dlio_bench.reports.checkpoint.types import Document
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.marks import gravest_first
from dlio_bench.reports.view.drawing import Figure, axis, compact, layout
from dlio_bench.reports.view.page import render

NAME = "report.html"
COLOURS = {"write": "#7f2a1d", "read": "#3f6c9b"}
MEGA = 1e6


def write(document: Document, path: Path) -> None:
    """Write the page to `path`, whole or not at all. EnvironmentFailure."""
    write_whole(path, page(document).encode())


def page(document: Document) -> str:
    """The page's HTML. Every text of the document is escaped; the figures' data are JSON in a script element."""
    return render(
        "checkpoint.html.j2",
        {"rates": _rates(document), "ranks": _ranks(document)},
        document=document,
        marks=gravest_first(document.marks),
        answer=checkpoint_text.answer(document),
        subject=checkpoint_text.subject(document),
        rows=checkpoint_text.rows(document),
        trials=checkpoint_text.trials(document),
        making=checkpoint_text.making(document),
        command=shlex.join(document.command),
    )


def _rates(document: Document) -> Figure:
    """MB/s of every checkpoint in the order in which they were written and read; lines join those of one trial."""
    dots = []
    for kind, timed in (
        ("write", [[write.seconds for write in trial.writes] for trial in document.trials]),
        ("read", [[read.seconds for read in trial.reads] for trial in document.trials]),
    ):
        places: list[int | None] = []
        rates: list[float | None] = []
        for number, row in enumerate(timed):
            first = number * document.checkpoints + 1
            places += [None] * bool(number) + [*range(first, first + len(row))]  # None: a gap in the line
            rates += [None] * bool(number) + [document.bytes / seconds / MEGA for seconds in row]
        dots.append({
            "type": "scatter", "mode": "lines+markers", "name": kind, "marker": {"color": COLOURS[kind]},
            "x": places, "y": rates,
        })  # fmt: skip
    drawn = layout(320) | {"xaxis": axis("checkpoint"), "yaxis": axis("MB/s", rangemode="tozero")}
    return {"data": compact(dots), "layout": drawn}


def _ranks(document: Document) -> Figure:
    """Bars: mean seconds of each rank, to write and to read."""
    count = len(document.trials) * document.checkpoints
    sums = {
        "write": [[write.rank_seconds for write in trial.writes] for trial in document.trials],
        "read": [[read.rank_seconds for read in trial.reads] for trial in document.trials],
    }
    bars = [
        {
            "type": "bar", "name": kind, "marker": {"color": COLOURS[kind]}, "x": list(range(document.ranks)),
            "y": [sum(times[rank] for row in rows for times in row) / count for rank in range(document.ranks)],
        }
        for kind, rows in sums.items()
    ]  # fmt: skip
    drawn = layout(320) | {"barmode": "group", "xaxis": axis("rank"), "yaxis": axis("seconds", rangemode="tozero")}
    return {"data": compact(bars), "layout": drawn}
