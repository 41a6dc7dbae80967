"""A rank that was stopped is named, and the other one writes where it stands.

Time passes only as the other one gives signs of life, so that nobody has to be quick.
"""

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
from tests.processes import gone
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
        life.begins(1e6)  # it makes progress, however little of the processor it gets
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
    hear, verdict = Watch.hear, Watch.verdict
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
    monkeypatch.setattr(Watch, "hear", heard)
    monkeypatch.setattr(Watch, "verdict", judged)
    argv, env = mpirun(2, (sys.executable, "-c", RANK, str(tmp_path)))
    with pytest.raises(Stalled) as failure:
        process.launch(argv, env, tmp_path, lambda _: None)
    gone(pids.values())
    where = f"Rank 0 on {platform.node()} (process {pids[0]})"
    assert str(failure.value).startswith(f"{where} gave no sign of life for 1m40s: stopped, or cut off.")
    assert f"{tmp_path}/stacks-*.txt" in str(failure.value)
    assert len(verdicts) == 1
