"""Opens the trainer of a job, on a rank: emulated, a network that learns, or one that predicts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import structs
from msgspec.structs import replace

from dlio_bench.benchmarks.model import Course, choose, constant
from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.training import Inference as Asked
from dlio_bench.harness.commands.run.asked.training import Training
from dlio_bench.harness.commands.run.measured.trial import Trial
from dlio_bench.harness.plan.orders import steps_of
from dlio_bench.harness.plan.policies import OWN, TF_DATA, Policy
from dlio_bench.harness.readers.session import Reader, Tally, planned
from dlio_bench.harness.training.checkpoint import load_on_all_ranks
from dlio_bench.harness.training.exchange.exchange import open_exchange
from dlio_bench.harness.training.inference import Inference, PieceInference
from dlio_bench.harness.training.network import Checkpoints, NetworkTrainer, Widths, start_tensorflow, widths
from dlio_bench.harness.training.trainer import Emulated, Trainer
from dlio_bench.reports.document.types import Network


def first_epoch(job: Job, steps: int) -> int:
    """The first epoch of a job, in epochs of `steps` steps. UsageError for a checkpoint in the middle of an epoch."""
    training = job.train
    if training is None or training.resume is None:
        return 0
    first, rest = divmod(training.step, steps)
    if rest:
        raise UsageError(
            f"The checkpoint in {training.resume} was written after {training.step} steps, in the middle of an "
            f"epoch of {steps}, but a run can only continue at the end of an epoch. Write checkpoints there, with "
            f"--checkpoint {steps}; or use the nodes, the --batch and the --steps of the run that wrote it."
        )
    return first


def begin(job: Job, comm: Comm) -> str:
    """Load TensorFlow, if the job has a network, before anything else does. The device's name, or an empty text."""
    return start_tensorflow(comm) if job.has_network else ""


@contextmanager
def opened(
    job: Job,
    comm: Comm,
    peers: Comm,
    dataset: Dataset,
    device: str,
    readers: Mapping[str, Reader],
    trials: Mapping[str, Sequence[Trial]],
    folder: Path,
) -> Iterator[tuple[Trainer, Network | None]]:
    """The trainer, compiled for the batches that the readers will deliver, and its description for the result.

    peers: the ranks of this rank's model. folder: of the run's results, where its checkpoints go.
    """
    if job.infer is not None:
        yield _predictor(job, job.infer, comm, dataset, device, readers, trials, folder)
        return
    if job.train is None:
        yield (
            Emulated(job.step_seconds_of(comm.rank), 0.0 if job.validation is None else job.validation.sample_seconds),
            None,
        )
        return
    training = job.train
    number = job.model_of(comm.rank)[0]
    asked = job.models[number]
    model = choose(find(job.workload).models, dataset.manifest.variant, asked.network or training.model)
    if (rate := asked.rate) is not None:
        model = constant(model, rate)
    sample, course = model.sample(dataset), Course(next(iter(trials.values()))[0].steps, job.batch * job.trainers)
    exchange = open_exchange(peers, training.exchange(job.model_per_node))
    about, scale = _about(job, model.name, training, course), f"{job.nodes}x{job.ranks_per_node}"
    kept = "checkpoints" if len(job.models) == 1 else f"checkpoints/model-{number}"
    trainer = NetworkTrainer(
        peers,
        model,
        sample,
        course,
        exchange,
        device=device,
        seed=job.seed % 2**31,
        checkpoints=Checkpoints(training.checkpoint, folder, scale, about, kept) if training.checkpoint else None,
        resumed=None if training.resume is None else load_on_all_ranks(comm, Path(training.resume), about),
        last_trial=job.all_trials - 1,
        precision=training.precision,
    )
    blocks = [_sample_widths(reader, job.readers[name], trials[name][0], comm.rank) for name, reader in readers.items()]
    passes = chain.from_iterable(reader_trials[0].passes(comm.rank) for reader_trials in trials.values())
    sizes = sorted({len(ids) for pass_ in passes for ids in pass_.batches})
    trainer.compile([(job.batch, block) for block in blocks], [(size, block) for block in blocks for size in sizes])
    options = {
        name: value for name, value in structs.asdict(training).items() if name not in ("model", "kind", "precision")
    }
    yield trainer, replace(trainer.described, **options)
    trainer.close()


def _predictor(
    job: Job,
    options: Asked,
    comm: Comm,
    dataset: Dataset,
    device: str,
    readers: Mapping[str, Reader],
    trials: Mapping[str, Sequence[Trial]],
    folder: Path,
) -> tuple[Trainer, Network]:
    model = choose(find(job.workload).models, dataset.manifest.variant, options.model)
    weights = (
        None if options.resume is None else load_on_all_ranks(comm, Path(options.resume), {"model": options.model})
    )
    seed, training = job.seed % 2**31, dataset.training_samples
    if (cutting := model.cutting) is not None:
        network: Inference = PieceInference(
            comm,
            model,
            cutting,
            dataset,
            folder,
            f"{job.nodes}x{job.ranks_per_node}",
            device=device,
            seed=seed,
            weights=weights,
        )
    else:
        sample = model.sample(dataset)
        network = Inference(comm, model, sample, device=device, seed=seed, training=training, weights=weights)
    batches = []
    for name, reader in readers.items():
        sample_widths = _sample_widths(reader, job.readers[name], trials[name][0], comm.rank)
        sizes = {len(ids) for trial in trials[name] for epoch in trial.ids(comm.rank) for ids in steps_of(epoch)}
        batches += [(size, sample_widths) for size in sorted(sizes) if size]
    network.compile(batches)
    return network, replace(network.described, resume=options.resume, step=options.step)


def _about(job: Job, model: str, training: Training, course: Course) -> dict[str, Any]:
    """What must be the same in a checkpoint and in the training that continues it."""
    return {
        "model": model,
        "dataset": job.dataset_digest,
        "ranks": job.model_ranks,
        "batch": job.batch,
        "steps an epoch": course.steps_per_epoch,
        "gradient lag": training.lag,
    }


def _sample_widths(reader: Reader, row: Policy, trial: Trial, rank: int) -> Widths:
    """Bytes of a sample in each block of a reader's batches.

    What a published pipeline delivers is known only from a first batch, which counts in no trial. Caches are prepared
    after it.
    """
    if row.delivery not in (OWN, TF_DATA):
        assert reader.sample_view.decode is not None
        return (reader.sample_view.decode.sample_bytes,)
    ids = steps_of(trial.ids(rank)[0])
    with reader.session(planned(reader.sample_view, [(0, ids)], trial.ids_read), Tally()) as batches:
        return widths(next(batches))
