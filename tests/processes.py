"""Processes of tests: the command as a user starts it, what a test waits for, and whether a process has ended."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from dlio_bench.harness.storage.tier_files import MEMORY_NAME

DLIO = [sys.executable, "-m", "dlio_bench"]
PATIENCE = 120.0  # seconds until what must come counts as missing: machines that test are busy


def start(cwd: Path, *arguments: str, **env: str) -> "subprocess.Popen[str]":
    """Start the command in `cwd`, with these environment variables besides."""
    return subprocess.Popen(
        [*DLIO, *arguments], cwd=cwd, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextlib.contextmanager
def ending(process: "subprocess.Popen[str]") -> Iterator["subprocess.Popen[str]"]:
    """A process that is killed at the end of the block, if it has not ended by then."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def dlio(cwd: Path, *arguments: str, status: int = 0, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run the command, which must end with this status and without a traceback."""
    process = start(cwd, *arguments, **env)
    try:
        out, err = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{' '.join(arguments)} was not over in time.\n{_where_it_stands(process, cwd)}")
    assert process.returncode == status, out + err
    assert "Traceback" not in out + err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _where_it_stands(process: "subprocess.Popen[str]", cwd: Path) -> str:
    """End a command that takes too long; the stacks of the command and of its ranks."""
    process.send_signal(signal.SIGUSR1)
    time.sleep(3)  # for the launcher to pass it on
    stacks = {path.name: path.read_text() for path in cwd.rglob("stacks-*.txt")}
    process.terminate()
    out, err = process.communicate()
    return "\n".join([out, err, *(f"{name}:\n{text}" for name, text in stacks.items())])


def until(done: Callable[[], object], process: "subprocess.Popen[str] | None" = None, missing: str = "") -> None:
    """Wait until `done()`; fail after PATIENCE, and as soon as the process that brings it about has ended."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, missing
        # it may have ended just after it brought it about
        assert process is None or process.poll() is None or done(), process.communicate()
        time.sleep(0.01)


def stop(pid: int) -> None:
    """Stop a process, and return when each of its threads stands still: one that still runs may take a request."""
    os.kill(pid, signal.SIGSTOP)
    tasks = [*Path(f"/proc/{pid}/task").iterdir()]
    until(lambda: all((task / "stat").read_text().rsplit(")", 1)[1].split()[0] == "T" for task in tasks))


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    pids = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended
            for child in map(int, task.read_text().split()):
                pids += [child, *descendants(child)]
    return pids


def gone(pids: Iterable[int]) -> None:
    """Wait until all of these have ended."""
    left = list(pids)
    until(lambda: not any(map(alive, left)), missing=f"orphans: {left}")


def ranks_of(pid: int) -> list[int]:
    """The ranks that a command has started under Open MPI, in the order of their numbers."""
    found: dict[int, bytes] = {}
    numbers: dict[int, int] = {}
    for child in descendants(pid):
        with contextlib.suppress(OSError):  # it has ended
            line = Path(f"/proc/{child}/cmdline").read_bytes()
            module = line.split(b"\0")[3:4]
            if module and module[0].startswith(b"dlio_bench.harness.") and module[0].endswith(b".rank"):
                for entry in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                    if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                        found[child], numbers[child] = line, int(entry.partition(b"=")[2])
    return sorted(_begun(found), key=numbers.__getitem__)


def pids_of(command: str) -> list[int]:
    """The processes whose command line has this part, but for launchers."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            line = entry.read_bytes()
            text = line.replace(b"\0", b" ").decode(errors="replace")
            if command in text and "mpirun" not in text and "prterun" not in text:
                found[int(entry.parent.name)] = line
    return sorted(_begun(found))


def _begun(lines: Mapping[int, bytes]) -> list[int]:
    """The processes of these command lines that have begun their programs: one just forked has its parent's line."""
    return [pid for pid, line in lines.items() if lines.get(_parent(pid)) != line]


def _parent(pid: int) -> int:
    """The process that has started another one; 0 where that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def open_files(pid: int | str = "self") -> dict[str, str]:
    """The descriptors of a process, this one by default, and the files they are of; none where it has ended."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # that of this very listing
            found[entry.name] = str(entry.readlink())
    return found


def has_tier(pid: int) -> bool:
    """Whether a rank keeps samples in memory."""
    return any(f"memfd:{MEMORY_NAME}" in name for name in open_files(pid).values())
