"""A rank that was stopped is named, and the other one writes where it stands.

Time passes only as the other one gives signs of life, so that nobody has to be quick.
"""

import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.errors import Stalled
from dlio_bench.harness.cluster import process, watch
from dlio_bench.harness.cluster.life import write_limit
from dlio_bench.harness.cluster.watch import Watch
from dlio_bench.harness.live.status import NAME
from dlio_bench.harness.storage.pfs.emulation import FOLDER
from tests.datasets import made
from tests.mounts import mounts_below
from tests.mpi.conftest import start
from tests.needs import needs
from tests.processes import PATIENCE, descendants, ending, gone, until
from tests.ranks import mpirun

LIMIT, TICK = 100.0, 10.0  # seconds of the clock that the test moves
TELLING = 0.8  # seconds: with this limit ranks tell ten times a second that they live

RANK = """
import sys, threading
from pathlib import Path
from dlio_bench.harness.cluster.entry import run_rank
from dlio_bench.harness.cluster.life import life

def body(comm):
    if comm.rank == 0:
        life.begin_step(1e6)  # it makes progress, however little of the processor it gets
        threading.Event().wait()
    comm.barrier()

raise SystemExit(run_rank(Path(sys.argv[1]), lambda: (2, body)))
"""


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self.now += seconds


def test_a_rank_that_was_stopped_ends_the_job_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pids, verdicts = Clock(), dict[int, int](), list[str]()
    hear, verdict = Watch.record_pulse, Watch.verdict
    is_stopped = False

    def heard(self: Watch, pulse: dict[str, Any], now: float) -> None:
        nonlocal is_stopped
        hear(self, pulse, now)
        pids[pulse["rank"]] = pulse["process"]
        if pulse["rank"] == 0:
            # it has met the other one: only before that it does not know how many there are, or is mute
            if not is_stopped and pulse["ranks"] and not pulse["mute"] and pulse["idle"] == 0.0:
                os.kill(pulse["process"], signal.SIGSTOP)
                is_stopped = True
        elif is_stopped and (not verdicts or written()):
            assert clock.now < 3 * LIMIT, "it concluded nothing"
            clock.now += TICK

    def judged(self: Watch, now: float) -> str | None:
        said = verdict(self, now)
        verdicts.extend([said] if said else [])
        return said

    def written() -> bool:
        """Whether the other rank, which waits for the first one, has written where it stands."""
        return any("in run_rank" in path.read_text() for path in tmp_path.glob("stacks-rank-1.txt"))

    monkeypatch.setattr(watch, "_allowed", LIMIT)
    monkeypatch.setattr(process, "time", clock)
    monkeypatch.setattr(process, "LOOK_SECONDS", TICK)
    monkeypatch.setattr(process, "write_limit", lambda folder, _: write_limit(folder, TELLING))
    monkeypatch.setattr(Watch, "record_pulse", heard)
    monkeypatch.setattr(Watch, "verdict", judged)
    argv, env = mpirun(2, (sys.executable, "-c", RANK, str(tmp_path)))
    with pytest.raises(Stalled) as failure:
        process.launch(argv, env, tmp_path, lambda _: None)
    gone(pids.values())
    where = f"Rank 0 on {platform.node()} (process {pids[0]})"
    assert str(failure.value).startswith(f"{where} gave no sign of life for 1m40s: stopped, or cut off.")
    assert f"{tmp_path}/stacks-*.txt" in str(failure.value)
    assert len(verdicts) == 1


@needs("fuse")
def test_one_rank_whose_storage_does_not_answer_is_ended(cache: Path, tmp_path: Path) -> None:
    status = tmp_path / "out" / NAME

    def is_reading() -> bool:
        return status.exists() and any((json.loads(line)["step"] or 0) > 0 for line in status.read_bytes().splitlines())

    data = made(tmp_path / "data", "cdb", 32).folder
    storage = ("--data", str(data), "--cache", "as-is", "--emulate-pfs", "bandwidth=50MB/s,via=fuse")
    trials = ("--trials", "1", "--warmup-trials", "0", "--compute", "emulate:30ms", "--epochs", "100")
    others = ("--timeout", "3s", "--out", "out")
    words = ("run", "cdb", "--tiny", "--nodes", "1", "--reader", "naive", *storage, *trials, *others)
    with ending(start(cache, tmp_path, *words)) as run:
        until(is_reading, run)
        daemons = [pid for pid in descendants(run.pid) if "pfs.daemon" in Path(f"/proc/{pid}/cmdline").read_text()]
        for pid in daemons:
            os.kill(pid, signal.SIGSTOP)
        _, told = run.communicate(timeout=PATIENCE)
    assert run.returncode == 4, told
    assert f"stood still for 3 s, reading and computing nothing: it waits for {cache}/{FOLDER}" in told
    gone(daemons)
    assert not mounts_below(cache)
