"""One rank: it checks that all ranks run the same, runs the trials, verifies, and hands its times to rank 0."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from dlio_bench.batches import Ids
from dlio_bench.benchmarks.pipeline import Pipeline
from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import Dataset, open_dataset
from dlio_bench.errors import BenchError, EnvironmentFailure, UsageError
from dlio_bench.harness.cluster import clocks, interfaces
from dlio_bench.harness.cluster.comm import Comm, run_on_all_ranks
from dlio_bench.harness.cluster.entry import require_same, require_same_code, run_rank, say
from dlio_bench.harness.cluster.environment import describe_host, host_name, resident_bytes
from dlio_bench.harness.cluster.job import MEASURED_FILE
from dlio_bench.harness.cluster.mpi import mpi_version
from dlio_bench.harness.commands.run.asked.job import Job, resolved_policy, shape_of
from dlio_bench.harness.commands.run.measured import documents, training
from dlio_bench.harness.commands.run.measured.documents import JobMeasured, ReaderMeasured
from dlio_bench.harness.commands.run.measured.node import mounts, settle_node_sizes
from dlio_bench.harness.commands.run.measured.observer import Rank, Tell
from dlio_bench.harness.commands.run.measured.observers import BEHIND_EPOCHS, COMPANY, OBSERVERS, PROCESSES
from dlio_bench.harness.commands.run.measured.site import RankSite, resources, sharded_fields
from dlio_bench.harness.commands.run.measured.times import most_steps
from dlio_bench.harness.commands.run.measured.trial import Contender, Trial
from dlio_bench.harness.commands.run.measured.verification import verify, whole_dataset
from dlio_bench.harness.plan.model_parallel import stage_view
from dlio_bench.harness.plan.orders import steps_of
from dlio_bench.harness.plan.policies import OWN, REDRAWN
from dlio_bench.harness.plan.shape import KEEP, PIPELINE
from dlio_bench.harness.readers.placed.rules import draw_of
from dlio_bench.harness.readers.registry import open_planned, view_of
from dlio_bench.harness.training.compute import fine_timers
from dlio_bench.harness.training.network import start_tensorflow
from dlio_bench.reports.document.environment import Environment, Host, Mount, NodeRoom
from dlio_bench.reports.document.types import Network

# A trainer that wakes up may wait this long for the interpreter while a reader thread has it (Python's default: 5 ms).
SWITCH_SECONDS = 1e-4
T = TypeVar("T")


def measure(job: Job, folder: Path, comm: Comm, tell: Tell, pipeline: Pipeline | None = None) -> None:
    """Run the whole job on this rank; rank 0 leaves `measured.json` and a json and npz for each reader in `folder`.

    pipeline: the workload's, started, if a reader needs it. tell: rank 0 calls it with events for a progress line.
    """
    if comm.rank != 0:
        tell = lambda _: None  # noqa: E731 - ranks other than 0 say nothing
    fine_timers()
    sys.setswitchinterval(SWITCH_SECONDS)
    dataset = _same_everywhere(job, comm)
    with COMPANY(job, dataset, folder, comm) as trains:
        if trains is None:
            return
        comm, crew = trains
        with mounts(job, dataset, comm) as mounted, settle_node_sizes(mounted, comm) as (decided, rooms):
            idle, peers = resident_bytes(), _peers(decided, comm)
            comm.barrier()
            tell({"event": "ready"})
            device = start_tensorflow(comm) if decided.has_network else ""  # before anything else loads it
            places = interfaces.serving(comm)
            site = RankSite.of(decided, comm, dataset, places[comm.rank].address, crew)
            rank = Rank(decided, site, comm, peers, folder, tell)
            _describe(rank, rooms, places, idle)
            _measure(rank, device, pipeline)


def _measure(rank: Rank, device: str, pipeline: Pipeline | None) -> None:
    """Run all trials of all readers, and then verify."""
    job, comm, tell = rank.job, rank.comm, rank.tell
    rank, contenders = _contenders(rank, pipeline)
    if job.has_network:
        tell({"event": "compile"})
    finished: dict[str, ReaderMeasured] = {}
    with ExitStack() as stack:
        trainer, trained = stack.enter_context(training.open_trainer(rank, device, contenders))
        networks = [each for rank, each in enumerate(comm.allgather(trained)) if job.model_of(rank)[1] == 0]
        entered = [stack.enter_context(opened_by(rank)) for opened_by in OBSERVERS]
        observers = [each for each in entered if each is not None]
        for number in range(job.all_trials):
            # readers take turns within a trial, so that a drift of the machine affects all of them alike
            for one in turns(contenders, number):
                tell({"event": "trial", "reader": one.name, "trial": number})
                one.times.append(one.trials[number].run(one.name, one.reader, trainer, rank, observers))
                if len(one.times) == job.all_trials:  # save it now: the run may fail later
                    finished[one.name] = _collect_measured(one, rank, networks)
                    if comm.rank == 0:
                        documents.save(finished[one.name], rank.folder / f"{one.name}.json")
    for one in contenders if job.options.verify else ():
        tell({"event": "verify", "reader": one.name})
        verified = verify(one, rank)
        if comm.rank == 0:
            documents.save(replace(finished[one.name], verified=verified), rank.folder / f"{one.name}.json")
    comm.barrier()


def _contenders(rank: Rank, pipeline: Pipeline | None) -> tuple[Rank, list[Contender]]:
    """The readers of the job, open, with the plans of their trials; and the rank with what they read."""
    job, site, comm = rank.job, rank.site, rank.comm
    shape = shape_of(job, site.origin)
    workload = job.application
    behind = BEHIND_EPOCHS(job, site.origin)
    decoded = job.decoder(site.dataset)
    fields = stage_view(job.view, workload.labels, comm.rank, comm.size) if job.options.shard == PIPELINE else job.view
    views = {name: view_of(row, site.dataset, fields, decoded, pipeline) for name, row in job.readers.items()}
    draws = {
        name: draw_of(row.rule, job.tiers.sizes_of(views[name]), job.tiers.capacities, shape, job.epochs)
        for name, row in job.readers.items()
        if row.order == REDRAWN
    }
    trials = {
        name: [
            Trial(job, shape, resolved_policy(row, workload, shape), number, behind.get(name, ()), draws.get(name))
            for number in range(job.all_trials)
        ]
        for name, row in job.readers.items()
    }
    _equalise_steps(job, [trial for reader_trials in trials.values() for trial in reader_trials])
    allowed = resources(job, site.dataset, comm)
    contenders = []
    for name, row in job.readers.items():
        # opening a reader allocates its buffers, and fails if they are too small, before anything is timed
        reader = open_planned(row, views[name], _all_requests(rank, trials[name]), allowed, site.context, pipeline)
        contenders.append(Contender(name, row, reader, trials[name]))
    return replace(rank, site=replace(site, sharded=sharded_fields(job, views))), contenders


def _all_requests(rank: Rank, trials: Sequence[Trial]) -> Iterator[tuple[int, Sequence[Ids]]]:
    """All that a reader is asked for on this rank: by the verification and by its trials."""
    yield from whole_dataset(rank.site.dataset, rank.job, rank.peers.size, rank.peers.rank)
    for trial in trials:
        yield from trial.batches_behind(rank.comm.rank).items()
        yield from ((epoch, steps_of(ids)) for epoch, ids in enumerate(trial.ids(rank.comm.rank)))


def _collect_measured(one: Contender, rank: Rank, networks: list[Network | None]) -> ReaderMeasured:
    """What all ranks measured of a reader, on rank 0, which writes the npz of its steps."""
    first = one.trials[0]
    steps = first.steps
    if one.row.demanded:  # ranks get batches as they ask: as many steps as the one that took most
        steps = most_steps(one.times, rank.comm)
        one.times = [times.first_steps(steps) for times in one.times]
    documents.write_steps(rank.folder / f"{one.name}.npz", [times.arrays(rank.peers) for times in one.times], rank.comm)
    return ReaderMeasured(
        options=one.reader.options,
        decode=None if one.reader.sample_view.decode is None else one.reader.sample_view.decode.what,
        order=first.order,
        steps_per_epoch=steps,
        different_samples=first.different,
        trained=networks,
        verified=None,
        ranks=rank.comm.gather([times.summary() for times in one.times]) or [],
    )


def _describe(rank: Rank, rooms: Mapping[str, NodeRoom], places: Sequence[interfaces.ServingPlace], idle: int) -> None:
    """Have rank 0 write what is known of the hosts before anything is timed. idle: bytes that this rank holds."""
    job, comm = rank.job, rank.comm
    hosts = comm.gather(host_name()) or []
    described = comm.gather(_host(rank.site.origin, comm) if comm.host_rank == 0 else None)
    cores = comm.gather((comm.cores.rank, comm.cores.bound)) or []
    memory, ahead = comm.gather(idle), clocks.offsets(comm)
    serves = comm.size > 1 and any(row.rule.keeps_samples for row in job.readers.values())
    if comm.rank == 0:
        names = {
            name: replace(host, room=rooms.get(name), clock_offset_seconds=offset)
            for name, host, offset in zip(hosts, described or [], ahead, strict=True)
            if host is not None
        }
        environment = Environment(
            hosts=names,
            rank_hosts=hosts,
            rank_memory_bytes=max(memory or [0]),
            cores_per_rank=round(min(part for part, _ in cores), 3),
            bound_processors=min((bound for _, bound in cores if bound is not None), default=None),
            interfaces={place.host: f"{place.interface} {place.address}" for place in places} if serves else {},
            tier_folders=list(job.tier_folders),
            mpi=mpi_version(),
            code_digest=job.code_digest,
        )
        documents.save(JobMeasured(environment, job), rank.folder / MEASURED_FILE)


def _host(dataset: Dataset, comm: Comm) -> Host:
    """This machine; an object store, where it has the data, stands in the place of their file system."""
    host = describe_host(dataset.folder, comm.cores.host)
    if dataset.store is None:
        return host
    return replace(host, mount=Mount(dataset.store, "object store", objects.endpoint(), []), stripe=None)


def turns(readers: Sequence[T], trial: int) -> tuple[T, ...]:
    """The order of the readers in a trial: each trial starts with another reader."""
    first = trial % len(readers)
    return (*readers[first:], *readers[:first])


def _equalise_steps(job: Job, trials: Sequence[Trial]) -> None:
    """Give all readers the same number of steps: the least of them, as orders that deal whole files fill fewer steps.

    --last keep, which delivers every sample, cuts nothing.
    """
    per_pass = min(trial.steps for trial in trials)
    steps = min(per_pass, job.steps or per_pass)
    for trial in trials:
        if job.last != KEEP:
            trial.steps = steps
        if job.parted:
            trial.parts = per_pass // steps
        trial.first_epoch = training.first_epoch(job, steps)


def _peers(job: Job, comm: Comm) -> Comm:
    """The ranks of this rank's model, in the order of `Job.model_of`."""
    if len(job.models) == 1:
        return comm
    peers = comm.split(job.model_of(comm.rank)[0])
    assert peers is not None  # every rank trains a model
    return peers


