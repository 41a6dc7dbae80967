"""One rank: it checks that all ranks run the same, runs the trials, verifies, and hands its times to rank 0."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from dlio_bench.batches import Ids
from dlio_bench.benchmarks.pipeline import Pipeline
from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import Dataset, open_dataset
from dlio_bench.errors import BenchError, EnvironmentFailure, UsageError
from dlio_bench.harness.cluster import clocks, interfaces
from dlio_bench.harness.cluster.comm import Comm, Solo, together
from dlio_bench.harness.cluster.entry import require_same, require_same_code, run_rank, say
from dlio_bench.harness.cluster.environment import describe_host, host_name, resident_bytes
from dlio_bench.harness.cluster.job import MEASURED_FILE
from dlio_bench.harness.cluster.mpi import mpi_version
from dlio_bench.harness.commands.run.asked.choice import executed, validation_order
from dlio_bench.harness.commands.run.asked.job import Job, shape_of, validation_shape
from dlio_bench.harness.commands.run.measured import (
    documents,
    producing,
    recording,
    steps_file,
    training,
)
from dlio_bench.harness.commands.run.measured.documents import JobMeasured, RankTrial, ReaderMeasured
from dlio_bench.harness.commands.run.measured.node import mounts, settled
from dlio_bench.harness.commands.run.measured.observer import Rank, Tell
from dlio_bench.harness.commands.run.measured.observers import OBSERVERS
from dlio_bench.harness.commands.run.measured.site import Site, resources, sharded
from dlio_bench.harness.commands.run.measured.times import TrialTimes, most_steps
from dlio_bench.harness.commands.run.measured.trial import Trial
from dlio_bench.harness.commands.run.measured.verification import verify, whole_dataset
from dlio_bench.harness.plan.model_parallel import stage_view
from dlio_bench.harness.plan.orders import Shape, find_order, steps_of
from dlio_bench.harness.plan.policies import OWN, REDRAWN, Policy
from dlio_bench.harness.plan.shape import KEEP, PIPELINE
from dlio_bench.harness.plan.validation import Passes, epochs_of, share
from dlio_bench.harness.readers.placed.rules import draw_of
from dlio_bench.harness.readers.registry import opened, view_of
from dlio_bench.harness.readers.session import Reader
from dlio_bench.harness.streams.crew import Crew
from dlio_bench.harness.training.compute import fine_timers
from dlio_bench.reports.document import types
from dlio_bench.reports.document.environment import Host, Mount, NodeRoom
from dlio_bench.reports.document.types import Network

# A trainer that wakes up may wait this long for the interpreter while a reader thread has it (Python's default: 5 ms).
SWITCH_SECONDS = 1e-4


def measure(job: Job, folder: Path, comm: Comm, tell: Tell, pipeline: Pipeline | None = None) -> None:
    """Run the whole job on this rank; rank 0 leaves `measured.json` and a json and npz for each reader in `folder`.

    pipeline: the workload's, started, if a reader needs it. tell: rank 0 calls it with events for a progress line.
    """
    if comm.rank != 0:
        tell = _silent
    fine_timers()
    sys.setswitchinterval(SWITCH_SECONDS)
    dataset = _same_everywhere(job, comm)
    if job.streaming is None or job.streaming.inline:
        _train(job, dataset, folder, comm, tell, pipeline)
        return
    crew = producing.crew_of(job, comm, folder)
    trainers = comm.split(0 if crew.trainer is not None else None)
    if trainers is None:
        producing.serve(crew, dataset, job.view, job.decoded(dataset), resources(job, dataset, Solo()))
        return
    _train(job, dataset, folder, trainers, tell, pipeline, crew)
    producing.dismiss(crew)


def _train(
    job: Job,
    dataset: Dataset,
    folder: Path,
    comm: Comm,
    tell: Tell,
    pipeline: Pipeline | None,
    crew: Crew | None = None,
) -> None:
    """What the ranks do that train."""
    with recording.rescued(folder), mounts(job, dataset, comm) as mounted, settled(mounted, comm) as (decided, rooms):
        idle, peers = resident_bytes(), _peers(decided, comm)
        comm.barrier()
        tell({"event": "ready"})
        device = training.begin(decided, comm)
        places = interfaces.serving(comm)
        _describe(decided, dataset, rooms, folder, comm, places, idle)
        site = Site.of(decided, comm, dataset, places[comm.rank].address, crew)
        _measure(decided, site, device, folder, comm, peers, tell, pipeline)


class _Contender(Struct):
    """A reader of the job on this rank, and its trials. passes: over the validation split, in each of them."""

    name: str
    row: Policy
    reader: Reader
    trials: list[Trial]
    passes: Passes | None
    times: list[TrialTimes] = field(default_factory=list)


def _measure(
    job: Job,
    site: Site,
    device: str,
    folder: Path,
    comm: Comm,
    peers: Comm,
    tell: Tell,
    pipeline: Pipeline | None,
) -> None:
    """Run all trials of all readers, and then verify."""
    site, contenders = _contenders(job, site, comm, peers, pipeline)
    if job.has_network:
        tell({"event": "compile"})
    finished: dict[str, ReaderMeasured] = {}
    with ExitStack() as stack:
        readers = {name: each.reader for name, each in contenders.items()}
        trials = {name: each.trials for name, each in contenders.items()}
        opening = training.opened(job, comm, peers, site.dataset, device, readers, trials, folder.parent)
        trainer, trained = stack.enter_context(opening)
        networks = [each for rank, each in enumerate(comm.allgather(trained)) if job.model_of(rank)[1] == 0]
        rank = Rank(job, site, comm, peers, trainer, folder, tell)
        entered = [stack.enter_context(opened_by(rank)) for opened_by in OBSERVERS]
        observers = [each for each in entered if each is not None]
        for number in range(job.all_trials):
            # readers take turns within a trial, so that a drift of the machine affects all of them alike
            for name in turns(tuple(job.readers), number):
                one = contenders[name]
                tell({"event": "trial", "reader": name, "trial": number})
                one.times.append(one.trials[number].run(name, one.reader, rank, observers))
                if len(one.times) == job.all_trials:  # save it now: the run may fail later
                    finished[name] = _finished(one, rank, networks)
                    if comm.rank == 0:
                        documents.save(finished[name], folder / f"{name}.json")
    for name, one in contenders.items() if job.options.verify else ():
        tell({"event": "verify", "reader": name})
        ordered, different = one.row.order_known, one.trials[0].different
        verified = verify(one.reader, job, one.times, comm, peers, ordered=ordered, different=different)
        if comm.rank == 0:
            documents.save(replace(finished[name], verified=verified), folder / f"{name}.json")
    comm.barrier()


def _contenders(
    job: Job, site: Site, comm: Comm, peers: Comm, pipeline: Pipeline | None
) -> tuple[Site, dict[str, _Contender]]:
    """The readers of the job, open, with the plans of their trials; and the site with what they read."""
    shape = shape_of(job, site.origin)
    workload = job.application
    passes = _passes(job, validation_shape(job, site.origin))
    decoded = job.decoded(site.dataset)
    fields = stage_view(job.view, workload.labels, comm.rank, comm.size) if job.options.shard == PIPELINE else job.view
    views = {name: view_of(row, site.dataset, fields, decoded, pipeline) for name, row in job.readers.items()}
    site = replace(site, sharded=sharded(job, views))
    draws = {
        name: draw_of(row.rule, job.tiers.sizes_of(views[name]), job.tiers.capacities, shape, job.epochs)
        for name, row in job.readers.items()
        if row.order == REDRAWN
    }
    trials = {
        name: [
            Trial(job, shape, executed(row, workload, shape), number, passes.get(name), draws.get(name))
            for number in range(job.all_trials)
        ]
        for name, row in job.readers.items()
    }
    _cut(job, [trial for reader_trials in trials.values() for trial in reader_trials])
    allowed = resources(job, site.dataset, comm)
    contenders = {}
    for name, row in job.readers.items():
        # opening a reader allocates its buffers, and fails if they are too small, before anything is timed
        asked = _asked(job, site.dataset, comm, peers, trials[name])
        reader = opened(row, views[name], asked, allowed, site.context, pipeline)
        contenders[name] = _Contender(name, row, reader, trials[name], passes.get(name))
    return site, contenders


def _asked(
    job: Job, dataset: Dataset, comm: Comm, peers: Comm, trials: Sequence[Trial]
) -> Iterator[tuple[int, Sequence[Ids]]]:
    """All that a reader is asked for on this rank: by the verification and by its trials."""
    yield from whole_dataset(dataset, job, peers.size, peers.rank)
    for trial in trials:
        yield from ((pass_.epoch, pass_.batches) for pass_ in trial.passes(comm.rank))
        yield from ((epoch, steps_of(ids)) for epoch, ids in enumerate(trial.ids(comm.rank)))


def _finished(one: _Contender, rank: Rank, networks: list[Network | None]) -> ReaderMeasured:
    """What all ranks measured of a reader, on rank 0, which writes the npz of its steps."""
    first = one.trials[0]
    steps, one.times = _equal_steps(one.row, first.steps, one.times, rank.comm)
    return ReaderMeasured(
        options=one.reader.options,
        decode=None if one.reader.sample_view.decode is None else one.reader.sample_view.decode.what,
        order=first.order,
        steps_per_epoch=steps,
        different_samples=first.different,
        validation=_described(one.passes),
        trained=networks,
        verified=None,
        ranks=_kept(one.name, one.times, rank.folder, rank.comm, rank.peers),
    )


def _describe(
    job: Job,
    dataset: Dataset,
    rooms: Mapping[str, NodeRoom],
    folder: Path,
    comm: Comm,
    places: Sequence[interfaces.Place],
    idle: int,
) -> None:
    """Have rank 0 write what is known of the hosts before anything is timed. idle: bytes that this rank holds."""
    hosts = comm.gather(host_name()) or []
    described = comm.gather(_host(dataset, comm) if comm.host_rank == 0 else None)
    cores = comm.gather((comm.cores.rank, comm.cores.bound)) or []
    memory, ahead = comm.gather(idle), clocks.offsets(comm)
    serves = comm.size > 1 and any(row.rule.keeps_samples for row in job.readers.values())
    if comm.rank == 0:
        names = {
            name: replace(host, room=rooms.get(name), clock_offset_seconds=offset)
            for name, host, offset in zip(hosts, described or [], ahead, strict=True)
            if host is not None
        }
        interfaces_of = {place.host: f"{place.interface} {place.address}" for place in places} if serves else {}
        of_job = JobMeasured(
            names,
            hosts,
            mpi_version(),
            max(memory or [0]),
            job,
            interfaces_of,
            cores_per_rank=round(min(part for part, _ in cores), 3),
            bound_processors=min((bound for _, bound in cores if bound is not None), default=None),
        )
        documents.save(of_job, folder / MEASURED_FILE)


def _host(dataset: Dataset, comm: Comm) -> Host:
    """This machine; an object store, where it has the data, stands in the place of their file system."""
    host = describe_host(dataset.folder, comm.cores.host)
    if dataset.store is None:
        return host
    return replace(host, mount=Mount(dataset.store, "object store", objects.endpoint(), []), stripe=None)


def _equal_steps(row: Policy, steps: int, trials: list[TrialTimes], comm: Comm) -> tuple[int, list[TrialTimes]]:
    """Steps of an epoch, and the trials with as many: where ranks get batches as they ask, the most that one took."""
    if not row.demanded:
        return steps, trials
    most = most_steps(trials, comm)
    return most, [trial.cut(most) for trial in trials]


def turns(readers: Sequence[str], trial: int) -> tuple[str, ...]:
    """The order of the readers in a trial: each trial starts with another reader."""
    first = trial % len(readers)
    return (*readers[first:], *readers[:first])


def _kept(name: str, times: Sequence[TrialTimes], folder: Path, comm: Comm, peers: Comm) -> list[list[RankTrial]]:
    """Have rank 0 write a reader's npz. Returns its trials [rank][trial] on rank 0, nothing on others."""
    steps_file.write(folder / f"{name}.npz", [trial.arrays(peers) for trial in times], comm)
    return comm.gather([trial.summary() for trial in times]) or []


