"""The job of a run, which every rank gets: its readers, the samples that they read, and how these make steps."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import field
from msgspec.structs import replace

from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.benchmarks.registry import find
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import VALIDATION
from dlio_bench.datagen.manifest import FileEntry
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.job import SavedJob
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.training import Inference, TrainedModel, Training, Validation
from dlio_bench.harness.plan import policies
from dlio_bench.harness.plan.orders import Shape, find_order
from dlio_bench.harness.plan.policies import OWN, TF_DATA, Policy
from dlio_bench.harness.plan.shape import ONE_ORDER, PIPELINE
from dlio_bench.harness.plan.validation import Passes, epochs_of, share
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.storage.pfs.spec import PfsSpec
from dlio_bench.harness.streams.crew import CrewLayout, model_of
from dlio_bench.harness.streams.settings import Streaming

MEMORY = "memory"  # in `left_open`, beside the names of the tiers
AXES = ("order", "placement", "delivery")


class Job(SavedJob, frozen=True, kw_only=True):
    """One measurement. Sizes are in bytes, times in seconds. All readers share one plan and one dataset.

    models: that are trained side by side, each by as many ranks of each node; ranks_per_node: of all of them.
    """

    options: Options
    workload: str
    readers: Mapping[str, Policy]  # name that the user gave -> row
    nodes: int
    ranks_per_node: int
    virtual: bool
    dataset: str  # folder
    dataset_digest: str
    code_digest: str
    view: tuple[str, ...]
    batch: int
    epochs: int
    trials: int
    warmup_trials: int
    seed: int
    sync: str
    cache: str  # the state of the caches that the options come to with these readers
    node_memory: int  # that a node may use
    step_seconds: float  # of emulated compute; 0: none
    threads: int  # of pools with a fixed size
    most_threads: int  # that read ahead if storage keeps them waiting
    staging_bytes: int
    tier_folders: tuple[str, ...]  # node -> its local-tier folder; real nodes make theirs
    real: bool = False  # the nodes are machines of an allocation: `measured/node.py` makes and finds what is theirs
    local_tier: str = ""  # of real nodes: the folder that the user named
    left_open: tuple[str, ...] = ()  # sizes of real nodes that nobody gave: MEMORY, RAM, DISK
    last: str = "drop"
    decode: bool = False  # deliver what the application makes of the view
    validation: Validation | None = None
    pfs: PfsSpec | None = None  # the emulated parallel file system
    mounts: tuple[str, ...] = ()  # node -> where it sees the dataset through the emulation; its link to an object store
    tiers: Tiers = field(default_factory=Tiers)  # of each node, for samples it keeps
    steps: int = 0  # most of an epoch; 0: all
    parted: bool = False  # an epoch of `steps` is a part of a pass over the samples: each starts where the last ended
    train: Training | None = None
    infer: Inference | None = None
    store: str = ""  # URL of the object store that has the dataset's files; empty: they are in its folder
    board: str = ""  # the file of the mounts' counters; of the link that nodes share to an object store
    streaming: Streaming | None = None
    models: tuple[TrainedModel, ...] = (TrainedModel(),)

    @property
    def application(self) -> Workload:
        """The workload in the variant of its data."""
        return find(self.workload).of(self.options.variant)

    def decoder(self, dataset: Dataset) -> Decode | None:
        """What the application makes of a sample, with --decode."""
        decode = self.application.decode
        return decode(dataset) if self.decode and decode is not None else None

    @property
    def has_network(self) -> bool:
        """Whether a network is at work, which learns or predicts."""
        return self.train is not None or self.infer is not None

    @property
    def ranks(self) -> int:
        """Ranks in the whole job."""
        return self.nodes * self.ranks_per_node

    @property
    def layout(self) -> CrewLayout:
        """Where its ranks are, those that publish streams included."""
        producers = 0 if self.streaming is None else self.streaming.producers
        return CrewLayout(self.nodes, self.ranks_per_node, producers, len(self.models))

    @property
    def model_per_node(self) -> int:
        """Ranks of a node that train one of the models."""
        return self.ranks_per_node // len(self.models)

    @property
    def model_ranks(self) -> int:
        """Ranks that train one of the models."""
        return self.ranks // len(self.models)

    def model_of(self, rank: int) -> tuple[int, int]:
        """The model that a rank trains, and its number among the ranks of that model."""
        return model_of(rank, self.ranks_per_node, len(self.models))

    def step_seconds_of(self, rank: int) -> float:
        """Emulated compute in a step of a rank that trains."""
        scale = self.options.step_scale or (1.0,)
        return self.step_seconds * scale[rank % len(scale)]

    @property
    def copies(self) -> int:
        """Ranks of a model that each sample goes to: all of them, if they hold parts of it."""
        return self.ranks if self.options.shard in ONE_ORDER else 1

    @property
    def deliveries(self) -> int:
        """How often each field of a sample is delivered: to all of these ranks, or once to a stage of a pipeline."""
        return 1 if self.options.shard == PIPELINE else self.copies

    @property
    def trainers(self) -> int:
        """How many ranks of a model read different samples: one if all ranks read the same."""
        return self.model_ranks // self.copies

    @property
    def heading(self) -> str:
        """What and where, for a progress line: 'cdb  2x1 ranks'."""
        ranks = "1 rank" if self.ranks == 1 else f"{self.nodes}x{self.ranks_per_node} ranks"
        return f"{self.workload}  {ranks}"

    @property
    def all_trials(self) -> int:
        """Trials of a reader, those that warm up included."""
        return self.warmup_trials + self.trials

    @property
    def all_epochs(self) -> int:
        """Epochs of all trials of all readers."""
        return self.all_trials * len(self.readers) * self.epochs


def files_of(job: Job, dataset: Dataset) -> Sequence[FileEntry]:
    """The files of an epoch, which come first in the dataset: the training files; for an inference all files."""
    return dataset.training_files if job.infer is None else dataset.manifest.files


def samples_of(job: Job, dataset: Dataset) -> int:
    """How many samples an epoch reads. Their ids are those below this number."""
    return dataset.training_samples if job.infer is None else dataset.samples


def shape_of(job: Job, dataset: Dataset) -> Shape:
    """How the job cuts an epoch of the training split, or of all splits for an inference."""
    return _shape(job, samples_of(job, dataset), files_of(job, dataset), job.last)


def passes_of(job: Job, dataset: Dataset) -> dict[str, Passes]:
    """The validation passes of each reader, over equally many samples: those of the smallest share of a rank.

    Empty without passes. UsageError if there is no such split.
    """
    shape = validation_shape(job, dataset)
    if job.validation is None or shape is None:
        return {}
    workload = job.application
    orders = {
        name: find_order(validation_order(resolved_policy(row, workload, shape), workload))
        for name, row in job.readers.items()
    }
    samples = min(share(order, shape) for order in orders.values())
    epochs = epochs_of(job.epochs, job.validation.every)
    return {name: Passes(order, shape, samples, epochs) for name, order in orders.items()}


def validation_shape(job: Job, dataset: Dataset) -> Shape | None:
    """How the job cuts the validation split; None without passes over it. UsageError if there is no such split."""
    if not job.validation:
        return None
    part = dataset.part(VALIDATION)
    if part is None:
        raise UsageError(
            f"--validation: the dataset in {dataset.folder} has no validation split. Generate one with a validation "
            "split, or use --validation none."
        )
    files = [dataset.manifest.files[number] for number in part.files]
    return _shape(job, len(part.samples), files, "drop", first=part.samples.start)


def _shape(job: Job, samples: int, files: Sequence[FileEntry], last: str, first: int = 0) -> Shape:
    bounds = np.cumsum([0, *(file.samples for file in files)])
    return Shape(samples, job.model_ranks, job.batch, bounds, job.model_per_node, job.options.shard, last, first)


def resolved_policy(row: Policy, workload: Workload, shape: Shape) -> Policy:
    """The row with its order on this shape: some pipelines have another order if each rank has only one file."""
    pipeline = workload.upstream
    if row.delivery != OWN or pipeline is None or pipeline.with_one_file is None or shape.files // shape.ranks != 1:
        return row
    return replace(row, order=pipeline.with_one_file)


def validation_order(row: Policy, workload: Workload) -> str:
    """The order in which a row reads the validation split: sequential, or as published if the row is a pipeline."""
    if row.delivery != OWN or workload.validation is None:
        return "sequential"
    return workload.validation.order or row.order


def reader_name(reader: str, order: str | None, placement: str | None, delivery: str | None) -> str:
    """The name of a reader with the axes that the user set: 'naive+order=global-shuffle'."""
    axes = zip(AXES, (order, placement, delivery), strict=True)
    return "+".join([reader, *(f"{axis}={value}" for axis, value in axes if value)])


def policy(name: str, workload: Workload) -> Policy:
    """The row that a reader's name means for a workload. UsageError if there is none, or if its axes do not fit."""
    reader, *parts = name.split("+")
    axes = policies.axes_of(name, parts)
    pipeline = workload.upstream
    if policies.find(reader).delivery != OWN:
        return policies.resolve(reader, **axes)
    if pipeline is None:
        raise UsageError(f"Workload '{workload.name}' has no published pipeline. Choose another --reader.")
    order = axes.get("order", pipeline.order)
    without_size = order.partition("(")[0]  # of its buffer
    if order not in pipeline.orders and without_size not in pipeline.orders:
        raise UsageError(
            f"The published pipeline of {workload.name} has no order '{order}'. "
            f"Its orders: {', '.join(pipeline.orders)}."
        )
    return replace(policies.resolve(reader, **axes, own_order=pipeline.order), order_known=pipeline.order_known)


def uses_tensorflow(job: Job, row: Policy) -> bool:
    """Whether TensorFlow is at work in a run of a reader: in its network, or in the reader's pipeline."""
    return job.has_network or reads_by_tensorflow(job.application, row)


def reads_by_tensorflow(workload: Workload, row: Policy) -> bool:
    """Whether a reader is a pipeline of tf.data."""
    pipeline = workload.upstream
    return row.delivery == TF_DATA or (row.delivery == OWN and pipeline is not None and pipeline.tensorflow)
