"""The page cache: dropped files are cold, residency is counted to the byte, and what proves nothing says so."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from dlio_bench.errors import DataError, EnvironmentFailure
from dlio_bench.harness.machine import mounts
from dlio_bench.harness.storage import cache

PAGE = os.sysconf("SC_PAGESIZE")
SHM = Path("/dev/shm")
NOBODY = 65534


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that is not in memory and that every user may enter (pytest's own are private)."""
    where = Path("/var/tmp")  # kept over reboots, so hardly ever a tmpfs (/tmp may be one)
    if mounts.memory_backed(where):
        where = Path(__file__).parents[3] / "build"
        where.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """Be a user without rights for a moment (root's capabilities go with its user id)."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def _file(folder: Path, size: int, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(os.urandom(size))
    return path


def test_a_dropped_file_is_cold_and_a_read_one_warm(disk: Path) -> None:
    path = _file(disk, 3 * PAGE + 5)
    cache.drop([path])  # pages just written are dirty: they must reach the disk before they can go
    cold = cache.residency([path])
    assert cold == cache.Residency(3 * PAGE + 5, 0, attestable=True)
    assert cold.share == 0
    path.read_bytes()
    warm = cache.residency([path])
    assert (warm.bytes, warm.resident_bytes, warm.share) == (3 * PAGE + 5, 3 * PAGE + 5, 1.0)


def test_looking_brings_nothing_in(disk: Path) -> None:
    path = _file(disk, 64 * PAGE)
    cache.drop([path])
    for _ in range(3):
        assert cache.residency([path]).resident_bytes == 0


def test_files_add_up_and_an_empty_one_is_nothing(disk: Path) -> None:
    one, two, empty = _file(disk, PAGE, "one"), _file(disk, 4 * PAGE, "two"), _file(disk, 0, "empty")
    cache.drop([one, two, empty])
    two.read_bytes()
    assert cache.residency([one, two, empty]) == cache.Residency(5 * PAGE, 4 * PAGE, attestable=True)
    assert cache.residency([]).share == 0
    assert cache.residency([empty]).attestable


def test_large_files_are_looked_at_in_pieces(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file(disk, 103 * PAGE + 7)
    cache.drop([path])
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        os.pread(fd, 1, 50 * PAGE)
        os.pread(fd, 1, 103 * PAGE)
    finally:
        os.close(fd)
    whole = cache.residency([path])
    assert 0 < whole.resident_bytes < whole.bytes
    assert whole.resident_bytes % PAGE == 7  # the last page counts as far as the file goes
    for pages in (1, 8, 103, 104):
        monkeypatch.setattr(cache, "_CHUNK", pages * PAGE)
        assert cache.residency([path]) == whole


def test_a_file_that_is_not_ours_cannot_be_attested(disk: Path) -> None:
    if os.geteuid() == 0:
        path = _file(disk, 4 * PAGE)
        path.chmod(0o644)
        cache.drop([path])
        assert cache.may_attest(path)
        with another_user():
            assert not cache.may_attest(path)
            seen = cache.residency([path])
        assert seen.share == 1.0  # the kernel's word to strangers, though not a page is there
        assert cache.residency([path]).share == 0.0
    else:
        path = Path("/etc/passwd")
        assert not cache.may_attest(path)
        seen = cache.residency([path])
    assert not seen.attestable
    assert seen.note is not None
    assert path.name in seen.note


def test_owner_or_write_permission_is_enough(disk: Path) -> None:
    path = _file(disk, PAGE)
    path.chmod(0o444)
    assert cache.may_attest(path)  # the owner, though read-only
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
        with another_user():
            assert cache.may_attest(path)
        os.chown(path, 0, 0)
        path.chmod(0o666)
        with another_user():
            assert cache.may_attest(path)
            cache.drop([path])
            assert cache.residency([path]) == cache.Residency(PAGE, 0, attestable=True)


def test_memory_backed_files_can_never_be_cold() -> None:
    assert mounts.memory_backed(SHM), "this machine's /dev/shm is not a tmpfs"
    with tempfile.TemporaryDirectory(dir=SHM) as folder:
        path = _file(Path(folder), 2 * PAGE)
        cache.drop([path])
        found = cache.residency([path])
    assert found.share == 1.0
    assert found.memory_backed
    assert not found.attestable
    assert "always in memory" in str(found.note)


def test_caches_beyond_the_page_cache_are_told(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file(disk, PAGE)
    assert mounts.cache_beyond(path) is None
    monkeypatch.setattr(mounts, "filesystem_type", lambda _: 0x0BD00BD0)
    cache.drop([path])
    found = cache.residency([path])
    assert found.share == 0.0
    assert not found.attestable
    assert not found.memory_backed
    assert "lustre" in str(found.note)


def test_a_missing_or_closed_file_is_named_with_a_fix(tmp_path: Path, disk: Path) -> None:
    gone = tmp_path / "gone"
    for call in (cache.drop, cache.residency, cache.fill):
        with pytest.raises(DataError, match=r"gone' is not there any more.*Restore") as told:
            call([gone])
        assert "dataset" not in str(told.value)  # it may be a checkpoint's
    with pytest.raises(DataError, match="gone"):
        cache.may_attest(gone)
    closed = _file(disk, PAGE)
    closed.chmod(0)
    with another_user() if os.geteuid() == 0 else contextlib.nullcontext():
        for call in (cache.drop, cache.residency, cache.fill):
            with pytest.raises(EnvironmentFailure, match=r"cannot be opened.*the permission"):
                call([closed])


def test_the_counters_are_read() -> None:
    assert cache.parse_io("rchar: 5\nread_bytes: 4096\nwrite_bytes: 0\n") == 4096
    assert cache.parse_io("rchar: 5\n") is None
    now = cache.parse_stat("cpu  10 1 5 100 7 2 3 4 6 0\ncpu0 1 1 1 1\n")
    assert now == cache.HostCpu(busy=21, iowait=7, total=132)
    assert cache.parse_stat("cpu  10 1 5 100\n") == cache.HostCpu(busy=16, iowait=0, total=116)
    with pytest.raises(ValueError, match="not a /proc/stat"):
        cache.parse_stat("intr 1 2 3")
    real = cache.host_cpu()
    assert real is not None
    assert 0 < real.busy <= real.total


def test_device_bytes_count_cold_reads_alone(disk: Path) -> None:
    path = _file(disk, 1 << 20)
    cache.drop([path])
    before = cache.device_bytes()
    path.read_bytes()
    cold = cache.device_bytes()
    assert before is not None
    assert cold is not None
    assert cold - before >= 1 << 20
    warm = [cold]
    for _ in range(5):
        path.read_bytes()
        warm.append(cache.device_bytes() or 0)
    assert min(after - earlier for earlier, after in pairwise(warm)) == 0  # the code of this process may be read, too


def test_processor_shares_add_up_over_spans_and_say_nothing_of_too_short_ones() -> None:
    def look(busy: int, iowait: int, total: int) -> cache.HostCpu:
        return cache.HostCpu(busy=busy, iowait=iowait, total=total)

    spans = [(look(0, 0, 0), look(30, 10, 100)), (look(50, 20, 200), look(60, 40, 300))]
    assert cache.cpu_shares(spans) == cache.CpuShares(busy=0.2, iowait=0.15)
    assert cache.cpu_shares([(look(0, 0, 0), look(3, 0, 10))]) is None
    assert cache.cpu_shares([(None, look(30, 10, 100))]) is None
    assert cache.cpu_shares([]) is None
