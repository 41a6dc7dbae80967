"""The bandwidth cap's arithmetic on a clock of the test's own, and its state that processes share."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.storage.pfs.bucket import (
    SLACK,
    FileLock,
    LinkSpan,
    LocalBucket,
    SharedLink,
    bytes_until_served,
    remaining_queues,
    transfer_span,
)
from tests.processes import open_files

RATE = 1e6


@pytest.mark.parametrize(
    ("free", "credit", "count", "rate", "span"),
    [
        (0.0, 0.0, 500_000, RATE, LinkSpan(5.0, 5.5)),
        (7.0, 0.0, 500_000, RATE, LinkSpan(7.0, 7.5)),  # a busy link makes it wait
        (0.0, SLACK / 2, 0, RATE, LinkSpan(5.0 - SLACK / 2, 5.0 - SLACK / 2)),  # credit begins it earlier,
        (0.0, 1.0, 0, RATE, LinkSpan(5.0 - SLACK, 5.0 - SLACK)),  # by SLACK at most,
        (4.999, 1.0, 0, RATE, LinkSpan(4.999, 4.999)),  # and never before the link is free
        (0.0, -1.0, 0, RATE, LinkSpan(5.0, 5.0)),
        (7.0, 0.001, 10**12, None, LinkSpan(5.0, 5.0)),  # no rate is no wait
    ],
)
def test_a_transfer_takes_its_bytes_over_the_rate(
    free: float, credit: float, count: int, rate: float | None, span: LinkSpan
) -> None:
    assert transfer_span(free, 5.0, credit, count, rate) == span


TRANSFERS = st.lists(
    st.tuples(st.floats(0, 0.02), st.integers(0, 1 << 20), st.floats(0, 0.05)), min_size=1, max_size=30
)  # seconds since the one before, bytes, credit


@given(TRANSFERS, st.sampled_from([1e6, 2e8, 4e9]))
def test_no_window_gets_more_than_the_rate_and_the_slack(
    transfers: list[tuple[float, int, float]], rate: float
) -> None:
    link, now, asked = LocalBucket(rate), 100.0, []
    for wait, count, credit in transfers:
        now += wait
        asked.append((now, count, link.reserve(count, now, credit)))
    for first in range(len(asked)):
        total = 0
        for moment, count, span in asked[first:]:
            total += count
            assert total <= rate * (span.end - asked[first][0] + SLACK) * (1 + 1e-9) + 1e-6 * rate
            assert span.start >= moment - SLACK
    for (_, _, before), (_, _, after) in pairwise(asked):
        assert after.start >= before.end  # one after the other


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=8), st.floats(0, 1))
def test_what_a_link_has_carried_was_the_same_of_all_queues(waiting: list[float], part: float) -> None:
    carried = part * sum(waiting)
    after = remaining_queues(waiting, carried)
    assert sum(waiting) - sum(after) == pytest.approx(carried, abs=1e-3)
    gone = [before - now for before, now in zip(waiting, after, strict=True)]
    assert all(now == 0 or one == pytest.approx(max(gone), abs=1e-3) for one, now in zip(gone, after, strict=True))
    for queue, one in enumerate(gone):
        if after[queue]:
            assert bytes_until_served(waiting, one) == pytest.approx(carried, abs=1e-3)


@given(st.lists(st.tuples(st.floats(0, 0.02), st.integers(1, 1 << 20), st.integers(0, 2)), min_size=1, max_size=20))
def test_no_queue_gets_more_than_the_rate_in_any_window(transfers: list[tuple[float, int, int]]) -> None:
    """On a clock that goes from one arrival to the next: all ends are known when nobody comes any more."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "link"
        SharedLink.create(path, 3)
        link, now, asked = SharedLink(path, 1e7), 100.0, []
        for wait, count, queue in transfers:
            now += wait
            asked.append((now, count, link.reserve(count, now, 0.0, queue)))
        ends = [link.wait(transfer, lambda _: None) for *_, transfer in asked]
        link.close()
    for (came, count, transfer), end in zip(asked, ends, strict=True):
        assert end >= max(came + count / 1e7, transfer.end) - 1e-6
    assert max(ends) - 100.0 >= sum(count for _, count, _ in asked) / 1e7 - 1e-6


