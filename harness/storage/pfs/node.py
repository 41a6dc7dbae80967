"""One node's side of the emulated file system: what a read costs, counted and waited for. Knows nothing of FUSE.

A read takes its bytes from the client cache and the rest from the file system. The rest first takes the node's own
link, and when its turn comes there the link that all nodes share. There each node has a queue of its own, so that a
node that asks for much at once does not keep the link from others; with `shared_by` = requests all have one queue.
Latency is added after that and occupies no link: requests overlap in it. The real bytes are copied in the meantime; a
read that is slower than the emulated time takes as long as it takes.

A write is charged as a read of bytes that no cache holds: the two share the links. Nothing of it is cached.

Two simplifications: bytes count as cached from the moment they are asked for, and a read that is partly cached takes
the longer of its two parts.
"""

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager

from msgspec import Struct

from dlio_bench.harness.storage.pfs.board import (
    CACHE_BYTES,
    DROP_ASKED,
    DROP_DONE,
    OPENS,
    PFS_BYTES,
    READ_NS,
    REQUESTS,
    WRITE_NS,
    WRITTEN_BYTES,
)
from dlio_bench.harness.storage.pfs.bucket import SLACK, LocalBucket, SharedLink
from dlio_bench.harness.storage.pfs.cache import ClientCache
from dlio_bench.harness.storage.pfs.spec import PfsSpec, queue_of

REQUEST = 1 << 20  # bytes: the largest request the kernel sends, and what one `request_seconds` is charged for
PAGE = 4096
# Seconds that a request is on its way between reader and daemon; 26 us for 4 KiB, 72 us for 256 KiB were measured.
TRANSPORT = 60e-6
_CALLERS = 1024  # threads that are remembered; a forgotten one only loses its credit

FileKey = Hashable


class SourceFile(Struct, frozen=True):
    """A source file that is open: its descriptor, its identity, its bytes.

    size: None where somebody may write to it.
    """

    fd: int
    key: FileKey
    size: int | None


class _Caller:
    """What is remembered of a reading thread.

    due: when its last call should have returned. late: seconds that it returned after that. end: (file, offset) where
    its last read ended when that may be a piece that the kernel cut from a larger one. room: bytes left of its last
    started MiB.
    """

    __slots__ = ("due", "end", "late", "room")

    def __init__(self, now: float) -> None:
        self.due = now
        self.late = 0.0
        self.end: tuple[FileKey, int] | None = None
        self.room = 0


class Own(Struct, frozen=True):
    """A node's cache, its links to the shared one and to that cache, and the lock under which they are used.

    transport: seconds that a request is on its way to where it is held up, and back.
    """

    lock: AbstractContextManager[object]
    cache: ClientCache
    link: LocalBucket
    memory: LocalBucket
    transport: float

    @staticmethod
    def of_one_process(spec: PfsSpec) -> "Own":
        """Of a node all of whose requests come to one process, its daemon."""
        link, memory = LocalBucket(spec.per_node), LocalBucket(spec.cache_bandwidth)
        return Own(threading.Lock(), ClientCache(spec.cache_bytes), link, memory, TRANSPORT)


