"""The emulated file system inside the processes that read: what a mount makes reads cost, without FUSE.

The processes of a node share its links and its client cache through a mapped file, and those of a machine the links of
all nodes. Only reads by `Access` are held up; a program that opens the files by itself would read them at full speed.
"""

import ctypes
import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path

from msgspec.structs import replace

from dlio_bench.batches import Bytes
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.storage.pfs.board import Board
from dlio_bench.harness.storage.pfs.bucket import FileLock, LocalBucket, SharedLink
from dlio_bench.harness.storage.pfs.cache import BLOCK, ClientCache
from dlio_bench.harness.storage.pfs.emulation import BOARD, BUCKET, FOLDER, METADATA, Emulation, mount_temporarily
from dlio_bench.harness.storage.pfs.node import REQUEST, Node, Own, SourceFile
from dlio_bench.harness.storage.pfs.spec import PROCESS, PfsSpec, queue_of

_PR_SET_TIMERSLACK = 29  # prctl(2)
# A node's file, in words of 8 bytes: when its two links are free, the pages held; then for each block the bits of its
# 256 pages, and its neighbours in the order of use. Block 0 is none: it is before the oldest and behind the newest.
_LINK, _MEMORY, _PAGES, _HEAD = 0, 1, 2, 8
_BITS, _ENTRY = 4, 6
_OLDER, _NEWER = 4, 5


def emulation_of(spec: PfsSpec, dataset: Dataset, nodes: int) -> AbstractContextManager[Emulation]:
    """The emulated file system of some nodes of this machine, by the way of `spec.via`, as long as the block lasts."""
    return shared_files(spec, dataset, nodes) if spec.via == PROCESS else mount_temporarily(spec, dataset.folder, nodes)


@contextmanager
def shared_files(spec: PfsSpec, dataset: Dataset, nodes: int) -> Iterator[Emulation]:
    """What the processes of some nodes of this machine share as long as a job runs: a file for each node, the board."""
    with temp_folder(FOLDER) as folder:
        emulation = Emulation(tuple(folder / f"node-{node}" for node in range(nodes)), folder / BOARD)
        Board.create(emulation.board, nodes)
        for bucket in (BUCKET, METADATA):
            SharedLink.create(folder / bucket, nodes)
        blocks = 1 + (_blocks(dataset)[1] if spec.cache_bytes else 0)
        for state in emulation.mounts:
            with state.open("wb") as file:
                file.truncate(8 * (_HEAD + _ENTRY * blocks))
        yield emulation


class EmulatedAccess:
    """How a rank reads a dataset's folder: see `Access`. Threads share it.

    What it charges is counted in row `row` of the board. EnvironmentFailure where the job's files are gone.
    """

    emulated = True

    def __init__(self, spec: PfsSpec, dataset: Dataset, state: Path, row: int) -> None:
        """state: the node's file, beside those that all nodes share. row: the number of the node among them."""
        # Sleeps end within 1 ns of timer slack instead of 50 us; threads made later inherit it.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        own = _own_pace(spec, state)
        shared = SharedLink(state.with_name(BUCKET), spec.bandwidth)
        metadata = SharedLink(state.with_name(METADATA), spec.opens)
        counters = Board.open(state.with_name(BOARD)).row(row)
        self._node = Node(spec, shared, counters, number=row, metadata=metadata, own=own)
        self._below = f"{dataset.folder}/"
        self._firsts = _blocks(dataset)[0] if spec.cache_bytes else {}
        self._files: dict[int, SourceFile] = {}

    def open(self, path: str | Path, flags: int, /) -> int:
        """As open(2), and as slow as the emulated file system if the file is of the dataset."""
        name = str(path)
        if not name.startswith(self._below):
            return os.open(name, flags)
        file = self._node.open(name, threading.get_ident(), flags)
        if self._firsts:
            file = replace(file, key=self._firsts[name.removeprefix(self._below)])
        self._files[file.fd] = file
        return file.fd

    def read(self, handle: int, into: Sequence[memoryview | Bytes], offset: int, /) -> int:
        """As preadv(2), in requests of 1 MiB like those of the kernel."""
        file = self._files.get(handle)
        if file is None:
            return os.preadv(handle, into, offset)
        got, caller = 0, threading.get_ident()
        for size, out in _requests(into):
            count = self._node.read(file, offset + got, out, caller)
            got += count
            if count < size:
                break
        return got

    def close(self, handle: int, /) -> None:
        """As close(2)."""
        self._files.pop(handle, None)
        os.close(handle)

    def drop_cache(self) -> None:
        """Empty the node's client cache."""
        self._node.drop()


def _requests(into: Sequence[memoryview | Bytes]) -> Iterator[tuple[int, list[memoryview]]]:
    """Buffers cut into what one request brings: its bytes, and where they go."""
    size, out = 0, list[memoryview]()
    for buffer in into:
        left = memoryview(buffer).cast("B")
        while len(left):
            part, left = left[: REQUEST - size], left[REQUEST - size :]
            out.append(part)
            size += len(part)
            if size == REQUEST:
                yield size, out
                size, out = 0, []
    if size:
        yield size, out


