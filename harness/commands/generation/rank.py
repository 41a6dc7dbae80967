"""What one rank of a generation does: check that all ranks run the same code, write its files, time them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from dlio_bench.datagen.writers import Raw, Timing, Work, raw_share, together, write_file
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.entry import require_same, require_same_code, run_measuring_rank
from dlio_bench.harness.commands.generation.job import Job


def write(job: Job, comm: Comm) -> Timing:
    """Write every `comm.size`-th of the job's files, this rank's; the time that all of them took."""
    require_same_code(comm, job.code_digest)
    require_same(comm, "idea of the dataset", job.spec, job.spec_here(), "installation")
    layout = job.layout()
    mine = job.todo[comm.rank :: comm.size]
    work = Work(layout, layout.files(job.counts), mine, Path(job.folder), job.seed, job.bytes, job.file_bytes, job.raw)
    raw = _raw(work, comm)
    comm.barrier()
    started = time.monotonic()
    for number in mine:
        write_file(layout, work.specs[number], number, work.folder, work.seed)
    seconds = max(comm.allgather(time.monotonic() - started))
    return Timing(comm.size, seconds, raw.plus(_raw(work, comm)))


def _raw(work: Work, comm: Comm) -> Raw:
    """Half of the raw writes, by all ranks at the same time."""
    if not work.raw:
        return Raw()
    comm.barrier()
    return together(comm.allgather(raw_share(work, comm.size)))


def _start(folder: Path) -> tuple[int, Callable[[Comm], dict[str, Any]]]:
    job = Job.load(folder)
    return job.ranks, lambda comm: to_builtins(write(job, comm))


if __name__ == "__main__":
    raise SystemExit(run_measuring_rank(_start))