def test_a_link_that_is_asked_at_once_is_never_idle() -> None:
    link = LocalBucket(RATE)
    spans = [link.reserve(1000, 3.0 + late, late) for late in (0.0, 0.004, 0.003)]  # woken late, and given it back
    assert [span.end for span in spans] == pytest.approx([3.001, 3.002, 3.003])


def test_processes_share_a_link(tmp_path: Path) -> None:
    path = tmp_path / "bucket"
    SharedLink.create(path)
    code = (
        "import sys, pathlib; from dlio_bench.harness.storage.pfs.bucket import SharedLink; "
        "b = SharedLink(pathlib.Path(sys.argv[1]), 1e6); [b.reserve(1000, 50.0) for _ in range(500)]"
    )
    command = [sys.executable, "-P", "-c", code, str(path)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    bucket = SharedLink(path, 1e6)
    assert bucket.reserve(0, 0.0).end == pytest.approx(50.0 + 1.5)  # 1500 transfers of 1 ms, none lost
    bucket.close()


def test_one_process_at_a_time_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "bucket"
    SharedLink.create(path)
    code = (
        "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDWR); fcntl.flock(f, fcntl.LOCK_EX); print(1); input()"
    )
    command = [sys.executable, "-u", "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        bucket = SharedLink(path, RATE)
        waiting = threading.Thread(target=bucket.reserve, args=(1000, 5.0))
        waiting.start()
        waiting.join(0.2)
        held_up = waiting.is_alive()
        holder.communicate(b"\n")
        waiting.join()
    assert held_up
    bucket.close()


def test_two_processes_whose_threads_hold_and_want_two_locks_crosswise_all_go_on(tmp_path: Path) -> None:
    """One thread of each process holds a lock, and another one waits for the other process's: no thread has two."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.touch(), theirs.touch()
    code = (
        "import os, sys, threading; from dlio_bench.harness.storage.pfs.bucket import FileLock\n"
        "ours, theirs = (FileLock(os.open(path, os.O_RDWR)) for path in sys.argv[1:])\n"
        "def wait():\n"
        "    with ours: print('got it')\n"
        "with theirs:\n"
        "    waiting = threading.Thread(target=wait); waiting.start()\n"
        "    print('held'); input()\n"
        "waiting.join()"
    )
    lock, other = (FileLock(os.open(path, os.O_RDWR)) for path in (ours, theirs))
    command = [sys.executable, "-P", "-u", "-c", code, str(ours), str(theirs)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor() as pool,
    ):
        with lock:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            time.sleep(0.2)  # its thread waits for what is held here
            got = pool.submit(other.__enter__)
            time.sleep(0.2)
            process.stdin.write("\n")
            process.stdin.flush()
            got.result(timeout=30)
        assert process.stdout.readline() == "got it\n"
        assert process.wait(30) == 0


def test_a_killed_holder_does_not_keep_the_link(tmp_path: Path) -> None:
    path = tmp_path / "bucket"
    SharedLink.create(path)
    code = (
        "import fcntl, os, signal, sys; f = os.open(sys.argv[1], os.O_RDWR); fcntl.flock(f, fcntl.LOCK_EX); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode < 0
    bucket = SharedLink(path, RATE)
    assert bucket.reserve(1_000_000, 5.0).end == pytest.approx(6.0)
    bucket.close()


def test_a_missing_or_short_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="nowhere"):
        SharedLink(tmp_path / "nowhere", RATE)
    (tmp_path / "short").write_bytes(b"")
    open_before = len(open_files())
    with pytest.raises(EnvironmentFailure, match="short"):
        SharedLink(tmp_path / "short", RATE)
    assert len(open_files()) <= open_before
