"""Files of a dataset written by ranks, on one machine or many: how they are launched and watched, what each does."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.datagen.manifest import PROGRESS, spec_digest
from dlio_bench.datagen.writers import FilesToWrite, Finished, RawWrites, Timing, combine_raw, raw_share, write_file
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.entry import Caller, require_same, run_measuring_rank
from dlio_bench.harness.cluster.job import SavedJob
from dlio_bench.harness.cluster.start import Ranks
from dlio_bench.harness.ground.folders import remove_works
from dlio_bench.harness.ground.launching import run_ranks

_LOOK_SECONDS = 0.5  # between two looks at what the ranks have finished
_KEPT = "the finished files are kept, and the same command goes on with them"


class Job(SavedJob, frozen=True):
    """The dataset to be made and the files of it, by number, that are not there yet."""

    workload: str
    variant: str
    tiny: bool
    fill: str
    sorted_by: str
    seed: int
    counts: dict[str, int]  # files of each split
    folder: str
    todo: tuple[int, ...]
    bytes: int  # of them, about
    file_bytes: int
    raw: bool
    ranks: int
    spec: str


def by_ranks(
    ranks: Ranks, meeting: Path, job_of: Callable[[FilesToWrite], Job], work: FilesToWrite, finished: Finished
) -> Timing:
    """Write by ranks. BenchError with a rank's own message when one fails."""
    remove_works(meeting.parent)  # of a generation that was killed
    job, share = job_of(work), "name one with --out"
    with _watch_records(work, finished):  # whose records tell what is finished: ranks say nothing
        timing = run_ranks(ranks.start, job, meeting, lambda _: None, share=share, lost=_KEPT, folder_stays=True)
    return Timing(timing["processes"], timing["seconds"], RawWrites(**timing["raw"]))


@contextmanager
def _watch_records(work: FilesToWrite, finished: Finished) -> Iterator[None]:
    """Report files as their records appear, whichever node writes them; at the end, all that remain."""
    remaining, end = set(work.todo), threading.Event()

    def report_new() -> None:
        names = {path.stem for path in (work.folder / PROGRESS).glob("*.npz")}
        for number in sorted(number for number in remaining if f"{number:07d}" in names):
            remaining.discard(number)
            finished(number)

    def watch() -> None:
        while not end.wait(_LOOK_SECONDS):
            report_new()

    for number in work.todo:  # records of files that are not whole would count them too early
        (work.folder / PROGRESS / f"{number:07d}.npz").unlink(missing_ok=True)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        end.set()
        watcher.join()
    report_new()


def write(job: Job, comm: Comm, _caller: Caller) -> dict[str, Any]:
    """Write every `comm.size`-th of the job's files, this rank's; the `Timing` of all of them."""
    workload = registry.find(job.workload)
    layout = find_layout(workload, job.variant, tiny=job.tiny, fill=job.fill, sorted_by=job.sorted_by)
    require_same(comm, "idea of the dataset", job.spec, spec_digest(layout, job.counts, job.seed), "installation")
    mine = job.todo[comm.rank :: comm.size]
    work = FilesToWrite(
        layout, layout.files(job.counts), mine, Path(job.folder), job.seed, job.bytes, job.file_bytes, job.raw
    )
    raw = _raw(work, comm)
    comm.barrier()
    started = time.monotonic()
    for number in mine:
        write_file(layout, work.specs[number], number, work.folder, work.seed)
    seconds = max(comm.allgather(time.monotonic() - started))
    timing: dict[str, Any] = to_builtins(Timing(comm.size, seconds, raw.plus(_raw(work, comm))))
    return timing


def _raw(work: FilesToWrite, comm: Comm) -> RawWrites:
    """Half of the raw writes, by all ranks at the same time."""
    if not work.raw:
        return RawWrites()
    comm.barrier()
    return combine_raw(comm.allgather(raw_share(work, comm.size)))


if __name__ == "__main__":
    raise SystemExit(run_measuring_rank(Job, write))
