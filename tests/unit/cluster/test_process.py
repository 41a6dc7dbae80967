"""Launching for real: events come through, failures are explained, and nothing survives an interrupted run."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from dlio_bench.errors import DataError, EnvironmentFailure, JobEnded
from dlio_bench.harness.cluster import process
from dlio_bench.harness.cluster.process import EVENT, LOOK_SECONDS, launch
from dlio_bench.harness.cluster.watch import Watch
from dlio_bench.harness.commands.run.resuming import stopped_error
from tests.processes import PATIENCE, alive, gone, until
from tests.unit.cluster.test_lost_nodes import UNREACHABLE

pytestmark = pytest.mark.slow


def script(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_events_are_heard_through_whatever_else_is_said(tmp_path: Path) -> None:
    heard: list[dict[str, object]] = []
    event = EVENT + '{"event": "ready"}'
    lines = ["noise", event, f"[1,0]<stdout>: {event} and a warning", EVENT + "{broken", EVENT + "7"]
    launch(script(f"print({chr(10).join(lines)!r})"), os.environ, tmp_path, heard.append)
    assert heard == [{"event": "ready"}] * 2
    assert list(tmp_path.iterdir()) == []  # nothing failed, so nothing is kept


def test_a_ranks_own_message_is_raised_with_its_status(tmp_path: Path) -> None:
    (tmp_path / "error-a-0.json").write_text(json.dumps({"status": 5, "message": "file x is bad", "expected": True}))
    with pytest.raises(DataError, match="file x is bad"):
        launch(script("raise SystemExit(3)"), os.environ, tmp_path, print)


def test_a_defect_is_named_but_shows_no_traceback(tmp_path: Path) -> None:
    report = {
        "status": 4,
        "message": "Traceback (most recent call last):\n ...\nZeroDivisionError: x",
        "expected": False,
    }
    (tmp_path / "error-a-0.json").write_text(json.dumps(report))
    with pytest.raises(EnvironmentFailure, match="ZeroDivisionError: x") as failure:
        launch(script("raise SystemExit(1)"), os.environ, tmp_path, print)
    assert "Traceback" not in str(failure.value)
    assert "Traceback" in (tmp_path / "defect.txt").read_text()


@pytest.mark.parametrize(("number", "where"), [(77, "process 77 on n01"), (0, "on n01")])
def test_a_killed_rank_is_named(tmp_path: Path, number: int, where: str) -> None:
    said = f"mpirun noticed that process rank 3 with PID {number} on node n01 exited on signal 9 (Killed)."
    dies = script(f"import sys; sys.stderr.write({said!r}); raise SystemExit(137)")
    with pytest.raises(EnvironmentFailure, match=rf"Rank 3 \({where}\) was ended by SIGKILL.* fewer ranks need less"):
        launch([*dies, "dlio_bench.harness.commands.checkpoints.rank"], os.environ, tmp_path, print)
    with pytest.raises(EnvironmentFailure, match="a smaller --staging"):
        launch([*dies, "dlio_bench.harness.commands.run.measured.rank"], os.environ, tmp_path, print)


def test_other_failures_quote_the_launchers_last_words(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="no such partition") as failure:
        launch(script("import sys; sys.exit('no such partition')"), os.environ, tmp_path, print)
    assert str(tmp_path / "ranks.log") in str(failure.value)
    log = (tmp_path / "ranks.log").read_text()
    assert log.startswith("no such partition\nThe command was: ")
    assert sys.executable in log
    with pytest.raises(EnvironmentFailure, match="cannot be started"):
        launch(["/nowhere/mpirun"], os.environ, tmp_path, print)


def test_a_job_that_was_cancelled_is_told(tmp_path: Path) -> None:
    squeue = tmp_path / "squeue"
    env = {"SLURM_JOB_ID": "9", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    fails = script("raise SystemExit(143)")
    for state, how in {"CANCELLED": "was cancelled", "TIMEOUT": "time limit"}.items():
        squeue.write_text(f"#!/bin/sh\necho {state}\n")
        squeue.chmod(0o755)
        with pytest.raises(JobEnded, match=rf"^Slurm job 9 \S+ .*{how.split()[-1]}") as ended:
            launch(fails, env, tmp_path, print)
        assert "Nothing was finished. Go on with: dlio-bench" in str(stopped_error(ended.value, [], tmp_path))
    squeue.write_text("#!/bin/sh\necho RUNNING\n")
    with pytest.raises(EnvironmentFailure, match="status 143"):
        launch(fails, env, tmp_path, print)


def test_a_host_that_mpirun_lost_is_told_although_mpirun_ends_well(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="node3 was lost"):
        launch(script(f"print({UNREACHABLE!r})"), os.environ, tmp_path, print)


SRUN = """#!{python}
import pathlib, sys
starts = pathlib.Path({folder!r}) / "starts"
starts.write_text(starts.read_text() + "." if starts.exists() else ".")
if len(starts.read_text()) <= {crashes}:
    if {began}:
        print({met!r}, flush=True)
    print("srun: error: node2: tasks 1-2: Segmentation fault", file=sys.stderr)
    raise SystemExit(143)  # as srun does when it ends the other tasks
