"""What a result of checkpoints says: the answer, the rates in every way of counting, what was checked."""

import shlex

from dlio_bench.reports.checkpoint.metrics import CHECKPOINT_METRICS, per_trial
from dlio_bench.reports.checkpoint.types import AWAITED, NO_FSYNC, Document
from dlio_bench.reports.document.marks import gravest_first
from dlio_bench.reports.view.drawing import Figure, axis, layout, round_floats
from dlio_bench.reports.view.formatting import format_share, format_time, interval, number, plural
from dlio_bench.reports.view.sections import DETAILS, FULL, PAGE, TEXTS, Drawing, Head, Note, Part, Section, Table, View
from dlio_bench.units import format_bytes

COLOURS = {"write": "#7f2a1d", "read": "#3f6c9b"}
WAYS = ("seconds", "bandwidth", "mean_rate", "rank0_rate")  # of counting the time of a checkpoint
MEGA = 1e6


def view(document: Document) -> View:
    """The sections of its text and page."""
    return View(
        head=Head(
            title=f"{document.workload} checkpoints",
            overline=f"checkpoint · version {document.version}",
            heading=f"Checkpoints of {document.model.title}",
            subjects=[_subject(document)],
            marks=[document.class_, *gravest_first(document.marks)],
        ),
        lead=f"{document.class_}  ",
        answers=[answer(document)],
        sections=[
            Section("answer", "", _rates(document)),
            Section("ranks-of-it", "Trials and ranks", _ranks(document)),
            Section("trust", "What was checked", _check_notes(document)),
            Section("model", "What the files imitate", _model_notes(document)),
        ],
        command=shlex.join(document.command),
        made=f"{document.created}, in {document.folder}. Everything here is in result.json; digest {document.digest}.",
    )


def answer(document: Document) -> str:
    """How fast checkpoints were written and read, in one sentence, whose rates are its bytes over its seconds."""
    written = "written" if document.fsync else "written, as far as the page cache,"
    reader = "other ranks" if document.shift else "the rank that wrote it"
    if document.nodes > 1:
        reader = f"ranks of another {'virtual ' * ('VIRTUAL NODES' in document.marks)}node"
    return (
        f"{document.model.title}: a checkpoint of {format_bytes(document.bytes)} was {written} in "
        f"{_duration(document, 'write')}, and read by {reader} in {_duration(document, 'read')}, slowest rank behind a "
        "barrier"
    )


def _duration(document: Document, kind: str) -> str:
    """'2 s (100 MB/s)'. The median of the trials' rates may be another: of two trials, say."""
    seconds = document.metrics[f"checkpoint_{kind}_seconds"]
    assert seconds.value is not None  # CHECKPOINT_METRICS all have one
    return f"{number(seconds)} ({format_bytes(document.bytes / seconds.value)}/s)"


def _subject(document: Document) -> str:
    """What was written, and by whom."""
    cut = "" if document.fraction == 1 else (
        f", {100 * document.fraction:.4g} % of the bytes of {format_bytes(document.model.whole_bytes)}"
    )  # fmt: skip
    shards = "" if document.shards == document.ranks else f", the state of {document.shards} ranks"
    return (
        f"{plural(document.files, 'file')} ({document.layout}){cut}; {plural(document.nodes, 'node')} x "
        f"{plural(document.ranks_per_node, 'rank')}{shards}; {plural(document.checkpoints, 'checkpoint')} in each of "
        f"{plural(len(document.trials), 'trial')}, {'with' if document.fsync else 'without'} fsync"
    )


def _rates(document: Document) -> list[Part]:
    metrics = document.metrics
    rows = [
        [quantity.meaning, number(metrics[name]), interval(metrics[name])]
        for name, quantity in CHECKPOINT_METRICS.items()
        if name in metrics
    ]
    return [
        Drawing(
            name="rates",
            figure=_rates_figure(document),
            label="Lines, one for each trial: MB/s of every checkpoint written and read, in their order; the trials' "
            "rates are in the table",
            caption="Every checkpoint, in the order of the trials; lines join those of one trial. A checkpoint's rate: "
            "its bytes over the time of the slowest rank behind a barrier.",
            on=[PAGE],
        ),
        Table(
            heads=["", "a checkpoint", "bytes / time", "mean of rates", "rank 0 alone"],
            rows=[[kind, *(number(metrics[f"checkpoint_{kind}_{way}"]) for way in WAYS)] for kind in ("write", "read")],
            note="rank 0 alone: without what slower ranks take, and without manifest and name",
            on=TEXTS,
        ),
        Table(
            heads=["metric", "median of trials", "interval"],
            rows=rows,
            note="Bytes over time and the mean of rates differ where checkpoints take different times. Rank 0's own "
            "rate leaves out what slower ranks take, and manifest and name. -: not known; an interval needs 5 trials.",
            on=[PAGE],
        ),
        *(Note(text=f"{value} ({ends})  {meaning}", on=[DETAILS]) for meaning, value, ends in rows),
    ]


