"""`trace --command`: what a command reads and writes is counted exactly, and nothing else is."""

import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.reports.traces.process_io import io_between, parse
from tests import processes

BLOCK = 64 << 10
Counts = dict[str, int]


@pytest.fixture
def io_of(tmp_path: Path) -> Callable[..., Counts]:
    """io_of(words...) -> what the kernel counted of a command."""
    (tmp_path / "data").write_bytes(bytes(16 * BLOCK))

    def count(*words: str) -> Counts:
        document = json.loads(processes.dlio(tmp_path, "trace", "--command", "--json", "--", *words).stdout)
        return dict(document["io"])

    return count


def dd(blocks: int) -> list[str]:
    return ["dd", "if=data", "of=/dev/null", f"bs={BLOCK}", f"count={blocks}", "status=none"]


def difference(one: Counts, two: Counts) -> Counts:
    return {name: two[name] - one[name] for name in ("syscr", "rchar", "syscw", "wchar")}


def test_every_read_of_a_known_reader_is_counted(io_of: Callable[..., Counts]) -> None:
    more = {"syscr": 10, "rchar": 10 * BLOCK, "syscw": 10, "wchar": 10 * BLOCK}
    assert difference(io_of(*dd(3)), io_of(*dd(13))) == more
    assert difference(io_of("true"), io_of("true")) == dict.fromkeys(more, 0)


ORPHANED = """
import os, select, sys
ours, theirs = os.pipe()
if not os.fork():
    os.write(theirs, os.posix_spawnp("dd", ["dd", *sys.argv[1:]], os.environ).to_bytes(4, "little"))
    os._exit(0)
os.wait()
orphan = os.pidfd_open(int.from_bytes(os.read(ours, 4), "little"))
select.select([orphan], [], [])  # until it has ended
"""


def test_descendants_count_as_well_also_those_that_lost_their_parents(io_of: Callable[..., Counts]) -> None:
    def child(blocks: int) -> list[str]:
        return ["sh", "-c", f"{' '.join(dd(blocks))}; exit 0"]

    def orphan(blocks: int) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", ORPHANED, *dd(blocks)[1:]]

    for words in (child, orphan):
        counts = difference(io_of(*words(2)), io_of(*words(12)))
        assert counts["rchar"] == 10 * BLOCK
        assert counts["syscw"] == 10


def test_the_text_has_the_answer_first_and_says_what_is_not_known(tmp_path: Path) -> None:
    done = processes.dlio(tmp_path, "trace", "--command", "--", "head", "-c", "1000000", "/dev/zero")
    report = done.stdout[done.stdout.index("I/O pattern") :].splitlines()
    assert report[0] == "I/O pattern: balanced"
    assert report[2].startswith("  exit status 0, after ")
    assert "offsets, opens and the time of I/O are not known" in " ".join(map(str.strip, report))


def test_the_command_s_output_does_not_mix_with_json_and_its_options_stay_its_own(tmp_path: Path) -> None:
    done = processes.dlio(tmp_path, "trace", "--command", "--json", "--", "echo", "--", "--json", "./a//b", status=0)
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.stderr == "-- --json ./a//b\n"
    assert document["command"] == ["echo", "--", "--json", "./a//b"]
    assert (document["status"], document["traffic"]) == (0, "read-intensive")


def test_a_command_that_fails_or_cannot_start(tmp_path: Path) -> None:
    assert (
        "exit status 3" in processes.dlio(tmp_path, "trace", "--command", "--", "sh", "-c", "exit 3", status=4).stdout
    )
    assert "signal 9" in processes.dlio(tmp_path, "trace", "--command", "--", "sh", "-c", "kill -9 $$", status=4).stdout
    done = processes.dlio(tmp_path, "trace", "--command", "--", "./missing", status=4)
    assert "./missing cannot be started: No such file" in done.stderr


def test_a_dry_run_starts_nothing(tmp_path: Path) -> None:
    done = processes.dlio(tmp_path, "trace", "--command", "--dry-run", "--", "touch", "a b")
    assert done.stdout == "touch 'a b'\n"
    assert not any(tmp_path.iterdir())


SLEEPER = """
import signal, sys, time
from pathlib import Path
def told(number, frame):
    with open("told", "a") as file: file.write(f"{number} ")
    if number == signal.SIGTERM: sys.exit(7)
signal.signal(signal.SIGINT, told)
signal.signal(signal.SIGTERM, told)
Path("ready").touch()
while True: time.sleep(0.1)
"""


def test_interruptions_reach_the_command_once(tmp_path: Path) -> None:
    """SIGINT from a terminal, which reaches both processes, and SIGTERM to dlio-bench alone."""
    outer, inner = pty.openpty()

    def with_terminal() -> None:
        os.setsid()
        termios.tcgetattr(0)
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # becomes the controlling terminal

    process = subprocess.Popen(
        [*processes.DLIO, "trace", "--command", "--", sys.executable, "-c", SLEEPER],
        cwd=tmp_path, stdin=inner, stdout=subprocess.PIPE, text=True, preexec_fn=with_terminal,  # noqa: PLW1509
    )  # fmt: skip
    try:
        processes.until((tmp_path / "ready").exists, process)
        os.write(outer, b"\x03")
        processes.until(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text(), process)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=processes.PATIENCE)
    finally:
        process.kill()
        os.close(outer)
        os.close(inner)
    assert (tmp_path / "told").read_text() == "2 15 "
    assert "exit status 7" in out
    assert process.returncode == 4


BEFORE = "rchar: 100\nwchar: 10\nsyscr: 5\nsyscw: 1\nread_bytes: 0\nwrite_bytes: 0\ncancelled_write_bytes: 0\n"


def test_the_reading_of_the_counters_is_not_the_command_s() -> None:
    after = BEFORE.replace("rchar: 100", f"rchar: {100 + len(BEFORE) + 7}").replace("syscr: 5", "syscr: 8")
    io = io_between(BEFORE, after)
    assert (io.rchar, io.syscr, io.wchar) == (7, 2, 0)
    with pytest.raises(ValueError, match="rchar"):
        parse("nothing: 1\n")
