"""`--compute infer`: what is asked for, whether it can be, and what a rank opens for its job.

An inference goes once over the whole dataset, dealt to the ranks; no gradients are exchanged ("Inference: dataset is
distributed over processes", A. Gainaru, WANT workshop at NeurIPS 2023).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlio_bench.benchmarks.model import choose
from dlio_bench.benchmarks.registry import find
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import PHYSICAL, RANDOM, Layout
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.plan.orders import steps_of
from dlio_bench.harness.plan.policies import OWN, Policy
from dlio_bench.harness.plan.shape import JOB, KEEP
from dlio_bench.harness.readers.session import Reader
from dlio_bench.harness.run.job import Job
from dlio_bench.harness.run.options import Options
from dlio_bench.harness.run.training import INFER, require_libraries, sample_widths
from dlio_bench.harness.run.trial import Trial
from dlio_bench.harness.training import inference
from dlio_bench.harness.training.checkpoint import required, resumed
from dlio_bench.harness.training.trainer import Trainer


@dataclass(frozen=True)
class Inference:
    """The network of a run that predicts, and the folder of the checkpoint that its weights come from, with its step.

    Without one the weights are those that a training begins with.
    """

    model: str
    resume: str | None = None
    step: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for a job."""
        return asdict(self)


def asked(options: Options, workload: Workload, layout: Layout, rows: Sequence[Policy]) -> Inference | None:
    """What `--compute infer` or `--compute infer:MODEL` asks for of readers `rows`; None for another --compute.

    UsageError for what does not fit together; EnvironmentFailure where TensorFlow is missing or another.
    """
    mode, _, name = options.compute.partition(":")
    if mode != INFER:
        return None
    model = choose(workload.models, layout.variant, name or None)
    _require_whole(options, rows)
    if options.predict:
        raise UsageError("--predict foretells runs whose step time is known. Use it with --compute emulate or none.")
    require_libraries(None, f"--compute {INFER}")
    if options.resume is None:
        return Inference(model.name)
    state = required(options.resume, {"model": model.name}).state
    return Inference(model.name, str(options.resume.resolve()), state.step)


def _require_whole(options: Options, rows: Sequence[Policy]) -> None:
    """UsageError for what would leave samples out, or bring some twice."""
    refused = {
        f"--last {options.last}": options.last not in (None, KEEP),
        f"--steps {options.steps}": options.steps is not None,
        f"--shard {options.shard}": options.shard == JOB,
        f"--validation {options.validation}": options.validation not in (None, "none"),
    }
    for flag, there in refused.items():
        if there:
            raise UsageError(
                f"{flag}: an inference predicts every sample of the dataset once, on one of the ranks. Leave it out; "
                "give less data with --max-data or --data."
            )
    for row in rows:
        if row.delivery == OWN or not row.exactly_once:
            why = "is the application's published pipeline for training" if row.delivery == OWN else "reads some twice"
            raise UsageError(
                f"An inference predicts every sample of the dataset once, and reader '{row.name}' {why}. Use another "
                "reader, such as prefetch."
            )


def require_labelled(asked: Inference | None, dataset: Dataset) -> None:
    """UsageError for an inference on data that mean nothing: their labels are no classes, their numbers not finite."""
    if asked is not None and dataset.manifest.fill == RANDOM:
        raise UsageError(
            f"--compute infer compares predictions with labels, and the dataset in {dataset.folder} was filled with "
            f"'{dataset.manifest.fill}' bytes. Generate one with --fill {PHYSICAL}."
        )


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
    """What predicts in a job, compiled for the batches that its readers will deliver; and what it is, for a result."""
    del folder
    assert job.infer is not None
    own = Inference(**job.infer)
    model = choose(find(job.workload).models, dataset.manifest.variant, own.model)
    weights = None if own.resume is None else resumed(comm, Path(own.resume), {"model": own.model})
    network = inference.Inference(
        comm,
        model,
        model.sample(dataset),
        device=device,
        seed=job.seed % 2**31,
        training=dataset.training_samples,
        weights=weights,
    )
    batches = []
    for name, reader in readers.items():
        widths = sample_widths(reader, rows[name], trials[name][0], comm.rank)
        sizes = {len(ids) for trial in trials[name] for epoch in trial.ids(comm.rank) for ids in steps_of(epoch)}
        batches += [(size, widths) for size in sorted(sizes) if size]
    network.compile(batches)
    yield network, network.described | own.to_dict()