@contextmanager
def start_pipeline(job: Job) -> Iterator[Pipeline | None]:
    """The workload's published pipeline, if the job has a reader for it. Its processes start before MPI does."""
    workload = job.application
    if workload.upstream is None or all(row.delivery != OWN for row in job.readers.values()):
        yield None
        return
    pipeline = workload.upstream.start()
    try:
        yield pipeline
    finally:
        pipeline.close()


def _same_everywhere(job: Job, comm: Comm) -> Dataset:
    """Open the dataset. EnvironmentFailure if a rank runs other code, or sees other data than the job names, or none.

    DataError, the same on all ranks, if a host sees a damaged dataset.
    """
    opened: list[Dataset] = []

    def open_here() -> None:
        try:
            opened.append(open_dataset(Path(job.dataset)))
        except UsageError:  # there is none, though the command that launched this rank has opened it
            raise EnvironmentFailure(
                f"{host_name()} sees no dataset in {job.dataset}. Make it visible on every node at this path, or name "
                "a folder that all share, with --data or --cache-dir."
            ) from None
        except BenchError as error:
            raise type(error)(f"On {host_name()}: {error}") from error

    require_same_code(comm, job.code_digest)
    run_on_all_ranks(comm, open_here)
    require_same(comm, "dataset", job.dataset_digest, opened[0].digest, f"folder {job.dataset}")
    return opened[0]


def main() -> int:
    """Entry of every launched rank: `python -P -m dlio_bench.harness.commands.run.measured.rank FOLDER`."""
    folder = Path(sys.argv[1])

    with ExitStack() as stack:

        def start() -> tuple[int, Callable[[Comm], None]]:
            job = Job.load(folder)
            for around in PROCESSES:
                stack.enter_context(around(job, folder))
            pipeline = stack.enter_context(start_pipeline(job))
            return job.layout.ranks, lambda comm: measure(job, folder, comm, say, pipeline)

        return run_rank(folder, start)


if __name__ == "__main__":
    raise SystemExit(main())
