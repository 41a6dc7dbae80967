"""The trace of real ranks: held against a schema of its format, and opened in Chromium."""

import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from dlio_bench.harness.cli import main
from dlio_bench.reports.document.collection import load_all
from dlio_bench.reports.traces import timeline
from dlio_bench.reports.traces.timelogger import parse
from tests.browser import Browser
from tests.needs import require
from tests.processes import dlio
from tests.trace_events import Complete, Metadata, Trace, checked

RANKS = 4
DEVTOOLS = "devtools://devtools/bundled/devtools_app.html"
LOADED = "new Promise((done) => document.readyState === 'complete' ? done() : addEventListener('load', done))"
# What reads traces for the Performance panel of Chromium's developer tools, which is a page of the browser.
READ = """(async () => {{
  const {{TraceModel, Handlers}} = await import('./models/trace/trace.js');
  const model = TraceModel.Model.createWithAllHandlers();
  await model.parse(JSON.parse({text}).traceEvents, {{isFreshRecording: false}});
  const parsed = model.parsedTrace(0);
  const threads = Handlers.Threads.threadsInTrace(parsed.data ?? parsed);
  return threads.map((thread) => [thread.pid, thread.tid, thread.name, thread.entries.length, thread.tree.maxDepth]);
}})()"""


def test_the_trace_of_all_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    dlio(
        tmp_path, "run", "cdb", "--tiny", "--nodes", str(RANKS), "--reader", "naive,prefetch", "--trials", "1",
        "--no-verify", "--trace", "spans", "--out", "run",
    )  # fmt: skip
    path = folder / "trace.json"
    assert main(["trace", str(folder / f"prefetch-{RANKS}x1"), "--trial", "2", "--chrome", str(path)]) == 0
    all_spans_of_all_ranks_are_in_one_trace_that_follows_the_format(folder, path.read_bytes())
    timelogger_has_the_steps_and_reads_of_the_result(folder, tmp_path)
    spans_of_another_reader_are_not_taken_for_those_of_a_result(folder, tmp_path, capsys)
    require("browser")
    chromium_finds_the_same_threads_and_spans(path.read_bytes())


def threads(trace: Trace) -> dict[tuple[int, int], str]:
    events = (event for event in trace.traceEvents if isinstance(event, Metadata) and event.name == "thread_name")
    return {(event.pid, event.tid): str(event.args["name"]) for event in events}


def all_spans_of_all_ranks_are_in_one_trace_that_follows_the_format(folder: Path, content: bytes) -> None:
    trace = checked(content)
    spans = timeline.load(folder / f"prefetch-{RANKS}x1")
    of_trial = spans.part(spans.trial == 1)
    counted = Counter(event.name for event in trace.traceEvents if isinstance(event, Complete))
    assert counted == Counter(spans.components[code].name for code in of_trial.component.tolist())
    moved = sum(event.args.get("bytes", 0) for event in trace.traceEvents if isinstance(event, Complete))
    assert moved == of_trial.bytes.sum()
    named = threads(trace)
    assert [named[rank, 1] for rank in range(RANKS)] == ["trainer"] * RANKS
    assert any(name.startswith("reader-") for name in named.values())
    assert trace.otherData["source"] == "spans.npz"


def chromium_finds_the_same_threads_and_spans(content: bytes) -> None:
    trace = checked(content)
    # a process of the browser may still write into its profile
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, Browser(Path(profile)) as browser:
        browser.ask("Page.navigate", url=DEVTOOLS)
        browser.run(LOADED)
        known = browser.run(READ.format(text=json.dumps(content.decode())))
    entries = Counter((event.pid, event.tid) for event in trace.traceEvents if isinstance(event, Complete))
    names = threads(trace)
    assert {(pid, tid): (name, count) for pid, tid, name, count, _ in known} == {
        place: (names[place], count) for place, count in entries.items()
    }
    depths = {pid: depth for pid, tid, _, _, depth in known if tid == 1}
    assert set(depths.values()) <= {3, 4}  # loop, step, phase, and a read within it
    assert len(depths) == RANKS


def timelogger_has_the_steps_and_reads_of_the_result(folder: Path, tmp_path: Path) -> None:
    of_reader = folder / f"prefetch-{RANKS}x1"
    [(result, steps)] = load_all([of_reader])
    log = tmp_path / "log.txt"
    assert main(["trace", str(of_reader), "--trial", "2", "--timelogger", str(log)]) == 0
    written = parse(log.read_text(), "log")
    assert not written.problems
    reads = timeline.load(of_reader)
    assert (
        sum(span.component == "pread" for span in written.spans)
        == (reads.are_of("pread") & (reads.trial == 1)).sum()
        > 0
    )
    waits = [span for span in written.spans if span.component == "Call to Next Batch"]
    assert len(waits) == RANKS * result.plan.steps
    assert sum(span.seconds for span in waits) == pytest.approx(steps["stall"][1].sum())
    assert len({span.process for span in waits}) == RANKS


def spans_of_another_reader_are_not_taken_for_those_of_a_result(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = Path(shutil.copytree(folder / f"naive-{RANKS}x1", tmp_path / "mixed"))
    shutil.copy(folder / f"prefetch-{RANKS}x1" / "spans.npz", mixed)
    capsys.readouterr()
    assert main(["trace", str(mixed), "--json"]) == 5
    [document] = json.loads(capsys.readouterr().out)
    assert not document["spans"]["usable"]
    assert "is not of the run of its result" in document["spans"]["problems"][0]
    assert document["phases"]
