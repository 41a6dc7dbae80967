"""Open files that one process of a host gives to others, so that they share what has no name: SCM_RIGHTS, unix(7).

/proc/PID/fd/N would do as well, but not between processes in containers of their own (user namespaces).
"""

import errno
import os
import secrets
import socket
from array import array
from collections.abc import Sequence
from types import TracebackType

from msgspec import Struct


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
