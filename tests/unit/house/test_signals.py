"""Interruptions in places that hide them still end the command with its documented status."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from dlio_bench.harness.commands.tracing.command_io import PASSED_ON
from dlio_bench.harness.machine.waits import watch_signals
from tests.processes import PATIENCE, until

IN_CODE_MADE_FROM_TEXT = """
import os, signal
from dlio_bench import signals

signals.listen()
try:
    exec("os.kill(os.getpid(), signal.SIGINT)")
except KeyboardInterrupt:
    raise SystemExit(4)
"""

IN_A_MODULE_THAT_HIDES_IT = """
import os, signal
from dlio_bench.harness import cli

def load(asked):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        raise ImportError("an extension module failed to import") from None

cli.COMMANDS["list"] = load
raise SystemExit(cli.main(["list"]))
"""


def run(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """As a module, as the command itself is: what Python does at the end of a script differs."""
    (folder / "interrupted_code.py").write_text(code)
    return subprocess.run(
        [sys.executable, "-m", "interrupted_code"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_one_that_was_caught_leaves_the_status_alone(tmp_path: Path) -> None:
    done = run(IN_CODE_MADE_FROM_TEXT, tmp_path)
    assert done.returncode == 4, done.stderr


def test_an_error_that_hides_one_is_not_reported_in_its_place(tmp_path: Path) -> None:
    done = run(IN_A_MODULE_THAT_HIDES_IT, tmp_path)
    assert done.returncode == 4
    assert "Interrupted by Ctrl-C" in done.stderr
    assert "defect" not in done.stderr


IN_THE_LAST_MOMENT = """
import os, signal, sys
from dlio_bench.__main__ import main

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
        kill(pid, number)

sys.late = Late()
sys.argv[1:] = ["--version"]
raise SystemExit(main())
"""


def test_one_that_comes_after_the_end_leaves_the_status(tmp_path: Path) -> None:
    done = run(IN_THE_LAST_MOMENT, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


AT_THE_END_OF_THE_TIME = """
import os, signal, sys, time
from types import SimpleNamespace
from dlio_bench.harness import cli

cli.walltime.time = SimpleNamespace(time=lambda: 1e9)  # no time passes
real, asked = signal.setitimer, []
signal.setitimer = lambda timer, seconds: asked.append(seconds) if seconds else real(timer, seconds)

def last(options):
    try:
        assert asked == [3.0]
        real(signal.ITIMER_REAL, 0.03)
        time.sleep(600)
    finally:  # as a scheduler does, while ranks end
        os.kill(os.getpid(), signal.SIGTERM)
        print("in good order")

cli.COMMANDS["generate"] = last
sys.argv[1:] = ["generate", "cdb", "--files", "1", "--out", "x", "--walltime", "33s"]
raise SystemExit(cli.main())
"""


def test_a_command_that_has_no_time_left_starts_nothing(tmp_path: Path) -> None:
    done = run(
        "import os\nos.environ['DLIO_BENCH_ENDS'] = '1000000020'\n"
        + AT_THE_END_OF_THE_TIME.replace(', "--walltime", "33s"', ""),
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "20 s are left, and 30 s are kept back" in done.stderr
    assert "Nothing was started" in done.stderr


def test_a_command_ends_before_its_time_is_over_and_later_signals_do_not_disturb(tmp_path: Path) -> None:
    done = run(AT_THE_END_OF_THE_TIME, tmp_path)
    assert (done.returncode, done.stdout) == (4, "in good order\n"), done.stderr
    assert "Interrupted by the end of this job's time" in done.stderr
    assert "Go on with: dlio-bench generate cdb --files 1 --out x --walltime 33s" in done.stderr


def test_what_looks_for_signals_takes_none_that_is_for_the_main_thread() -> None:
    """Else Ctrl-C reaches Python while `trace --command` waits for it."""

    def blocked(thread: threading.Thread) -> set[int]:
        lines = Path(f"/proc/self/task/{thread.native_id}/status").read_text().splitlines()
        [mask] = [int(line.split()[1], 16) for line in lines if line.startswith("SigBlk")]
        return {number for number in signal.Signals if mask >> (number - 1) & 1}

    before = set(threading.enumerate())
    with watch_signals(lambda *_: None):
        [looking] = set(threading.enumerate()) - before
        until(lambda: blocked(looking) >= PASSED_ON)
