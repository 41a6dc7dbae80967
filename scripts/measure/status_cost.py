"""What the status of a run costs: `python scripts/measure/status_cost.py [ROUNDS]` (default 9), on an idle machine.

CPU seconds of all that is done for one line, over the second between two lines: rank 0 looks at a trial at work and
tells its event through a pipe, the launching command reads it and appends a line. Prints the median of the rounds, the
least and the greatest, for a loop of 10 steps a second and for one of 10,000, each with 16 reading threads.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from dlio_bench.harness.cluster.process import EVENT
from dlio_bench.harness.commands.run.measured.outlook import EVERY, SAMPLE, WINDOW, Watched, by_source, snapshot
from dlio_bench.harness.live.journal import LEAST_SECONDS, Journal
from dlio_bench.harness.live.status import NAME
from dlio_bench.harness.readers.session import Tally
from dlio_bench.reports.numbers.metrics import PHASES

LOOKS = 200  # of a round
THREADS, EPOCHS = 16, 10


def trial(rate: int) -> Watched:
    """A trial of ten windows in its middle, at so many steps a second."""
    steps = int(10 * WINDOW * rate)
    rows = np.zeros((steps, len(PHASES) + 1))
    done = steps // 2
    ends = time.perf_counter() - np.arange(done, dtype=np.float64)[::-1] / rate
    rows[:done] = ends[:, None] - np.linspace(1 / rate, 0, rows.shape[1])
    tally = Tally()
    for part in (tally.part() for _ in range(THREADS)):
        for epoch in range(EPOCHS):
            part.of(epoch).bytes_requested = 1
    times = SimpleNamespace(log=SimpleNamespace(clock=rows), passes=(), tally=tally)
    return Watched(cast("Any", times), steps, 4, np.arange(steps + 1) * 4)


def cost(rate: int, folder: Path) -> float:
    """CPU seconds a second."""
    watched, journal = trial(rate), Journal(folder, iter(float(10 * i) for i in range(LOOKS + 9)).__next__)
    journal.begin(("prefetch",), 0, 1, 0, nodes=1, ranks=1, trials=1, epochs=1)
    journal.event({"event": "trial", "reader": "prefetch", "trial": 0})
    out, into = os.pipe()
    began = time.process_time()
    for _ in range(LOOKS):
        event = {"event": SAMPLE, **snapshot(watched, time.perf_counter()), "loss": 0.5}
        event["bytes"] = by_source(watched.times.tally.so_far())
        os.write(into, f"{EVENT}{json.dumps(event)}\n".encode())
        journal.event(json.loads(os.read(out, 1 << 16).decode().partition(EVENT)[2]))
    spent = time.process_time() - began
    os.close(out)
    os.close(into)
    assert (folder / NAME).read_bytes().count(b"\n") == LOOKS + 2
    (folder / NAME).unlink()
    return spent / LOOKS / min(EVERY, LEAST_SECONDS)


def main(rounds: int) -> None:
    """Print what each part of the status costs."""
    with tempfile.TemporaryDirectory() as folder:
        for rate in (10, 10_000):
            shares = [cost(rate, Path(folder)) for _ in range(rounds)]
            print(
                f"{rate} steps/s: {statistics.median(shares):.4%} of a core "
                f"({min(shares):.4%} to {max(shares):.4%}, {rounds} rounds)"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
