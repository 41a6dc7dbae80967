"""Emulated file systems for real: every reader gets the source's bytes, all are counted, and nothing stays behind."""

import errno
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from dlio_bench.errors import DataError, EnvironmentFailure
from dlio_bench.harness.machine.mounts import parse_mountinfo
from dlio_bench.harness.machine.temp_folders import JUST_MADE, temp_folder
from dlio_bench.harness.storage.pfs.board import READY, Board
from dlio_bench.harness.storage.pfs.emulation import FOLDER, Emulation, available, emulated
from dlio_bench.harness.storage.pfs.spec import PfsSpec
from tests.processes import PATIENCE, alive, gone, until

MIB = 1 << 20
FREE = PfsSpec(None)
BIG = 6 * MIB + 4711


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "inner, with a comma").mkdir()
    draw = np.random.default_rng(1)
    for name, size in {"empty": 0, "one": 1, "page": 4096, "inner, with a comma/odd": MIB + 5, "big": BIG}.items():
        (folder / name).write_bytes(draw.bytes(size))
    (folder / "link").symlink_to("big")
    (folder / "dangling").symlink_to("nowhere")
    return folder


@contextmanager
def running(spec: PfsSpec, source: Path, nodes: int, work: Path) -> Iterator[tuple[Emulation, Board]]:
    with emulated(spec, source, nodes, work) as emulation, Board.open(emulation.board) as board:
        yield emulation, board


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def read(fd: int, offset: int, length: int) -> bytes:
    """Into memory that begins at a page, so that the kernel asks for whole MiB."""
    with mmap.mmap(-1, length) as buffer:
        got = os.preadv(fd, [buffer], offset)
        return buffer[:got]


def mounts_below(folder: Path) -> list[str]:
    text = Path("/proc/self/mountinfo").read_text()
    return [mount.point for mount in parse_mountinfo(text) if mount.point.startswith(f"{folder}/")]


def test_every_file_is_the_sources(source: Path, tmp_path: Path) -> None:
    with running(FREE, source, 1, tmp_path / "work") as (emulation, board):
        (mount,) = emulation.mounts
        files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
        assert sorted(path.relative_to(mount) for path in mount.rglob("*") if path.is_file()) == files
        for name in files:
            assert (mount / name).read_bytes() == (source / name).read_bytes()
            assert (mount / name).stat().st_size == (source / name).stat().st_size
            assert (mount / name).stat().st_mtime_ns == (source / name).stat().st_mtime_ns
        assert len(list(mount.iterdir())) == 7
        assert not (mount / "link").is_symlink()  # or its bytes could come past the mount
        total = sum((source / name).stat().st_size for name in files)
        found = board.counters(0)
        assert (found.pfs_bytes, found.cache_bytes, found.opens) == (total, 0, len(files))


def test_ranges_are_counted_to_the_byte(source: Path, tmp_path: Path) -> None:
    whole = (source / "big").read_bytes()
    with running(PfsSpec(None, cache_bytes=0), source, 1, tmp_path / "work") as (emulation, board):
        with opened(emulation.mounts[0] / "big") as fd:
            asked = [(0, 1), (4095, 2), (MIB - 1, MIB + 2), (12345, 3 * MIB), (BIG - 7, 100), (BIG + 7, 5)]
            for offset, length in asked:
                assert read(fd, offset, length) == whole[offset : offset + length]
        # 1 + 1 + 2 + 3 + 1 started MiB, and nothing behind the end
        assert board.counters(0) == (sum(len(whole[at : at + size]) for at, size in asked), 0, 1, 8)


def test_a_read_into_unaligned_memory_costs_no_further_request(source: Path, tmp_path: Path) -> None:
    with running(FREE, source, 1, tmp_path / "work") as (emulation, board):
        with opened(emulation.mounts[0] / "big") as fd, mmap.mmap(-1, 4 * MIB) as buffer:
            assert os.preadv(fd, [memoryview(buffer)[16 : 16 + 3 * MIB]], 0) == 3 * MIB
        assert board.counters(0) == (3 * MIB, 0, 1, 3)


