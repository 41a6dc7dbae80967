"""A rank that exchanges gradients until rank 1 fails: `failing_rank.py FOLDER KIND HOW RANKS`."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dlio_bench.harness.cluster import entry
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.entry import run_rank, say
from dlio_bench.harness.training.exchange.exchange import Exchange, open_exchange
from dlio_bench.harness.training.exchange.options import ExchangeOptions

LONG = 120.0  # seconds: nothing here waits for it to pass
TIMEOUTS = {"absent": 2.0, "killed": LONG}  # that an exchange waits for a rank
STEPS = 2  # that all of them make


def step(exchange: Exchange) -> None:
    exchange.reduce([np.ones(1000, np.float32)])


def until(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.01)


def fail(how: str, folder: Path, ranks: int) -> None:
    """Not before the test knows that all were at work. One that stays away is gone when all have told where they stand:
    there is nothing left to wait for then.
    """
    until((folder / f"heard-{STEPS - 1}").exists)
    if how == "absent":
        until(lambda: sum(__file__ in file.read_text() for file in folder.glob("stacks-*.txt")) == ranks)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    folder, kind, how, ranks = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    (folder / f"pid-{os.getpid()}").write_text(str(os.getpid()))
    vars(entry)["LAST_WORDS"] = LONG  # the rank that is away ends the job earlier

    def body(comm: Comm) -> None:
        patient = open_exchange(comm, ExchangeOptions(kind=kind))  # whatever takes long the first time
        for number in range(STEPS):
            step(patient)
            if comm.rank == 0:
                say({"event": "step", "step": number})
        patient.close()
        comm.barrier()
        exchange = open_exchange(comm, ExchangeOptions(kind=kind, timeout=TIMEOUTS[how], lag=1))
        step(exchange)  # all take part in it
        if comm.rank == 1:
            fail(how, folder, ranks)
        while True:
            step(exchange)

    return run_rank(folder, lambda: (ranks, body))


if __name__ == "__main__":
    raise SystemExit(main())
