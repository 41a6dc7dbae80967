"""Opens the trainer of a job, on a rank: emulated, a network that learns, or one that predicts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import structs
from msgspec.structs import replace

from dlio_bench.benchmarks.model import Course, choose, constant
from dlio_bench.benchmarks.registry import find
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.training import Inference as Asked
from dlio_bench.harness.commands.run.asked.training import Training
from dlio_bench.harness.commands.run.measured.observer import Rank
from dlio_bench.harness.commands.run.measured.trial import Contender
from dlio_bench.harness.plan.orders import steps_of
from dlio_bench.harness.plan.policies import OWN, TF_DATA
from dlio_bench.harness.readers.session import Tally, plan_batches
from dlio_bench.harness.training.checkpoint import load_on_all_ranks
from dlio_bench.harness.training.exchange.exchange import open_exchange
from dlio_bench.harness.training.inference import Inference, PieceInference
from dlio_bench.harness.training.network import Checkpoints, NetworkTrainer, Widths, widths
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


@contextmanager
def open_trainer(rank: Rank, device: str, contenders: Sequence[Contender]) -> Iterator[tuple[Trainer, Network | None]]:
    """The trainer, compiled for the batches that the readers will deliver, and its description for the result.

    Its checkpoints go into the folder of the run's results.
    """
    job, comm, dataset, folder = rank.job, rank.comm, rank.site.dataset, rank.folder.parent
    if job.infer is not None:
        yield _predictor(rank, job.infer, device, contenders)
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
    sample, course = model.sample(dataset), Course(contenders[0].trials[0].steps, job.batch * job.trainers)
    exchange = open_exchange(rank.peers, training.exchange(job.model_per_node))
    about, scale = _checkpoint_identity(job, model.name, training, course), f"{job.nodes}x{job.ranks_per_node}"
    kept = "checkpoints" if len(job.models) == 1 else f"checkpoints/model-{number}"
    trainer = NetworkTrainer(
        rank.peers,
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
    blocks = [_sample_widths(one, comm.rank) for one in contenders]
    behind = [one.trials[0].batches_behind(comm.rank) for one in contenders]
    sizes = sorted({len(ids) for epochs in behind for batches in epochs.values() for ids in batches})
    trainer.compile([(job.batch, block) for block in blocks], [(size, block) for block in blocks for size in sizes])
    options = {
        name: value for name, value in structs.asdict(training).items() if name not in ("model", "kind", "precision")
    }
    yield trainer, replace(trainer.described, **options)
    trainer.close()


def _predictor(rank: Rank, options: Asked, device: str, contenders: Sequence[Contender]) -> tuple[Trainer, Network]:
    job, comm, dataset = rank.job, rank.comm, rank.site.dataset
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
            rank.folder.parent,
            f"{job.nodes}x{job.ranks_per_node}",
            device=device,
            seed=seed,
            weights=weights,
        )
    else:
        sample = model.sample(dataset)
        network = Inference(comm, model, sample, device=device, seed=seed, training=training, weights=weights)
    batches = []
    for one in contenders:
        sample_widths = _sample_widths(one, comm.rank)
        sizes = {len(ids) for trial in one.trials for epoch in trial.ids(comm.rank) for ids in steps_of(epoch)}
        batches += [(size, sample_widths) for size in sorted(sizes) if size]
    network.compile(batches)
    return network, replace(network.described, resume=options.resume, step=options.step)


def _checkpoint_identity(job: Job, model: str, training: Training, course: Course) -> dict[str, Any]:
    """What must be the same in a checkpoint and in the training that continues it."""
    return {
        "model": model,
        "dataset": job.dataset_digest,
        "ranks": job.model_ranks,
        "batch": job.batch,
        "steps an epoch": course.steps_per_epoch,
        "gradient lag": training.lag,
    }


def _sample_widths(one: Contender, rank: int) -> Widths:
    """Bytes of a sample in each block of a reader's batches.

    What a published pipeline delivers is known only from a first batch, which counts in no trial. Caches are prepared
    after it.
    """
    reader, trial = one.reader, one.trials[0]
    if one.row.delivery not in (OWN, TF_DATA):
        assert reader.sample_view.decode is not None
        return (reader.sample_view.decode.sample_bytes,)
    ids = steps_of(trial.ids(rank)[0])
    with reader.session(plan_batches(reader.sample_view, [(0, ids)], trial.ids_read), Tally()) as batches:
        return widths(next(batches))