def test_the_client_cache_hits_evicts_and_drops(source: Path, tmp_path: Path) -> None:
    with running(PfsSpec(None, cache_bytes=3 * MIB), source, 1, tmp_path / "work") as (emulation, board):  # noqa: SIM117 - as above
        with opened(emulation.mounts[0] / "big") as fd:

            def delivered(offset: int, length: int) -> tuple[int, int]:
                before = board.counters(0)
                assert len(read(fd, offset, length)) == length
                after = board.counters(0)
                return after.pfs_bytes - before.pfs_bytes, after.cache_bytes - before.cache_bytes

            assert delivered(0, 3 * MIB) == (3 * MIB, 0)
            assert delivered(0, 3 * MIB) == (0, 3 * MIB)
            assert delivered(100, 1000) == (0, 1000)  # block 1 is the oldest now
            assert delivered(4 * MIB, MIB) == (MIB, 0)
            assert delivered(MIB, MIB) == (MIB, 0)
            assert delivered(0, MIB) == (0, MIB)
            board.drop_cache(0)
            assert delivered(0, MIB) == (MIB, 0)


def test_nodes_have_caches_of_their_own(source: Path, tmp_path: Path) -> None:
    with running(PfsSpec(1e9, cache_bytes=10 * MIB), source, 2, tmp_path / "work") as (emulation, board):
        for node, mount in enumerate(emulation.mounts):
            with opened(mount / "big") as fd:
                assert [len(read(fd, 0, MIB)) for _ in range(2)] == [MIB, MIB]
            assert board.counters(node) == (MIB, MIB, 1, 1)
        board.drop_cache(0)
        for node, mount in enumerate(emulation.mounts):
            with opened(mount / "big") as fd:
                read(fd, 0, MIB)
            assert board.counters(node) == (MIB * (2 - node), MIB * (1 + node), 2, 2 - node)
        with pytest.raises(EnvironmentFailure, match="has the nodes 0 to 1; 2 is none"):
            board.counters(2)


def test_many_threads_at_once(source: Path, tmp_path: Path) -> None:
    whole = (source / "big").read_bytes()
    draw = random.Random(3)
    asked = [(draw.randrange(BIG), draw.randrange(1, 300_000)) for _ in range(400)]
    spec = PfsSpec(20e9, 10e9, 1e-4, 1e-4, 2 * MIB, 20e9)
    with running(spec, source, 1, tmp_path / "work") as (emulation, board):
        with opened(emulation.mounts[0] / "big") as fd, ThreadPoolExecutor(24) as pool:
            for (at, size), got in zip(
                asked, pool.map(lambda each: os.pread(fd, each[1], each[0]), asked), strict=True
            ):
                assert got == whole[at : at + size]
        found = board.counters(0)
        assert found.pfs_bytes + found.cache_bytes == sum(len(whole[at : at + size]) for at, size in asked)
        assert found.pfs_bytes
        assert found.cache_bytes


def test_h5py_reads_through_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    values = np.random.default_rng(2).random((64, 1000))
    with h5py.File(folder / "f.h5", "w") as file:
        file["plain"] = values
        file.create_dataset("packed", data=values, chunks=(8, 1000), compression="gzip")
    with running(PfsSpec(None, cache_bytes=MIB), folder, 1, tmp_path / "work") as (emulation, board):
        with h5py.File(emulation.mounts[0] / "f.h5", "r") as file:
            np.testing.assert_array_equal(file["plain"][()], values)
            np.testing.assert_array_equal(file["packed"][5:17], values[5:17])
        assert board.counters(0).pfs_bytes >= values.nbytes
        assert board.counters(0).opens == 1


