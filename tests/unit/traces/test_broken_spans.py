"""Spans that are cut short, damaged, of another run or of another version: told in text, JSON and trace."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dlio_bench.errors import DataError
from dlio_bench.harness.cli import main
from dlio_bench.reports.document.result import load
from dlio_bench.reports.traces import chrome, components, result_spans, timeline
from dlio_bench.reports.traces.timeline import SPANS_NAME, TYPES, About, Clock, Kind, Track
from tests.mutations import cut, edited, ends_well, mutations
from tests.timelines import KINDS, Row, about, row, save
from tests.trace_events import checked

GOLDEN = Path(__file__).parents[2] / "golden" / "result-3"
RESULT, STEPS = load(GOLDEN)
TRACKS = [Track(0, "node1", 10, "trainer"), Track(1, "node1", 20, "trainer"), Track(1, "node1", 20, "reader-0")]
ROWS = [
    row(rank, "Training Loop", 0.5, 0.5 + float(STEPS["loop"][position][rank]), trial=trial.trial)
    for position, trial in enumerate(RESULT.trials)
    for rank in (0, 1)
]
READS = [
    row(2, "pread", 0.6, 0.7, trial=trial.trial, epoch=0, step=1, file=0, bytes=100, offset=0)
    for trial in RESULT.trials
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "result"))


def other(entry: Row, **values: Any) -> Row:
    return dict(entry) | values


@dataclass(frozen=True)
class Case:
    """A file of spans, what `trace` says of it, and how it ends. drawn: whether its spans are shown all the same."""

    told: str
    status: int
    rows: Sequence[Row] = (*ROWS, *READS)
    changes: Callable[[About], About] = lambda whole: whole
    drawn: bool = True


CASES = {
    "whole": Case("", 0),
    "lost": Case("rank 1 had no room for 12 spans", 0, changes=lambda whole: replaced(whole, lost={1: 12})),
    "unknown component": Case(
        "does not know: levitate", 0,
        [*ROWS, other(READS[0], component=len(KINDS)), *READS],
        lambda whole: replaced(whole, components=[*KINDS, Kind("levitate", "magic")]),
    ),
    "other kind": Case(
        "another kind when they were recorded: Training Loop", 0,
        changes=lambda whole: replaced(whole, components=[Kind("Training Loop", "magic"), *KINDS[1:]]),
    ),
    "no such component": Case("1 spans are of no rank, thread or component", 5, [*ROWS, other(READS[0], component=99)]),
    "no such file": Case("1 spans are of files whose names", 5, [*ROWS, other(READS[0], file=3)]),
    "backwards": Case("1 spans end before they begin", 5, [*ROWS, other(READS[0], end=0.1)]),
    "no time": Case("1 spans have times that no run has", 5, [*ROWS, other(READS[0], end=float("nan"))]),
    "a rank without spans": Case("ranks without a span: 1", 5, [entry for entry in ROWS if entry["track"] == 0]),
    "no loop": Case("is not of the run of its result", 5, READS, drawn=False),
    "another run": Case(
        "is not of the run of its result: the loop of rank 1 in trial 1 took", 5,
        [ROWS[0], other(ROWS[1], end=ROWS[1]["end"] + 1e-3), *ROWS[2:], *READS], drawn=False,
    ),
    "another trial": Case("has spans of trial 8", 5, [*ROWS, other(READS[0], trial=7)], drawn=False),
    "other ranks": Case("has 3 ranks", 5, changes=lambda whole: replaced(whole, ranks=3), drawn=False),
    "another version": Case("is of schema 'x/9'", 5, changes=lambda whole: replaced(whole, schema="x/9"), drawn=False),
}  # fmt: skip


def replaced(whole: About, **values: Any) -> About:
    return msgspec.structs.replace(whole, **values)


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_told_everywhere(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case, trace = CASES[name], place / "trace.json"
    save(place, case.changes(about(TRACKS)), case.rows)
    assert main(["trace", str(place), "--trial", "1"]) == case.status
    text = " ".join(capsys.readouterr().out.replace("  problem  ", " ").split())
    assert case.told in text
    assert ("component spans trainer" in text) == case.drawn
    assert main(["trace", str(place), "--trial", "1", "--json", "--chrome", str(trace)]) == case.status
    [document] = json.loads(capsys.readouterr().out)
    said = checked(trace.read_bytes()).otherData
    for problems in (document["spans"]["problems"], said["problems"]):
        assert case.told in " ".join(problems)
        assert bool(problems) == bool(case.told)
    assert said["source"] == ("spans.npz" if case.drawn else "steps.npz")


def test_no_line_is_wider_than_a_terminal_whatever_the_names(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a result, and of its spans alone, whose long path stays whole, so that it can be copied."""
    wide = "a name of many words " * 9
    tracks = [Track(track.rank, f"{wide}{track.rank}", track.process, wide) for track in TRACKS[2:]]
    kinds = [*KINDS, Kind(wide, "read"), Kind("w" * 200, "magic")]
    rows = [*ROWS, *READS, *(other(READS[0], component=len(KINDS) + at, bytes=1 << 40) for at in (0, 1))]
    clocks = {track.host: Clock(1e4, 1e3, 1.0, 1e5) for track in tracks} | {"node1": Clock(0.0, 0.0)}
    told = about([*TRACKS[:2], *tracks], files={0: wide}, lost={1: 12}, components=kinds, clocks=clocks)
    path = save(place, told, rows)
    page = place / "page.html"
    assert main(["trace", str(place), "--html", str(page)]) == 0
    capsys.readouterr()
    for title in ("I/O pattern", "Time by component"):
        assert f"<summary>{title}, " in page.read_text()
    for named in (place, path):
        assert main(["trace", str(named)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if len(line) > 80 and line != str(path) and "w" * 99 not in line] == []
        assert "name of many" in "\n".join(lines)


def test_a_component_of_another_version_is_drawn(place: Path) -> None:
    case = CASES["unknown component"]
    save(place, case.changes(about(TRACKS)), case.rows)
    assert main(["trace", str(place), "--trial", "1", "--chrome", str(place / "trace.json")]) == 0
    events = checked((place / "trace.json").read_bytes()).traceEvents
    assert [event.cat for event in events if event.name == "levitate" and hasattr(event, "cat")] == ["other"]


def test_a_file_that_is_cut_short_anywhere_is_damaged(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(place, about(TRACKS), [*ROWS, *READS])
    whole = path.read_bytes()
    assert result_spans.load_beside(place, RESULT, STEPS).spans is not None
    for length in (*range(0, len(whole), 61), *range(len(whole) - 30, len(whole))):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="no whole file of spans"):
            timeline.load(path)
    assert main(["trace", str(place)]) == 5
    out = capsys.readouterr().out
    assert "stall" in out
    assert "no whole file of spans" in " ".join(out.split())


@mutations(500)
def test_edited_files(in_memory: Path, chance: random.Random) -> None:
    rows = [*ROWS, *READS]
    if chance.random() < 0.3:
        path = save(in_memory, about(TRACKS), rows)
        path.write_bytes(cut(path.read_bytes(), chance))
    elif chance.random() < 0.5:
        told = msgspec.json.encode(about(TRACKS))
        changed = json.dumps(edited(json.loads(told), chance)).encode(errors="surrogatepass")
        save(in_memory, changed, rows)
    else:
        name = chance.choice(list(TYPES))
        odd = chance.choice((-1, 3, 99, 1 << 30, -(1 << 31), np.nan, np.inf, -1e300))
        values = np.array([entry[name] for entry in rows], dtype=np.float64)
        values[chance.randrange(len(values))] = odd
        with np.errstate(all="ignore"):
            kind = TYPES[name] if chance.random() < 0.8 else chance.choice((np.int16, np.float32, "<U9"))
            save(in_memory, about(TRACKS), rows, **{name: values.astype(kind)})

    def use() -> None:
        spans = result_spans.load_beside(in_memory, RESULT, STEPS)
        if spans.spans is not None:
            part = chrome.spans_of(spans.spans, 0, [0, 1], None)
            trace = in_memory / "trace.json"
            chrome.write(trace, chrome.of_timeline(part), chrome.about_timeline(part))
            checked(trace.read_bytes())
            components.render(spans.spans, 0)

    ends_well(use)
    (in_memory / SPANS_NAME).unlink()
