"""Running a launcher's command: progress read from its output, an end on Ctrl-C, the reason when it fails."""

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlio_bench.errors import ERRORS, BenchError, EnvironmentFailure

EVENT = "@dlio-bench "  # what rank 0 says to the command that launched it begins so
FAILED = "failed"  # the event that stands for a report which could not be written down
PR_SET_PDEATHSIG = 1  # prctl(2)
GRACE_SECONDS = 5.0
MEMORY_HINT = "The kernel does so when memory runs out (see dmesg); fewer ranks or a smaller --staging need less."


def die_with_parent(with_signal: int = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when its parent is gone, so that no rank is ever left behind."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(with_signal), 0, 0, 0)


def launch(
    argv: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    on_event: Callable[[dict[str, Any]], None],
    lost: str = "nothing was measured",
) -> None:
    """Run the job whose work folder is `folder` to its end. BenchError with the ranks' own message when it fails.

    `lost` says what becomes of the work when a rank is killed.

    The launcher gets a process group of its own, which is ended with everything in it when this call is left early.
    """
    log = folder / "launcher.log"
    with log.open("wb") as errors:
        try:
            process = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                preexec_fn=_die_softly,  # noqa: PLW1509 - no threads here yet
            )
        except OSError as error:
            raise EnvironmentFailure(
                f"The launcher {argv[0]} cannot be started: {error.strerror}. `dlio-bench doctor` shows what is there; "
                "choose another with --launcher."
            ) from error
        assert process.stdout is not None
        reports: list[dict[str, Any]] = []

        def heard(event: dict[str, Any]) -> None:
            if event["event"] == FAILED:
                reports.append(event)
            else:
                on_event(event)

        try:
            for line in process.stdout:
                _pass_on(line, errors, heard)
            status = process.wait()
        finally:
            _end(process)
    if status != 0:
        raise _reason(folder, argv, status, lost, reports)


def _pass_on(line: bytes, log: Any, on_event: Callable[[dict[str, Any]], None]) -> None:
    text = line.decode(errors="replace")
    if EVENT in text:
        on_event(json.loads(text.split(EVENT, 1)[1]))
    else:
        with contextlib.suppress(OSError):  # a full disk
            log.write(line)


def _die_softly() -> None:
    die_with_parent(signal.SIGTERM)


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


def _reason(folder: Path, argv: Sequence[str], status: int, lost: str, reports: list[dict[str, Any]]) -> BenchError:
    """Why the job failed: what a rank wrote down, else what the launcher said of a rank that died."""
    reports = reports + [json.loads(path.read_text()) for path in sorted(folder.glob("error-*.json"))]
    if reports:
        # the gravest expected failure speaks for all; an unexpected one is a defect of ours and shows its trace
        report = sorted(reports, key=lambda entry: (entry["expected"], entry["status"]))[0]
        if report["expected"]:
            return ERRORS[report["status"]](report["message"])
        path = folder / "defect.txt"
        path.write_text(report["message"])
        last = report["message"].strip().splitlines()[-1]
        return EnvironmentFailure(
            f"A rank failed unexpectedly: {last}. That is a defect of dlio-bench; its trace is in {path}."
        )
    said = (folder / "launcher.log").read_text(errors="replace")
    if killed := re.search(r"rank (\d+) with PID (\d+) on node (\S+) exited on\s+signal (\d+)", said):
        rank, pid, host, number = killed.groups()
        name = signal.Signals(int(number)).name
        return EnvironmentFailure(
            f"Rank {rank} (process {pid} on {host}) was ended by {name}, and the job with it: {lost}. "
            f"{MEMORY_HINT if number == '9' else ''}".rstrip()
        )
    tail = " / ".join(line.strip() for line in said.splitlines() if line.strip())[-600:]
    return EnvironmentFailure(
        f"The launcher {Path(argv[0]).name} ended with status {status} before the ranks were done. "
        f"Its last words: {tail or '(none)'}. The whole command is shown by --dry-run; its output is kept in "
        f"{folder / 'launcher.log'}."
    )


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """How every worker is started: this interpreter, nothing of the working directory on its path."""
    return (sys.executable, "-P", "-m", module, *arguments)
