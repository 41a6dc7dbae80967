"""A rank that exchanges gradients until rank 1 fails: `failing_rank.py FOLDER KIND HOW RANKS`."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.entry import run_rank, say
from dlio_bench.harness.training.exchange.exchange import open_exchange
from dlio_bench.harness.training.exchange.options import ExchangeOptions

FAILURES: dict[str, Callable[[], None]] = {
    "absent": lambda: time.sleep(600),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}
TIMEOUTS = {"absent": 6.0, "killed": 60.0}  # seconds that an exchange waits for a rank


def main() -> int:
    folder, kind, how, ranks = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    (folder / f"pid-{os.getpid()}").write_text(str(os.getpid()))

    def body(comm: Comm) -> None:
        warm = open_exchange(comm, ExchangeOptions(kind=kind))  # whatever takes long the first time
        warm.reduce([np.ones(1000, np.float32)])
        warm.close()
        comm.barrier()
        exchange = open_exchange(comm, ExchangeOptions(kind=kind, timeout=TIMEOUTS[how], lag=1))
        for step in range(100):
            exchange.reduce([np.ones(1000, np.float32)])
            if comm.rank == 0:
                say({"event": "step", "step": step})
            if step == 1 and comm.rank == 1:
                FAILURES[how]()
        exchange.close()

    return run_rank(folder, lambda: (ranks, body))


if __name__ == "__main__":
    raise SystemExit(main())
