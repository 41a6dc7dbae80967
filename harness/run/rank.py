"""What one rank does: see that everybody runs the same, run the trials, verify, hand the times to rank 0."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.datagen.dataset import Dataset, open_dataset
from dlio_bench.harness.cluster.code import code_digest
from dlio_bench.harness.cluster.comm import Comm, mpi_version
from dlio_bench.harness.cluster.entry import require_same, run_rank, say
from dlio_bench.harness.cluster.environment import describe_host, host_name, resident_bytes
from dlio_bench.harness.plan.orders import Shape, every_sample_once
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.form import Form
from dlio_bench.harness.readers.registry import Resources, Seat, open_reader
from dlio_bench.harness.readers.session import largest, planned
from dlio_bench.harness.run.job import Job
from dlio_bench.harness.run.trial import Trial, TrialTimes
from dlio_bench.harness.run.verification import Verified, verify
from dlio_bench.harness.training.compute import fine_timers

MEASURED = "measured.json"
# A trainer that wakes up may wait this long for the interpreter while a reader thread has it (Python's default: 5 ms).
SWITCH_SECONDS = 1e-4


Tell = Callable[[dict[str, Any]], None]


def measure(job: Job, folder: Path, comm: Comm, tell: Tell) -> None:
    """Run the whole job on this rank; rank 0 leaves `measured.json` and a json and npz for each reader in `folder`.

    `tell` is called on rank 0 with what is being done, for a progress line.
    """
    if comm.rank != 0:
        tell = _silent
    fine_timers()
    sys.setswitchinterval(SWITCH_SECONDS)
    dataset = _same_everywhere(job, comm)
    idle = resident_bytes()
    comm.barrier()
    tell({"event": "ready"})
    hosts = comm.allgather(host_name())
    tiers = job.tier_folders
    described = comm.gather(describe_host(dataset.folder) if comm.host_rank == 0 else None)
    memory = comm.gather(idle)

    shape = Shape(dataset.training_samples, job.ranks, job.batch)
    form = Form(dataset, job.view)
    seat = Seat(comm, job.ranks_per_node, Path(tiers[comm.rank // job.ranks_per_node]) if tiers else None)
    trials = {
        name: [Trial(job, dataset, shape, find(name), number) for number in range(job.warmup_trials + job.trials)]
        for name in job.readers
    }
    # every buffer is made, and found too small, before anything is timed
    readers = {
        name: open_reader(find(name), form, _resources(job, form, comm, own), seat) for name, own in trials.items()
    }

    def at_epoch(epoch: int) -> None:
        tell({"event": "epoch", "epoch": epoch})

    times: dict[str, list[TrialTimes]] = {name: [] for name in job.readers}
    for number in range(job.warmup_trials + job.trials):
        # readers take turns within a trial, so that a drift of the machine meets all of them alike
        for name, reader in readers.items():
            tell({"event": "trial", "reader": name, "trial": number})
            times[name].append(trials[name][number].run(reader, comm, at_epoch))
    verified: dict[str, Verified | None] = {}
    for name, reader in readers.items():
        tell({"event": "verify", "reader": name})
        ordered = find(name).order_known
        verified[name] = verify(reader, job, times[name], comm, ordered=ordered) if job.verify else None

    for name, reader in readers.items():
        gathered = comm.gather([trial.arrays() for trial in times[name]])
        facts = comm.gather([trial.facts() for trial in times[name]])
        if gathered is not None and facts is not None:
            np.savez(folder / f"{name}.npz", **_stack(gathered))
            result = verified[name]
            (folder / f"{name}.json").write_text(
                json.dumps({"options": reader.options, "ranks": facts, "verified": result and result.to_json()})
            )
    if comm.rank == 0:
        names = {host: facts for host, facts in zip(hosts, described or [], strict=True) if facts is not None}
        summary = {"hosts": names, "rank_hosts": hosts, "mpi": mpi_version(), "rank_memory_bytes": max(memory or [0])}
        (folder / MEASURED).write_text(json.dumps(summary))
    comm.barrier()


def _resources(job: Job, form: Form, comm: Comm, trials: Sequence[Trial]) -> Resources:
    """What a reader may use on this rank, with room for the largest batch of its trials and of the verification."""
    share = every_sample_once(form.dataset.training_samples, comm.size, comm.rank, job.batch)
    most = largest(planned(form, [(0, share)]))
    for trial in trials:
        for epoch, ids in enumerate(trial.ids(comm.rank)):
            most = max(most, largest(planned(form, [(epoch, list(ids))])))
    return Resources(threads=job.threads, staging_bytes=job.staging_bytes, batch_bytes=most)


def _same_everywhere(job: Job, comm: Comm) -> Dataset:
    """Open the dataset; refuse to go on when a rank runs other code or sees other data than was asked for."""
    dataset = open_dataset(Path(job.dataset))
    require_same(comm, "code", job.code_digest, code_digest(), "installation")
    require_same(comm, "dataset", job.dataset_digest, dataset.digest, f"folder {job.dataset}")
    return dataset


def _stack(ranks: Sequence[Sequence[dict[str, npt.NDArray[Any]]]]) -> dict[str, Any]:
    """[rank][trial]{name: array} -> {name: array of [trial, rank, ...]}."""
    return {name: np.stack([[trial[name] for trial in trials] for trials in ranks], axis=1) for name in ranks[0][0]}


def _silent(event: dict[str, Any]) -> None:
    """Ranks other than 0 say nothing."""


def main() -> int:
    """Entry of every launched rank: `python -P -m dlio_bench.harness.run.rank FOLDER`."""
    folder = Path(sys.argv[1])

    def start() -> tuple[int, Callable[[Comm], None]]:
        job = Job.load(folder)
        return job.ranks, lambda comm: measure(job, folder, comm, say)

    return run_rank(folder, start)


if __name__ == "__main__":
    raise SystemExit(main())