class Node:
    """Charges opens and reads of one node. May be called by many threads; `row` is the node's row of the board."""

    def __init__(
        self,
        spec: PfsSpec,
        shared: SharedLink,
        row: memoryview,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        number: int = 0,
        metadata: SharedLink | None = None,
        own: "Own | None" = None,
    ) -> None:
        """number: of the node. metadata: the server of opens, whose rate is opens/s. own: what its processes share."""
        self._queue = queue_of(spec, number)
        self._spec = spec
        self._shared = shared
        self._metadata = metadata
        self._row = row
        self._clock = clock
        self._sleep = sleep
        own = own or Own.of_one_process(spec)
        self._lock, self._cache, self._link, self._memory = own.lock, own.cache, own.link, own.memory
        self._transport = own.transport
        self._callers: OrderedDict[int, _Caller] = OrderedDict()

    def open(
        self, path: str, caller: int, flags: int = os.O_RDONLY, mode: int = 0o666, *, grows: bool = False
    ) -> SourceFile:
        """Open a source file. OSError as the source has it; a failed open takes its latency too.

        grows: its size is looked up at every read.
        """
        now = self._clock()
        with self._lock:
            thread, late = self._thread_memory(caller)
        server, latency = self._metadata, self._spec.open_seconds
        if server is not None:
            served = server.reserve(1, now, late, self._queue)
        try:
            fd = os.open(path, flags | os.O_CLOEXEC, mode)
        finally:
            if server is not None:  # it is at work for a part of the latency
                now = server.wait(served, self._sleep_until)
                latency = max(latency - 1 / (self._spec.opens or math.inf), 0.0)
            self._wait(thread, now + latency)
        status = os.fstat(fd)
        with self._lock:
            self._row[OPENS] += 1
        size = None if grows else status.st_size
        return SourceFile(fd, (status.st_dev, status.st_ino, status.st_mtime_ns), size)

    def read(self, file: SourceFile, offset: int, out: Sequence[memoryview], caller: int) -> int:
        """Fill buffers of at most `REQUEST` bytes with the file's bytes from `offset`; returns how many there were.

        OSError as the source has it. `caller` tells the reading threads apart: what wake-ups cost one of them is given
        back to it.
        """
        size = os.fstat(file.fd).st_size if file.size is None else file.size
        count = max(min(sum(map(len, out)), size - offset), 0)
        began = now = self._clock()
        with self._lock:
            thread, late = self._thread_memory(caller)
            continues = thread.end == (file.key, offset)
            # Of the time since the thread's last call, all was ours when the kernel cut one read into pieces; else what
            # that call was late, and the way to the reader and back.
            credit = min(max(now - thread.due, 0.0), SLACK if continues else late + self._transport)
            hit, missed = self._cache.take(file.key, offset, count)
            started = _started_blocks(thread, missed, continues)
            # The kernel cuts a large read at 256 pages: into whole MiB, but for less than a page of the first piece
            # when the reader's memory does not begin at a page.
            thread.end = (file.key, offset + count) if count > REQUEST - PAGE else None
            due = self._memory.reserve(hit, now, credit).end if hit else now
            link = self._link.reserve(missed, now, credit) if missed else None
        if link:
            if link.start > now:
                self._sleep_until(link.start)
                now = self._clock()
                credit = now - link.start
            network = self._shared.reserve(missed, now, credit, self._queue)
        got = os.preadv(file.fd, out, offset) if count else 0
        while 0 < got < count and (step := os.preadv(file.fd, _remaining(out, got), offset + got)):
            got += step
        if link:
            due = (
                max(due, link.end, self._shared.wait(network, self._sleep_until)) + started * self._spec.request_seconds
            )
        self._wait(thread, due)
        with self._lock:
            self._row[CACHE_BYTES] += min(hit, got)
            self._row[PFS_BYTES] += got - min(hit, got)
            self._row[REQUESTS] += started
            self._row[READ_NS] += self._nanoseconds_since(began)
        return got

    def write(self, file: SourceFile, offset: int, content: memoryview, caller: int) -> int:
        """Write all of `content` at `offset`; returns its length. OSError as the source has it."""
        began = now = self._clock()
        count, started = len(content), -(-len(content) // REQUEST)
        with self._lock:
            thread, late = self._thread_memory(caller)
            credit = min(max(now - thread.due, 0.0), late + self._transport)
            thread.end = None
            link = self._link.reserve(count, now, credit)
        if link.start > now:
            self._sleep_until(link.start)
            now = self._clock()
            credit = now - link.start
        network = self._shared.reserve(count, now, credit, self._queue)
        written = 0
        while written < count:
            written += os.pwrite(file.fd, content[written:], offset + written)
        end = max(link.end, self._shared.wait(network, self._sleep_until))
        self._wait(thread, end + started * self._spec.request_seconds)
        with self._lock:
            self._row[WRITTEN_BYTES] += count
            self._row[REQUESTS] += started
            self._row[WRITE_NS] += self._nanoseconds_since(began)
        return count

    def _nanoseconds_since(self, moment: float) -> int:
        """Nanoseconds."""
        return round((self._clock() - moment) * 1e9)

    def drop_if_requested(self) -> None:
        """Empty the cache when the board asks for it, and say so there."""
        request = self._row[DROP_ASKED]
        if self._row[DROP_DONE] != request:
            self.drop()
            self._row[DROP_DONE] = request

    def drop(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._cache.clear()

    def _thread_memory(self, caller: int) -> tuple[_Caller, float]:
        """The thread's memory, and the lateness of its last call, which is given back once. Under the lock."""
        thread = self._callers.get(caller)
        if thread is None:
            thread = self._callers[caller] = _Caller(self._clock())
            if len(self._callers) > _CALLERS:
                self._callers.popitem(last=False)
        else:
            self._callers.move_to_end(caller)
        late, thread.late = thread.late, 0.0
        return thread, min(late, SLACK)

    def _wait(self, thread: _Caller, due: float) -> None:
        self._sleep_until(due)
        thread.due, thread.late = due, max(self._clock() - due, 0.0)

    def _sleep_until(self, moment: float) -> None:
        """Sleep to `moment`, never less."""
        while (left := moment - self._clock()) > 0:
            self._sleep(left)


def _remaining(out: Sequence[memoryview], count: int) -> list[memoryview]:
    """What is left of buffers behind their first `count` bytes."""
    left = []
    for one in out:
        left.append(one[min(count, len(one)) :])
        count = max(count - len(one), 0)
    return [one for one in left if len(one)]


def _started_blocks(thread: _Caller, missed: int, continues: bool) -> int:
    """Started MiB of `missed` bytes, after what the last one has room for when the kernel cut one read into pieces."""
    room = thread.room if continues else 0
    beyond = max(missed - room, 0)
    started = -(-beyond // REQUEST)
    thread.room = room - missed if beyond == 0 else started * REQUEST - beyond
    return started
