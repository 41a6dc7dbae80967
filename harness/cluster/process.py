"""Run a launcher's command: read progress from its output, end it on Ctrl-C, explain why it failed."""

import contextlib
import ctypes
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from dlio_bench import signals
from dlio_bench.errors import ERRORS, BenchError, EnvironmentFailure, Stalled
from dlio_bench.harness.cluster import stacks, watch
from dlio_bench.harness.cluster.life import PULSE, forget_limit, write_limit

EVENT = "@dlio-bench "  # begins each line that a rank writes for the launching command
STALLED = "stalled"  # the event of a rank that has waited too long for others
FAILED = "failed"  # the event that carries a rank's report of its failure, which it also writes to a file
PR_SET_PDEATHSIG = 1  # prctl(2)
GRACE_SECONDS = 5.0
LAST_WORDS = 2.0  # seconds that ranks of a stalled job have to write their stacks before it ends
LOOK_SECONDS = 0.2  # between two looks at the clock while no output comes
LOG, KEPT_LINES = "launcher.log", 500
MEMORY_HINT = "The kernel does so when memory runs out (see dmesg); fewer ranks or a smaller --staging need less."

# Loaded here: it is called between fork and exec, where loading could wait for a lock of another thread.
_prctl = ctypes.CDLL(None, use_errno=True).prctl

OnEvent = Callable[[dict[str, Any]], None]


