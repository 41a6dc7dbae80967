"""Opens the network of a job that predicts, on a rank."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from dlio_bench.benchmarks.model import choose
from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.plan.orders import steps_of
from dlio_bench.harness.readers.session import Reader
from dlio_bench.harness.run.asked.job import Job
from dlio_bench.harness.run.measured.training import sample_widths
from dlio_bench.harness.run.measured.trial import Trial
from dlio_bench.harness.training import inference
from dlio_bench.harness.training.checkpoint import resumed
from dlio_bench.harness.training.trainer import Trainer
from dlio_bench.reports.types import Network


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
    """The network, compiled for the batches that the readers will deliver, and its description for the result."""
    del folder
    options = job.infer
    assert options is not None
    model = choose(find(job.workload).models, dataset.manifest.variant, options.model)
    weights = None if options.resume is None else resumed(comm, Path(options.resume), {"model": options.model})
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
        widths = sample_widths(reader, job.readers[name], trials[name][0], comm.rank)
        sizes = {len(ids) for trial in trials[name] for epoch in trial.ids(comm.rank) for ids in steps_of(epoch)}
        batches += [(size, widths) for size in sorted(sizes) if size]
    network.compile(batches)
    yield network, replace(network.described, resume=options.resume, step=options.step)