def _blocks(dataset: Dataset) -> tuple[dict[str, int], int]:
    """The first block of each file, if those of all files are counted through, and how many there are."""
    firsts, count = {}, 0
    for entry in dataset.manifest.files:
        firsts[entry.name] = count
        count += -(-entry.bytes // BLOCK)
    return firsts, count


def _own_pace(spec: PfsSpec, state: Path) -> Own:
    try:
        handle = os.open(state, os.O_RDWR | os.O_CLOEXEC)
        mapped = mmap.mmap(handle, 0)
    except (OSError, ValueError) as error:
        raise EnvironmentFailure(
            f"'{state}', by which the ranks of a node share the emulated file system, cannot be opened ({error}). It "
            "is there only as long as the job runs. Run again."
        ) from None
    doubles, words = memoryview(mapped).cast("d"), memoryview(mapped).cast("Q")
    link = LocalBucket(spec.per_node, doubles[_LINK : _LINK + 1])
    memory = LocalBucket(spec.cache_bandwidth, doubles[_MEMORY : _MEMORY + 1])
    return Own(FileLock(handle), ClientCache(spec.cache_bytes, _MappedBlocks(words)), link, memory, transport=0.0)


class _MappedBlocks:
    """`Blocks` in memory that processes share. Its keys are the number of a file's first block, and that of a block."""

    def __init__(self, words: memoryview) -> None:
        self._words = words

    @property
    def pages(self) -> int:
        return int(self._words[_PAGES])

    @pages.setter
    def pages(self, count: int) -> None:
        self._words[_PAGES] = count

    def get(self, key: tuple[Hashable, int], default: int, /) -> int:
        return self._bits(_number(key)) or default

    def __setitem__(self, key: tuple[Hashable, int], bits: int, /) -> None:
        number = _number(key)
        if not self._bits(number):
            self._link(self._neighbour(0, _OLDER), number, 0)
        at = _HEAD + _ENTRY * number
        self._words[at : at + _BITS] = memoryview(bits.to_bytes(8 * _BITS, "little")).cast("Q")

    def move_to_end(self, key: tuple[Hashable, int], /) -> None:
        number = _number(key)
        self._unlink(number)
        self._link(self._neighbour(0, _OLDER), number, 0)

    def popitem(self, last: bool) -> tuple[object, int]:
        number = self._neighbour(0, _OLDER if last else _NEWER)
        bits = self._bits(number)
        self._unlink(number)
        at = _HEAD + _ENTRY * number
        self._words[at : at + _BITS] = memoryview(bytes(8 * _BITS)).cast("Q")
        return number, bits

    def clear(self) -> None:
        while self._neighbour(0, _NEWER):
            self.popitem(last=False)

    def _bits(self, number: int) -> int:
        at = _HEAD + _ENTRY * number
        return int.from_bytes(self._words[at : at + _BITS], "little")

    def _neighbour(self, number: int, side: int) -> int:
        return int(self._words[_HEAD + _ENTRY * number + side])

    def _link(self, older: int, number: int, newer: int) -> None:
        words = self._words
        words[_HEAD + _ENTRY * number + _OLDER], words[_HEAD + _ENTRY * number + _NEWER] = older, newer
        words[_HEAD + _ENTRY * older + _NEWER] = words[_HEAD + _ENTRY * newer + _OLDER] = number

    def _unlink(self, number: int) -> None:
        older, newer = self._neighbour(number, _OLDER), self._neighbour(number, _NEWER)
        self._words[_HEAD + _ENTRY * older + _NEWER] = newer
        self._words[_HEAD + _ENTRY * newer + _OLDER] = older


def _number(key: tuple[Hashable, int]) -> int:
    first, block = key
    assert isinstance(first, int)
    return 1 + first + block


# An emulated slow object store: what each request for a range costs a node, waited for in the process that asks.
#
# The links, latencies and waits are those of an emulated file system (`node`), of which a store has no client cache. A
# request opens its object anew, so that each takes the latency of an open, and that of its started MiB.

SHARED = "bucket"


class Pace:
    """Holds requests of one process up. Threads share it; the links' files are shared by the processes of a machine."""

    def __init__(
        self,
        spec: PfsSpec,
        node: SharedLink,
        shared: SharedLink,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        number: int = 0,
    ) -> None:
        """node, number: its own link, and which node it is."""
        self._queue = queue_of(spec, number)
        self._spec, self._node, self._shared = spec, node, shared
        self._clock, self._sleep = clock, sleep
        self._late = threading.local()  # seconds that a thread's last wait took too long

    @contextmanager
    def request(self, count: int) -> Iterator[None]:
        """Around a request for `count` bytes, which is made meanwhile: it takes the emulated time, or its own."""
        now, spec = self._clock(), self._spec
        credit = getattr(self._late, "seconds", 0.0)
        link = self._node.reserve(count, now, credit)
        turn = link.end - count / (spec.per_node or math.inf)
        if turn > now:
            self._sleep_until(turn)
            now = self._clock()
            credit = now - turn
        network = self._shared.reserve(count, now, credit, self._queue)
        yield
        asked = self._clock()
        end = max(now, link.end, self._shared.wait(network, self._sleep_until))
        due = end + spec.open_seconds + -(-count // REQUEST) * spec.request_seconds
        self._sleep_until(due)
        self._late.seconds = max(self._clock() - max(due, asked), 0.0)

    def _sleep_until(self, moment: float) -> None:
        if (left := moment - self._clock()) > 0:
            self._sleep(left)


@contextmanager
def links(nodes: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Files of the links of virtual nodes, and of the link that they share, for as long as a job runs."""
    with temp_folder(FOLDER) as folder:
        own = tuple(str(folder / f"link-{node}") for node in range(nodes))
        for path in own:
            SharedLink.create(Path(path))
        SharedLink.create(folder / SHARED, nodes)
        yield own, str(folder / SHARED)


@contextmanager
def open_pace(spec: PfsSpec, nodes: Sequence[str], number: int, shared: str) -> Iterator[Pace]:
    """The pace of a rank of node `number`, by the files of `links`. EnvironmentFailure where they are gone."""
    with ExitStack() as stack:
        own = stack.enter_context(closing(SharedLink(Path(nodes[number]), spec.per_node)))
        common = stack.enter_context(closing(SharedLink(Path(shared), spec.bandwidth)))
        yield Pace(spec, own, common, number=number)