def die_with_parent(with_signal: int = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when its parent is gone, so that no rank is ever left behind."""
    _prctl(PR_SET_PDEATHSIG, int(with_signal), 0, 0, 0)


def launch(
    argv: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    on_event: Callable[[dict[str, Any]], None],
    lost: str = "nothing was measured",
    *,
    folder_stays: bool = True,
) -> None:
    """Run the job whose work folder is `folder` to its end. BenchError with the ranks' own message when it fails.

    `lost`: what is lost when a rank is killed. `folder_stays`: False where the caller removes the folder on a failure.
    Stalled when a rank makes no progress for longer than watch.allowed().

    The launcher gets a process group of its own; leaving this call early ends all of it. All ranks write their stacks
    when a rank has waited too long for others, or on SIGUSR1. Output other than events is kept in memory, and written
    to launcher.log where it explains a failure.
    """
    watching = _watching(folder)
    output: deque[str] = deque(maxlen=KEPT_LINES)
    reports: list[dict[str, Any]] = []
    try:
        process = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, signal.SIGTERM),  # noqa: PLW1509 - one system call, no lock taken
        )
    except OSError as error:
        raise EnvironmentFailure(
            f"The launcher {argv[0]} cannot be started: {error.strerror}. `dlio-bench doctor` shows what is there; "
            "choose another with --launcher."
        ) from error
    assert process.stdout is not None
    try:
        signals.check()
        with stacks.passed_on(process, folder):
            stalled = _listen(process, on_event, output, reports, watching)
            status = 0 if stalled else process.wait()
    finally:
        _end(process)
        forget_limit(folder)
    if stalled:
        raise Stalled(stalled + _stacks(folder if folder_stays else stacks.rescued(folder)))
    if status != 0:
        raise _reason(folder, argv, status, "".join(output), lost, reports)


def _listen(
    process: "subprocess.Popen[bytes]",
    on_event: OnEvent,
    output: deque[str],
    reports: list[dict[str, Any]],
    watching: watch.Watch | None,
) -> str | None:
    """Read the ranks' output until it ends, or a rank stands still: then why, after all wrote their stacks.

    Lines that are no event go into `output`, the ranks' reports of a failure into `reports`.
    """
    assert process.stdout is not None
    asked_all, stalled, over = False, None, math.inf
    for line in _lines(process.stdout, LOOK_SECONDS):
        now = time.monotonic()
        if watching is not None and stalled is None and (stalled := watching.verdict(now)):
            stacks.ask(process)
            over = now + LAST_WORDS
        if now > over:
            break
        text = "" if line is None else line.decode(errors="replace")
        event = _event(text)
        if event is None:
            if text:
                output.append(text)
        elif event["event"] == PULSE:
            if watching is not None:
                watching.hear(event, now)
        elif event["event"] == FAILED:
            reports.append(event)
        elif event["event"] == STALLED:
            if not asked_all:
                stacks.ask(process)
            asked_all = True
        else:
            on_event(event)
    return stalled


def _watching(folder: Path) -> watch.Watch | None:
    """What evaluates the ranks' signs of life; None without a time limit, or if the ranks cannot be told of it."""
    timeout = watch.allowed()
    return watch.Watch(timeout, time.monotonic()) if timeout and write_limit(folder, timeout) else None


def _lines(pipe: IO[bytes], look: float) -> Iterator[bytes | None]:
    """The lines that come out of a pipe until its end; None whenever there is none for `look` seconds."""
    rest = b""
    while True:
        if not select.select([pipe], [], [], look)[0]:
            yield None
            continue
        chunk = os.read(pipe.fileno(), 1 << 16)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if not chunk:
            if rest:
                yield rest
            return


def _event(line: str) -> dict[str, Any] | None:
    """The event in a line, wherever in the line it begins; None in other lines."""
    _, mark, rest = line.partition(EVENT)
    try:
        event = json.JSONDecoder().raw_decode(rest)[0] if mark else None
    except json.JSONDecodeError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the launcher, politely first (it ends its ranks on every node), then its whole group."""
    if process.poll() is None:
        process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):  # the group is gone already
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _reason(
    folder: Path, argv: Sequence[str], status: int, output: str, lost: str, reports: list[dict[str, Any]]
) -> BenchError:
    """Why the job failed: a rank's own report, else the launcher's output about a rank that died."""
    reports = reports + [json.loads(path.read_text()) for path in sorted(folder.glob("error-*.json"))]
    if reports:
        # a defect goes first, with the place of its trace; else the failure of the lowest status
        report = sorted(reports, key=lambda entry: (entry["expected"], entry["status"]))[0]
        if report["expected"]:
            return ERRORS[report["status"]](report["message"] + _stacks(folder))
        last = report["message"].strip().splitlines()[-1]
        trace = _kept(folder / "defect.txt", report["message"])
        return EnvironmentFailure(f"A rank failed unexpectedly: {last}. That is a defect of dlio-bench; {trace}.")
    if killed := re.search(r"rank (\d+) with PID (\d+) on node (\S+) exited on\s+signal (\d+)", output):
        rank, pid, host, number = killed.groups()
        name = signal.Signals(int(number)).name
        return EnvironmentFailure(
            f"Rank {rank} (process {pid} on {host}) was ended by {name}, and the job with it: {lost}. "
            f"{MEMORY_HINT if number == '9' else ''}".rstrip()
        )
    if status < 0:  # the process that was started is the rank itself, or the launcher was ended
        name = signal.Signals(-status).name
        hint = f" {MEMORY_HINT}" if -status == signal.SIGKILL else ""
        return EnvironmentFailure(f"The process {Path(argv[0]).name} was ended by {name}: {lost}.{hint}")
    tail = " / ".join(line.strip() for line in output.splitlines() if line.strip(" -"))[-600:]
    return EnvironmentFailure(
        f"The launcher {Path(argv[0]).name} ended with status {status} before the ranks were done. "
        f"Its last words: {tail or '(none)'}. The whole command is shown by --dry-run; {_kept(folder / LOG, output)}."
    )


def _stacks(folder: Path) -> str:
    """A sentence that says where the ranks' stacks are; empty where there are none."""
    files = stacks.written(folder)
    return f" The stacks of {len(files)} ranks are in {folder}/stacks-*.txt." if files else ""


def _kept(path: Path, text: str) -> str:
    """Write the explanation of a failure, and say where; a full disk must not hide the failure itself."""
    try:
        path.write_text(text)
    except OSError as error:
        return f"the rest could not be kept in {path}: {error.strerror}"
    return f"the whole is in {path}"


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """How every worker is started: this interpreter, nothing of the working directory on its path."""
    return (sys.executable, "-P", "-m", module, *arguments)