def test_tensorflow_reads_through_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    # Read by a process of its own: TensorFlow's threads would stay in this one.
    code = """
import pathlib, sys
import tensorflow as tf
folder, mount = map(pathlib.Path, sys.argv[1:])
records = [bytes([k]) * (100_000 + k) for k in range(40)]
with tf.io.TFRecordWriter(str(folder / "r")) as writer:
    for record in records:
        writer.write(record)
assert [record.numpy() for record in tf.data.TFRecordDataset(str(mount / "r"))] == records
"""
    with running(FREE, folder, 1, tmp_path / "work") as (emulation, board):
        env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        subprocess.run([sys.executable, "-c", code, str(folder), str(emulation.mounts[0])], env=env, check=True)
        assert board.counters(0).pfs_bytes == (folder / "r").stat().st_size


def test_files_are_mapped_privately_only(source: Path, tmp_path: Path) -> None:
    with running(FREE, source, 1, tmp_path / "work") as (emulation, _), opened(emulation.mounts[0] / "big") as fd:
        with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == (source / "big").read_bytes()
        with pytest.raises(OSError, match="No such device"):
            mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


def test_the_sources_errors_come_through(source: Path, tmp_path: Path) -> None:
    # the source is an emulated file system itself, whose daemon ends while a file is open
    with running(FREE, source, 1, tmp_path / "under") as (under, under_board):  # noqa: SIM117 - one needs the other
        with running(FREE, under.mounts[0], 1, tmp_path / "over") as (over, board):
            mount = over.mounts[0]
            for name, number in (("none", errno.ENOENT), ("dangling", errno.ENOENT), ("one/below", errno.ENOTDIR)):
                with pytest.raises(OSError, match=os.strerror(number)):
                    os.open(mount / name, os.O_RDONLY)
            with opened(mount / "big") as fd:
                assert len(read(fd, 0, 5)) == 5
                with under_board.row(0) as row:
                    os.kill(row[READY], signal.SIGKILL)
                with pytest.raises(OSError, match=r"connect|abort"):
                    read(fd, 0, 5)
            assert board.counters(0) == (5, 0, 1, 1)


def test_nothing_can_be_written(source: Path, tmp_path: Path) -> None:
    with running(FREE, source, 1, tmp_path / "work") as (emulation, _):
        mount = emulation.mounts[0]
        changes: list[Callable[[], object]] = [
            lambda: (mount / "new").write_bytes(b"x"),
            lambda: os.open(mount / "big", os.O_RDWR),
            (mount / "big").unlink,
            lambda: (mount / "big").rename(mount / "new"),
            (mount / "folder").mkdir,
            lambda: (mount / "big").chmod(0o777),
        ]
        for change in changes:
            with pytest.raises(OSError, match="Read-only file system"):
                change()
    assert (source / "big").stat().st_size == BIG


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


