"""Starting and ending an emulated parallel file system: one mount for each virtual node, gone when `with` is left."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue

from msgspec import Struct

from dlio_bench.errors import BenchError, EnvironmentFailure
from dlio_bench.harness.cluster.process import python_command
from dlio_bench.harness.machine import mounts
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.storage.pfs import passthrough
from dlio_bench.harness.storage.pfs.board import READY, Board
from dlio_bench.harness.storage.pfs.bucket import SharedLink
from dlio_bench.harness.storage.pfs.daemon import Config
from dlio_bench.harness.storage.pfs.spec import PfsSpec
from dlio_bench.processes import die_with_parent

FOLDER = "dlio-bench-pfs-"  # how the folders of the mounts begin
BOARD, BUCKET, METADATA = "board", "bucket", "metadata"  # files: of counters, and of the rates that nodes share
_PATIENCE = 30.0  # seconds for all mounts to answer; one takes some 0.3 s
_DYING = 1.0  # seconds after a failure until a daemon that dies counts as dead: its mount may be gone before
_GRACE = 2.0  # seconds for all daemons to end when asked
_LOOK = 0.01
_INSTALL = (
    "Install FUSE 3 (Debian and Ubuntu: apt-get install fuse3; RHEL: dnf install fuse3; SUSE: zypper install fuse3), "
    "and start a container with --device /dev/fuse --cap-add SYS_ADMIN"
)


class Emulation(Struct, frozen=True):
    """mounts: the folder that each node reads, in order of nodes. board: the file for `Board.open`."""

    mounts: tuple[Path, ...]
    board: Path


def available() -> str | None:
    """Why no file system can be emulated here, with the fix; None when it can. Quick, for it mounts nothing."""
    lacking = []
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        lacking.append("/dev/fuse")
    if shutil.which("fusermount3") is None:
        lacking.append("fusermount3")
    if passthrough.library() is None:
        lacking.append("libfuse3")
    if lacking:
        return f"No {' and no '.join(lacking)} that this user may use. {_INSTALL}."
    if find_spec("mfusepy") is None:
        return "The Python package mfusepy is missing: pip install 'mfusepy>=3.1'."
    return None


@contextmanager
def mount_temporarily(spec: PfsSpec, source: Path, nodes: int, *, writable: bool = False) -> Iterator[Emulation]:
    """`mount_nodes` in a locked temporary folder, which commands that clean up after killed ones leave alone."""
    with temp_folder(FOLDER) as work, mount_nodes(spec, source, nodes, work, writable=writable) as emulation:
        yield emulation


@contextmanager
def places(
    spec: PfsSpec | None, source: Path, nodes: int, *, writable: bool = False
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Where each node finds a folder, and the file for `Board.open`: empty where no file system is emulated."""
    if spec is None:
        yield (str(source),) * nodes, ""
        return
    with mount_temporarily(spec, source, nodes, writable=writable) as emulation:
        yield tuple(map(str, emulation.mounts)), str(emulation.board)


@contextmanager
def mount_nodes(spec: PfsSpec, source: Path, nodes: int, work: Path, *, writable: bool = False) -> Iterator[Emulation]:
    """Mount `source` once for each of `nodes` virtual nodes in the folder `work`, each as slow as `spec` says.

    writable: files are written through the mounts too, and each node sees at once what another has written.
    However the block is left, the mounts, their daemons and the files made in `work` are gone afterwards; when this
    process is killed, the kernel ends the daemons, and libfuse's helper unmounts.
    Raises EnvironmentFailure when there is no FUSE, no source, or a mount that does not answer within 30 s, and instead
    of what the block raises where one of the daemons has died. Commands use `mount_temporarily`.
    """
    if reason := available():
        raise EnvironmentFailure(f"A parallel file system cannot be emulated here. {reason}")
    if not source.is_dir():
        raise EnvironmentFailure(f"'{source}' is not a folder that can be mounted. Give the folder of a dataset.")
    if nodes < 1:
        raise EnvironmentFailure(f"A parallel file system for {nodes} nodes cannot be emulated; ask for at least one.")
    source, work = source.resolve(), work.resolve()
    made_work = not work.exists()
    work.mkdir(parents=True, exist_ok=True)
    points = tuple(work / f"node-{node}" for node in range(nodes))
    board, bucket, metadata = (work / name for name in (BOARD, BUCKET, METADATA))
    daemons: list[subprocess.Popen[bytes]] = []
    started: SimpleQueue[subprocess.Popen[bytes] | OSError] = SimpleQueue()
    over = threading.Event()
    try:
        Board.create(board, nodes)
        SharedLink.create(bucket, nodes)
        SharedLink.create(metadata, nodes)
        for node, point in enumerate(points):
            point.mkdir()
            shown, files = (str(source), str(point)), (str(bucket), str(metadata))
            Config(spec, *shown, str(board), node, *files, os.getpid(), writable).write(_config(point))
        threading.Thread(target=_keep, args=(points, started, over), name="mounts", daemon=True).start()
        for _ in points:
            if isinstance(daemon := started.get(), OSError):
                raise daemon
            daemons.append(daemon)
        _await(board, points, daemons)
        try:
            yield Emulation(points, board)
        except (BenchError, OSError) as error:
            _require_alive(points, daemons, error)
            raise
    finally:
        _end(points, daemons)
        over.set()
        for point in points:
            _config(point).unlink(missing_ok=True)
            _log(point).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                point.rmdir()
        for file in (board, bucket, metadata):
            file.unlink(missing_ok=True)
        if made_work:
            with contextlib.suppress(OSError):  # it holds files of others
                work.rmdir()


