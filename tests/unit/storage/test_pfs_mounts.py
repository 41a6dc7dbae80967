"""Emulated file systems for real: every reader gets the source's bytes, and all are counted.

How TensorFlow reads through them is in tests/contract/test_tf_readers.py, whose process has it.
"""

import errno
import mmap
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.storage.pfs.board import READY, Board
from dlio_bench.harness.storage.pfs.spec import PfsSpec
from tests import mounts
from tests.mounts import BIG, FREE, MIB, opened, read, running
from tests.needs import needs

pytestmark = pytest.mark.slow

source = mounts.source  # a fixture belongs to the module that has its name


@needs("fuse")
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


@needs("fuse")
def test_ranges_are_counted_to_the_byte(source: Path, tmp_path: Path) -> None:
    whole = (source / "big").read_bytes()
    with running(PfsSpec(None, cache_bytes=0), source, 1, tmp_path / "work") as (emulation, board):
        with opened(emulation.mounts[0] / "big") as fd:
            asked = [(0, 1), (4095, 2), (MIB - 1, MIB + 2), (12345, 3 * MIB), (BIG - 7, 100), (BIG + 7, 5)]
            for offset, length in asked:
                assert read(fd, offset, length) == whole[offset : offset + length]
        # 1 + 1 + 2 + 3 + 1 started MiB, and nothing behind the end
        assert board.counters(0) == (sum(len(whole[at : at + size]) for at, size in asked), 0, 1, 8)


@needs("fuse")
def test_a_read_into_unaligned_memory_costs_no_further_request(source: Path, tmp_path: Path) -> None:
    with running(FREE, source, 1, tmp_path / "work") as (emulation, board):
        with opened(emulation.mounts[0] / "big") as fd, mmap.mmap(-1, 4 * MIB) as buffer:
            assert os.preadv(fd, [memoryview(buffer)[16 : 16 + 3 * MIB]], 0) == 3 * MIB
        assert board.counters(0) == (3 * MIB, 0, 1, 3)


@needs("fuse")
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


@needs("fuse")
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


@needs("fuse")
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


@needs("fuse")
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


@needs("fuse")
def test_files_are_mapped_privately_only(source: Path, tmp_path: Path) -> None:
    with running(FREE, source, 1, tmp_path / "work") as (emulation, _), opened(emulation.mounts[0] / "big") as fd:
        with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == (source / "big").read_bytes()
        with pytest.raises(OSError, match="No such device"):
            mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


@needs("fuse")
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


@needs("fuse")
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
    room = Path(__file__).parents[3] / "harness"
    assert [path.name for path in room.rglob("*.py") if "import mfusepy" in path.read_text()] == ["passthrough.py"]


@needs("fuse")
def test_what_one_node_writes_another_reads_at_once_and_both_are_counted(tmp_path: Path) -> None:
    shared, content = tmp_path / "shared", os.urandom(BIG)
    shared.mkdir()
    with running(FREE, shared, 2, tmp_path / "work", writable=True) as (emulation, board):
        writer, reader = emulation.mounts
        (writer / "inner").mkdir()
        with (writer / "inner" / "part").open("wb") as file:
            file.write(content[:MIB])
            file.flush()
            with opened(reader / "inner" / "part") as fd:
                assert read(fd, 0, 2 * MIB) == content[:MIB]
                file.write(content[MIB:])
                file.flush()
                os.fsync(file.fileno())
                assert os.fstat(fd).st_size == BIG
                assert read(fd, MIB, BIG) == content[MIB:]
        assert not (reader / "inner" / "whole").exists()
        (writer / "inner" / "part").rename(writer / "inner" / "whole")
        assert [path.name for path in (reader / "inner").iterdir()] == ["whole"]
        assert board.traffic(0)[:2] == (0, BIG)
        assert board.traffic(1)[:2] == (BIG, 0)
        assert board.traffic(0).write_seconds > 0 < board.traffic(1).read_seconds
        (reader / "inner" / "whole").write_bytes(b"short")
        assert (writer / "inner" / "whole").read_bytes() == b"short"
        (reader / "inner" / "whole").unlink()
        (writer / "inner").rmdir()
        assert list(shared.iterdir()) == []
