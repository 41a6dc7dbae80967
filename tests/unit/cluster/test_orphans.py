"""A rank that stands still looks whether its job still exists; without one it ends, and never before."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dlio_bench.harness.cluster.life import Lookout, forget_limit, write_limit
from tests.processes import until

RANK = """
import sys, time
from pathlib import Path
from dlio_bench.harness.cluster.life import Pulse
Pulse(0.2, {}, lambda pulse: print(pulse["idle"], flush=True), Path(sys.argv[1]))
time.sleep(300)
"""


def test_a_rank_without_a_job_ends(tmp_path: Path) -> None:
    assert write_limit(tmp_path, 0.2)
    rank = subprocess.Popen([sys.executable, "-c", RANK, tmp_path], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    with rank:
        while float(rank.stdout.readline()) < 1:  # it has looked more than once
            pass
        assert rank.poll() is None
        forget_limit(tmp_path)
        rank.stdout.read()
    assert rank.returncode == 4


def test_a_job_is_over_when_its_file_is_gone_for_good(tmp_path: Path) -> None:
    assert write_limit(tmp_path, 1)
    [file] = tmp_path.iterdir()
    lookout = Lookout(file, patience=60)
    assert not lookout.is_over()
    file.unlink()
    assert not lookout.is_over()  # seen once: file systems err
    write_limit(tmp_path, 1)
    assert not lookout.is_over()
    file.unlink()
    until(lookout.is_over)


def test_a_folder_that_does_not_answer_is_as_good_as_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, now = threading.Event(), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    class Hanging(type(tmp_path)):  # type: ignore[misc]
        def stat(self, *, follow_symlinks: bool = True) -> None:
            answers.wait(60)

    lookout = Lookout(Hanging(tmp_path), patience=0.2)
    assert not lookout.is_over()
    now[0] += 0.1
    assert not lookout.is_over()
    now[0] += 0.2
    assert lookout.is_over()
    answers.set()
