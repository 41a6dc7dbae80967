"""`--compute train`: what is asked for, whether it can be, and the trainer that a rank opens for its job."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from dlio_bench.benchmarks.model import Course, choose
from dlio_bench.benchmarks.registry import find
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import PHYSICAL, RANDOM, Layout
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.plan.orders import steps_of
from dlio_bench.harness.plan.policies import OWN, REDRAWN, Policy
from dlio_bench.harness.plan.shape import KEEP
from dlio_bench.harness.readers.session import Reader, Tally, planned
from dlio_bench.harness.run.job import Job
from dlio_bench.harness.run.options import Options
from dlio_bench.harness.run.trial import Trial
from dlio_bench.harness.training.checkpoint import required, resumed
from dlio_bench.harness.training.exchange.exchange import open_exchange
from dlio_bench.harness.training.exchange.options import DEFAULT_TIMEOUT, ExchangeOptions, require_valid
from dlio_bench.harness.training.network import Checkpoints, NetworkTrainer, Widths, start_tensorflow, widths
from dlio_bench.harness.training.trainer import Emulated, Trainer

TRAIN, INFER = "train", "infer"
TENSORFLOW = ((2, 16), (2, 19))  # from, and below: what the package's extras allow
DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")
INSTALL = "Install it with `pip install 'dlio-bench[tensorflow]'`, or use --compute emulate."


@dataclass(frozen=True)
class Training:
    """What a run trains, and how gradients are exchanged, as in ExchangeOptions."""

    model: str
    kind: str | None
    fp16: bool
    lag: int
    hierarchical: bool
    timeout: float
    checkpoint: int  # steps from one to the next; 0: none
    resume: str | None = None  # folder of the checkpoint to go on from, its step and its seed
    step: int = 0
    seed: int | None = None

    def exchange(self, ranks_per_node: int) -> ExchangeOptions:
        """The options of the exchange."""
        return ExchangeOptions(self.kind, self.fp16, self.lag, self.hierarchical, ranks_per_node, self.timeout)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for a job."""
        return asdict(self)


def asked(options: Options, workload: Workload, layout: Layout, rows: Sequence[Policy]) -> Training | None:
    """What `--compute train` or `--compute train:MODEL` asks for of readers `rows`; None for another --compute.

    UsageError for what does not fit together; EnvironmentFailure where TensorFlow or Horovod is missing or another.
    """
    mode, _, name = options.compute.partition(":")
    if mode != TRAIN:
        _refuse_alone(options, mode)
        return None
    model = choose(workload.models, layout.variant, name or None)
    found = Training(
        model.name,
        options.exchange,
        options.fp16_gradients,
        options.gradient_lag,
        options.hierarchical,
        DEFAULT_TIMEOUT if options.exchange_timeout is None else options.exchange_timeout,
        options.checkpoint or 0,
    )
    require_valid(found.exchange(options.ranks_per_node))
    if options.predict:
        raise UsageError("--predict foretells runs whose step time is known. Use it with --compute emulate or none.")
    if options.last == KEEP:
        raise UsageError(
            "--last keep: gradients are averaged over ranks whose batches are of one size, and last ones would not be. "
            "Use --last drop or pad."
        )
    if options.sync not in (None, "step") and options.exchange != "none":
        raise UsageError(
            f"--sync {options.sync}: ranks that train together meet in the exchange of gradients, at every step. Leave "
            "it out, or train apart with --exchange none."
        )
    require_libraries(options.exchange)
    return found if options.resume is None else _resumed(found, options, options.resume, rows)


def _resumed(found: Training, options: Options, folder: Path, rows: Sequence[Policy]) -> Training:
    """A training that goes on: one trial, with the seed that it was begun with. UsageError; DataError."""
    for flag, given, only in (("--trials", options.trials, 1), ("--warmup-trials", options.warmup_trials, 0)):
        if given not in (None, only):
            raise UsageError(f"{flag} {given}: a training goes on once. With --resume leave it out.")
    for row in rows:
        if row.delivery == OWN or not row.order_known or row.order == REDRAWN:
            raise UsageError(
                f"--resume: the order of reader '{row.name}' begins anew with each run, so that the training cannot go "
                "on where it was. Use another reader, such as prefetch."
            )
    state = required(folder, {}).state
    if options.seed not in (None, state.seed):
        raise UsageError(
            f"--seed {options.seed}: the training in {folder} was begun with {state.seed}, and goes on with it. Leave "
            "--seed out."
        )
    return replace(found, resume=str(folder.resolve()), step=state.step, seed=state.seed)


def first_epoch(job: Job, steps: int) -> int:
    """The epoch that a job begins with, of epochs of `steps`. UsageError for a checkpoint amid an epoch."""
    if job.train is None or job.train["resume"] is None:
        return 0
    first, rest = divmod(job.train["step"], steps)
    if rest:
        raise UsageError(
            f"The checkpoint in {job.train['resume']} was written after {job.train['step']} steps, amid an epoch of "
            f"{steps}, and a run goes on at the end of one. Write them there, with --checkpoint {steps}; or ask for "
            "the nodes, the --batch and the --steps of the run that wrote it."
        )
    return int(first)


