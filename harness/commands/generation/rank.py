"""What one rank of a generation does: check that all ranks run the same code, write its files, time them."""

import time
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.datagen.layout import Layout
from dlio_bench.datagen.manifest import spec_digest
from dlio_bench.datagen.raw_rate import Raw
from dlio_bench.datagen.writers import Timing, Work, raw_share, together, write_file
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.entry import Caller, require_same, run_measuring_rank
from dlio_bench.harness.cluster.job import SavedJob


class Job(SavedJob, frozen=True):
    """The dataset to be made and the files of it, by number, that are not there yet."""

    workload: str
    variant: str
    tiny: bool
    fill: str
    seed: int
    counts: dict[str, int]  # files of each split
    folder: str
    todo: tuple[int, ...]
    bytes: int  # of them, about
    file_bytes: int
    raw: bool
    ranks: int
    spec: str

    def layout(self) -> Layout:
        """The layout that the names mean."""
        return find_layout(registry.find(self.workload), self.variant, tiny=self.tiny, fill=self.fill)


def write(job: Job, comm: Comm, _caller: Caller) -> dict[str, Any]:
    """Write every `comm.size`-th of the job's files, this rank's; the `Timing` of all of them."""
    layout = job.layout()
    require_same(comm, "idea of the dataset", job.spec, spec_digest(layout, job.counts, job.seed), "installation")
    mine = job.todo[comm.rank :: comm.size]
    work = Work(layout, layout.files(job.counts), mine, Path(job.folder), job.seed, job.bytes, job.file_bytes, job.raw)
    raw = _raw(work, comm)
    comm.barrier()
    started = time.monotonic()
    for number in mine:
        write_file(layout, work.specs[number], number, work.folder, work.seed)
    seconds = max(comm.allgather(time.monotonic() - started))
    timing: dict[str, Any] = to_builtins(Timing(comm.size, seconds, raw.plus(_raw(work, comm))))
    return timing


def _raw(work: Work, comm: Comm) -> Raw:
    """Half of the raw writes, by all ranks at the same time."""
    if not work.raw:
        return Raw()
    comm.barrier()
    return together(comm.allgather(raw_share(work, comm.size)))


if __name__ == "__main__":
    raise SystemExit(run_measuring_rank(Job, write))
