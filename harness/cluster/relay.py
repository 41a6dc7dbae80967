"""What a command starts in place of a launcher where its ranks are there already (see joined).

`python -P -m dlio_bench.harness.cluster.relay MODULE FOLDER` has the ranks run MODULE on the job in FOLDER. Their
output comes out here, events as they are, other lines led by the rank. It ends with the status of a rank that fails.
"""

import json
import os
import secrets
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.forked import die_with_parent
from dlio_bench.harness.cluster import links
from dlio_bench.harness.cluster.joined import ASK_STACKS, DOOR, HELLO, LEFT
from dlio_bench.harness.cluster.process import EVENT
from dlio_bench.harness.cluster.variables import STARTED

LAST_WORDS_SECONDS = 1.0  # of the other ranks, after one has failed


class Caller(Struct):
    """A rank's connection, and the beginning of the line that it is in."""

    rank: int | None = None
    rest: bytes = b""
    has_left: bool = False


def main() -> int:
    """Run it; the exit status of the job."""
    die_with_parent()
    module, folder = sys.argv[1:]
    nodes, per_node, host, place = os.environ[STARTED].split(" ", 3)
    listener, address = links.listen(host)
    token = secrets.token_bytes(16)
    request = {
        "module": module,
        "folder": folder,
        "host": address.host,
        "port": address.port,
        "identity": address.identity.hex(),
        "token": token.hex(),
    }
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(str(Path(place) / DOOR))
        door.sendall(json.dumps(request).encode() + b"\n")
    return _relay(listener, address.identity, token, int(nodes) * int(per_node))


def _relay(listener: socket.socket, identity: bytes, token: bytes, ranks: int) -> int:
    """Pass on what the ranks say until all have left, or one has failed and had the time for its last words."""
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        callers: dict[socket.socket, Caller] = {}
        signal.signal(signal.SIGUSR1, lambda *_: _ask(callers))
        left = status = 0
        while left < ranks:
            events = ready.select(LAST_WORDS_SECONDS if status else None)
            if status and not events:
                break
            for key, _ in events:
                if key.fileobj is listener:
                    _admit(listener, identity, token, callers, ready)
                    continue
                link = key.fileobj
                assert isinstance(link, socket.socket)
                caller = callers[link]
                chunk = _received(link)
                *lines, caller.rest = (caller.rest + chunk).split(b"\n")
                for line in lines:
                    end = _said(caller, line.decode(errors="replace"))
                    if end is not None and not caller.has_left:
                        caller.has_left, left, status = True, left + 1, status or end
                if not chunk:
                    ready.unregister(link)
                    if not caller.has_left:
                        caller.has_left, left, status = True, left + 1, status or EnvironmentFailure.status
        return status


def _admit(
    listener: socket.socket,
    identity: bytes,
    token: bytes,
    callers: dict[socket.socket, Caller],
    ready: selectors.BaseSelector,
) -> None:
    caller = listener.accept()[0]
    with suppress(OSError):  # somebody who is no rank of this job
        if links.admit(caller, token, identity, links.PATIENCE_SECONDS):
            callers[caller] = Caller()
            ready.register(caller, selectors.EVENT_READ)
            return
    links.close(caller)


def _received(link: socket.socket) -> bytes:
    try:
        return link.recv(1 << 16)
    except OSError:
        return b""


def _said(caller: Caller, line: str) -> int | None:
    """Print a line of a rank; its exit status where that is what it says."""
    if line.startswith(HELLO) and caller.rank is None:
        caller.rank = int(line.removeprefix(HELLO))
    elif LEFT in line:
        return int(line.partition(LEFT)[2])
    else:
        print(line if EVENT in line else f"[{caller.rank}] {line}", flush=True)
    return None


def _ask(callers: dict[socket.socket, Caller]) -> None:
    for link in list(callers):
        with suppress(OSError):
            link.sendall(ASK_STACKS)


if __name__ == "__main__":
    raise SystemExit(main())
