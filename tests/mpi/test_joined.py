"""Commands whose ranks somebody else has started."""

import inspect
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlio_bench.harness.cluster import life
from tests import processes
from tests.datasets import made
from tests.ranks import mpirun

RUN = ("run", "cdb", "--tiny", "--compute", "none", "--trials", "1", "--warmup-trials", "0")


def world(cache: Path, cwd: Path, ranks: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """One copy of the command for each rank."""
    argv, env = mpirun(1, (*processes.DLIO, *arguments), ranks_per_node=ranks)
    env |= {"DLIO_BENCH_CACHE": str(cache), "TMPDIR": str(cache)}
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)


def complaints(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return [line.partition("dlio-bench: ")[2] for line in done.stderr.splitlines() if "dlio-bench: " in line]


def test_processes_that_are_there_become_the_ranks_of_one_command(tmp_path: Path) -> None:
    # the shortest trial makes a job before the run: two jobs of the same processes
    words = (*RUN, "--launcher", "none", "--min-seconds", "0.01", "--out", "out")
    done = world(tmp_path / "cache", tmp_path, 2, *words)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "prefetch-1x2" / "result.json").read_text())
    assert (result["plan"]["nodes"], result["plan"]["ranks_per_node"]) == (1, 2)
    assert "VIRTUAL NODES" not in result["marks"]
    assert result["environment"]["launcher"]["name"] == "none"
    assert len(result["environment"]["rank_hosts"]) == 2
    assert complaints(done) == []


def test_the_failure_of_a_rank_ends_all_with_its_status_and_one_message(tmp_path: Path) -> None:
    data = made(tmp_path / "data", "cdb", 4).folder
    file = min(data.glob("data-*.h5"))
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20_000] = bytes(byte ^ 255 for byte in content[middle : middle + 20_000])
    file.write_bytes(content)
    words = (*RUN, "--launcher", "none", "--data", str(data), "--check-crc")
    done = world(tmp_path / "cache", tmp_path, 2, *words)
    assert done.returncode == 5
    (message,) = complaints(done)
    assert file.name in message
    assert "Traceback" not in done.stdout + done.stderr


def test_other_commands_take_the_processes_that_are_there_or_refuse_them(tmp_path: Path) -> None:
    cache, none = tmp_path / "cache", ("--launcher", "none")
    done = world(cache, tmp_path, 2, "generate", "cdb", "--tiny", "--files", "4", "--out", "set", "--no-raw", *none)
    assert done.returncode == 0, done.stderr
    assert "by 2 processes" in done.stdout
    few = ("--threads", "1", "--trials", "1")
    done = world(cache, tmp_path, 2, "storage", "--data", "set", *few, *none, "--out", "storage.json")
    assert done.returncode == 0, done.stderr
    assert {row["ranks"] for row in json.loads((tmp_path / "storage.json").read_text())["reads"]} == {2}
    done = world(cache, tmp_path, 2, "calibrate", "--pfs", ".", *none)
    assert done.returncode == 2
    (message,) = complaints(done)
    assert "1x2 ranks were started (nodes x ranks on each), but 1x1 are asked for" in message
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "set", "storage.json"}


def test_copies_of_a_command_are_refused_once(tmp_path: Path) -> None:
    done = world(tmp_path / "cache", tmp_path, 2, *RUN)
    assert done.returncode == 2
    (message,) = complaints(done)
    assert "--launcher none" in message
    assert not list(tmp_path.glob("dlio-results"))


WAITS = """
import select
import sys
from pathlib import Path
from dlio_bench.harness.cluster import life
wait = select.select
select.select = lambda *given: print("waits", flush=True) or wait(*given)
life.after_the_first()
print(alive(int(sys.argv[1])))
"""


def test_a_copy_waits_until_the_first_one_has_ended_however_late_that_is() -> None:
    ended = subprocess.Popen(["true"])  # a child of the launcher before them
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # is a zombie
    ends = [sys.executable, "-c", "input()"]
    with subprocess.Popen(ends, env=os.environ | {"PMI_RANK": "0"}, stdin=subprocess.PIPE, text=True) as first:
        waits = [sys.executable, "-c", f"{inspect.getsource(processes.alive)}{WAITS}", str(first.pid)]
        with subprocess.Popen(waits, env=os.environ | {"PMI_RANK": "1"}, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "waits\n"
            assert first.stdin is not None
            first.stdin.write("\n")
            first.stdin.close()
            assert other.stdout.readline() == "False\n"
    ended.wait()


def test_a_copy_that_is_ended_while_it_waits_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(seconds: float) -> None:
        raise KeyboardInterrupt(seconds)

    monkeypatch.setattr(time, "sleep", ended)
    life.after_the_first()
