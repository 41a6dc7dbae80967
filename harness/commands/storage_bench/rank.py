"""What one rank does: trials of every number of threads and pattern in turn, each from a prepared cache."""

from pathlib import Path
from typing import Any

import numpy as np

from dlio_bench.datagen import objects
from dlio_bench.harness.cluster.comm import Comm, run_on_all_ranks
from dlio_bench.harness.cluster.entry import Caller, run_measuring_rank
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.cluster.job import SavedJob
from dlio_bench.harness.commands.storage_bench import in_objects, reading
from dlio_bench.harness.commands.storage_bench.attestation import caches
from dlio_bench.harness.commands.storage_bench.options import COLD, Options
from dlio_bench.harness.commands.storage_bench.plan import PATTERNS, RANGE, SEQUENTIAL, Files, share
from dlio_bench.harness.ground.options import DIRECT
from dlio_bench.harness.machine.mounts import cache_beyond
from dlio_bench.harness.storage import cache
from dlio_bench.harness.storage.cache import device_bytes
from dlio_bench.harness.storage.direct import Alignment, require

SAMPLES_FILE = "samples.npy"


class Job(SavedJob, frozen=True):
    """The measurement of one number of ranks. `creates_in`: folder for empty files, None where nothing is written.

    paths, sizes: as of `Files`, whose samples lie beside the job.
    """

    options: Options
    ranks: int
    seed: int  # of the random orders
    creates_in: str | None
    paths: tuple[str, ...]
    sizes: tuple[int, ...]

    def files(self, folder: Path) -> Files:
        """The files, with the samples that the command has saved in the job's folder. OSError."""
        return Files(self.paths, self.sizes, np.load(folder / SAMPLES_FILE))


def measure(job: Job, comm: Comm, caller: Caller) -> dict[str, Any]:
    """Every trial of this job: {"reads", "metadata", "hosts"}, the same on every rank. BenchError, OSError.

    reads: for each pattern and number of threads its trials as in `_trial`; metadata: for each operation its rates.
    """
    options, files = job.options, job.files(caller.folder)
    alignment = run_on_all_ranks(comm, lambda: require(Path(files.paths[0])) if options.io == DIRECT else None)[
        comm.rank
    ]
    size = max(reading.REQUEST, int(reading.round_to_blocks(files.samples, alignment)[:, 2].max()))
    buffers = reading.buffers(max(options.threads), size)
    stored = in_objects.are_objects(files.paths)
    # pattern, threads, and bytes of the requests at random places that only objects are read by
    kinds = [(pattern, threads, 0) for threads in options.threads for pattern in PATTERNS]
    if stored:
        kinds += [(RANGE, threads, size) for threads in options.threads for size in in_objects.range_sizes(files)]
    trials: dict[tuple[str, int, int], list[dict[str, Any]]] = {kind: [] for kind in kinds}
    operations: dict[str, list[float]] = {reading.OPEN: [], reading.HEAD: [], reading.CREATE: []}
    made: list[list[str]] = []
    for number in range(options.trials):
        # all kinds take turns within a trial, so that a drift of the storage meets all of them alike
        for pattern, threads, asked in kinds:
            caller.show_activity(
                f"trial {number + 1}/{options.trials}  {job.ranks} ranks x {threads} threads  {pattern}"
            )
            trial = _trial(job, files, comm, pattern, buffers[:threads], number, alignment, asked)
            trials[pattern, threads, asked].append(trial)
        of_file = (reading.HEAD, reading.heads) if stored else (reading.OPEN, reading.opens)
        operations[of_file[0]].append(of_file[1](comm, files.paths))
        if job.creates_in is not None:
            rate, names = reading.creates(comm, Path(job.creates_in), number)
            operations[reading.CREATE].append(rate)
            made.append(names)
    operations[reading.UNLINK] = [reading.unlinks(comm, names) for names in made]
    hosts = sorted(set(comm.allgather(host_name())))
    scale = {"hosts": len(hosts), "ranks": job.ranks}
    return {
        "reads": [
            {"pattern": pattern, **scale, "threads": threads, "request_bytes": asked or None, "trials": rows}
            for (pattern, threads, asked), rows in trials.items()
        ],
        "metadata": [{"operation": name, **scale, "trials": rates} for name, rates in operations.items() if rates],
        "hosts": hosts,
    }


def _trial(
    job: Job,
    files: Files,
    comm: Comm,
    pattern: str,
    buffers: list[memoryview],
    number: int,
    alignment: Alignment | None,
    asked: int,
) -> dict[str, Any]:
    """One trial: its bytes and seconds, bytes from the device (None: not known), and the cache before it.

    asked: bytes of the requests of the pattern RANGE.
    """
    readers, first = job.ranks * len(buffers), comm.rank * len(buffers)
    work = [
        (
            in_objects.ranges(files, asked, readers, first + thread, job.seed, number)
            if asked
            else share(files, pattern, readers, first + thread, job.seed, number),
            buffer,
        )
        for thread, buffer in enumerate(buffers)
    ]
    residency = _prepare_cache(job.options.cache, files, comm, direct=alignment is not None)
    # network file systems count nothing as read from a device, and a zero would look like a cache
    stored = in_objects.are_objects(files.paths)
    counted = stored or cache_beyond(Path(files.paths[0])) is None
    count = objects.delivered_bytes if stored else device_bytes
    before, retries = count(), objects.repeated_requests()
    request = reading.REQUEST if pattern == SEQUENTIAL else len(buffers[0])
    seconds = reading.time_reads(comm, work, files.paths, request, alignment)
    after = count()
    delta = after - before if counted and before is not None and after is not None else None
    device = comm.allgather(delta)
    return {
        "bytes": sum(comm.allgather(sum(int(reads[:, 2].sum()) for reads, _ in work))),
        "seconds": seconds,
        "device_bytes": None if None in device else sum(device),
        "retries": sum(comm.allgather(objects.repeated_requests() - retries)),
        **residency,
    }


def _prepare_cache(mode: str, files: Files, comm: Comm, *, direct: bool) -> dict[str, Any]:
    """Each rank of a host drops (or fills) its share of the files, then all look what is in the cache. Direct reads
    find nothing in it, so that nothing is dropped for them.

    resident_share: on the host where it is furthest from what was asked for.
    """
    if in_objects.are_objects(files.paths):
        comm.barrier()
        return {"resident_share": 0.0, "attestable": True, "memory_backed": False, "note": None}
    mine = [Path(path) for path in files.paths[comm.host_rank :: comm.host_size]]
    comm.barrier()
    past = direct and mode == COLD
    if mode == COLD and not past:
        cache.drop(mine)
    elif mode != COLD:
        cache.fill(mine)
    comm.barrier()
    return caches(mode, comm.allgather((host_name(), cache.direct_residency(mine) if past else cache.residency(mine))))


if __name__ == "__main__":
    raise SystemExit(run_measuring_rank(Job, measure))
