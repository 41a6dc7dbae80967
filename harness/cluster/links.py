"""Connections between the ranks of a job: by TCP, with a proof of identity; on one host also for open files.

Several hosts may have the same address (the bridges of containers do), so another host or job may answer. Both sides
therefore prove that they know the job's token and mean the same rank. The caller speaks first: the kernel gives the
listener only callers that have (tcp(7), TCP_DEFER_ACCEPT), and however many are silent, no rank waits behind them.
"""

import contextlib
import errno
import hmac
import math
import os
import secrets
import socket
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from msgspec import Struct

from dlio_bench.errors import EnvironmentFailure

# The kernel of a running host accepts at once, however busy the host is. TCP repeats a lost first packet after 1 s and
# after 2 s more (RFC 6298, section 2): an address that is silent after both has no listener.
CONNECT_SECONDS = 3.5
# A rank may be busy, starved or paging; one that has not moved a byte for half a minute counts as dead.
PATIENCE_SECONDS = 30.0
# A connection is silent for a whole training phase. Probes keep firewalls from dropping it, which they do after some
# minutes of silence, and detect hosts that went down.
KEEPALIVE_SECONDS = 60

_BACKLOG = 4096  # every rank of a large job may connect in its first step; the kernel cuts it to its own limit
_SILENT_SECONDS = 3600  # for which the kernel holds a caller that says nothing
_NONCE_BYTES = 16
_PROOF_BYTES = 32


class Address(Struct, frozen=True):
    """How to reach a rank that listens: an IPv4 address and a port. `identity` names the rank itself."""

    host: str
    port: int
    identity: bytes


def listen(host: str) -> tuple[socket.socket, Address]:
    """Listen on a free port of one address of this host. EnvironmentFailure when no port can be had."""
    try:
        listener = socket.create_server((host, 0), backlog=_BACKLOG)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _SILENT_SECONDS)
    except OSError as error:
        raise EnvironmentFailure(
            f"No TCP port of {host} can be opened to serve samples to other ranks: {error.strerror}. Allow this user "
            "to listen (firewall, container settings, `ulimit -n`), or choose a reader that keeps no samples for "
            "others."
        ) from error
    return listener, Address(host, listener.getsockname()[1], secrets.token_bytes(_NONCE_BYTES))


def dial(host: str, port: int) -> socket.socket | None:
    """A connection to this address; None where nothing listens."""
    try:
        return socket.create_connection((host, port), CONNECT_SECONDS)
    except OSError:
        return None


def introduce(link: socket.socket, token: bytes, identity: bytes, patience: float) -> bool:
    """Whether both ends know the job's `token` and the other end is the rank `identity`.

    From then on a call on `link` that moves no byte for `patience` seconds fails with BlockingIOError.
    """
    try:
        _prepare(link, patience)
        return _meet_server(link, token, identity)
    except OSError:  # another program, or the rank has ended
        return False


def admit(link: socket.socket, token: bytes, identity: bytes, patience: float) -> bool:
    """The listening side of `introduce`: whether the caller knows the token and means this rank. OSError."""
    _prepare(link, patience)
    if not _meet_client(link, token, identity):
        return False
    limit_waits(link, receiving=None, sending=patience)
    return True


def _prepare(link: socket.socket, patience: float) -> None:
    link.settimeout(None)  # Python's own time limits would poll before each read; the kernel's do not
    limit_waits(link, receiving=patience, sending=patience)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)


def limit_waits(link: socket.socket, receiving: float | None, sending: float | None) -> None:
    """How long one call may wait without a byte moving, in seconds; None: for ever. BlockingIOError when it is over."""
    for option, seconds in ((socket.SO_RCVTIMEO, receiving), (socket.SO_SNDTIMEO, sending)):
        part, whole = math.modf(seconds or 0)
        link.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(whole), int(part * 1e6)))


def _proof(token: bytes, role: bytes, identity: bytes, nonce: bytes) -> bytes:
    return hmac.digest(token, role + identity + nonce, "sha256")


