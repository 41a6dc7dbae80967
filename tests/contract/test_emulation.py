"""The suite of emulated file systems, on both ways to hold reads up: behind a mount, and in the processes that read.

Both are asked through the files of a dataset, and counted on the board. Clocks are real, so that times have lower
bounds only: what the rates allow is never exceeded.
"""

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.dataset import KERNEL, Access, Dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.harness.storage.pfs.board import Board, Counters
from dlio_bench.harness.storage.pfs.bucket import SLACK
from dlio_bench.harness.storage.pfs.process import EmulatedAccess, emulation_of
from dlio_bench.harness.storage.pfs.spec import FUSE, PROCESS, PfsSpec
from tests.needs import needs

MIB, PAGE = 1 << 20, 4096
FILES = 2
FREE = PfsSpec(None)


class Client:
    """A reading process of a node: its access to the dataset, as the node sees it."""

    def __init__(self, dataset: Dataset, access: Access, drop: Callable[[], None]) -> None:
        self.dataset, self.access, self.drop = dataset, access, drop

    @contextmanager
    def opened(self, file: int) -> Iterator[int]:
        handle = self.access.open(self.dataset.path(file), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield handle
        finally:
            self.access.close(handle)

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Into memory that begins at a page, so that the kernel asks for whole MiB."""
        with self.opened(file) as handle, mmap.mmap(-1, length) as out, memoryview(out) as view:
            return bytes(view[: self.access.read(handle, [view], offset)])


class Clients:
    """An emulated file system of some nodes. `client` gives one more process of a node."""

    def __init__(self, spec: PfsSpec, dataset: Dataset, mounts: tuple[Path, ...], board: Board) -> None:
        self.spec, self.dataset, self.mounts, self.board = spec, dataset, mounts, board

    def client(self, node: int = 0) -> Client:
        mount = self.mounts[node]
        if self.spec.via == FUSE:
            return Client(replace(self.dataset, folder=mount), KERNEL, lambda: self.board.drop_cache(node))
        access = EmulatedAccess(self.spec, self.dataset, mount, node)
        return Client(self.dataset, access, access.drop_cache)

    def counters(self, node: int = 0) -> Counters:
        return self.board.counters(node)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Files of true size: tens of MiB each."""
    layout = WORKLOADS["cdb"].variants[WORKLOADS["cdb"].default_variant](False, RANDOM)
    return generate(layout, FILES, tmp_path_factory.mktemp("data") / "cdb", seed=3, workers=1)


@pytest.fixture(params=[pytest.param(FUSE, marks=needs("fuse")), PROCESS])
def started(request: pytest.FixtureRequest, dataset: Dataset) -> Iterator[Callable[..., Clients]]:
    """started(spec, nodes=1) -> Clients, as long as the test lasts."""
    with ExitStack() as stack:

        def start(spec: PfsSpec, nodes: int = 1) -> Clients:
            spec = replace(spec, via=request.param)
            emulation = stack.enter_context(emulation_of(spec, dataset, nodes))
            board = stack.enter_context(Board.open(emulation.board))
            return Clients(spec, dataset, emulation.mounts, board)

        yield start


def delivered(client: Client, clients: Clients, file: int, offset: int, length: int) -> tuple[int, int]:
    """Read; the bytes from the file system, and from the node's cache."""
    before = clients.counters()
    assert len(client.read(file, offset, length)) == length
    after = clients.counters()
    return after.pfs_bytes - before.pfs_bytes, after.cache_bytes - before.cache_bytes


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_readers_get_the_files_bytes_and_all_are_counted(started: Callable[..., Clients], dataset: Dataset) -> None:
    clients, whole = started(FREE), dataset.path(0).read_bytes()
    client = clients.client()
    asked = [(0, 1), (4095, 2), (MIB - 1, MIB + 2), (12345, 3 * MIB), (len(whole) - 7, 100), (len(whole) + 7, 5)]
    for offset, length in asked:
        assert client.read(0, offset, length) == whole[offset : offset + length]
    # 1 + 1 + 2 + 3 + 1 started MiB, and nothing behind the end
    assert clients.counters() == (sum(len(whole[at : at + size]) for at, size in asked), 0, len(asked), 8)


def test_a_read_into_several_buffers_is_one(started: Callable[..., Clients], dataset: Dataset) -> None:
    clients, whole = started(FREE), dataset.path(1).read_bytes()[: 3 * MIB]
    client, parts = clients.client(), [mmap.mmap(-1, size) for size in (PAGE, 2 * MIB, 2 * PAGE, MIB - 3 * PAGE)]
    with client.opened(1) as handle:
        assert client.access.read(handle, [memoryview(part) for part in parts], 0) == len(whole)
    assert b"".join(parts) == whole
    assert clients.counters() == (len(whole), 0, 1, 3)


def test_a_missing_file_is_missing(started: Callable[..., Clients], dataset: Dataset) -> None:
    client = started(FREE).client()
    with pytest.raises(FileNotFoundError):
        client.access.open(client.dataset.folder / "none", os.O_RDONLY)


def test_the_client_cache_hits_evicts_and_drops(started: Callable[..., Clients]) -> None:
    clients = started(replace(FREE, cache_bytes=3 * MIB))
    client = clients.client()
    assert delivered(client, clients, 0, 0, 3 * MIB) == (3 * MIB, 0)
    assert delivered(client, clients, 0, 0, 3 * MIB) == (0, 3 * MIB)
    assert delivered(client, clients, 0, 100, 1000) == (0, 1000)  # block 1 is the oldest now
    assert delivered(client, clients, 1, 4 * MIB, MIB) == (MIB, 0)
    assert delivered(client, clients, 0, MIB, MIB) == (MIB, 0)
    assert delivered(client, clients, 0, 0, MIB) == (0, MIB)
    client.drop()
    assert delivered(client, clients, 0, 0, MIB) == (MIB, 0)
    assert delivered(client, clients, 0, 0, MIB) == (0, MIB)


def test_ranks_of_a_node_share_its_cache_and_nodes_do_not(started: Callable[..., Clients]) -> None:
    clients = started(replace(FREE, cache_bytes=10 * MIB), 2)
    first, second, other = clients.client(), clients.client(), clients.client(1)
    assert delivered(first, clients, 0, 0, MIB) == (MIB, 0)
    assert delivered(second, clients, 0, 0, MIB) == (0, MIB)
    assert len(other.read(0, 0, MIB)) == MIB
    assert clients.counters(1) == (MIB, 0, 1, 1)
    second.drop()
    assert delivered(first, clients, 0, 0, MIB) == (MIB, 0)
    other.read(0, 0, MIB)
    assert clients.counters(1) == (MIB, MIB, 2, 1)


@pytest.mark.parametrize(
    ("spec", "nodes", "least"),
    [
        (PfsSpec(40e6), 1, 8 * MIB / 40e6),  # alone
        (PfsSpec(160e6), 4, 32 * MIB / 160e6),  # four share it
        (PfsSpec(None, per_node=40e6), 2, 8 * MIB / 40e6),  # a link each
        (PfsSpec(None, request_seconds=0.02), 1, 8 * 0.02),
    ],
)
def test_no_more_comes_than_the_rates_allow(
    started: Callable[..., Clients], spec: PfsSpec, nodes: int, least: float
) -> None:
    clients = started(spec, nodes)
    readers = [clients.client(node) for node in range(nodes)]
    with ThreadPoolExecutor(nodes) as pool:
        took = timed(lambda: list(pool.map(lambda client: client.read(0, 0, 8 * MIB), readers)))
    assert took >= least - SLACK


def test_nodes_that_read_alike_get_the_same(started: Callable[..., Clients]) -> None:
    clients = started(PfsSpec(80e6), 4)
    readers, end = [clients.client(node) for node in range(4)], time.monotonic() + 0.6

    def read(client: Client) -> int:
        count = 0
        while time.monotonic() < end:
            count += len(client.read(0, count % (16 * MIB), MIB))
        return count

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(read, readers))
    assert sum(got) <= 80e6 * (0.6 + SLACK) + 4 * MIB  # those on their way at the end
    assert max(got) <= 1.5 * min(got)
    assert [clients.counters(node).pfs_bytes for node in range(4)] == got


