"""The trainer that a rank opens for its job."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dlio_bench.benchmarks.model import Course, choose
from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.plan.orders import steps_of
from dlio_bench.harness.plan.policies import OWN, TF_DATA, Policy
from dlio_bench.harness.readers.session import Reader, Tally, planned
from dlio_bench.harness.run.asked.job import Job
from dlio_bench.harness.run.asked.training import Training
from dlio_bench.harness.run.measured.trial import Trial
from dlio_bench.harness.training.checkpoint import resumed
from dlio_bench.harness.training.exchange.exchange import open_exchange
from dlio_bench.harness.training.network import Checkpoints, NetworkTrainer, Widths, start_tensorflow, widths
from dlio_bench.harness.training.trainer import Emulated, Trainer
from dlio_bench.reports.types import Network


def first_epoch(job: Job, steps: int) -> int:
    """The epoch that a job begins with, of epochs of `steps`. UsageError for a checkpoint amid an epoch."""
    asked = job.train
    if asked is None or asked.resume is None:
        return 0
    first, rest = divmod(asked.step, steps)
    if rest:
        raise UsageError(
            f"The checkpoint in {asked.resume} was written after {asked.step} steps, amid an epoch of "
            f"{steps}, and a run goes on at the end of one. Write them there, with --checkpoint {steps}; or ask for "
            "the nodes, the --batch and the --steps of the run that wrote it."
        )
    return first


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
    trials: Mapping[str, Sequence[Trial]],
    folder: Path,
) -> Iterator[tuple[Trainer, Network | None]]:
    """The trainer of a job, compiled for the batches that its readers will deliver; and what it is, for the result.

    folder: of the run's results, in which its checkpoints go.
    """
    if job.train is None:
        yield Emulated(job.step_seconds, 0.0 if job.validation is None else job.validation.sample_seconds), None
        return
    asked = job.train
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
    blocks = [sample_widths(reader, job.readers[name], trials[name][0], comm.rank) for name, reader in readers.items()]
    passes = chain.from_iterable(own[0].passes(comm.rank) for own in trials.values())
    sizes = sorted({len(ids) for one in passes for ids in one.batches})
    trainer.compile([(job.batch, own) for own in blocks], [(size, own) for own in blocks for size in sizes])
    yield (
        trainer,
        replace(
            trainer.described,
            fp16=asked.fp16,
            lag=asked.lag,
            hierarchical=asked.hierarchical,
            timeout=asked.timeout,
            checkpoint=asked.checkpoint,
            resume=asked.resume,
            step=asked.step,
            seed=asked.seed,
        ),
    )
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
    if row.delivery not in (OWN, TF_DATA):
        assert reader.sample_view.decode is not None
        return (reader.sample_view.decode.sample_bytes,)
    ids = steps_of(trial.ids(rank)[0])
    with reader.session(planned(reader.sample_view, [(0, ids)], trial.of), Tally()) as batches:
        return widths(next(batches))
