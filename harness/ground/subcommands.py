"""Runs commands of dlio-bench as processes of their own, for commands that consist of others."""

import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from dlio_bench import signals
from dlio_bench.harness.cluster.process import die_with_parent, python_command

END_SECONDS = 30.0  # that an interrupted command has to end its ranks and to remove what it left half done


def run_command(
    words: Sequence[str], *, folder: Path | None = None, handles: Sequence[int] = (), told: bool = True
) -> tuple[int, str]:
    """Run a command in a folder; its exit status, and its errors unless they are told.

    told: what it says on stderr goes there. handles: file descriptors that it keeps open, also if this process is
    killed. It has a session of its own, so that Ctrl-C on a terminal reaches this process alone, which ends it
    politely.
    """
    process = subprocess.Popen(
        python_command("dlio_bench", *words),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if told else subprocess.PIPE,
        text=True,
        start_new_session=True,
        pass_fds=handles,
        preexec_fn=partial(die_with_parent, signal.SIGTERM),  # noqa: PLW1509 - one system call, no lock taken
    )
    try:
        signals.check()
        _, errors = process.communicate()
    except BaseException:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode, errors or ""