def test_a_node_that_reads_by_many_threads_takes_nothing_from_others(started: Callable[..., Clients]) -> None:
    clients = started(PfsSpec(80e6), 3)
    callers, end = [clients.client(node) for node in [0] * 12 + [1, 2]], time.monotonic() + 0.8

    def read(client: Client) -> None:
        while time.monotonic() < end:
            client.read(0, 0, MIB)

    with ThreadPoolExecutor(len(callers)) as pool:
        list(pool.map(read, callers))
    got = [clients.counters(node).pfs_bytes for node in range(3)]
    assert got[0] <= 3 * min(got[1:]) + 12 * MIB  # those on their way at the end


def test_opens_take_their_latency_and_share_one_metadata_server(started: Callable[..., Clients]) -> None:
    clients = started(replace(FREE, open_seconds=0.05), 1)
    assert timed(lambda: clients.client().read(0, 0, 1)) >= 0.05
    clients = started(replace(FREE, opens=50.0), 2)
    readers = [clients.client(node) for node in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        opens = lambda client: [client.read(0, 0, 1) for _ in range(5)]  # noqa: E731
        took = timed(lambda: list(pool.map(opens, readers)))
    assert took >= 10 / 50 - SLACK
    assert [clients.counters(node).opens for node in (0, 1)] == [5, 5]


PROGRAM = """
import sys
from pathlib import Path
from msgspec import json
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.harness.storage.pfs.process import EmulatedAccess
from dlio_bench.harness.storage.pfs.spec import PfsSpec
spec, folder, state = sys.argv[1:]
dataset = open_dataset(Path(folder))
access = EmulatedAccess(json.decode(spec, type=PfsSpec), dataset, Path(state), 0)
out = memoryview(bytearray(1 << 20))
sys.stdin.readline()
for step in range(200):
    handle = access.open(dataset.path(step % 2), 0)
    access.read(handle, [out], (step * 7 % 3) << 20)
    access.close(handle)
"""


def test_processes_of_a_node_lose_no_count(dataset: Dataset) -> None:
    """Four at once: the cache's list stays whole, and each byte is counted once."""
    spec = PfsSpec(None, cache_bytes=8 * MIB, via=PROCESS)
    with emulation_of(spec, dataset, 1) as emulation, Board.open(emulation.board) as board:
        words = [msgspec.json.encode(spec).decode(), dataset.folder, emulation.mounts[0]]
        command = [sys.executable, "-P", "-c", PROGRAM, *map(str, words)]
        ranks = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(4)]
        for rank in ranks:
            rank.communicate(b"\n", timeout=120)
        assert [rank.returncode for rank in ranks] == [0] * 4
        found = board.counters(0)
    assert found.opens == 800
    assert found.pfs_bytes + found.cache_bytes == 800 * MIB
    assert found.requests * MIB == found.pfs_bytes
    assert found.cache_bytes > 0 < found.pfs_bytes


def test_what_is_not_of_the_dataset_is_read_at_full_speed(dataset: Dataset, tmp_path: Path) -> None:
    spec = PfsSpec(1e3, open_seconds=30.0, via=PROCESS)  # a day for a MiB
    (tmp_path / "copy").write_bytes(b"x" * MIB)
    with emulation_of(spec, dataset, 1) as emulation, Board.open(emulation.board) as board:
        access = EmulatedAccess(spec, dataset, emulation.mounts[0], 0)
        handle = access.open(tmp_path / "copy", os.O_RDONLY)
        assert access.read(handle, [memoryview(bytearray(MIB))], 0) == MIB
        access.close(handle)
        assert board.counters(0) == (0, 0, 0, 0)
