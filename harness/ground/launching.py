"""How every command starts its ranks, and gets back what they measured."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlio_bench import signals
from dlio_bench.errors import BenchError, EnvironmentFailure, JobEnded
from dlio_bench.harness.cluster.job import KEPT_FILE, MEASURED_FILE, SavedJob, read_when_visible
from dlio_bench.harness.cluster.process import launch
from dlio_bench.harness.cluster.start import Launch, require_reachable


def run_ranks(
    start: Callable[[Path], Launch],
    job: SavedJob,
    work: Path,
    show: Callable[[str], None],
    *,
    share: str,
    lost: str = "nothing was measured",
    folder_stays: bool = False,
) -> dict[str, Any]:
    """Run the ranks of a job, and return the document that rank 0 left: see `entry.run_measuring_rank`.

    Hosts that a host file names are asked first whether they can be reached.

    Args:
        start: how they are started on the job in a folder: see `cluster.start.Ranks`.
        work: the folder in which they meet. It is removed unless the job fails.
        show: shows what the ranks do.
        share: see `read_result`.
        lost, folder_stays: see `cluster.process.launch`, for errors too.
    """
    chosen = start(work)
    require_reachable(chosen.hosts)
    work.mkdir(exist_ok=True)
    (work / MEASURED_FILE).unlink(missing_ok=True)  # from an earlier job in this folder
    job.save(work)
    env = {**os.environ, **chosen.env}
    launch(
        chosen.argv,
        env,
        work,
        lambda event: show(event["what"]),
        lost,
        folder_stays=folder_stays,
        one_host=chosen.one_host,
    )
    document: dict[str, Any] = json.loads(read_result(work / MEASURED_FILE, share))
    shutil.rmtree(work, ignore_errors=True)
    return document


def load_parts(work: Path) -> list[dict[str, Any]]:
    """The parts that the ranks of a job had measured before it failed: see `entry.Caller.save_part`."""
    try:
        lines = (work / KEPT_FILE).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def why_ended(error: BenchError | KeyboardInterrupt) -> tuple[type[BenchError], str]:
    """The kind and the words of the error that ends a command whose ranks were stopped. A signal counts as met."""
    if isinstance(error, KeyboardInterrupt):
        signals.mark_handled()
        return EnvironmentFailure, f"{signals.interrupt_reason()}: the ranks have ended."
    # JobEnded is what ends ranks; the command tells more
    return EnvironmentFailure if isinstance(error, JobEnded) else type(error), str(error)


def read_result(path: Path, share: str) -> bytes:
    """A file that rank 0 wrote. share: what the user does to give the ranks a folder that all nodes see.

    EnvironmentFailure if the file is not there.
    """
    try:
        return read_when_visible(path)
    except EnvironmentFailure:
        raise EnvironmentFailure(
            f"The ranks ended well, but {path.name} did not come back to {path.parent}. The folder must be on a file "
            f"system that all nodes share: {share}."
        ) from None