def _ranks(document: Document) -> list[Part]:
    metrics = document.metrics
    calls = f"{metrics['checkpoint_fsyncs'].value:.0f} calls of fsync a checkpoint"
    synced = f"{calls}, {number(metrics['checkpoint_fsync_share'])} of the write time"
    slowest = max(write.commit_seconds for trial in document.trials for write in trial.writes)
    return [
        Table(
            heads=["trial", "write", "read", "in fsync", "waited for bytes", "cached"],
            rows=_trials(document),
            note="In fsync, waited for bytes: shares of the ranks' time to write, rank 0's for manifest and name among "
            "it. Cached: most of the files in a host's page cache before the reads.",
            on=FULL,
        ),
        Drawing(
            name="ranks",
            figure=_ranks_figure(document),
            label="Bars: mean seconds of each rank to write and to read its part of a checkpoint",
            caption="Mean seconds of each rank: of a write until its last fsync.",
            on=[PAGE],
        ),
        *([Note(text=synced, label="fsync", on=TEXTS)] if document.fsync else []),
        Note(text=f"manifest and name took at most {format_time(slowest)} of a write", label="names", on=[DETAILS]),
        Note(text=_making_rate(document), label="bytes"),
    ]


def _trials(document: Document) -> list[list[str]]:
    """Rates to write and read, shares of fsync and of waiting, what was left in the cache."""
    written, read, synced, waited = (
        per_trial(document.trials, f"checkpoint_{name}")
        for name in ("write_bandwidth", "read_bandwidth", "fsync_share", "waited_share")
    )
    return [
        [
            str(at + 1),
            *(f"{format_bytes(rates[at])}/s" for rates in (written, read)),
            *map(format_share, (synced[at], waited[at], trial.resident_share)),
        ]
        for at, trial in enumerate(document.trials)
    ]


def _making_rate(document: Document) -> str:
    """How fast ranks made bytes, and what of the write time waited for them."""
    waited = document.metrics["checkpoint_waited_share"].value or 0.0
    beyond = "; beyond 10 % the making is measured too" if AWAITED in document.marks else ""
    return (
        f"each rank made at least {format_bytes(min(document.generator))}/s beside the others before the clock; "
        f"{format_share(waited)} of the write time waited for bytes{beyond}"
    )


def _check_notes(document: Document) -> list[Note]:
    said = "without fsync a write ends in the page cache, which is dropped after it"
    return [
        *(
            Note(text=f"{check.name}: {check.found}", label="held" if check.ok else "FAILED", on=TEXTS)
            for check in document.checks
        ),
        *(
            Note(
                text=f"expected {check.expected}; found {check.found}.",
                label=f"{check.name} ({'held' if check.ok else 'failed'})",
                on=[PAGE],
            )
            for check in document.checks
        ),
        *([Note(text=said, label="note", on=TEXTS)] if NO_FSYNC in document.marks else []),
    ]


def _model_notes(document: Document) -> list[Note]:
    model = document.model
    whole = f"a whole checkpoint of {document.shards} ranks has {model.whole_bytes:,} bytes"
    said = f"{model.title}, {model.parameters:,} parameters; {whole}, derived from the configuration. {model.note}"
    return [
        Note(text=said.strip(), label="model", on=FULL),
        Note(text=f"{model.source}.", label="sources", aside=True, on=FULL),
    ]


def _rates_figure(document: Document) -> Figure:
    """MB/s of every checkpoint in the order in which they were written and read; lines join those of one trial."""
    dots = []
    for kind, timed in (
        ("write", [[write.seconds for write in trial.writes] for trial in document.trials]),
        ("read", [[read.seconds for read in trial.reads] for trial in document.trials]),
    ):
        places: list[int | None] = []
        rates: list[float | None] = []
        for number_, row in enumerate(timed):
            first = number_ * document.checkpoints + 1
            places += [None] * bool(number_) + [*range(first, first + len(row))]  # None: a gap in the line
            rates += [None] * bool(number_) + [document.bytes / seconds / MEGA for seconds in row]
        dots.append({
            "type": "scatter", "mode": "lines+markers", "name": kind, "marker": {"color": COLOURS[kind]},
            "x": places, "y": rates,
        })  # fmt: skip
    drawn = layout(320) | {"xaxis": axis("checkpoint"), "yaxis": axis("MB/s", rangemode="tozero")}
    return {"data": round_floats(dots), "layout": drawn}


def _ranks_figure(document: Document) -> Figure:
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
    return {"data": round_floats(bars), "layout": drawn}
