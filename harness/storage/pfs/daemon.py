"""The process behind one emulated mount: `python -P -m dlio_bench.harness.storage.pfs.daemon CONFIG.json`.

Loads no NumPy and ends with the process that started it. The configuration's keys are the arguments of `Config`.
"""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from dlio_bench.harness.storage.pfs.board import READY, Board
from dlio_bench.harness.storage.pfs.bucket import SharedLink
from dlio_bench.harness.storage.pfs.node import Node
from dlio_bench.harness.storage.pfs.passthrough import serve
from dlio_bench.harness.storage.pfs.spec import PfsSpec

_LOOK_SECONDS = 0.025
_GRACE_SECONDS = 2.0  # for requests under way when the parent is gone
_PR_SET_TIMERSLACK = 29  # prctl(2)


class Config(Struct, frozen=True):
    """source: the folder shown. mount: where. node: whose row of the board.

    bucket, metadata: the files of the shared rates, of bytes and of opens. parent: the process id with which the daemon
    ends. writable: see `serve`.
    """

    spec: PfsSpec
    source: str
    mount: str
    board: str
    node: int
    bucket: str
    metadata: str
    parent: int
    writable: bool = False

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_bytes(msgspec.json.encode(self))


def main(config_path: Path) -> None:
    """Serve one mount until told to end."""
    config = msgspec.json.decode(config_path.read_bytes(), type=Config)
    spec = config.spec
    # Sleeps end within 1 ns of timer slack instead of 50 us; threads made later, libfuse's among them, inherit it.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    board = Board.open(Path(config.board))
    row = board.row(config.node)
    shared, metadata = SharedLink(Path(config.bucket), spec.bandwidth), SharedLink(Path(config.metadata), spec.opens)
    node = Node(spec, shared, row, number=config.node, metadata=metadata)
    threading.Thread(target=_watch, args=(node, config.parent), daemon=True).start()
    serve(Path(config.source), Path(config.mount), node, row[READY : READY + 1], writable=config.writable)


def _watch(node: Node, parent: int) -> None:
    """Empty the cache when asked; end when the parent is gone, even if requests would still wait for long."""
    while os.getppid() == parent:
        node.drop_if_requested()
        time.sleep(_LOOK_SECONDS)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
