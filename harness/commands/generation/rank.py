"""What one rank of a generation does: check that all ranks run the same code, write its files, time them."""

import time
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from dlio_bench.datagen.raw_rate import Raw
from dlio_bench.datagen.writers import Timing, Work, raw_share, together, write_file
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.entry import Caller, require_same, run_measuring_rank
from dlio_bench.harness.commands.generation.job import Job


def write(job: Job, comm: Comm, _caller: Caller) -> dict[str, Any]:
    """Write every `comm.size`-th of the job's files, this rank's; the `Timing` of all of them."""
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