def _meet_server(link: socket.socket, token: bytes, identity: bytes) -> bool:
    """Challenge and answer (as in RFC 2104's use for authentication): the token itself is never sent."""
    challenge, heard = os.urandom(_NONCE_BYTES), bytearray(_PROOF_BYTES + _NONCE_BYTES)
    link.sendall(challenge)
    receive(link, memoryview(heard))
    if not hmac.compare_digest(heard[:_PROOF_BYTES], _proof(token, b"server", identity, challenge)):
        return False
    link.sendall(_proof(token, b"client", identity, bytes(heard[_PROOF_BYTES:])))
    return True


def _meet_client(link: socket.socket, token: bytes, identity: bytes) -> bool:
    challenge, mine = bytearray(_NONCE_BYTES), os.urandom(_NONCE_BYTES)
    receive(link, memoryview(challenge))
    link.sendall(_proof(token, b"server", identity, bytes(challenge)) + mine)
    proof = bytearray(_PROOF_BYTES)
    receive(link, memoryview(proof))
    return hmac.compare_digest(proof, _proof(token, b"client", identity, mine))


def receive(link: socket.socket, into: memoryview) -> None:
    """Fill `into`, which is of bytes. OSError when the other side ends first or nothing moves within the limit."""
    done = 0
    while done < len(into):
        # the kernel collects all of it in one call, without the interpreter's lock
        count = link.recv_into(into[done:], flags=socket.MSG_WAITALL)
        if count == 0:
            raise ConnectionResetError(errno.ECONNRESET, "the other side has closed the connection")
        done += count


def send_file(link: socket.socket, file: int, offset: int, length: int) -> None:
    """Send a piece of an open file; nothing is copied in this process. OSError when it cannot be sent whole."""
    end = offset + length
    while offset < end:
        count = os.sendfile(link.fileno(), file, offset, end - offset)
        if count == 0:
            raise OSError(errno.EIO, "the file ends early")
        offset += count


def shut_down(link: socket.socket) -> None:
    """Wake every thread that waits on `link`; their calls fail. The descriptor stays theirs."""
    with contextlib.suppress(OSError):  # the other side was quicker
        link.shutdown(socket.SHUT_RDWR)


def close(link: socket.socket) -> None:
    """Close, whatever state it is in."""
    with contextlib.suppress(OSError):
        link.close()


def accept_connections(listener: socket.socket, pause: Callable[[], bool]) -> Iterator[socket.socket]:
    """Connections as they come. `pause` waits a little after a failed one (no descriptor left); True ends it."""
    while True:
        try:
            yield listener.accept()[0]
        except OSError:
            if pause():
                return


# Open files that one process of a host gives to others, so that they share what has no name: SCM_RIGHTS, unix(7).
#
# /proc/PID/fd/N would do as well, but not between processes in containers of their own (user namespaces).


class Where(Struct, frozen=True):
    """Where a process takes files: the name of its socket, and what proves that it told the sender."""

    name: bytes
    token: bytes


class Inbox:
    """Takes files of other processes of this host, until it is left: those that have been told `where`."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(b"")  # the kernel chooses a name, which is in no file system
        self.where = Where(self._socket.getsockname(), secrets.token_bytes(16))

    def __enter__(self) -> "Inbox":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def take(self, count: int) -> list[int]:
        """The handles of `count` files that were sent together, before. OSError."""
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC  # which socket.recv_fds leaves out (Python 3.11)
        while True:
            handles = array("i")
            room = socket.CMSG_SPACE(count * handles.itemsize)
            token, parts, _, _ = self._socket.recvmsg(len(self.where.token), room, flags)
            for _, _, part in parts:
                handles.frombytes(part[: len(part) // handles.itemsize * handles.itemsize])
            if token == self.where.token and len(handles) == count:
                return handles.tolist()
            for handle in handles:
                os.close(handle)
            if token == self.where.token:  # the kernel leaves out what finds no room in the table of open files
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def send(handles: Sequence[int], to: Where) -> None:
    """Give files to another process. OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(to.name)
        socket.send_fds(sender, [to.token], handles)
