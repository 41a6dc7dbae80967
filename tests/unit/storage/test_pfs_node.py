"""What opens and reads cost on one node, on a clock that only sleeping moves: times are exact."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlio_bench.harness.storage.pfs.board import (
    CACHE_BYTES,
    DROP_ASKED,
    DROP_DONE,
    OPENS,
    PFS_BYTES,
    READ_NS,
    REQUESTS,
    SLOTS,
    WRITE_NS,
    WRITTEN_BYTES,
)
from dlio_bench.harness.storage.pfs.bucket import SLACK, SharedLink
from dlio_bench.harness.storage.pfs.node import TRANSPORT, Node, SourceFile
from dlio_bench.harness.storage.pfs.spec import PfsSpec

MIB = 1 << 20
SIZE = 4 * MIB
RATE = float(100 * MIB)  # 1 MiB takes 10 ms
START = 1000.0


class Clock:
    """Time that passes in sleeps only; each wakes `late` seconds late."""

    def __init__(self) -> None:
        self.now = START
        self.late = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late


class Case:
    """One file, one clock, any number of nodes that share one link."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "file"
        self.path.write_bytes(os.urandom(SIZE))
        self.clock = Clock()
        self.bucket = folder / "bucket"
        SharedLink.create(self.bucket, 4)
        self.rows: list[memoryview] = []
        self.fds: list[int] = []

    def node(self, **spec: float | str | None) -> Node:
        made = PfsSpec(**({"bandwidth": RATE} | spec))  # type: ignore[arg-type]
        self.rows.append(memoryview(bytearray(8 * SLOTS)).cast("q"))
        link, number = SharedLink(self.bucket, made.bandwidth), len(self.rows) - 1
        return Node(made, link, self.rows[-1], self.clock, self.clock.sleep, number=number)

    def open(self, node: Node, caller: int = 1) -> SourceFile:
        file = node.open(str(self.path), caller)
        self.fds.append(file.fd)
        return file

    def spent(self, call: Callable[[], object]) -> float:
        before = self.clock.now
        call()
        return self.clock.now - before


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    for fd in made.fds:
        os.close(fd)


def test_it_delivers_the_files_bytes_to_its_end(case: Case) -> None:
    node = case.node(bandwidth=None)
    file, out = case.open(node), bytearray(MIB)
    whole = case.path.read_bytes()
    assert node.read(file, 77, [memoryview(out)[:1000]], 1) == 1000
    assert out[:1000] == whole[77:1077]
    assert node.read(file, SIZE - 10, [memoryview(out)], 1) == 10
    assert out[:10] == whole[-10:]
    assert [node.read(file, at, [memoryview(out)], 1) for at in (SIZE, SIZE + 5)] == [0, 0]
    assert list(case.rows[0][:4]) == [1010, 0, 1, 2]
    assert case.clock.now == START


def test_bandwidth_and_latency_add_up(case: Case) -> None:
    node = case.node(request_seconds=0.003, open_seconds=0.25)
    out = memoryview(bytearray(MIB))
    assert case.spent(lambda: case.open(node)) == pytest.approx(0.25)
    file = case.open(node)
    for at in (0, MIB, 2 * MIB):
        assert case.spent(lambda at=at: node.read(file, at, [out], 1)) == pytest.approx(0.013)
    assert case.spent(lambda: node.read(file, 0, [out[:1]], 1)) == pytest.approx(0.003, abs=1e-6)


def test_a_failed_open_takes_its_time_and_counts_nothing(case: Case) -> None:
    node = case.node(open_seconds=0.25)

    def fail() -> None:
        with pytest.raises(FileNotFoundError):
            node.open(f"{case.path}-none", 1)

    assert case.spent(fail) == pytest.approx(0.25)
    assert case.rows[0][OPENS] == 0


