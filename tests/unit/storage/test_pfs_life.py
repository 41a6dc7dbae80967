"""The life of emulated mounts: nothing stays behind, whoever ends, is killed, or never starts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlio_bench.errors import DataError, EnvironmentFailure
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.machine.waits import awaited_file
from dlio_bench.harness.storage.pfs import board as board_module
from dlio_bench.harness.storage.pfs import emulation as emulation_module
from dlio_bench.harness.storage.pfs.board import READY, Board
from dlio_bench.harness.storage.pfs.emulation import FOLDER, available, mount_nodes
from dlio_bench.harness.storage.pfs.spec import PfsSpec
from tests import mounts
from tests.mounts import FREE, mounts_below, running
from tests.needs import needs
from tests.processes import PATIENCE, alive, gone, stop, until

pytestmark = pytest.mark.slow

source = mounts.source  # a fixture belongs to the module that has its name


@needs("fuse")
def test_nothing_is_left(source: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    with running(FREE, source, 3, work) as (emulation, board):
        pids = [board.row(node)[READY] for node in range(3)]
        assert sorted(mounts_below(work)) == sorted(map(str, emulation.mounts))
    assert not mounts_below(work)
    assert not work.exists()
    assert not any(map(alive, pids))
    with pytest.raises(EnvironmentFailure, match="only as long as its mounts"):
        Board.open(emulation.board)


@needs("fuse")
def test_an_error_inside_leaves_nothing_and_a_given_folder_stays(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    def use() -> None:
        with running(FREE, source, 1, tmp_path):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert not mounts_below(tmp_path)


@needs("fuse")
def test_requests_that_would_wait_for_long_hold_nothing_up(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulation_module, "_GRACE", 0.3)
    with running(PfsSpec(1000.0), source, 1, tmp_path / "work") as (emulation, board):
        code = (
            "import os, sys; f = os.open(sys.argv[1], os.O_RDONLY); print('open', flush=True); os.pread(f, 1 << 20, 0)"
        )
        command = [sys.executable, "-c", code, str(emulation.mounts[0] / "big")]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert reader.stdout is not None
        assert reader.stdout.readline()
        time.sleep(0.2)  # so that it most likely waits in its read, for 1000 s
        assert board.counters(0).pfs_bytes == 0
    assert not mounts_below(tmp_path)
    reader.communicate(timeout=PATIENCE)
    assert reader.returncode != 0


def seen(path: Path) -> bool:
    """Whether a file is there; the kernel may fail for a moment until a dead daemon's mount has gone."""
    try:
        return path.exists()
    except OSError:
        return False


