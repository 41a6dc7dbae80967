"""Patterns from Darshan's logs: its example logs, whose traces of each access prove our definitions; damaged logs."""

import importlib.util
import json
from pathlib import Path

import darshan as pydarshan
import msgspec
import numpy as np
import pytest

from dlio_bench.harness.cli import main
from dlio_bench.harness.commands.tracing.darshan_log import load
from dlio_bench.reports.traces.access_pattern import READ, WRITE, Accesses, Pattern
from dlio_bench.reports.traces.access_pattern import pattern as pattern_of_accesses
from dlio_bench.reports.traces.darshan import NAMES, Log, Records, pattern

EXAMPLES = Path(pydarshan.__file__).parent / "examples" / "example_logs"
DXT, IOR, STDIO_ALONE = (EXAMPLES / f"{name}.darshan" for name in ("dxt", "ior_hdf5_example", "noposix"))
EXACT = ("bytes", "sizes", "placed", "consecutive")


def of_posix(path: Path) -> Pattern:
    """From the counters of that module alone."""
    log = load(path)
    return pattern(msgspec.structs.replace(log, modules={"POSIX": log.modules["POSIX"]}))


def traced(path: Path) -> Pattern:
    """From the log's trace (DXT), which has each read and write, but no opens."""
    rows, files = [], {}
    with pydarshan.DarshanReport(str(path), read_all=False) as report:
        report.mod_read_all_dxt_records("DXT_POSIX")
        for record in report.records["DXT_POSIX"].to_df():
            file = files.setdefault(record["id"], len(files))
            for kind, segments in ((READ, record["read_segments"]), (WRITE, record["write_segments"])):
                rows += [
                    (record["rank"], file, kind, each.offset, each.length, each.start_time, each.end_time)
                    for each in segments.itertuples()
                ]
    return pattern_of_accesses(Accesses(*(np.array(column) for column in zip(*rows, strict=True))))


def test_our_definitions_give_the_counters_of_darshan_from_its_trace_of_each_access() -> None:
    counted, ours = of_posix(IOR), traced(IOR)
    for one, other in ((counted.reads, ours.reads), (counted.writes, ours.writes)):
        for name in (*EXACT, "sequential"):
            assert getattr(one, name) == getattr(other, name), name
    assert ours.bytes_variation == pytest.approx(counted.bytes_variation, rel=1e-6)
    counted, ours = of_posix(DXT), traced(DXT)  # 6,126 reads of 214 files
    for name in EXACT:
        assert getattr(counted.reads, name) == getattr(ours.reads, name), name
    # opens begin anew, and are not in the trace
    assert 0 <= counted.reads.sequential - ours.reads.sequential < 10


def test_a_log_is_told_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--darshan", str(DXT)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "I/O pattern: read-intensive, metadata-intensive"
    assert lines[2] == "  reads: 1K-10K bytes most often (40 % of 6,126); 52 % consecutive"
    assert main(["trace", "--darshan", "--json", str(DXT), str(IOR)]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["reads"]["sizes"]["1K-10K"] == 2470
    assert first["reads"]["first"] is None
    assert (second["log"], second["ranks"], second["traffic"]) == (str(IOR), 4, "balanced")


def test_streams_count_where_their_sizes_are_not_known() -> None:
    told = pattern(load(STDIO_ALONE))
    assert (told.reads.count, told.reads.bytes, told.reads.placed) == (199_687, 1_812_408_359, 0)
    assert any("199687 reads" in note for note in told.notes)
    assert told.bytes_variation is None


def test_ranks_with_records_of_their_own_are_compared_and_unwatched_counters_are_nothing() -> None:
    columns = {name: [0.0, 0.0] for name in NAMES["POSIX"]}
    columns |= {"BYTES_READ": [10.0, 30.0], "READS": [1.0, 3.0], "SEEKS": [-1.0, -1.0]}
    log = Log(ranks=2, modules={"POSIX": Records(rank=[0, 1], file=[5, 5], counters=columns)}, partial=["POSIX"])
    told = pattern(log)
    assert told.bytes_variation == pytest.approx(0.5)
    assert (told.files, told.metadata) == (1, 0)
    assert "no memory" in told.notes[0]


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_log_is_named(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, whole = tmp_path / "job.darshan", bytearray(DXT.read_bytes())
    whole[1500::997] = bytes(255 - byte for byte in whole[1500::997])
    contents = {"cut": DXT.read_bytes()[:5000], "flipped": bytes(whole)}
    log.write_bytes(contents[damage])
    assert main(["trace", "--darshan", str(log)]) == 5
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"dlio-bench: {log} cannot be read as a log of Darshan: ")
    assert "Traceback" not in err
    assert log.read_bytes() == contents[damage]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--darshan", "--chrome", "x", str(DXT)]) == 2
    monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    assert main(["trace", "--darshan", str(DXT)]) == 4
    assert "pip install 'dlio-bench[darshan]'" in capsys.readouterr().err