def test_latency_occupies_no_bandwidth(case: Case) -> None:
    # two threads at once: both wait for latency together, and for the link one after the other
    node = case.node(request_seconds=1.0)
    file, out = case.open(node), memoryview(bytearray(MIB))
    assert case.spent(lambda: node.read(file, 0, [out], 1)) == pytest.approx(1.01)
    case.clock.now = START
    assert case.spent(lambda: node.read(file, 0, [out], 2)) == pytest.approx(1.02)


def test_nodes_share_the_bandwidth_and_not_their_caches(case: Case) -> None:
    nodes = [case.node(cache_bytes=SIZE) for _ in range(2)]
    out = memoryview(bytearray(MIB))
    for expected, node in zip((0.01, 0.02), nodes, strict=True):
        case.clock.now = START
        file = case.open(node)
        assert case.spent(lambda node=node, file=file: node.read(file, 0, [out], 1)) == pytest.approx(expected)
    assert [list(row[:2]) for row in case.rows] == [[MIB, 0], [MIB, 0]]


@pytest.mark.parametrize(("shared_by", "took"), [("nodes", 0.02), ("requests", 0.09)])
def test_a_node_that_asks_for_much_does_not_delay_others_unless_requests_share(
    case: Case, shared_by: str, took: float
) -> None:
    greedy, modest = (case.node(shared_by=shared_by) for _ in range(2))
    out, file = memoryview(bytearray(MIB)), case.open(greedy)
    for caller in range(8):
        case.clock.now = START
        assert case.spent(lambda: greedy.read(file, 0, [out], caller)) == pytest.approx(0.01 * (caller + 1))  # noqa: B023
    case.clock.now, file = START, case.open(modest)
    assert case.spent(lambda: modest.read(file, 0, [out], 9)) == pytest.approx(took)


def test_who_comes_later_takes_its_part_of_the_link_from_those_who_wait(case: Case) -> None:
    first, second = case.node(), case.node()
    out, file, other = memoryview(bytearray(MIB)), case.open(first), case.open(second)
    came: list[float] = []

    def sleep(seconds: float) -> None:
        if not came:  # half of the first MiB is through
            case.clock.now += seconds / 2
            came.append(case.spent(lambda: second.read(other, 0, [out], 2)))
            case.clock.now -= came[0]
            seconds /= 2
        case.clock.now += seconds

    first._sleep = sleep
    assert case.spent(lambda: first.read(file, 0, [out], 1)) == pytest.approx(0.015)
    assert came == pytest.approx([0.015])


def test_a_node_is_no_faster_than_its_own_link(case: Case) -> None:
    node = case.node(per_node=RATE / 2)
    file, out = case.open(node), memoryview(bytearray(MIB))
    assert case.spent(lambda: node.read(file, 0, [out], 1)) == pytest.approx(0.02)
    case.clock.now = START  # another thread at the same time waits for the node's link
    assert case.spent(lambda: node.read(file, 0, [out], 2)) == pytest.approx(0.04)


def test_a_node_that_waits_for_its_own_link_holds_no_shared_one(case: Case) -> None:
    slow, fast = case.node(per_node=RATE / 10), case.node()
    out = memoryview(bytearray(MIB))
    file = case.open(slow)
    asked = threading.Event()

    def sleep(seconds: float) -> None:
        if not asked.is_set():  # the second reader of the slow node has asked, and waits for its node's link
            asked.set()
            later, case.clock.now = case.clock.now, START
            quick = case.open(fast)
            took.append(case.spent(lambda: fast.read(quick, 0, [out], 1)))
            case.clock.now = later
        case.clock.now += seconds

    took: list[float] = []
    slow.read(file, 0, [out], 1)
    case.clock.now = START
    slow._sleep = sleep
    slow.read(file, 0, [out], 2)
    assert took == pytest.approx([0.02])  # behind the slow node's first request, not behind its second


