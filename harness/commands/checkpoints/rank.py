"""What one rank does: all checkpoints of a trial written, their page cache dropped, read back and compared."""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from dlio_bench.harness.cluster.comm import Comm, run_on_all_ranks
from dlio_bench.harness.cluster.entry import Caller, run_measuring_rank
from dlio_bench.harness.cluster.environment import describe_host, host_name
from dlio_bench.harness.commands.checkpoints import sets
from dlio_bench.harness.commands.checkpoints.job import Job
from dlio_bench.harness.commands.checkpoints.parts import sizes
from dlio_bench.harness.commands.checkpoints.sets import Syncs, explain_failures
from dlio_bench.harness.commands.checkpoints.transfer import Content, Hands, parts_of_rank
from dlio_bench.harness.commands.storage_bench.attestation import caches
from dlio_bench.harness.commands.storage_bench.options import COLD
from dlio_bench.harness.storage import cache
from dlio_bench.reports.document.typed import to_json

Result = TypeVar("Result")


def since_start(spans: Sequence[tuple[float, float]], hosts: Sequence[str]) -> list[float]:
    """Seconds of each rank until its own end, from (when it left the barrier, its end) by its host's clock.

    Ranks of one host have one clock, and one start: when the first of them left the barrier.
    """
    starts: dict[str, float] = {}
    for host, (began, _) in zip(hosts, spans, strict=True):
        starts[host] = min(began, starts.get(host, began))
    return [ended - starts[host] for host, (_, ended) in zip(hosts, spans, strict=True)]


