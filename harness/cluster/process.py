"""Run a launcher's command: read progress from its output, end it on Ctrl-C."""

import contextlib
import json
import math
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from msgspec import Struct, field

from dlio_bench import processes, signals
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster import stacks, watch
from dlio_bench.harness.cluster.life import PULSE, forget_limit, write_limit
from dlio_bench.harness.cluster.mpi_library import in_session_folder
from dlio_bench.harness.cluster.outcome import RETRIES, LaunchOutcome, RankLog, why_failed, why_stalled
from dlio_bench.processes import die_with_parent

EVENT = "@dlio-bench "  # begins each line that a rank writes for the launching command
STALLED = "stalled"  # the event of a rank that has waited too long for others
MET = "met"  # the event of rank 0 when all ranks have met in MPI
DOING = "doing"  # the event that says in words what the ranks of a measurement do
FAILED = "failed"  # the event that carries a rank's report of its failure, which it also writes to a file
GRACE_SECONDS = 5.0
LAST_WORDS = 2.0  # seconds that ranks of a stalled job have to write their stacks before it ends
LOOK_SECONDS = 0.2  # between two looks at the clock, and at who stands still
LOG = "ranks.log"
CRASHED = re.compile(r"\btasks? [\d,\[\]-]+: Segmentation fault")  # srun's words

OnEvent = Callable[[dict[str, Any]], None]


def launch(
    argv: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    on_event: Callable[[dict[str, Any]], None],
    lost: str = "nothing was measured",
    *,
    folder_stays: bool = True,
    log: Path | None = None,
    one_host: bool = False,
) -> int:
    """Run the job whose work folder is `folder` to its end. BenchError with the ranks' own message when it fails.

    `lost`: what is lost when a rank is killed. `folder_stays`: False where the caller removes the folder on a failure.
    one_host: see Launch.
    Stalled when a rank makes no progress for longer than watch.timeout(); JobEnded when the scheduler's job has ended.

    A job step that srun started, and that ends in MPI_Init by signal 11, is started again, at most RETRIES times
    (an upstream race: open-mpi/ompi issues 12495, 11438 and 13559). Returns how often that was.

    The launcher gets a process group of its own; leaving this call early ends all of it. All ranks write their stacks
    when a rank has waited too long for others, or on SIGUSR1. Output other than events goes to `log`, which the caller
    keeps; None: to a file that stays only if it may explain a failure.
    """
    elsewhere = Path(tempfile.gettempdir()) / f"dlio-bench-ranks-{secrets.token_hex(4)}.log"
    output = RankLog(log or (folder / LOG if folder_stays else elsewhere), Path(argv[0]).name)
    retries = 0
    try:
        with in_session_folder(env) if one_host else contextlib.nullcontext(env) as settings:
            while (outcome := _launch_once(argv, settings, folder, on_event, output)).died_in_init(
                argv
            ) and retries < RETRIES:
                retries += 1
                _print_now(
                    f"{Path(argv[0]).name} ended in MPI_Init by signal 11, before any rank worked. It is started again "
                    f"({retries} of {RETRIES})."
                )
    finally:
        output.close()
    if outcome.stalled:
        raise why_stalled(outcome, folder if folder_stays else stacks.copy_stacks(folder), output, lost)
    if outcome.has_failed(output, lost):
        raise why_failed(outcome, argv, env, output, lost)
    if log is None:
        output.path.unlink(missing_ok=True)
    return retries


def _launch_once(
    argv: Sequence[str], env: Mapping[str, str], folder: Path, on_event: OnEvent, output: RankLog
) -> LaunchOutcome:
    """One launch, to its end."""
    watching = _watching(folder)
    heard = Heard(on_event)
    process: subprocess.Popen[bytes] | None = None
    try:
        with signals.hold():
            process = _start(argv, env)
        signals.check()
        with stacks.pass_requests_on(process, folder):
            stalled = _listen(process, heard, output, watching)
            status = 0 if stalled else process.wait()
    finally:
        if process is not None:
            _end(process, 0.0 if argv[0] == sys.executable else GRACE_SECONDS)
        forget_limit(folder)
        if watching is not None:
            _await_end(watching.processes())
        processes.sweep()
    hosts = watching.hosts() if watching is not None else {}
    return LaunchOutcome(status, stalled, heard.reports, heard.began, folder, heard.crashed, hosts)