def test_cached_bytes_come_at_the_caches_rate(case: Case) -> None:
    node = case.node(cache_bytes=SIZE, cache_bandwidth=RATE * 10, request_seconds=0.5)
    file, out = case.open(node), memoryview(bytearray(MIB))
    assert case.spent(lambda: node.read(file, 0, [out], 1)) == pytest.approx(0.51)
    assert case.spent(lambda: node.read(file, 0, [out], 1)) == pytest.approx(0.001)
    assert [case.rows[0][slot] for slot in (PFS_BYTES, CACHE_BYTES, REQUESTS)] == [MIB, MIB, 1]
    case.rows[0][DROP_ASKED] = 7
    node.drop_if_requested()
    assert case.rows[0][DROP_DONE] == 7
    assert case.spent(lambda: node.read(file, 0, [out], 1)) == pytest.approx(0.51)


def test_a_read_that_the_kernel_cut_is_charged_as_one(case: Case) -> None:
    node = case.node(request_seconds=0.003)
    file, out = case.open(node), memoryview(bytearray(MIB))
    # 2 MiB into memory that begins 16 bytes after a page: the kernel asks for all but 16 bytes of the first MiB
    for at, end in ((0, MIB - 16), (MIB - 16, 2 * MIB - 16), (2 * MIB - 16, 2 * MIB)):
        node.read(file, at, [out[: end - at]], 1)
    assert case.rows[0][REQUESTS] == 2
    # small reads one behind the other are requests of their own
    for at in range(3):
        node.read(file, at * 4096, [out[:4096]], 1)
    assert case.rows[0][REQUESTS] == 5


def test_what_a_wake_up_was_late_is_given_back(case: Case) -> None:
    node = case.node()
    file, out = case.open(node), memoryview(bytearray(MIB))
    case.clock.late = 0.002
    took = case.spent(lambda: [node.read(file, at, [out[: MIB // 2]], 1) for at in range(0, SIZE, MIB // 2)])
    assert took == pytest.approx(0.04 + 0.002)  # only the last is still owed


def test_the_readers_own_time_is_not_given_back(case: Case) -> None:
    node = case.node()
    file, out = case.open(node), memoryview(bytearray(MIB))

    def read_and_think() -> None:
        for at in range(0, SIZE, MIB // 2):
            node.read(file, at, [out[: MIB // 2]], 1)
            case.clock.now += 0.004

    assert case.spent(read_and_think) == pytest.approx(8 * (0.005 + 0.004) - 7 * TRANSPORT, abs=1e-9)
    assert TRANSPORT < SLACK / 10


def test_an_error_of_the_source_is_raised_and_nothing_counted(case: Case) -> None:
    node = case.node()
    fd = os.open("/proc/self/mem", os.O_RDONLY)  # nothing is mapped at 0: reading there is an input/output error
    case.fds.append(fd)
    with pytest.raises(OSError, match="Input/output error"):
        node.read(SourceFile(fd, (0, 0, 0), SIZE), 0, [memoryview(bytearray(100))], 1)
    assert list(case.rows[0][:4]) == [0, 0, 0, 0]


def test_writes_share_the_links_with_reads_and_are_counted(case: Case) -> None:
    writer, reader = case.node(request_seconds=0.003), case.node()
    target = writer.open(str(case.path), 1, os.O_RDWR, grows=True)
    case.fds.append(target.fd)
    content = memoryview(os.urandom(2 * MIB))
    assert case.spent(lambda: writer.write(target, SIZE, content, 1)) == pytest.approx(0.02 + 2 * 0.003)
    case.clock.now = START  # as if at the same time: half of the link is busy with what is written
    file = reader.open(str(case.path), 2, grows=True)
    case.fds.append(file.fd)
    out = memoryview(bytearray(MIB))
    assert case.spent(lambda: reader.read(file, SIZE, [out], 2)) == pytest.approx(0.02)
    assert out == content[:MIB]  # the file has grown
    assert case.rows[0][WRITTEN_BYTES] == 2 * MIB
    assert case.rows[0][REQUESTS] == 2
    assert [case.rows[0][WRITE_NS], case.rows[1][READ_NS]] == pytest.approx([26e6, 20e6], abs=10)