def test_an_error_inside_leaves_nothing_and_a_given_folder_stays(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    def use() -> None:
        with running(FREE, source, 1, tmp_path):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert not mounts_below(tmp_path)


def test_requests_that_would_wait_for_long_hold_nothing_up(source: Path, tmp_path: Path) -> None:
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


def test_a_killed_daemon_leaves_no_mount(source: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    with running(FREE, source, 2, work) as (emulation, board):
        os.kill(board.row(0)[READY], signal.SIGKILL)
        until(lambda: mounts_below(work) == [str(emulation.mounts[1])])
        assert (emulation.mounts[1] / "one").read_bytes() == (source / "one").read_bytes()
        with pytest.raises(EnvironmentFailure, match="did not empty its cache"):
            board.drop_cache(0)
    assert not work.exists()


def seen(path: Path) -> bool:
    """Whether a file is there; the kernel may fail for a moment until a dead daemon's mount has gone."""
    try:
        return path.exists()
    except OSError:
        return False


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
from dlio_bench.harness.storage.pfs.emulation import emulated
from dlio_bench.harness.storage.pfs.spec import PfsSpec
with emulated(PfsSpec(None), pathlib.Path(sys.argv[1]), 2, pathlib.Path(sys.argv[2])) as emulation:
    with Board.open(emulation.board) as board:
        print(json.dumps([board.row(node)[READY] for node in range(2)]), flush=True)
        time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_parent_leaves_no_mount(source: Path, tmp_path: Path, number: signal.Signals) -> None:
    work = tmp_path / "work"
    command = [sys.executable, "-P", "-c", PARENT, str(source), str(work)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    pids = json.loads(parent.stdout.readline())
    assert len(mounts_below(work)) == 2
    parent.send_signal(number)
    parent.communicate(timeout=PATIENCE)
    until(lambda: not mounts_below(work) and not any(map(alive, pids)))
    assert work.exists() == (number is signal.SIGKILL)


HOLDER = """
import json, pathlib, sys, time
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.storage.pfs.board import READY, Board
from dlio_bench.harness.storage.pfs.emulation import emulated
from dlio_bench.harness.storage.pfs.spec import PfsSpec
with temp_folder("left-", pathlib.Path(sys.argv[2])) as work:
    with emulated(PfsSpec(None), pathlib.Path(sys.argv[1]), 2, work) as emulation:
        with Board.open(emulation.board) as board:
            print(json.dumps([str(work), *(board.row(node)[READY] for node in range(2))]), flush=True)
            time.sleep(60)
"""


def test_mounts_and_folder_of_a_run_killed_with_all_its_daemons_are_swept(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", HOLDER, str(source), str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    work, *daemons = json.loads(parent.stdout.readline())
    os.utime(work, (time.time() - 2 * JUST_MADE,) * 2)
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
        until(lambda: len(mounts_below(tmp_path)) == 1)
        [point] = mounts_below(tmp_path)
        os.utime(Path(point).parent, (time.time() - 2 * JUST_MADE,) * 2)
        with temp_folder(FOLDER, tmp_path):
            assert mounts_below(tmp_path) == [point]
    finally:
        calibration.terminate()
        calibration.wait(PATIENCE)
    assert not mounts_below(tmp_path)


def serves(process: Path, work: str) -> bool:
    """Whether a process is a fusermount3 that would unmount for a killed daemon."""
    try:
        command = (process / "cmdline").read_text()
    except OSError:
        return False
    return "fusermount3" in command and work in command


def test_a_daemon_that_cannot_start_is_told_with_its_words(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSE_LIBRARY_PATH", "/nowhere/libfuse3.so")
    with pytest.raises(EnvironmentFailure, match=r"node 0 at .* status 1. Its output: .*/nowhere/libfuse3.so"):
        emulated(FREE, source, 2, tmp_path / "work").__enter__()
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_told_with_the_fix(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available() is None
    with pytest.raises(EnvironmentFailure, match="is not a folder"):
        emulated(FREE, source / "big", 1, tmp_path / "work").__enter__()
    with pytest.raises(EnvironmentFailure, match="for 0 nodes"):
        emulated(FREE, source, 0, tmp_path / "work").__enter__()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFailure, match=r"No fusermount3 .*apt-get install fuse3.*--cap-add SYS_ADMIN"):
        emulated(FREE, source, 1, tmp_path / "work").__enter__()
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_board_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"x" * 200):
        (tmp_path / "board").write_bytes(content)
        with pytest.raises(EnvironmentFailure, match="does not hold the counters"):
            Board.open(tmp_path / "board")


def test_a_daemon_is_light_and_one_file_knows_mfusepy() -> None:
    code = (
        "import sys, dlio_bench.harness.storage.pfs.daemon; "
        "print([name for name in ('numpy', 'h5py', 'mfusepy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True).stdout == "[]\n"
    room = Path(__file__).parents[2] / "harness"
    assert [path.name for path in room.rglob("*.py") if "import mfusepy" in path.read_text()] == ["passthrough.py"]