def require_libraries(exchange: str | None, what: str = f"--compute {TRAIN}") -> None:
    """EnvironmentFailure where TensorFlow is missing or outside the pin, or Horovod is asked for and missing."""
    if find_spec("tensorflow") is None:
        raise EnvironmentFailure(f"{what} needs TensorFlow, which is not installed. {INSTALL}")
    found = _tensorflow_version()
    low, high = TENSORFLOW
    if found is not None and not low <= tuple(int(part) for part in found.split(".")[:2]) < high:
        raise EnvironmentFailure(
            f"{what} works with TensorFlow {low[0]}.{low[1]} to {high[0]}.{high[1] - 1}, and {found} is "
            f"installed. {INSTALL}"
        )
    if exchange == "horovod" and find_spec("horovod") is None:
        raise EnvironmentFailure(
            "--exchange horovod: Horovod is not installed. `scripts/install-horovod FOLDER` builds it for the "
            "TensorFlow of a virtual environment; or use --exchange mpi."
        )


def require_trainable(training: Training | None, dataset: Dataset) -> None:
    """UsageError for a training on data that mean nothing: their labels are no classes, their numbers not finite."""
    if training is not None and dataset.manifest.fill == RANDOM:
        raise UsageError(
            f"--compute train learns from what samples show, and the dataset in {dataset.folder} was filled with "
            f"'{dataset.manifest.fill}' bytes. Generate one with --fill {PHYSICAL}."
        )


def _tensorflow_version() -> str | None:
    """Of the installed distribution, without loading it; None where it has another name."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _refuse_alone(options: Options, mode: str) -> None:
    """Options of training without training; an inference may have the weights of a checkpoint."""
    given = {
        "--exchange": options.exchange is not None,
        "--fp16-gradients": options.fp16_gradients,
        "--gradient-lag": options.gradient_lag != 0,
        "--hierarchical": options.hierarchical,
        "--exchange-timeout": options.exchange_timeout is not None,
        "--checkpoint": options.checkpoint is not None,
        "--resume": options.resume is not None and mode != INFER,
    }
    for flag, there in given.items():
        if there:
            raise UsageError(
                f"{flag} is of training, and with --compute {options.compute} nothing is trained. Add --compute train, "
                "or leave it out."
            )


def begin(job: Job, comm: Comm) -> str:
    """Load what the job's network needs, before anything else may; the name of the device, empty without a network."""
    return "" if job.train is None and job.infer is None else start_tensorflow(comm)


@contextmanager
def opened(
    job: Job,
    comm: Comm,
    dataset: Dataset,
    device: str,
    readers: Mapping[str, Reader],
    rows: Mapping[str, Policy],
    trials: Mapping[str, Sequence[Trial]],
    folder: Path,
) -> Iterator[tuple[Trainer, dict[str, Any] | None]]:
    """The trainer of a job, compiled for the batches that its readers will deliver; and what it is, for the result.

    folder: of the run's results, in which its checkpoints go.
    """
    if job.train is None:
        yield Emulated(job.step_seconds, job.validation_sample_seconds), None
        return
    asked = Training(**job.train)
    model = choose(find(job.workload).models, dataset.manifest.variant, asked.model)
    sample, course = model.sample(dataset), Course(next(iter(trials.values()))[0].steps, job.batch * job.trainers)
    exchange = open_exchange(comm, asked.exchange(job.ranks_per_node))
    checkpoints = None
    if asked.checkpoint:
        scale = f"{job.nodes}x{job.ranks_per_node}"
        checkpoints = Checkpoints(asked.checkpoint, folder, scale, _about(job, asked, course))
    seed = job.seed % 2**31
    found = None if asked.resume is None else resumed(comm, Path(asked.resume), _about(job, asked, course))
    trainer = NetworkTrainer(
        comm, model, sample, course, exchange, device=device, seed=seed, checkpoints=checkpoints, resumed=found
    )
    blocks = [sample_widths(reader, rows[name], trials[name][0], comm.rank) for name, reader in readers.items()]
    passes = chain.from_iterable(own[0].passes(comm.rank) for own in trials.values())
    sizes = sorted({len(ids) for one in passes for ids in one.batches})
    trainer.compile([(job.batch, own) for own in blocks], [(size, own) for own in blocks for size in sizes])
    yield trainer, trainer.described | asked.to_dict()
    trainer.close()


def _about(job: Job, asked: Training, course: Course) -> dict[str, Any]:
    """What must be the same for a training to go on from a checkpoint."""
    return {
        "model": asked.model,
        "dataset": job.dataset_digest,
        "ranks": job.ranks,
        "batch": job.batch,
        "steps an epoch": course.steps_per_epoch,
        "gradient lag": asked.lag,
    }


def sample_widths(reader: Reader, row: Policy, trial: Trial, rank: int) -> Widths:
    """Bytes of a sample in each block of a reader's batches.

    Published pipelines deliver what they deliver: theirs are looked at, in a first batch that nobody counts; the caches
    are made ready after that.
    """
    if row.delivery not in (OWN, "tf.data"):
        assert reader.form.decode is not None
        return (reader.form.decode.sample_bytes,)
    ids = steps_of(trial.ids(rank)[0])
    with reader.session(planned(reader.form, [(0, ids)], trial.of), Tally()) as batches:
        return widths(next(batches))