print("  3: hello from rank 3")
print("0: " + {ready!r})
"""


def test_srun_that_launches_nothing_and_ends_well_is_a_failure(tmp_path: Path) -> None:
    program = tmp_path / "srun"
    program.write_text("#!/bin/sh\necho 'srun: error: task 1 launch failed: Unspecified error' >&2\n")
    program.chmod(0o755)
    with pytest.raises(EnvironmentFailure, match="task 1 launch failed"):
        launch([str(program)], os.environ, tmp_path, [].append)


def srun(folder: Path, *, crashes: int, began: bool = False) -> tuple[list[str], Path]:
    """An srun whose first starts end in MPI_Init by signal 11, or (began) right after it; and a work folder."""
    program, work = folder / "srun", folder / "work"
    ready, met = f'{EVENT}{{"event": "ready"}}', f'{EVENT}{{"event": "met"}}'
    program.write_text(
        SRUN.format(python=sys.executable, folder=str(folder), crashes=crashes, began=began, met=met, ready=ready)
    )
    program.chmod(0o755)
    work.mkdir()
    return [str(program)], work


def test_a_crash_in_mpi_init_is_tried_again_and_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    argv, work = srun(tmp_path, crashes=2)
    heard: list[dict[str, object]] = []
    log = tmp_path / "kept.log"
    assert launch(argv, os.environ, work, heard.append, log=log) == 2
    assert heard == [{"event": "ready"}]
    assert capfd.readouterr().err.count("ended in MPI_Init by signal 11") == 2
    assert "[3] hello from rank 3" in log.read_text().splitlines()


def test_crashes_that_do_not_end_are_told_with_a_way_out(tmp_path: Path) -> None:
    argv, work = srun(tmp_path, crashes=3)
    with pytest.raises(EnvironmentFailure, match=r"MPI_Init by signal 11, 3 times.*--launcher mpirun"):
        launch(argv, os.environ, work, print)
    assert (tmp_path / "starts").read_text() == "..."


def test_ranks_that_have_met_are_never_started_again(tmp_path: Path) -> None:
    argv, work = srun(tmp_path, crashes=1, began=True)
    with pytest.raises(EnvironmentFailure, match="Segmentation fault"):
        launch(argv, os.environ, work, print)
    assert (tmp_path / "starts").read_text() == "."


NEST = """
import os, pathlib, subprocess, sys, time
from dlio_bench import signals
from dlio_bench.harness.cluster.process import launch
signals.listen()
child = "import os, pathlib, subprocess, sys, time; " \\
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); " \\
        "pathlib.Path(sys.argv[1]).write_text(f'{os.getpid()} {p.pid}'); time.sleep(600)"
