"""How a run accessed its files: the pattern of its spans is what strace sees of the kernel's calls."""

import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.harness.cli import main
from dlio_bench.reports.traces import span_pattern, timeline
from dlio_bench.reports.traces.access_pattern import BIN_ENDS, BINS
from dlio_bench.reports.traces.timeline import Timeline
from tests.datasets import made
from tests.needs import require
from tests.processes import DLIO

READS = ("read", "pread64", "readv", "preadv", "preadv2")
# the name of the call, its first argument if it is a descriptor with its path, the rest, the result
LINE = re.compile(
    r"(?P<time>[\d.]+) (?P<call>\w+)\((?:\d+<(?P<of>[^>]*)>)?(?P<rest>.*)\) += (?P<result>-?\d+)(?:<(?P<to>[^>]*)>)?"
)
READERS = ("naive", "double-buffer", "prefetch")
RUN = ("run", "cdb", "--tiny", "--nodes", "1", "--epochs", "2", "--trials", "1", "--warmup-trials", "0", "--trace",
       "spans", "--cache", "as-is", "--no-verify", "--out", "out", "--reader", ",".join(READERS))  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A call on a file of the dataset. time: seconds since 1970, when it began; offset: -1: not in the call."""

    time: float
    name: str
    file: str
    offset: int
    result: int


def calls(folder: Path, files: set[str]) -> list[Call]:
    """What strace has written, a file for each thread."""
    seen = []
    for path in folder.iterdir():
        for match in filter(None, map(LINE.match, path.read_text(errors="replace").splitlines())):
            file = Path(match["of"] or match["to"] or "").name
            if file in files:
                numbers = re.findall(
                    r", (\d+)(?=,|$)", match["rest"].rpartition("]")[2] if "]" in match["rest"] else ""
                )
                offset = int(numbers[1]) if match["call"].startswith("preadv") else -1
                seen.append(Call(float(match["time"]), match["call"], file, offset, int(match["result"])))
    return sorted(seen, key=lambda call: call.time)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, with what strace has seen of it in `traces`. What is traced does not make its dataset."""
    require("strace")
    folder = tmp_path_factory.mktemp("traced")
    data = made(folder / "data", "cdb", 16).folder
    (folder / "traces").mkdir()
    strace = ["strace", "-ff", "-y", "-ttt", "-s", "0", "-e", f"trace=openat,{','.join(READS)}", "-o", "traces/of"]
    done = subprocess.run(
        [*strace, *DLIO, *RUN, "--data", str(data)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def of_dataset(spans: Timeline) -> list[tuple[str, int, int]]:
    """File, offset and bytes of each read."""
    chosen = spans.part(spans.are_of("pread", "stage read"))
    columns = (getattr(chosen, name).tolist() for name in ("file", "offset", "bytes"))
    return sorted((spans.files[file], offset, size) for file, offset, size in zip(*columns, strict=True))


def test_the_pattern_of_a_run_is_what_strace_sees(traced: Path) -> None:
    """Of three readers, whose only trials come one after the other."""
    of_readers = [timeline.load(traced / "out" / f"{reader}-1x1") for reader in READERS]
    seen = calls(traced / "traces", {file for spans in of_readers for file in spans.files.values()})
    all_reads = [call for call in seen if call.name in READS]
    for spans in of_readers:
        ours, _ = span_pattern.patterns_of(spans, 0)
        reads, all_reads = all_reads[: ours.reads.count], all_reads[ours.reads.count :]
        assert sorted((call.file, call.offset, call.result) for call in reads) == of_dataset(spans)
        assert ours.reads.bytes == sum(call.result for call in reads) > 0
        by_size = Counter(BINS[int(np.searchsorted(BIN_ENDS, call.result))] for call in reads)
        assert {name: count for name, count in zip(BINS, ours.reads.sizes, strict=True) if count} == by_size
        # the check of the cache opens all files before the loop, whose start is 0 for the spans
        starts = np.sort(spans.start[spans.are_of("pread", "stage read")])
        began = float((np.array([call.time for call in reads]) - starts).min())
        ended = began + spans.end[spans.are_of("Training Loop")].max()
        opens = [call for call in seen if call.name == "openat" and began <= call.time <= ended]
        assert ours.opens == len(opens)
    assert all_reads == []
    assert len(opens) < sum(call.name == "openat" for call in seen)


def test_trace_tells_the_pattern_of_runs_with_spans(traced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = traced / "out" / "naive-1x1"
    assert main(["trace", str(place)]) == 0
    assert "I/O pattern, dataset: read-intensive" in capsys.readouterr().out
    assert main(["trace", "--json", str(place)]) == 0
    [document] = json.loads(capsys.readouterr().out)
    assert document["io_pattern"]["reads"]["count"] == len(of_dataset(timeline.load(place)))
    assert "node_io_pattern" not in document