@needs("fuse")
def test_a_killed_daemon_leaves_no_mount(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mount goes with it, and nothing else."""
    monkeypatch.setattr(board_module, "_PATIENCE", 0.1)
    work = tmp_path / "work"
    with running(FREE, source, 2, work) as (emulation, board):
        os.kill(board.row(0)[READY], signal.SIGKILL)
        until(lambda: mounts_below(work) == [str(emulation.mounts[1])])
        assert (emulation.mounts[1] / "one").read_bytes() == (source / "one").read_bytes()
        with pytest.raises(EnvironmentFailure, match="did not empty its cache"):
            board.drop_cache(0)
    assert not mounts_below(work)
    assert not work.exists()


@needs("fuse")
def test_what_fails_after_a_daemon_has_died_is_told_as_that(source: Path, tmp_path: Path) -> None:
    """The kernel takes the mount away, and what was below it looks like a file that is missing."""

    def read() -> None:
        with running(FREE, source, 2, tmp_path / "work") as (emulation, board):
            os.kill(board.row(1)[READY], signal.SIGKILL)
            until(lambda: not seen(emulation.mounts[1] / "one"))
            raise DataError(f"{emulation.mounts[1] / 'one'} is missing from its dataset. Delete its folder.")

    with pytest.raises(EnvironmentFailure, match=r"(?s)daemon of .* node 1 at .*node-1' ended by SIGKILL.*Run again"):
        read()


PARENT = """
import json, pathlib, sys, time
from dlio_bench.harness.storage.pfs.board import READY, Board
from dlio_bench.harness.storage.pfs.emulation import mount_nodes
from dlio_bench.harness.storage.pfs.spec import PfsSpec
NODES = int(sys.argv[3])
with mount_nodes(PfsSpec(None), pathlib.Path(sys.argv[1]), NODES, pathlib.Path(sys.argv[2])) as emulation:
    with Board.open(emulation.board) as board:
        print(json.dumps([board.row(node)[READY] for node in range(NODES)]), flush=True)
        time.sleep(600)
"""


@needs("fuse")
@pytest.mark.parametrize(
    ("number", "stands_still"), [(signal.SIGINT, False), (signal.SIGKILL, False), (signal.SIGKILL, True)]
)
def test_a_stopped_parent_leaves_no_mount(
    source: Path, tmp_path: Path, number: signal.Signals, stands_still: bool
) -> None:
    work = tmp_path / "work"
    nodes = 2 if stands_still or number == signal.SIGINT else 12  # many: what one mount does is a matter of order
    command = [sys.executable, "-P", "-c", PARENT, str(source), str(work), str(nodes)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    pids = json.loads(parent.stdout.readline())
    assert len(mounts_below(work)) == nodes
    for pid in pids if stands_still else ():
        os.kill(pid, signal.SIGSTOP)
    parent.send_signal(number)
    parent.communicate(timeout=PATIENCE)
    until(lambda: not mounts_below(work) and not any(map(alive, pids)))
    assert work.exists() == (number is signal.SIGKILL)


READER = """
import os, sys
from dlio_bench import signals
from dlio_bench.harness.machine import waits

def end(number, at):
    print(number, at, flush=True)
    os._exit(4)

signals.listen()
waits.LOOK_SECONDS = 0.2
with waits.watch_signals(end):
    print(flush=True)
    sys.stdin.readline()
    os.stat(sys.argv[1])
"""


@needs("fuse")
def test_a_signal_ends_a_process_whose_storage_does_not_answer(source: Path, tmp_path: Path) -> None:
    with running(FREE, source, 1, tmp_path / "work") as (emulation, board):
        file = emulation.mounts[0] / "one"
        code = [sys.executable, "-P", "-c", READER, str(file)]
        with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            reader.stdout.readline()
            stop(board.row(0)[READY])
            reader.stdin.write("\n")
            reader.stdin.flush()
            until(lambda: awaited_file(reader.pid), missing="it reads")
            reader.send_signal(signal.SIGTERM)
            told = reader.stdout.readline()
    assert told == f"{int(signal.SIGTERM)} {file} (fuse.dlio-bench-pfs at {emulation.mounts[0]})\n"
    assert reader.returncode == 4


HOLDER = """
import json, pathlib, sys, time
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.storage.pfs.board import READY, Board
from dlio_bench.harness.storage.pfs.emulation import mount_nodes
from dlio_bench.harness.storage.pfs.spec import PfsSpec
with temp_folder("left-", pathlib.Path(sys.argv[2])) as work:
    with mount_nodes(PfsSpec(None), pathlib.Path(sys.argv[1]), 2, work) as emulation:
        with Board.open(emulation.board) as board:
            print(json.dumps([str(work), *(board.row(node)[READY] for node in range(2))]), flush=True)
            time.sleep(600)
"""


@needs("fuse")
def test_mounts_and_folder_of_a_run_killed_with_all_its_daemons_are_swept(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", HOLDER, str(source), str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    work, *daemons = json.loads(parent.stdout.readline())
    with temp_folder("left-", tmp_path):
        assert len(mounts_below(Path(work))) == 2  # held
    helpers = [int(place.name) for place in Path("/proc").glob("[0-9]*") if serves(place, work)]
    for pid in [*helpers, *daemons, parent.pid]:  # who would unmount first
        os.kill(pid, signal.SIGKILL)
    parent.communicate(timeout=PATIENCE)
    gone(daemons)
    left = mounts_below(Path(work))
    try:
        assert len(left) == 2
        with temp_folder("left-", tmp_path):
            assert not mounts_below(tmp_path)
            assert not Path(work).exists()
        assert list(source.iterdir())
    finally:
        for point in mounts_below(tmp_path):
            subprocess.run(["fusermount3", "-u", "-z", point], check=True)


@needs("fuse")
def test_a_calibration_that_has_run_for_long_keeps_its_mounts(tmp_path: Path) -> None:
    """Another command that starts sweeps up what dead ones left, and this one is alive."""
    (tmp_path / "pfs").mkdir()
    slow = ["--threads", "1", "--sample-bytes", "1MB", "--size", "64MB", "--emulate-pfs", "bandwidth=1MB/s"]
    calibration = subprocess.Popen(
        [sys.executable, "-m", "dlio_bench", "calibrate", "--pfs", "pfs", *slow],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(mounts_below(tmp_path)) == 1, calibration)
        [point] = mounts_below(tmp_path)
        with temp_folder(FOLDER, tmp_path):
            assert mounts_below(tmp_path) == [point]
    finally:
        calibration.terminate()
        calibration.wait(PATIENCE)
    until(lambda: not mounts_below(tmp_path))  # a daemon that had only just begun ends by itself


def serves(process: Path, work: str) -> bool:
    """Whether a process is a fusermount3 that would unmount for a killed daemon."""
    try:
        command = (process / "cmdline").read_text()
    except OSError:
        return False
    return "fusermount3" in command and work in command


@needs("fuse")
def test_a_daemon_that_cannot_start_is_told_with_its_words(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSE_LIBRARY_PATH", "/nowhere/libfuse3.so")
    with pytest.raises(EnvironmentFailure, match=r"node 0 at .* status 1. Its output: .*/nowhere/libfuse3.so"):
        mount_nodes(FREE, source, 2, tmp_path / "work").__enter__()
    assert not list(tmp_path.iterdir())


@needs("fuse")
def test_what_is_missing_is_told_with_the_fix(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available() is None
    with pytest.raises(EnvironmentFailure, match="is not a folder"):
        mount_nodes(FREE, source / "big", 1, tmp_path / "work").__enter__()
    with pytest.raises(EnvironmentFailure, match="for 0 nodes"):
        mount_nodes(FREE, source, 0, tmp_path / "work").__enter__()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFailure, match=r"No fusermount3 .*apt-get install fuse3.*--cap-add SYS_ADMIN"):
        mount_nodes(FREE, source, 1, tmp_path / "work").__enter__()
    assert not list(tmp_path.iterdir())
