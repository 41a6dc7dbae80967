"""A real run is watched from another process, while it is at work and after its end; and runs that were ended."""

import json
import signal
import subprocess
from pathlib import Path

from dlio_bench.harness.live.status import (
    DONE,
    FAILED,
    NAME,
    PHASES,
    PREPARING,
    TIMED,
    VALIDATION,
    VERIFYING,
    WARM_UP,
    read_from,
    read_status,
)  # fmt: skip
from tests.mpi.conftest import dlio, start
from tests.processes import DLIO, PATIENCE, until


def test_a_run_in_the_background_is_watched_from_its_first_to_its_last_word(cache: Path, tmp_path: Path) -> None:
    """Two ranks, two readers, a validation pass after each epoch."""
    watching = start(cache, tmp_path, "watch", "out", "--json", "--interval", "10ms")
    assert watching.stderr is not None
    assert "waiting for a run" in watching.stderr.readline()
    words = [*DLIO, "run", "cosmoflow", "--tiny", "--nodes", "2", "--reader", "naive,clairvoyant", "--validation", "1",
             "--tiers", "ram=1MB", "--out", "out", "--cache-dir", str(cache)]  # fmt: skip
    behind = ["sh", "-c", '("$@" >log 2>&1; echo $? >status) & echo started', "sh", *words]
    assert subprocess.run(behind, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "started\n"
    status = tmp_path / "status"
    until(lambda: status.exists() and status.read_text())
    assert status.read_text() == "0\n", (tmp_path / "log").read_text()
    out, err = watching.communicate(timeout=PATIENCE)
    assert watching.returncode == 0, out + err

    records = [json.loads(line) for line in out.splitlines()]
    written = read_from(tmp_path / "out")
    assert written.damaged == 0
    assert records == written.records[-len(records) :]
    phases = list(dict.fromkeys(record["phase"] for record in written.records if record["phase"] != VALIDATION))
    assert phases == [phase for phase in PHASES if phase in phases]  # in their order
    assert {PREPARING, WARM_UP, TIMED, VERIFYING, DONE} <= set(phases)
    last = written.records[-1]
    assert (last["exit_status"], last["progress"], last["nodes"], last["results"]) == (0, 1.0, 2, 2)
    assert (last["trial"], last["step"]) == (last["trials"], last["steps"])
    shares = [record["progress"] for record in written.records if record["progress"] is not None]
    assert shares == sorted(shares)

    result = json.loads((tmp_path / "out" / f"{last['reader']}-2x1" / "result.json").read_text())
    assert last["steps"] == result["plan"]["steps"]
    epochs = result["trials"][-1]["epochs"]
    assert 0 < last["bytes"]["pfs"] <= sum(epoch["bytes_requested"] for epoch in epochs)
    ended = dlio(cache, tmp_path, "watch", "out").stdout
    assert "exit status 0 (pass)" in ended
    assert "dlio-bench show out" in ended


def test_a_run_that_is_ended_says_why_and_one_that_is_killed_is_given_up(cache: Path, tmp_path: Path) -> None:
    run = ("run", "cdb", "--tiny", "--compute", "emulate:200ms", "--trials", "1000")  # longer than anybody waits
    stopped, killed = (start(cache, tmp_path, *run, "--out", name) for name in ("stopped", "killed"))
    watching = start(cache, tmp_path, "watch", "stopped", "--interval", "10ms")

    def step(name: str) -> int:
        place = tmp_path / name
        records = read_status(place)[0] if (place / NAME).exists() else []
        return max((record["step"] or 0 for record in records), default=0)

    until(lambda: step("stopped"), stopped)
    until(lambda: step("killed"), killed)
    assert watching.stdout is not None
    watching.stdout.readline()
    killed.kill()
    killed.communicate()
    stopped.send_signal(signal.SIGINT)
    stopped.communicate()
    out, _ = watching.communicate(timeout=PATIENCE)
    assert watching.returncode == stopped.returncode == 4
    assert "Interrupted by Ctrl-C: the ranks have ended." in out.splitlines()[-1]
    assert not (tmp_path / "stopped").exists()  # nothing was finished

    given_up = dlio(cache, tmp_path, "watch", "killed", "--silence", "1s", "--interval", "10ms", status=4)
    assert "has written nothing for" in given_up.stderr
    assert FAILED not in {record["phase"] for record in read_status(tmp_path / "killed")[0]}
    resumed = start(cache, tmp_path, *run, "--out", "killed")  # it goes on, behind the lines that are there
    lines = len(read_status(tmp_path / "killed")[0])
    until(lambda: len(read_status(tmp_path / "killed")[0]) > lines, resumed)
    resumed.send_signal(signal.SIGINT)
    resumed.communicate()