def _start(argv: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """The launcher, in a process group of its own. EnvironmentFailure."""
    try:
        return subprocess.Popen(
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


class Heard(Struct):
    """What ranks have said in events besides their signs of life, and whether their launcher said that one crashed."""

    on_event: OnEvent
    reports: list[dict[str, Any]] = field(default_factory=list)
    began: bool = False
    crashed: bool = False

    def handle_line(self, line: str, output: RankLog) -> dict[str, Any] | None:
        """A line; the event in it that is about waiting ranks. Lines that are no event go into `output`."""
        event = _event(line)
        if event is None:
            if line:
                self.crashed = self.crashed or CRASHED.search(line) is not None
                output.add(line)
        elif event["event"] in (PULSE, STALLED):
            return event
        elif event["event"] == FAILED:
            self.reports.append(event)
        else:
            self.began = True
            if event["event"] != MET:
                self.on_event(event)
        return None


def _listen(
    process: "subprocess.Popen[bytes]", heard: Heard, output: RankLog, watching: watch.Watch | None
) -> str | None:
    """Read the ranks' output until it ends, or a rank stands still: then why, after all wrote their stacks.

    Lines that are no event go into `output`.
    """
    assert process.stdout is not None
    asked_all, stalled, over, look = False, None, math.inf, 0.0
    now = seen = time.monotonic()
    for line in _lines(process.stdout, LOOK_SECONDS):
        # while this process was stopped, or had no processor, it heard nobody: that is not the ranks' silence
        before, seen = seen, time.monotonic()
        now += min(seen - before, 2 * LOOK_SECONDS)
        if watching is not None and stalled is None and now >= look:
            look = now + LOOK_SECONDS  # not at every line: each look goes through all ranks, which all send lines
            stalled = watching.verdict(now)
            if stalled:
                stacks.request_stacks(process)
                over = now + LAST_WORDS
        if now > over:
            break
        event = heard.handle_line("" if line is None else line.decode(errors="replace"), output)
        if event is None:
            continue
        if event["event"] == PULSE:
            if watching is not None:
                watching.record_pulse(event, now)
        elif event["event"] == STALLED and not asked_all:
            stacks.request_stacks(process)
            asked_all = True
    return stalled


def _watching(folder: Path) -> watch.Watch | None:
    """What evaluates the ranks' signs of life; None without a time limit, or if the ranks cannot be told of it."""
    timeout = watch.timeout()
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


def _end(process: "subprocess.Popen[bytes]", grace: float) -> None:
    """End the launcher, politely first (it ends its ranks on every node), then its whole group and its children.

    grace: seconds in which it ends by itself; none for a rank that no launcher has started.

    Its connections to other hosts are children in groups of their own; one to a host that was cut off would stay.
    """
    children = _children(process.pid)
    if process.poll() is None:
        process.terminate()
        deadline = time.monotonic() + grace
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):  # the group is gone already
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel keeps a rank whose storage does not answer
        process.wait(LAST_WORDS)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)
    if process.stdout is not None:
        process.stdout.close()


def _await_end(pids: Sequence[int]) -> None:
    """Until these ranks hold no files: they may end a little later than the launcher."""
    deadline = time.monotonic() + LAST_WORDS
    while any(map(_runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _children(pid: int) -> list[int]:
    """Descriptors of the processes that a process has started, which stay theirs when their numbers are used again."""
    children = []
    with contextlib.suppress(OSError):  # it has ended
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                children.append(os.pidfd_open(int(child)))
    return children


def _print_now(message: str) -> None:
    """Tell the user at once, on a line of its own."""
    line = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{line}dlio-bench: {message}", file=sys.stderr, flush=True)


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """How every worker is started: this interpreter, nothing of the working directory on its path."""
    return (sys.executable, "-P", "-m", module, *arguments)
