"""From names to things: the workload, layout, readers, step time and data that the options mean, or a clear refusal."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.benchmarks.profile import GIVEN, Profile
from dlio_bench.benchmarks.tensors import require_tensorflow
from dlio_bench.benchmarks.workload import Workload, validation_share
from dlio_bench.datagen.layout import PHYSICAL, TRAIN, VALIDATION, Layout
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.plan.model_parallel import require_readable
from dlio_bench.harness.plan.orders import find_order
from dlio_bench.harness.plan.placement.rows import KEPT_ON_FILES, ROWS
from dlio_bench.harness.plan.policies import OWN, REDRAWN, Policy, order_of
from dlio_bench.harness.plan.shape import JOB, KEEP, LASTS, SHARDS
from dlio_bench.harness.run.asked.choice import policy, spelled, validation_order
from dlio_bench.harness.run.asked.inference import Inference
from dlio_bench.harness.run.asked.inference import asked as asked_inference
from dlio_bench.harness.run.asked.job import CACHE_MODES, SYNC_MODES
from dlio_bench.harness.run.asked.options import Options
from dlio_bench.harness.run.asked.sizing import (
    MOST_BYTES,
    STEPS,
    TIMED_SECONDS,
    Cut,
    Minimum,
    cut,
    files_needed,
    most_files,
    parted,
    shortened,
    validation_files_needed,
)
from dlio_bench.harness.run.asked.training import TRAIN as TRAIN_MODE
from dlio_bench.harness.run.asked.training import Training
from dlio_bench.harness.run.asked.training import asked as asked_training
from dlio_bench.harness.storage.pfs.emulation import available
from dlio_bench.harness.training.compute import step_time
from dlio_bench.refusals import require_at_least, unknown

OF_SAMPLES = ("sequential", "global-shuffle")  # orders that do not keep a file's samples together
MOST_SEED = 2**62  # every trial adds its number, and a plan's seed has 64 bits


@dataclass(frozen=True)
class Request:
    """Options with every name looked up."""

    options: Options
    readers: tuple[str, ...]  # spelled, with the axes set by hand
    workload: Workload
    layout: Layout
    step_time: Profile | None
    scale: float  # of samples against those of the step time: tiny ones take less compute
    validation: int = 0  # epochs from one validation pass to the next; 0: none
    training: Training | None = None
    inference: Inference | None = None

    @property
    def most_ranks(self) -> int:
        """Ranks that read apart, of the largest node count: it decides batch and data for all (strong scaling)."""
        return 1 if self.options.shard == JOB else max(self.options.nodes) * self.options.ranks_per_node

    @property
    def last(self) -> str:
        """What becomes of samples that do not fill the last step."""
        return self.options.last or ("drop" if self.inference is None else KEEP)

    @property
    def epochs(self) -> int | None:
        """Epochs that were asked for; None: as many as make enough steps."""
        return self.options.epochs or (None if self.inference is None else 1)

    @property
    def minimum(self) -> Minimum:
        """What a trial must have to be compared."""
        seconds = self.options.min_seconds
        return Minimum((0.0 if self.options.tiny else TIMED_SECONDS) if seconds is None else seconds)

    @property
    def is_unpaced(self) -> bool:
        """Whether nothing is computed, so that nobody knows beforehand how long a step takes."""
        return self.step_time is None and self.training is None and self.inference is None

    @property
    def looks_first(self) -> bool:
        """Whether a first look at the readers decides how many epochs a trial has. A prediction allows none."""
        options = self.options
        by_hand = {options.epochs, options.steps, options.steps_per_epoch} != {None}
        return bool(self.minimum.seconds) and self.is_unpaced and not by_hand and not options.predict

    def needed(self, batch: int) -> int:
        """Steps of a trial with this batch."""
        return self.minimum.needed(self.step_seconds(batch))

    @property
    def view_bytes(self) -> float:
        """Delivered bytes of a sample; a record of varying length counts as stored."""
        fields = [field for field in self.layout.fields if field.name in self.workload.view]
        if any(-1 in field.shape for field in fields):
            return self.layout.sample_bytes
        return float(sum(np.dtype(field.dtype).itemsize * math.prod(field.shape) for field in fields))

    def step_seconds(self, batch: int) -> float:
        """Seconds of emulated compute in a step of `batch` samples. UsageError where the profile has none of them."""
        return 0.0 if self.step_time is None else self.scale * self.step_time.seconds(batch)

    def validation_seconds(self, batch: int) -> float:
        """Seconds of emulated compute for a sample of a validation pass; known forward passes go before a share."""
        forward = None if self.step_time is None else self.step_time.forward_seconds(batch)
        if forward is None:
            return self.step_seconds(batch) / batch * validation_share(self.workload)
        forwards = 1 if self.workload.validation is None else self.workload.validation.forwards
        return self.scale * forwards * forward / batch

    def largest(self) -> tuple[int, Cut]:
        """(training files, cut) of the most data that may be made. UsageError when the ranks are too many for them."""
        options, layout, ranks = self.options, self.layout, self.most_ranks
        most = MOST_BYTES if options.max_data is None else options.max_data
        # as much as the training files could take at most is kept for those of validation
        reserved = 0
        if self.validation:
            reserved = self._validation_files(most // layout.file_bytes) * layout.split(VALIDATION).file_bytes
        files = most_files(
            file_bytes=layout.file_bytes,
            samples_per_file=layout.samples_per_file,
            most_bytes=max(0, most - reserved),
            ranks=ranks,
            batch=options.batch,
            dealt=self._dealt,
        )
        return files, self._whole_cut(files * layout.samples_per_file)

    def files(self, held: Sequence[int] = ()) -> dict[str, int]:
        """Files of each split to be made for this run; `held`: bytes that buffers and tiers hold, largest first.

        UsageError when the ranks are too many for them.
        """
        most, chosen = self.largest()
        training = files_needed(
            most,
            chosen,
            samples_per_file=self.layout.samples_per_file,
            ranks=self.most_ranks,
            needed=self._steps_of_data(chosen.batch),
            asked_epochs=self.epochs,
            held=[int(size / self.view_bytes) for size in held] if self.minimum.seconds else [],
            dealt=self._dealt,
            pass_steps=(self.options.steps_per_epoch or 0) * (self.epochs or 1),
        )
        return {TRAIN: training} | ({VALIDATION: self._validation_files(training)} if self.validation else {})

    def _steps_of_data(self, batch: int) -> int | None:
        """Steps of a trial that data are made for; None: nobody knows how many."""
        if self.options.steps is not None:
            return max(self.options.steps, STEPS)
        if self.options.tiny:  # small samples are slow to make
            return STEPS
        return None if self.is_unpaced and self.minimum.seconds else self.needed(batch)

    @property
    def _rows(self) -> list[Policy]:
        return [policy(name, self.workload) for name in self.readers]

    @property
    def _dealt(self) -> bool:
        """Whether an order deals whole files to the ranks."""
        return any(order_of(row).name not in OF_SAMPLES for row in self._rows)

    def _validation_files(self, training: int) -> int:
        """Validation files beside so many training files."""
        if not self.validation:
            return 0
        split = self.layout.split(VALIDATION)
        orders = [find_order(validation_order(row, self.workload)) for row in self._rows]
        return validation_files_needed(
            training,
            published=(self.layout.full_files, split.full_files),
            samples_per_file=split.samples_per_file,
            ranks=self.most_ranks,
            dealt=any(order.name not in OF_SAMPLES for order in orders),
        )

    def _whole_cut(self, samples: int) -> Cut:
        return cut(
            samples,
            ranks=self.most_ranks,
            published_batch=self.workload.batch,
            batch=self.options.batch,
            epochs=self.epochs,
            whole=self.last == KEEP,
            needed=self.needed,
        )

    def passes(self, validation_samples: int, epochs: int) -> tuple[int, tuple[str, ...]]:
        """(epochs from one validation pass to the next, 0 for none; notes) for a dataset that is there or planned.

        UsageError when passes were asked for that cannot be.
        """
        asked, every = self.options.validation, self.validation
        if not every:
            return 0, ()
        if not validation_samples:
            if asked is not None:
                raise UsageError(
                    f"--validation {asked}: the dataset in {self.options.data} has no validation split. Generate one "
                    "that has, or use --validation none."
                )
            return 0, ("no validation passes, as the dataset has no validation split",)
        if every > epochs:
            raise UsageError(
                f"--validation {asked}: a trial has {epochs} epochs, so that no pass would come. Ask for at least "
                f"--epochs {every}, or for passes more often."
            )
        return every, ()

    def cut(self, samples: int) -> Cut:
        """Batch and epochs for a dataset of `samples`. UsageError when it is too small."""
        options = self.options
        whole = self._whole_cut(samples)
        if options.steps_per_epoch is not None:
            return parted(
                whole,
                samples,
                ranks=self.most_ranks,
                steps=options.steps_per_epoch,
                epochs=options.epochs,
                needed=self.needed(whole.batch),
            )
        if options.steps is None:
            return whole
        return shortened(whole, samples, ranks=self.most_ranks, steps=options.steps, epochs=options.epochs)


def look_up(options: Options) -> Request:
    """UsageError for what does not exist, is out of range or does not fit together."""
    workload = registry.find(options.workload).of(options.variant)
    readers = _readers(options, workload)
    choices = (
        ("--cache", options.cache, CACHE_MODES),
        ("--sync", options.sync, SYNC_MODES),
        ("--shard", options.shard, SHARDS),
        ("--last", options.last, LASTS),
    )
    for flag, value, known in choices:
        if value is not None and value not in known:
            raise unknown(flag, value, known)
    _require_counts(options)
    layout = find_layout(workload, options.variant, tiny=options.tiny, fill=PHYSICAL)
    rows = [policy(name, workload) for name in readers]
    _require_plans(options, rows)
    training = asked_training(options, workload, layout, rows)
    inference = asked_inference(options, workload, layout, rows)
    step = None if training or inference else step_time(workload, options.compute, layout.variant, tiny=options.tiny)
    scale = 1.0
    if options.tiny and step is not None and step.kind != GIVEN and not step.tiny:
        scale = layout.sample_bytes / workload.variants[layout.variant](False, PHYSICAL).sample_bytes
    validation = _validation(options, workload, layout, readers)
    return Request(options, readers, workload, layout, step, scale, validation, training, inference)


def _require_plans(options: Options, rows: Sequence[Policy]) -> None:
    """UsageError for shards, last batches and parts of a pass that a reader cannot have."""
    if options.steps_per_epoch is not None:
        _require_parts(options, rows)
    if options.shard == JOB:
        for row in rows:
            require_readable(row)
    if options.last != KEEP:
        return
    if options.steps is not None or options.predict:
        flag = "--predict" if options.predict else f"--steps {options.steps}"
        raise UsageError(f"{flag} counts steps of whole batches, which --last keep leaves to nobody. Leave one out.")
    if options.compute.startswith("emulate"):
        raise UsageError(
            "--last keep makes last batches smaller, and an emulated step is one of a whole batch. Use --compute none "
            "or infer, or --last pad."
        )
    for row in rows:
        if row.delivery == OWN or not row.exactly_once:
            raise UsageError(
                f"--last keep brings every sample once, and reader '{row.name}' goes by an order of its own. Use "
                "--last drop, or another reader, such as prefetch."
            )


def _require_parts(options: Options, rows: Sequence[Policy]) -> None:
    asked = f"--steps-per-epoch {options.steps_per_epoch}"
    if options.steps is not None:
        raise UsageError(
            f"{asked} and --steps {options.steps} both say how long a trial is. Leave one out: a trial of --epochs E "
            "with --steps-per-epoch S has E times S steps."
        )
    if options.last not in (None, "drop"):
        raise UsageError(f"{asked} counts steps of whole batches. Leave out --last {options.last}, or use --last drop.")
    if options.compute.partition(":")[0] == "infer":
        raise UsageError(f"{asked} leaves samples out, and --compute infer goes over each of them. Leave one out.")
    for row in rows:
        if row.order == REDRAWN:
            raise UsageError(
                f"{asked} cuts a pass over the samples into epochs, and reader '{row.name}' draws an order of its own "
                "for each epoch. Use another reader, such as prefetch."
            )


def _validation(options: Options, workload: Workload, layout: Layout, readers: Sequence[str]) -> int:
    """Epochs from one validation pass to the next, 0 for none.

    If nothing is said, published pipelines and trainings validate.

    All readers of a run do alike, so that they can be compared. UsageError.
    """
    asked, published = options.validation, workload.validation
    has_split = options.data is not None or any(split.name == VALIDATION for split in layout.splits)
    if asked is None:
        training = options.compute.partition(":")[0] == TRAIN_MODE
        own = any(policy(name, workload).delivery == OWN for name in readers)
        return published.every if (own or training) and published is not None and has_split else 0
    if asked == "none":
        return 0
    if not has_split:
        raise UsageError(
            f"--validation {asked}: {workload.name} {layout.variant} has no validation split. Use --validation none, "
            "or another --variant."
        )
    if asked == "published":
        if published is None:
            raise UsageError(
                f"--validation published: it is not known how {workload.name} validated. Give a number of epochs."
            )
        return published.every
    if not re.fullmatch("[1-9][0-9]{0,8}", asked):
        raise UsageError(
            f"--validation '{asked}' is not known. Use none, published, or the number of epochs from one pass to the "
            "next, from 1 on."
        )
    return int(asked)


def _readers(options: Options, workload: Workload) -> tuple[str, ...]:
    """Every reader with every order, placement and delivery that was asked for, spelled; each is a policy."""
    axes = (options.orders or (None,), options.placements or (None,), options.deliveries or (None,))
    readers = tuple(spelled(*row) for row in product(options.readers, *axes))
    rows = [policy(name, workload) for name in readers]
    if options.decode and workload.decode is None:
        raise UsageError(f"--decode: workload '{workload.name}' has no decoding stage. Leave it out.")
    own = [row.name for row in rows if row.delivery == OWN]
    if own and options.check_crc:
        raise UsageError(
            f"--check-crc: reader '{own[0]}' is the application's published pipeline, which checks what it checked. "
            "Leave out one of the two; the untimed pass verifies its content all the same."
        )
    if own and options.cache == "cold-epochs":
        raise UsageError(
            f"--cache cold-epochs starts '{own[0]}' anew for each epoch, which it never did. Use --cache cold."
        )
    staged = [row.name for row in rows if _fills_first(row)]
    if staged and options.cache == "cold-epochs":
        raise UsageError(
            f"--cache cold-epochs empties caches before each epoch, but '{staged[0]}' keeps its copies over epochs. "
            "Use --cache cold."
        )
    pfs = options.emulate_pfs
    if pfs is not None and options.cache == "warm" and not pfs.cache_bytes:
        raise UsageError(
            "--cache warm fills the emulated client cache, but --emulate-pfs gives it no size. Add cache=SIZE, larger "
            "than the dataset, or use --cache cold."
        )
    if in_need := [row.name for row in rows if _tensorflow(row, workload)]:
        require_tensorflow(in_need[0])
    if pfs is not None and (reason := available()):
        raise EnvironmentFailure(f"A parallel file system cannot be emulated here. {reason}")
    return readers


def _fills_first(row: Policy) -> bool:
    """Whether copies are made before the first step. (Other tiers are filled in each session.)"""
    if row.placement in KEPT_ON_FILES:
        return ROWS[row.placement].first
    return row.placement != "none" and row.delivery != OWN


def _tensorflow(row: Policy, workload: Workload) -> bool:
    """Whether a reader is made with TensorFlow."""
    return row.delivery == "tf.data" or (
        row.delivery == OWN and workload.upstream is not None and workload.upstream.tensorflow
    )


def _require_counts(options: Options) -> None:
    require_at_least(
        1,
        nodes=min(options.nodes),
        ranks_per_node=options.ranks_per_node,
        batch=options.batch,
        epochs=options.epochs,
        steps=options.steps,
        steps_per_epoch=options.steps_per_epoch,
        checkpoint=options.checkpoint,
        trials=options.trials,
        threads=options.threads,
        max_data=options.max_data,
        staging=options.staging,
        memory_per_node=options.memory_per_node,
    )
    require_at_least(0, warmup_trials=options.warmup_trials, seed=options.seed, min_seconds=options.min_seconds)
    if options.seed is not None and options.seed > MOST_SEED:
        raise UsageError(f"--seed {options.seed} is too large: it must be at most {MOST_SEED}.")
    if options.data is not None and options.max_data is not None:
        raise UsageError(
            "--max-data limits a dataset that is made here; with --data there is none. Give one of the two."
        )