class Rank:
    """One rank, ready for every trial."""

    def __init__(self, job: Job, comm: Comm, hands: Hands) -> None:
        self._job, self._comm, self._hands = job, comm, hands
        self._place = Path(job.place)
        self._hosts = comm.allgather(host_name())
        parts = job.parts
        self._sizes = sizes(parts)
        self._mine = parts_of_rank(parts, comm.rank)
        self._theirs = parts_of_rank(parts, (comm.rank + job.shift) % job.ranks)

    def trial(self, number: int, caller: Caller) -> dict[str, Any]:
        """Write all checkpoints, then read them from the oldest on: {"writes", "reads", "compared_bytes", caches}.

        The same on every rank. BenchError on every rank where one fails.
        """
        first = number * self._job.checkpoints
        steps = range(first + 1, first + 1 + self._job.checkpoints)
        writes, reads, compared = [], [], 0

        def show_step(doing: str, step: int) -> None:
            trial, checkpoint = f"{number + 1}/{self._job.trials}", f"{step - first}/{self._job.checkpoints}"
            caller.show_activity(f"trial {trial}  {doing} {checkpoint}")

        for step in steps:
            show_step("write", step)
            writes.append(self._write(step))
        caches = self._drop([self._place / sets.name(step) for step in steps])
        for step in steps:
            show_step("read", step)
            reads.append(self._read_checkpoint(step))
        for step in steps:
            show_step("compare", step)
            compared += self._compare(step)
        run_on_all_ranks(self._comm, lambda: self._remove(steps))
        return {"writes": writes, "reads": reads, "compared_bytes": compared, **caches}

    def _write(self, step: int) -> dict[str, Any]:
        """One checkpoint: `seconds` from the barrier to the slowest rank's last fsync, and `commit_seconds` behind it.

        How long ranks take to tell each other that they are done is in neither. commit_synced: of commit_seconds.
        By rank: seconds until its own last fsync; of these waited for bytes and synced; made: beside it, by a thread.
        """
        comm, folder = self._comm, sets.unfinished_folder(self._place, step)
        run_on_all_ranks(comm, lambda: folder.mkdir() if comm.rank == 0 else None)
        ranks, seconds = self._time_all(lambda: self._hands.write(folder, self._mine, step, fsync=self._job.fsync))
        commit, syncs = run_on_all_ranks(comm, lambda: self._commit(step))[0]
        return {
            "seconds": max(seconds) + commit,
            "commit_seconds": commit,
            "commit_synced": syncs.seconds,
            "bytes": sum(rank.bytes for rank in ranks),
            "fsyncs": sum(rank.fsyncs for rank in ranks) + syncs.calls,
            "rank_seconds": seconds,
            **{f"rank_{name}": [getattr(rank, name) for rank in ranks] for name in ("waited", "made", "synced")},
        }

    def _time_all(self, work: Callable[[], Result]) -> tuple[list[Result], list[float]]:
        """What `work` returns on each rank, and the seconds of each from the barrier until its own end."""
        self._comm.barrier()
        began = time.perf_counter()
        done = run_on_all_ranks(self._comm, lambda: (work(), time.perf_counter(), began))
        return [result for result, _, _ in done], since_start([(start, end) for _, end, start in done], self._hosts)

    def _commit(self, step: int) -> tuple[float, Syncs]:
        """Rank 0 makes the set whole: its seconds, and what it made durable."""
        syncs = Syncs(wanted=self._job.fsync)
        if self._comm.rank != 0:
            return 0.0, syncs
        began = time.perf_counter()
        about = {"model": self._job.model, "layout": self._job.layout, "ranks": self._job.ranks,
                 "seed": self._job.seed, "step": step}  # fmt: skip
        with explain_failures(self._place / sets.name(step), "made whole"):
            sets.commit(self._place, step, self._sizes, about, syncs)
        return time.perf_counter() - began, syncs

    def _drop(self, folders: list[Path]) -> dict[str, Any]:
        """Have every host forget the sets, and look what is left of what it will read.

        resident_share: on the host where most is left.
        """
        comm = self._comm
        files = {name: [folder / file for folder in folders for file in dict.fromkeys(part.file for _, part in parts)]
                 for name, parts in (("mine", self._mine), ("theirs", self._theirs))}  # fmt: skip
        # the writer's pages are dirty without fsync, and the reader's may be old
        run_on_all_ranks(comm, lambda: cache.drop(files["mine"]))
        run_on_all_ranks(comm, lambda: cache.drop(files["theirs"]))
        return caches(COLD, run_on_all_ranks(comm, lambda: (host_name(), cache.residency(files["theirs"]))))

    def _read_checkpoint(self, step: int) -> dict[str, Any]:
        """One checkpoint, each part by another rank than its writer's. DataError where the set is not whole."""
        comm, folder = self._comm, self._place / sets.name(step)
        run_on_all_ranks(comm, lambda: sets.whole(folder) if comm.rank == 0 else None)
        _, seconds = self._time_all(lambda: self._hands.read(folder, self._theirs, step))
        return {"seconds": max(seconds), "rank_seconds": seconds}

    def _compare(self, step: int) -> int:
        """Bytes of a checkpoint that are as written; DataError where one is not."""
        folder = self._place / sets.name(step)
        return sum(run_on_all_ranks(self._comm, lambda: self._hands.compare(folder, self._theirs, step)))

    def _remove(self, steps: range) -> None:
        for step in steps if self._comm.rank == 0 else ():
            shutil.rmtree(self._place / sets.name(step))


def measure(job: Job, comm: Comm, caller: Caller) -> dict[str, Any]:
    """Every trial of the job: {"trials", "generator", "hosts", "rank_hosts"}, the same on every rank. BenchError.

    generator: bytes a second that each rank makes, all at once. Kept first: what there is beside the trials; then each
    trial.
    """
    content = Content(job.seed)
    comm.barrier()
    generator = comm.allgather(content.rate())
    host = to_json(describe_host(Path(job.place))) if comm.host_rank == 0 else None
    hosts = {name: host for name, host in comm.allgather((host_name(), host)) if host is not None}
    about = {"generator": generator, "hosts": hosts, "rank_hosts": comm.allgather(host_name())}
    caller.save_part(about)
    trials: list[dict[str, Any]] = []
    with closing(Hands(content)) as hands:
        rank = Rank(job, comm, hands)
        for number in range(job.trials):
            trials.append({"trial": number, **rank.trial(number, caller)})
            caller.save_part(trials[-1])
    return {**about, "trials": trials}


if __name__ == "__main__":
    raise SystemExit(run_measuring_rank(Job, measure))
