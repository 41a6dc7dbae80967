"""Samples served to other ranks, straight from the files in which a node keeps them.

A rank serves with threads that sleep in the kernel until a request comes. Bytes go from the file to the network by
sendfile(2) and from the network into the buffer, without the interpreter's lock and without a copy in Python.

One-sided MPI was measured against it over 1 Gbit/s (scripts/measure/serve_samples.py names the commands; Open MPI
5.0.11): over TCP an MPI_Get from a rank whose trainer sleeps is answered when that rank next calls MPI, here after the
4 s of the phase, while the asker spins. With Open MPI's progress thread (btl_tcp_progress_thread=1) samples of 6 MB
came with 57 MB/s and those of 115 KB, 16 at once, with 118, at 21 and 11 CPU seconds a GB of both ranks; from here with
116 and 119 MB/s, at 1.3.

The protocol, integers little-endian. Request: the number of samples (uint32), their ids (int64 each). Reply, in the
order of the request: the length of each sample (int64), -1 where it is not here, followed by its bytes.
"""

import contextlib
import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice

from dlio_bench import recorder
from dlio_bench.components import CODE
from dlio_bench.harness.cluster import links
from dlio_bench.harness.cluster.interfaces import LOOPBACK
from dlio_bench.harness.cluster.links import PATIENCE_SECONDS, Address

# Where a sample's bytes lie: file descriptor, offset, length.
Piece = tuple[int, int, int]

_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<q")
_ABSENT = -1
SAMPLE_SERVER = CODE["sample server"]
MOST_ASKED = 1 << 16  # samples of a request: `Serving` refuses more, and `Peers` splits longer requests

# Any process may connect to the port. At most this many connections without proof hold a descriptor and a thread. The
# kernel queues the next ones until a connection has its proof, or the longest waiting one is closed, and those that
# say nothing at all it keeps to itself (see links).
MOST_UNPROVEN = 64
# Connections that a rank keeps for its next requests, to all others together. On average that is also how many of
# theirs it serves, each with a thread: of hundreds of ranks, most connections would sleep.
MOST_IDLE = 256
# Connections that a rank keeps open at a time. If all ranks turn to one, it closes those that are idle for longest, and
# their clients connect again for the next request.
MOST_SERVED = 1024
SILENT_SECONDS = 1.0  # a rank of the job needs one round trip for its proof