def _config(point: Path) -> Path:
    return point.with_suffix(".json")


def _log(point: Path) -> Path:
    return point.with_suffix(".log")


def _log_tail(point: Path) -> str:
    """The end of a daemon's output, on one line."""
    return " / ".join(_log(point).read_text(errors="replace").split("\n"))[-600:].strip(" /")


def _keep(
    points: tuple[Path, ...], started: "SimpleQueue[subprocess.Popen[bytes] | OSError]", over: threading.Event
) -> None:
    """Start the daemons from a thread that stays until all is over: the kernel ends them with it.

    The thread that reads a mount whose daemon stands still cannot even be killed.
    """
    try:
        for point in points:
            started.put(_start(point))
    except OSError as error:
        started.put(error)
    over.wait()


def _start(point: Path) -> "subprocess.Popen[bytes]":
    """A daemon in a session of its own: Ctrl-C is for the command, which ends its daemons last."""
    with _log(point).open("wb") as log:
        return subprocess.Popen(
            python_command("dlio_bench.harness.storage.pfs.daemon", str(_config(point))),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no lock taken
        )


def _await(board: Path, points: tuple[Path, ...], daemons: list["subprocess.Popen[bytes]"]) -> None:
    """Until every daemon has heard from the kernel that its mount is there."""
    deadline = time.monotonic() + _PATIENCE
    with Board.open(board) as open_board:
        waiting = list(range(len(points)))
        while waiting:
            node = waiting[0]
            with open_board.row(node) as row:
                answers = row[READY] != 0
            if answers:
                waiting.pop(0)
                continue
            status = daemons[node].poll()
            if status is not None or time.monotonic() > deadline:
                what = f"did not answer within {_PATIENCE:.0f} s" if status is None else f"ended with status {status}"
                raise EnvironmentFailure(
                    f"The emulated file system of node {node} at '{points[node]}' {what}. Its output: "
                    f"{_log_tail(points[node]) or '(none)'}. If it may not mount: {_INSTALL}."
                )
            time.sleep(_LOOK)


def _require_alive(
    points: tuple[Path, ...], daemons: list["subprocess.Popen[bytes]"], error: BenchError | OSError
) -> None:
    """EnvironmentFailure where a daemon is dead: that is the cause of `error`, whatever it looks like."""
    deadline = time.monotonic() + _DYING
    while all(daemon.poll() is None for daemon in daemons) and time.monotonic() < deadline:
        time.sleep(_LOOK)
    for node, daemon in enumerate(daemons):
        status = daemon.poll()
        if status is not None:
            how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
            output = _log_tail(points[node])
            raise EnvironmentFailure(
                f"The daemon of the emulated file system of node {node} at '{points[node]}' ended {how} while it was "
                f"in use{f', with the output: {output}' if output else ''}. The kernel ends processes when memory runs "
                f"out (see dmesg). Run again: it is mounted anew. What failed: {error}"
            ) from error


def _end(points: tuple[Path, ...], daemons: list["subprocess.Popen[bytes]"]) -> None:
    """Terminate the daemons, then kill them, then unmount what is still mounted. Never waits for a reader."""
    for daemon in daemons:
        daemon.terminate()
    deadline = time.monotonic() + _GRACE
    for daemon in daemons:
        try:
            daemon.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    deadline = time.monotonic() + _GRACE  # for fusermount3, which unmounts for a killed daemon
    while left := still_mounted(points):
        for point in left if time.monotonic() > deadline else ():
            subprocess.run(["fusermount3", "-u", "-z", "-q", str(point)], check=False, stderr=subprocess.DEVNULL)
        if time.monotonic() > deadline + _GRACE:
            return
        time.sleep(_LOOK)


def still_mounted(points: tuple[Path, ...]) -> list[Path]:
    """Those of `points` where something is mounted, by the kernel's own list: the mounts themselves are not touched."""
    here = {mount.point for mount in mounts.parse_mountinfo(Path("/proc/self/mountinfo").read_text())}
    return [point for point in points if str(point) in here]
