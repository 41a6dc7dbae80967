"""An acceptance with real ranks: stopped twice, carried on, judged, handed over."""

import hashlib
import json
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.mpi.conftest import Hold, dlio
from tests.pages import Page
from tests.processes import PATIENCE, descendants, ending, gone

PLAN = """
ranks_per_node = [1, 2]
min_seconds = 0
[system]
name = "a test"
contact = "a desk"
[dataset]
times_memory = 0
steps = 16
[storage]
threads = [1]
trials = 1
[[run]]
workload = "cdb"
readers = ["naive"]
tiny = true
batch = 1
compute = "emulate:10ms"
[limits.cdb.naive."1x2"]
delivered_bandwidth = { at_least = "1 kB/s" }
[limits.cdb.naive."1x1"]
stall_share = { at_most = "100 %" }
"""
ACCEPT = ("accept", "plan.toml", "--out", "out")


@contextmanager
def in_the_second_run(hold: Hold, cache: Path, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """The acceptance while it starts the ranks of its last part; afterwards what it has started is gone."""
    process, _ = hold.start(cache, tmp_path, *ACCEPT)
    started = descendants(process.pid)
    with ending(process):
        yield process
    gone(started)
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()


def state(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def journal(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]


def test_a_stopped_acceptance_goes_on_and_ends_in_its_verdict(hold: Hold, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    out = tmp_path / "out"
    with in_the_second_run(hold, cache, tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    first = state(out / "results" / "cdb-1x1") | state(out / "storage")
    assert len(first) == 3  # of one result and of the ceiling

    with in_the_second_run(hold, cache, tmp_path) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 4
    assert "Interrupted by Ctrl-C in cdb on 1 node x 2 ranks: naive. The 3 parts before it stay finished." in err
    assert "Go on with: dlio-bench accept plan.toml --out out" in err
    for untrue in ("SIG", "Nothing was finished", "out/work"):  # said of the part alone
        assert untrue not in err

    done = dlio(cache, tmp_path, *ACCEPT)
    assert done.stderr.count("finished before") == 3  # the dataset, the ceiling, the first run
    assert state(out / "results" / "cdb-1x1") | state(out / "storage") == first
    parts = [entry["part"] for entry in journal(out) if entry["is"] == "begun"]
    assert parts.count("run cdb-1x2") == 3
    assert {parts.count(part) for part in parts if part != "run cdb-1x2"} == {1}
    assert "cdb-1x2 3 times" in (out / "README.txt").read_text()
    assert "EXPLORE, PASS" in done.stdout  # tiny samples accept no system
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=out, check=True)
    assert not (out / "work").exists()

    again = dlio(cache, tmp_path, "judge", "out/results", "--limits", "out/limits.toml", "--json")
    assert again.stdout == (out / "judgement.json").read_text()

    raised = PLAN.replace('"1 kB/s"', '"900 TB/s"')
    (tmp_path / "plan.toml").write_text(raised)
    failed = dlio(cache, tmp_path, *ACCEPT, status=1)
    assert failed.stderr.count("finished before") == 4
    [missed] = [line for line in failed.stdout.splitlines() if "MISSED" in line]
    assert "delivered_bandwidth" in missed
    assert "900 TB/s" in missed
    result = json.loads((out / "results/cdb-1x2/naive-1x2/result.json").read_text())
    judged = json.loads((out / "judgement.json").read_text())
    [finding] = [finding for entry in judged["results"] for finding in entry["findings"] if not finding["ok"]]
    low, high = result["metrics"]["delivered_bandwidth"]["ci"]
    assert finding["found"] == float(f"{low:.10g}")
    assert finding["interval"] == [float(f"{low:.10g}"), float(f"{high:.10g}")]
    before, after = (digest["sha256"] for digest in json.loads((out / "campaign.json").read_text())["limits"])
    assert after == judged["limits"]["sha256"] == hashlib.sha256((out / "limits.toml").read_bytes()).hexdigest()
    mount = result["environment"]["hosts"][result["environment"]["rank_hosts"][0]]["mount"]
    where = f"{mount['type']}, mounted at {mount['point']} from {mount['source']}"
    page, readme = Page((out / "report.html").read_text()).text, " ".join((out / "README.txt").read_text().split())
    for said in (page, readme):
        for told in ("a test", "a desk", "EXPLORE, FAIL", where, f"sha256:{before} became sha256:{after}"):
            assert told in said
    written = (out / "report.html").read_bytes()
    dlio(cache, tmp_path, "report", "out")
    assert (out / "report.html").read_bytes() == written
    assert tomllib.loads((out / "limits.toml").read_text()) == tomllib.loads(raised)["limits"]