class Serving:
    """Answers other ranks' requests for samples, from its construction until `close`.

    `answer(sample)` says where the sample lies, or None when it is not here. It is called from several threads, one for
    each connection, and may wait for a sample that is on its way, for less than the clients' patience; only
    requests on that connection wait with it. Its descriptors stay open until `close` has returned.

    Read at any time: samples asked for (`requests`), bytes sent, `misses` (asked for and not here) and the seconds in
    which threads were sending, added up over the connections; waits in `answer` are not among them.
    """

    def __init__(
        self,
        answer: Callable[[int], Piece | None],
        *,
        token: bytes,
        host: str = LOOPBACK,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """Listens on the address `host` alone, of this machine."""
        self._answer, self._token, self._patience = answer, token, patience
        self.requests = self.bytes = self.misses = 0
        self.seconds = 0.0
        self._listener, self.address = links.listen(host)
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._idle: dict[socket.socket, None] = {}  # those that have answered and wait; the longest idle first
        self._ended: set[socket.socket] = set()  # those that were idle for too long; their threads close them
        self._leaving: list[threading.Thread] = []  # that have closed their connection
        self._unproven: dict[socket.socket, float] = {}  # since when, in seconds of time.monotonic; the oldest first
        self._proved = threading.Condition(self._lock)
        self._closed = threading.Event()
        # daemons: a rank that fails ends without waiting for its clients
        self._accepting = threading.Thread(target=self._accept, name="peers-accept", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """End every connection, in mid-reply too, and return when all threads and descriptors are gone.

        Waits for calls of `answer` that are still in progress.
        """
        with self._lock:
            self._closed.set()
            threads = [*self._connections.values(), *self._leaving]
            for link in self._connections:
                links.shut_down(link)
            self._proved.notify()
        links.shut_down(self._listener)
        self._accepting.join()
        links.close(self._listener)
        for thread in threads:
            thread.join()

    def _accept(self) -> None:
        for link in links.accept_connections(self._listener, lambda: self._closed.wait(0.1)):
            thread = threading.Thread(target=self._serve, args=(link,), name="peers-serve", daemon=True)
            with self._lock:
                if self._closed.is_set():
                    links.close(link)
                    return
                try:
                    thread.start()
                except RuntimeError:  # no thread left: the caller reads from the files
                    links.close(link)
                    continue
                self._connections[link] = thread
                self._unproven[link] = time.monotonic()
                self._make_room()

    def _make_room(self) -> None:
        """Return when another connection may be accepted. Needs the lock, and releases it while it waits."""
        while len(self._unproven) >= MOST_UNPROVEN and not self._closed.is_set():
            oldest, since = next(iter(self._unproven.items()))
            rest = since + SILENT_SECONDS - time.monotonic()
            if rest > 0:
                self._proved.wait(rest)
            else:
                self._unproven.pop(oldest)
                links.shut_down(oldest)  # its thread closes it

    def _serve(self, link: socket.socket) -> None:
        try:
            # the client is gone, or this side closes: nobody waits for a reply
            with contextlib.suppress(OSError):
                admitted = links.admit(link, self._token, self.address.identity, self._patience)
                self._no_longer_unproven(link)
                if admitted:
                    while not self._closed.is_set():
                        self._reply(link, self._receive_request(link))
                        self._park_connection(link)
        finally:
            self._no_longer_unproven(link)
            with self._lock:
                self._idle.pop(link, None)
                self._ended.discard(link)
                self._leaving = [thread for thread in self._leaving if thread.is_alive()]
                self._leaving.append(self._connections.pop(link))
                links.close(link)

    def _no_longer_unproven(self, link: socket.socket) -> None:
        with self._lock:
            if self._unproven.pop(link, None) is not None:
                self._proved.notify()

    def _reply(self, link: socket.socket, samples: Sequence[int]) -> None:
        left, begun, sent = len(samples), time.perf_counter(), 0
        for sample in samples:
            left -= 1
            piece = self._answer(sample)
            started = time.perf_counter()
            file, offset, length = piece or (-1, 0, _ABSENT)
            # the length travels with what follows it, be it the bytes or the next answer
            more = socket.MSG_MORE if length > 0 or left else 0
            link.sendall(_LENGTH.pack(length), more)
            links.send_file(link, file, offset, length)
            with self._lock:
                self.requests += 1
                self.misses += piece is None
                self.bytes += max(0, length)
                self.seconds += time.perf_counter() - started
            sent += max(0, length)
        if track := recorder.current_track():
            track.add(SAMPLE_SERVER, begun, time.perf_counter(), sent)

    def _park_connection(self, link: socket.socket) -> None:
        """A connection is idle until the next request. Of too many, close those that are idle for longest: their
        clients can open others. One that has answered nothing yet is not idle: its client takes its end for this
        rank's.
        """
        with self._lock:
            many = len(self._connections) - len(self._unproven) - len(self._ended) - MOST_SERVED
            for idle in list(islice(self._idle, max(0, many))):
                del self._idle[idle]
                self._ended.add(idle)
                links.shut_down(idle)
            self._idle[link] = None

    def _receive_request(self, link: socket.socket) -> Sequence[int]:
        """The samples of the next request."""
        head = bytearray(_COUNT.size)
        links.receive(link, memoryview(head))
        with self._lock:
            self._idle.pop(link, None)
        return _samples(link, head)


def _samples(link: socket.socket, head: bytearray) -> Sequence[int]:
    """The samples of a request that begins with `head`."""
    [count] = _COUNT.unpack(head)
    if count > MOST_ASKED:
        raise OSError(errno.EMSGSIZE, f"{count} samples at once")
    body = bytearray(count * 8)
    links.receive(link, memoryview(body))
    return struct.unpack(f"<{count}q", body)


class Peers:
    """Asks other ranks for samples; `addresses` are those of all ranks' `Serving`, by rank.

    Any number of threads may call it; the last MOST_IDLE connections are kept for the next calls, each at the cost of
    some 25 kB of the serving rank. `dead`: ranks that could not be reached, closed the connection, or did not move a
    byte for `patience` seconds; they are not asked again.
    """

    def __init__(self, addresses: Sequence[Address], token: bytes, *, patience: float = PATIENCE_SECONDS) -> None:
        self._addresses, self._token, self._patience = addresses, token, patience
        self.dead: set[int] = set()
        self._lock = threading.Lock()
        self._idle: dict[socket.socket, int] = {}  # their ranks; the longest idle first
        self._open: set[socket.socket] = set()
        self._closed = threading.Event()

    def fetch(self, rank: int, samples: Sequence[int], outs: Sequence[memoryview]) -> list[bool]:
        """Fill outs[i], of bytes, with sample samples[i] as `rank` keeps it; whether it arrived, by sample.

        A sample does not arrive, either, when it has another length than its buffer, and when the peer is dead or dies
        before the sample is whole: its buffer may then hold part of it. Ask for many small samples at once: a request
        costs a round trip.
        """
        arrived = [False] * len(samples)
        for fresh in (False, True):
            link, was_idle = self._borrow_link(rank, fresh=fresh) if samples else (None, False)
            if link is None:
                break
            whole = False
            try:
                whole = all(
                    _ask(link, samples[begin : begin + MOST_ASKED], outs, arrived, begin)
                    for begin in range(0, len(samples), MOST_ASKED)
                )
            except ConnectionError:  # closed: by a server that has too many, if it was idle
                if was_idle and not any(arrived):
                    continue
                self._mark_dead(rank)
            except OSError:
                self._mark_dead(rank)
            finally:
                self._return_link(rank, link, whole)
            break
        return arrived

    def close(self) -> None:
        """End all connections; a `fetch` in progress finds nothing more."""
        with self._lock:
            self._closed.set()
            for link in self._open:
                links.shut_down(link)
            for link in [*self._idle]:
                self._drop(link)

    def _borrow_link(self, rank: int, *, fresh: bool) -> tuple[socket.socket | None, bool]:
        """A connection to a rank, and whether it was idle; None where there is none. fresh: not an idle one."""
        with self._lock:
            if self._closed.is_set() or rank in self.dead:
                return None, False
            for idle in reversed(self._idle):
                if self._idle[idle] == rank and not fresh:
                    del self._idle[idle]
                    return idle, True
        address = self._addresses[rank]
        link = links.dial(address.host, address.port)
        if link is not None:
            with self._lock:
                self._open.add(link)
                if self._closed.is_set():
                    links.shut_down(link)
            if links.introduce(link, self._token, address.identity, self._patience):
                return link, False
            self._return_link(rank, link, whole=False)
        self._mark_dead(rank)
        return None, False

    def _return_link(self, rank: int, link: socket.socket, whole: bool) -> None:
        with self._lock:
            if whole and not self._closed.is_set():
                self._idle[link] = rank
                if len(self._idle) > MOST_IDLE:
                    self._drop(next(iter(self._idle)))
            else:
                self._drop(link)

    def _mark_dead(self, rank: int) -> None:
        with self._lock:
            if not self._closed.is_set():
                self.dead.add(rank)
            for link in [link for link, theirs in self._idle.items() if theirs == rank]:
                self._drop(link)

    def _drop(self, link: socket.socket) -> None:
        """Needs the lock."""
        self._idle.pop(link, None)
        self._open.discard(link)
        links.close(link)


def _ask(
    link: socket.socket, samples: Sequence[int], outs: Sequence[memoryview], arrived: list[bool], first: int
) -> bool:
    """Ask for `samples`, which go into outs[first:]; `arrived` is filled from there on.

    Whether the connection can be used again: not after a length that was not expected, when bytes are left in it."""
    link.sendall(_COUNT.pack(len(samples)) + struct.pack(f"<{len(samples)}q", *samples))
    head = bytearray(_LENGTH.size)
    for at, out in enumerate(outs[first : first + len(samples)], first):
        links.receive(link, memoryview(head))
        [length] = _LENGTH.unpack(head)
        if length == _ABSENT:
            continue
        if length != len(out):
            return False
        links.receive(link, out)
        arrived[at] = True
    return True
