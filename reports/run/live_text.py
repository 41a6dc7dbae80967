"""A run at work, as text: pure functions of the records of its `status.jsonl`.

A record is a dict of the fields that `harness.live.status.FIELDS` lists, each checked for its kind. Its texts are not
trusted.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dlio_bench.reports.view.formatting import NOTHING, format_share, plural
from dlio_bench.units import format_bytes, format_seconds
from dlio_bench.wrapping import printable, wrap

Record = Mapping[str, Any]

NARROWEST = 40  # columns
SILENCE = 40.0  # seconds without a record that are worth a word; a run at work writes more often
MEANINGS = (
    "pass", "limit missed", "usage", "INVALID result", "launch or environment failure, or interrupted",
    "data verification failed",
)  # fmt: skip
ENDED = ("done", "failed")
AT_WORK = ("warm-up", "timed", "validation")
_SOURCES = (("pfs", "file system"), ("ram", "RAM tier"), ("local", "local tier"), ("remote", "other ranks"))
_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.-~=+*#"
_LABEL = 11  # columns
_LEAST_SECONDS = 2.0  # of progress, for an estimate


def of_last_run(records: Sequence[Record]) -> Sequence[Record]:
    """The records of the run that wrote last: a run that was stopped may have gone on in the same file."""
    first = 0
    for i in range(1, len(records)):
        before, after = records[i - 1], records[i]
        dropped = before["progress"] is not None and after["progress"] is None
        if before["phase"] in ENDED or (dropped and after["phase"] == "preparing"):
            first = i
    return records[first:]


def seconds_left(records: Sequence[Record]) -> float | None:
    """What the rest of the run takes at the pace of these records, which are of one run; None while it is not known."""
    known = [record for record in records if record["progress"] is not None and record["phase"] in AT_WORK]
    if not known or records[-1]["phase"] not in AT_WORK:
        return None
    first, last = known[0], known[-1]
    gained, spent = last["progress"] - first["progress"], last["time"] - first["time"]
    return spent * (1 - last["progress"]) / gained if gained > 0 and spent >= _LEAST_SECONDS else None


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """The last `width` values as a row of blocks, from 0 to the greatest of them."""
    marks, shown = _ASCII if ascii_only else _BLOCKS, values[-width:] if width > 0 else ()
    most = max(shown, default=0.0)
    steps = len(marks) - 1
    return "".join(marks[round(steps * max(0.0, value) / most)] if most > 0 else marks[0] for value in shown)


def silence(seconds: float) -> str:
    """What it may mean that a run at work has not written for so long; empty while that is usual."""
    if seconds < SILENCE:
        return ""
    return f"No news for {format_seconds(seconds)}: the run may have been killed, or it is at something long."


def view(
    records: Sequence[Record], folder: str, width: int, quiet: float = 0.0, *, ascii_only: bool = False
) -> list[str]:
    """The state of a run in lines of at most `width` columns; 20 lines at most, at 80 columns.

    A word of the message that a run has ended with stays whole, however long: it may be a path.
    records: at least one. quiet: seconds since the last of them came.
    """
    width = max(width, NARROWEST)
    records = of_last_run(records)
    last = records[-1]
    phase = last["phase"]
    lines = [_clip(printable(folder), width), _bar(last["progress"], width, ascii_only=ascii_only)]
    lines += _row("phase", f"{phase}{_count_of(', result', last['result'], last['results'])}", width)
    where = ", ".join(plural(last[f"{noun}s"], noun) for noun in ("node", "rank") if last[f"{noun}s"] is not None)
    lines += _row("reader", ", ".join(filter(None, (_text(last["reader"]), where))), width)
    lines += _row("trial", _steps(last), width)
    of_rank = "" if last["rank"] is None else f" (rank {last['rank']})"
    at_work = [record for record in records if record["phase"] in AT_WORK]
    rates = [record["samples_per_second"] for record in at_work if record["samples_per_second"] is not None]
    rate = f"{_number(last['samples_per_second'])}{of_rank if rates else ''}"
    history = sparkline(rates, width - _LABEL - len(rate) - 2, ascii_only=ascii_only)
    lines += _row("samples/s", f"{rate}  {history}".rstrip(), width)
    lines += _row("stall", NOTHING if last["stall_share"] is None else format_share(last["stall_share"]), width)
    if last["loss"] is not None:
        lines += _row("loss", _number(last["loss"]), width)
    lines += _row("bytes", _bytes(last) or NOTHING, width)
    if phase in ENDED:
        return [*lines, "", *_ending(last, folder, width)]
    left = seconds_left(records)
    lines += _row("time left", NOTHING if left is None else f"about {format_seconds(left)}", width)
    if last["message"]:
        lines += _row("", printable(last["message"]), width, most=3)
    if word := silence(quiet):
        lines += ["", *wrap(word, width=width)]
    return lines


def line(record: Record) -> str:
    """A record in one line."""
    at = time.strftime("%H:%M:%S", time.localtime(record["time"]))
    parts = [at, record["phase"]]
    if record["phase"] in ENDED:
        parts += [_status_meaning(record), record["message"]]
        return printable("  ".join(filter(None, parts)))
    parts += [record["reader"]]
    if record["nodes"] is not None and record["reader"]:
        parts += [plural(record["nodes"], "node")]
    if record["phase"] in AT_WORK:
        parts += [_steps(record, "  ", "trial")]
        if record["samples_per_second"] is not None:
            parts += [f"{_number(record['samples_per_second'])} samples/s"]
        if record["stall_share"] is not None:
            parts += [f"stall {format_share(record['stall_share'])}"]
        if record["loss"] is not None:
            parts += [f"loss {_number(record['loss'])}"]
        parts += [_bytes(record)]
    else:
        parts += [record["message"]]
    if record["progress"] is not None:
        parts += [f"{100 * record['progress']:.0f} %"]
    return printable("  ".join(filter(None, parts)))


def _ending(last: Record, folder: str, width: int) -> list[str]:
    lines = wrap(f"The run has ended: {_status_meaning(last)}.", width=width)
    if last["message"]:
        lines += wrap(printable(last["message"]), width=width, whole_words=True)[:5]
    if last["phase"] == "done":
        results = wrap(f"Its results: dlio-bench show {printable(folder)}", width=width, whole_words=True)
        lines += [_clip(each, width) for each in results]
    return lines


def _status_meaning(record: Record) -> str:
    """The exit status of a run that has ended. No run fails with 0."""
    status = record["exit_status"]
    if status is None or (record["phase"] == "failed" and status == 0):
        return "its exit status is not known"
    known = f" ({MEANINGS[status]})" if status < len(MEANINGS) else ""
    return f"exit status {status}{known}"


def _bar(progress: float | None, width: int, *, ascii_only: bool) -> str:
    if progress is None:
        return ""
    full, empty = ("#", ".") if ascii_only else ("█", "░")
    percent = f" {100 * progress:3.0f} %"
    room = width - len(percent)
    done = int(room * progress)
    return f"{full * done}{empty * (room - done)}{percent}"


def _row(label: str, text: str, width: int, most: int = 2) -> list[str]:
    """A label and its text, in `most` lines at most."""
    lines = wrap(text or NOTHING, f"{label:<{_LABEL}}", width=width)
    return [_clip(each, width) for each in lines[:most]]


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _steps(record: Record, between: str = ", ", first: str = "") -> str:
    parts = (_count_of(first, record["trial"], record["trials"]), _count_of("epoch", record["epoch"], record["epochs"]))
    return between.join(filter(None, (*parts, _count_of("step", record["step"], record["steps"])))) or NOTHING


def _count_of(noun: str, number: int | None, total: int | None) -> str:
    if number is None:
        return ""
    return f"{noun} {number}{'' if total is None else f' of {total}'}".lstrip()


def _bytes(record: Record) -> str:
    known = record["bytes"] or {}
    return ", ".join(f"{title} {format_bytes(known[name])}" for name, title in _SOURCES if known.get(name))


def _text(value: str | None) -> str:
    return "" if value is None else printable(value)


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"
