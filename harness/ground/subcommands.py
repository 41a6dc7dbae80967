"""Runs commands of dlio-bench as processes of their own, for commands that consist of others."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dlio_bench import signals
from dlio_bench.harness.cluster import walltime
from dlio_bench.harness.cluster.process import python_command
from dlio_bench.processes import die_with_parent

RESUME = "DLIO_BENCH_RESUME"  # for the commands that another one starts: what a user gives to go on
MESSAGE = "DLIO_BENCH_MESSAGE"  # for the same: the file that keeps the message with which one of them fails
END_SECONDS = 30.0  # that an interrupted command has to end its ranks and to remove what it left half done


def going_on(out: Path | None = None, words: Sequence[str] | None = None) -> str:
    """What a user gives to go on where this command was stopped; empty if the one that started this one says so.

    out: where its results are. words: of the command.
    """
    if RESUME in os.environ:
        return os.environ[RESUME]
    words = sys.argv[1:] if words is None else words
    named = out is None or any(word == "--out" or word.startswith("--out=") for word in words)
    return shlex.join(["dlio-bench", *words, *([] if named else ["--out", str(out)])])


def as_words(options: Mapping[str, Any]) -> list[str]:
    """Options by name as words of a command. None, False: not given; True: a flag; several values: with commas."""
    words = []
    for name, value in options.items():
        if value is not None and value is not False:
            several = isinstance(value, list | tuple)
            told = [] if value is True else [",".join(map(str, value)) if several else str(value)]
            words += [f"--{name.replace('_', '-')}", *told]
    return words


def run_command(
    words: Sequence[str],
    resume: str,
    *,
    folder: Path | None = None,
    handles: Sequence[int] = (),
    quiet: bool = False,
    message: Path | None = None,
) -> int:
    """Run a command in a folder; its exit status.

    resume: what a user gives to go on if this is stopped. quiet: nothing that it says is shown, and its message says
    how to go on; else this process does. handles: file descriptors that it keeps open, also if this process is killed.
    message: the file that keeps its message if it fails. It has a session of its own, so that Ctrl-C on a terminal
    reaches this process alone, which passes it on.
    """
    process = subprocess.Popen(
        python_command("dlio_bench", *words),
        cwd=folder,
        env=os.environ
        | {RESUME: resume if quiet else "", walltime.ENDS: "0"}  # this process keeps the time
        | ({} if message is None else {MESSAGE: str(message)}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if quiet else None,
        start_new_session=True,
        pass_fds=handles,
        preexec_fn=partial(die_with_parent, signal.SIGTERM),  # noqa: PLW1509 - one system call, no lock taken
    )
    try:
        signals.check()
        process.wait()
    except BaseException as error:
        process.send_signal(signals.last_signal() if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode
