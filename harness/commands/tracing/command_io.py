"""`dlio-bench trace --command`: runs a command, and counts what it and its descendants read and wrote."""

import ctypes
import json
import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.commands.tracing.options import Options

if TYPE_CHECKING:
    from dlio_bench.reports.traces.process_io import Counted

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
LOOK_SECONDS = 1.0  # between looks at the command, should a thread have taken the signal that tells of its end
PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
# What Python has changed for itself: a command gets these as they were.
RESTORED = {signal.SIGPIPE, signal.SIGXFSZ, *PASSED_ON}


def run(options: Options) -> int:
    """Run the command in options.words; 0 where it ended with 0, else 4. UsageError, EnvironmentFailure."""
    words = options.words
    if not words:
        raise UsageError("--command has no command. Write it behind two hyphens: trace --command -- CMD ARGS.")
    if options.dry_run:
        print(json.dumps({"command": words}) if options.json else shlex.join(words))
        return 0
    counted = count(words, stdout=2 if options.json else 1)

    from dlio_bench.reports.traces import process_io

    if options.json:
        print(json.dumps(process_io.document(counted)))
    else:
        print(process_io.render(counted), end="")
    return 0 if counted.status == 0 else EnvironmentFailure.status


def count(words: tuple[str, ...], stdout: int = 1) -> "Counted":
    """Run a command, whose standard output goes to a file descriptor, and wait. EnvironmentFailure.

    Linux adds the counters of a process to those of the parent that waits for it. This process, which must have no
    other children and threads, reads and writes nothing meanwhile: the difference is the command's, with all
    descendants that were waited for.
    """
    sys.stdout.flush()
    signals = {*PASSED_ON, signal.SIGCHLD}
    before_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # descendants that lose their parents become this process's
    try:
        before = _own_counters()
        started = time.perf_counter()
        try:
            command = os.posix_spawnp(
                words[0],
                words,
                os.environ,
                file_actions=[] if stdout == 1 else [(os.POSIX_SPAWN_DUP2, stdout, 1)],
                setsigmask=before_mask,
                setsigdef=RESTORED,
            )
        except OSError as error:
            raise EnvironmentFailure(
                f"{shlex.join(words)} cannot be started: {error.strerror}. Look at its name, and whether it may be run."
            ) from error
        status = _wait(command, signals)
        seconds = time.perf_counter() - started
        left = _reap()
        after = _own_counters()
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before_mask)

    from dlio_bench.reports.traces.process_io import (  # NumPy starts threads, which signals would go to
        Counted,
        io_between,
    )

    return Counted(words, status, seconds, io_between(before, after), left)


def _own_counters() -> str:
    """The text of /proc/self/io, by one call of read."""
    try:
        handle = os.open("/proc/self/io", os.O_RDONLY)
        try:
            return os.read(handle, 4096).decode()
        finally:
            os.close(handle)
    except OSError as error:
        raise EnvironmentFailure(
            f"/proc/self/io cannot be read: {error.strerror}. This kernel, or container, does not count a process's "
            "I/O, and the command was not started."
        ) from error


def _wait(command: int, signals: set[signal.Signals]) -> int:
    """The exit status of a process, or minus its signal. What interrupts this process goes to the command.

    Ctrl-C on a terminal reaches both: such a signal is the kernel's, and is not sent a second time.
    """
    while True:
        info = signal.sigtimedwait(signals, LOOK_SECONDS)
        if (
            info is not None and info.si_signo != signal.SIGCHLD and info.si_code <= 0
        ):  # SI_USER and the like: of a process
            with suppress(ProcessLookupError):
                os.kill(command, info.si_signo)
        pid, status = os.waitpid(command, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)


def _reap() -> bool:
    """Wait for descendants that the command left to this process and that have ended; whether others still run."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