launch([sys.executable, "-c", child, sys.argv[1]], os.environ, pathlib.Path(sys.argv[1]).parent, print)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_survives_the_command(tmp_path: Path, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    command = subprocess.Popen([sys.executable, "-c", NEST, str(pids)], stderr=subprocess.DEVNULL)
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    launcher, grandchild = map(int, pids.read_text().split())
    command.send_signal(number)
    command.wait(PATIENCE)
    gone([launcher] if number is signal.SIGKILL else [launcher, grandchild])  # ranks ask for their own end
    if alive(grandchild):
        os.kill(grandchild, signal.SIGKILL)


STARTING = """
import os, signal, subprocess, sys, time
from pathlib import Path
from dlio_bench import signals
from dlio_bench.harness.cluster.process import launch

class Started(subprocess.Popen):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        while not (pids.exists() and pids.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)  # before anybody has the process

signals.listen()
subprocess.Popen, pids = Started, Path(sys.argv[1])
launch(["/bin/sh", "-c", f"sleep 600 & echo $! > {pids}; wait"], os.environ, pids.parent, print)
"""


def test_an_interruption_while_the_launcher_starts_ends_what_it_has_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = [sys.executable, "-c", STARTING, str(pids)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "Interrupted" in done.stderr
    gone([int(pids.read_text())])


SWALLOWED = """
import os, signal, sys, time, weakref
from pathlib import Path
from dlio_bench import signals
from dlio_bench.harness.cluster.process import launch

class Thing: pass

signals.listen()
thing = Thing()
reference = weakref.ref(thing, lambda _: (os.kill(os.getpid(), signal.SIGINT), time.sleep(0.01)))
del thing
print("swallowed", flush=True)
launch([sys.executable, "-c", "import time; time.sleep(600)"], os.environ, Path(sys.argv[1]), print)
"""


def test_an_interruption_that_a_callback_has_swallowed_ends_the_launch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWED, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stdout == "swallowed\n", done.stderr
    assert done.stderr.count("Traceback") == 1  # where the launch ends; not where it was swallowed
    assert "Interrupted" in done.stderr


STANDING = """
import ctypes, sys
from pathlib import Path
from dlio_bench.harness.cluster.entry import run_rank, say

def stand_still(comm):
    say({"event": "ready"})
    lock = ctypes.create_string_buffer(64)  # of zeros: unlocked
    for _ in range(2):  # for ever in the second, with the interpreter's lock held
        ctypes.PyDLL(None).pthread_mutex_lock(lock)

raise SystemExit(run_rank(Path(sys.argv[1]), lambda: (1, stand_still)))
"""


def test_a_signal_has_ranks_write_where_they_stand(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def ready(_: dict[str, object]) -> None:
        assert not list(tmp_path.glob("stacks-*.txt"))
        os.kill(os.getpid(), signal.SIGUSR1)  # as a user does who wonders
        until(lambda: [file for file in tmp_path.glob("stacks-*.txt") if "stand_still" in file.read_text()])
        assert "in ready" in capfd.readouterr().err  # and where the command does
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(KeyboardInterrupt):
        launch([*script(STANDING), str(tmp_path)], os.environ, tmp_path, ready)
    assert signal.getsignal(signal.SIGUSR1) == before


def test_pulses_of_many_ranks_do_not_each_cause_a_look_at_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse = {"event": "pulse", "idle": 0, "waiting": True, "patience": 0, "host": "n", "rank": 0, "ranks": 1}
    line = EVENT + json.dumps(pulse | {"process": 7, "mute": False})
    heard: list[float] = []
    looks: list[float] = []
    monkeypatch.setattr(Watch, "record_pulse", lambda *heard_at: heard.append(heard_at[-1]))
    monkeypatch.setattr(Watch, "verdict", lambda _, now: looks.append(now))
    launch(script(f"print(({line!r} + chr(10)) * 3000)"), os.environ, tmp_path, print)
    assert len(heard) == 3000
    since = [look for look in looks if heard[0] <= look <= heard[-1]]  # not while Python starts and ends
    assert len(since) <= 2 + (heard[-1] - heard[0]) / LOOK_SECONDS < 1000


def test_time_in_which_the_command_itself_stood_still_is_not_the_silence_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    monkeypatch.setattr(Watch, "verdict", lambda _, now: looks.append(now))
    monkeypatch.setattr(process, "LOOK_SECONDS", 0.02)
    events = [EVENT + json.dumps({"event": "ready"})] * 3
    launch(script(f"print({chr(10).join(events)!r})"), os.environ, tmp_path, lambda _: time.sleep(0.1))
    assert len(looks) >= 3
    assert all(later - earlier < 0.1 for earlier, later in pairwise(looks))


STALLED = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from dlio_bench.errors import Stalled
from dlio_bench.harness.cluster import entry

def written():
    return sum(file.read_text().count("Current thread") for file in Path(sys.argv[1]).glob("stacks-*.txt"))

def until_asked(_):
    while written() < 2:
        time.sleep(0.01)

def body(comm):
    raise Stalled("rank 7 does not come")

entry.time = SimpleNamespace(sleep=until_asked, monotonic_ns=time.monotonic_ns)
raise SystemExit(entry.run_rank(Path(sys.argv[1]), lambda: (1, body)))
"""


def test_a_rank_that_waits_in_vain_has_all_write_where_they_stand(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"rank 7 does not come The stacks of 1 ranks") as failure:
        launch([*script(STALLED), str(tmp_path)], os.environ, tmp_path, print)
    assert f"{tmp_path}/stacks-*.txt" in str(failure.value)
    [file] = tmp_path.glob("stacks-*.txt")
    # once by itself, once when it was asked
    assert file.read_text().count("Current thread") == 2


def test_stacks_are_in_their_file_before_the_job_ends_however_slowly_it_is_written(tmp_path: Path) -> None:
    slow = """
from dlio_bench.harness.cluster import stacks
entry.LAST_WORDS = 0
stacks._KEEPER = "sleep 1; " + stacks._KEEPER
raise SystemExit"""
    code = STALLED.replace("raise SystemExit", slow)
    with pytest.raises(EnvironmentFailure, match=r"rank 7 does not come The stacks of 1 ranks"):
        launch([*script(code), str(tmp_path)], os.environ, tmp_path, print)


def test_too_little_memory_in_a_rank_is_said_with_what_helps(tmp_path: Path) -> None:
    code = STALLED.replace('Stalled("rank 7 does not come")', 'MemoryError("for 8 GiB")')
    with pytest.raises(EnvironmentFailure, match=r"Memory ran out.*for 8 GiB.*smaller --batch"):
        launch([*script(code), str(tmp_path)], os.environ, tmp_path, print)
