"""Processes of this machine that share the work on a dataset's files."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.processes import spawn

MOST_WORKERS = 8
ALONE = 64_000_000  # bytes that one process works through sooner than others start


def usual_workers() -> int:
    """How many processes work where nobody says: as many as this one may use cores, or MOST_WORKERS if that is less."""
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


@contextmanager
def worker_pool(count: int, doing: str, fix: str) -> Iterator[ProcessPoolExecutor]:
    """At most `count` spawned processes, each started when it is first needed.

    EnvironmentFailure where one of them is killed. doing, fix: for its message, as 'reading DIR' and 'Use fewer
    --workers'.
    """
    try:
        with ProcessPoolExecutor(count, spawn()) as pool:
            yield pool
    except BrokenProcessPool as error:
        raise EnvironmentFailure(
            f"A worker process that was {doing} was killed. The kernel kills processes when memory runs out (see "
            f"dmesg). {fix}, or end other programs on this machine."
        ) from error