def _cut(job: Job, trials: Sequence[Trial]) -> None:
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


def _passes(job: Job, shape: Shape | None) -> dict[str, Passes]:
    """The validation passes of each reader, over equally many samples: those of the smallest share of a rank."""
    if job.validation is None or shape is None:
        return {}
    workload = job.application
    orders = {
        name: find_order(validation_order(executed(row, workload, shape), workload))
        for name, row in job.readers.items()
    }
    samples = min(share(order, shape) for order in orders.values())
    epochs = epochs_of(job.epochs, job.validation.every)
    return {name: Passes(order, shape, samples, epochs) for name, order in orders.items()}


def _described(passes: Passes | None) -> types.Passes | None:
    if passes is None:
        return None
    samples = passes.samples * passes.shape.ranks // passes.shape.copies
    return types.Passes(passes.order.name, samples, passes.shape.samples - samples)


def _peers(job: Job, comm: Comm) -> Comm:
    """The ranks of this rank's model, in the order of `Job.model_of`."""
    if len(job.models) == 1:
        return comm
    peers = comm.split(job.model_of(comm.rank)[0])
    assert peers is not None  # every rank trains a model
    return peers


@contextmanager
def started(job: Job, folder: Path) -> Iterator[Pipeline | None]:
    """The workload's published pipeline, if the job has a reader for it. Its processes start before MPI does.

    Spans are recorded from here on, if the job asks for them. folder: the job's.
    """
    workload = job.application
    with recording.begun(job, folder):
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
    together(comm, open_here)
    require_same(comm, "dataset", job.dataset_digest, opened[0].digest, f"folder {job.dataset}")
    return opened[0]


def _silent(event: dict[str, Any]) -> None:
    """Ranks other than 0 say nothing."""


def main() -> int:
    """Entry of every launched rank: `python -P -m dlio_bench.harness.commands.run.measured.rank FOLDER`."""
    folder = Path(sys.argv[1])

    with ExitStack() as stack:

        def start() -> tuple[int, Callable[[Comm], None]]:
            job = Job.load(folder)
            pipeline = stack.enter_context(started(job, folder))
            return job.layout.ranks, lambda comm: measure(job, folder, comm, say, pipeline)

        return run_rank(folder, start)


if __name__ == "__main__":
    raise SystemExit(main())
