"""Resolves options: the workload, layout, readers, step time, data and streams that their names mean."""

import math
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.benchmarks.model import choose
from dlio_bench.benchmarks.profile import GIVEN, Profile
from dlio_bench.benchmarks.workload import Workload, validation_share
from dlio_bench.datagen.layout import PHYSICAL, TRAIN, VALIDATION, Layout
from dlio_bench.errors import UsageError, refuse
from dlio_bench.harness.cluster import watch
from dlio_bench.harness.commands.run.asked import refusals, training
from dlio_bench.harness.commands.run.asked.job import policy, reader_name, validation_order
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.sizing import (
    Minimum,
    TrialSize,
    files_needed,
    most_files,
    shorten,
    split_passes,
    trial_size,
)
from dlio_bench.harness.commands.run.asked.training import Inference, TrainedModel, Training, Validation
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground.defaults import MOST_BYTES, STEPS, TIMED_SECONDS
from dlio_bench.harness.plan.orders import find_order
from dlio_bench.harness.plan.policies import STREAM, Policy, order_of
from dlio_bench.harness.plan.shape import KEEP, ONE_ORDER
from dlio_bench.harness.streams import adios
from dlio_bench.harness.streams.settings import ALL, FULL, ON_DEMAND, PLANNED, QUEUE, Streaming
from dlio_bench.harness.streams.settings import find as find_mode
from dlio_bench.harness.training.compute import step_time

OF_SAMPLES = ("sequential", "global-shuffle")  # orders that deal samples; others deal whole files
NO_PASSES = f"no validation passes: with --stream {ON_DEMAND} no plan says which samples a rank gets"
FOR_EVER = 1e9  # seconds: with --timeout 0


class Request(Struct, frozen=True):
    """Options with every name resolved."""

    options: Options
    readers: Mapping[str, Policy]  # name, with the axes that the user set -> row
    workload: Workload
    layout: Layout
    step_time: Profile | None
    scale: float  # size of a sample over that of the step time's samples: tiny ones take less compute
    validation: int = 0  # epochs from one validation pass to the next; 0: none
    training: Training | None = None
    inference: Inference | None = None
    streaming: Streaming | None = None
    models: tuple[TrainedModel, ...] = (TrainedModel(),)
    notes: tuple[str, ...] = ()  # on validation passes that it leaves out

    @property
    def most_ranks(self) -> int:
        """Trainers of a model at the largest node count, which decides batch and data for all (strong scaling)."""
        return 1 if self.options.shard in ONE_ORDER else max(self.options.nodes) * self.options.ranks_per_node

    @property
    def last(self) -> str:
        """What happens to samples that do not fill the last step."""
        return self.options.last or ("drop" if self.inference is None else KEEP)

    @property
    def epochs(self) -> int | None:
        """Epochs of a trial; None: as many as make enough steps."""
        return self.options.epochs or (None if self.inference is None else 1)

    @property
    def minimum(self) -> Minimum:
        """The shortest trial that may be compared."""
        seconds = self.options.min_seconds
        return Minimum((0.0 if self.options.tiny else TIMED_SECONDS) if seconds is None else seconds)

    @property
    def is_unpaced(self) -> bool:
        """Whether ranks compute nothing, so that the time of a step is not known before the run."""
        return self.step_time is None and self.training is None and self.inference is None

    @property
    def looks_first(self) -> bool:
        """Whether a first look at the readers decides how many epochs a trial has. --predict does not allow one."""
        options = self.options
        fixed = options.predict or {options.epochs, options.steps, options.steps_per_epoch} != {None}
        return bool(self.minimum.seconds) and self.is_unpaced and not fixed

    def needed_steps(self, batch: int) -> int:
        """Steps of a trial with this batch."""
        return self.minimum.steps_needed(self.step_seconds(batch))

    @property
    def view_bytes(self) -> float:
        """Delivered bytes of a sample; for a record of varying length the stored bytes."""
        fields = [field for field in self.layout.fields if field.name in self.workload.view]
        if any(-1 in field.shape for field in fields):
            return self.layout.sample_bytes
        return float(sum(np.dtype(field.dtype).itemsize * math.prod(field.shape) for field in fields))

    def step_seconds(self, batch: int) -> float:
        """Seconds of emulated compute in a step of `batch` samples. UsageError if the profile does not know them."""
        return 0.0 if self.step_time is None else self.scale * self.step_time.seconds(batch)

    def validation_seconds(self, batch: int) -> float:
        """Seconds of emulated compute for a sample of a validation pass: a forward pass, or a share of a step."""
        forward = None if self.step_time is None else self.step_time.forward_seconds(batch)
        if forward is None:
            return self.step_seconds(batch) / batch * validation_share(self.workload)
        forwards = 1 if self.workload.validation is None else self.workload.validation.forwards
        return self.scale * forwards * forward / batch

    def largest(self) -> tuple[int, TrialSize]:
        """Training files of the largest dataset that the run may make, and trials over them.

        UsageError if there are too many ranks for it.
        """
        options, layout, ranks = self.options, self.layout, self.most_ranks
        most = MOST_BYTES if options.max_data is None else options.max_data
        reserved = 0  # for the validation files of as many training files as could fit
        if self.validation:
            reserved = self._validation_files(most // layout.file_bytes) * layout.split(VALIDATION).file_bytes
        files = most_files(
            file_bytes=layout.file_bytes,
            samples_per_file=layout.samples_per_file,
            most_bytes=max(0, most - reserved),
            ranks=ranks,
            batch=options.batch,
            dealt=self._deals_files,
        )
        return files, self._whole_epochs(files * layout.samples_per_file)

    def files(self, held: Sequence[int] = ()) -> dict[str, int]:
        """Files of each split that this run makes. `held`: bytes that buffers and tiers can hold, largest first.

        UsageError if there are too many ranks for them.
        """
        most, chosen = self.largest()
        asked = self.epochs
        if self.options.tiny:  # one dataset for smoke tests of any length, so that --resume finds it again
            chosen, asked = replace(chosen, epochs=1), 1
        training = files_needed(
            most,
            chosen,
            samples_per_file=self.layout.samples_per_file,
            ranks=self.most_ranks,
            needed=self._steps_of_data(chosen.batch),
            asked_epochs=asked,
            held=[int(size / self.view_bytes) for size in held] if self.minimum.seconds else [],
            dealt=self._deals_files,
            pass_steps=(self.options.steps_per_epoch or 0) * (asked or 1),
        )
        return {TRAIN: training} | ({VALIDATION: self._validation_files(training)} if self.validation else {})

    def _steps_of_data(self, batch: int) -> int | None:
        """Steps of a trial that the dataset must suffice for; None: not known."""
        if self.options.steps is not None:
            return max(self.options.steps, STEPS)
        if self.options.tiny:  # small samples are slow to make
            return STEPS
        return None if self.is_unpaced and self.minimum.seconds else self.needed_steps(batch)

    @property
    def _deals_files(self) -> bool:
        """Whether the order of a reader deals whole files to the ranks."""
        return any(order_of(row).name not in OF_SAMPLES for row in self.readers.values())

    def _validation_files(self, training: int) -> int:
        """Validation files beside so many training files, in the published proportion.

        At least a sample for each rank, and equally many files for each where an order deals whole files.
        """
        split, ranks = self.layout.split(VALIDATION), self.most_ranks
        orders = [find_order(validation_order(row, self.workload)) for row in self.readers.values()]
        files = max(-(-training * split.full_files // self.layout.full_files), -(-ranks // split.samples_per_file))
        dealt = any(order.name not in OF_SAMPLES for order in orders)
        return -(-files // ranks) * ranks if dealt else files

    def _whole_epochs(self, samples: int) -> TrialSize:
        return trial_size(
            samples,
            ranks=self.most_ranks,
            published_batch=self.workload.batch,
            batch=self.options.batch,
            epochs=self.epochs,
            whole=self.last == KEEP,
            needed=self.needed_steps,
        )

    def passes(self, validation_samples: int, size: TrialSize) -> tuple[Validation | None, tuple[str, ...]]:
        """The validation passes of a trial over an existing or a planned dataset, and notes on them.

        UsageError for passes that the dataset or the trial does not allow.
        """
        value, every = self.options.validation, self.validation
        if not every:
            return None, self.notes
        if not validation_samples:
            if value is not None:
                raise UsageError(
                    f"--validation {value}: the dataset in {self.options.data} has no validation split. Generate one "
                    "with a validation split, or use --validation none."
                )
            return None, ("no validation passes, as the dataset has no validation split",)
        if every > size.epochs:
            raise UsageError(
                f"--validation {value}: a trial of {size.epochs} epochs is too short for a validation pass. Ask for at "
                f"least --epochs {every}, or for more frequent passes."
            )
        return Validation(every, self.validation_seconds(size.batch)), ()

    def trial_size(self, samples: int) -> TrialSize:
        """Batch and epochs for a dataset of `samples`. UsageError if it is too small."""
        options = self.options
        whole = self._whole_epochs(samples)
        if options.steps_per_epoch is not None:
            return split_passes(
                whole,
                samples,
                ranks=self.most_ranks,
                steps=options.steps_per_epoch,
                epochs=options.epochs,
                needed=self.needed_steps(whole.batch),
            )
        if options.steps is None:
            return whole
        return shorten(whole, samples, ranks=self.most_ranks, steps=options.steps, epochs=options.epochs)


def look_up(options: Options) -> Request:
    """Resolve options. UsageError for those that are unknown, out of range, or do not fit together."""
    workload = registry.find(options.workload).of(options.variant)
    axes = (options.orders or (None,), options.placements or (None,), options.deliveries or (None,))
    readers = {name: policy(name, workload) for name in (reader_name(*row) for row in product(options.readers, *axes))}
    rows = tuple(readers.values())
    refusals.require_readers(options, workload, rows)
    refusals.require_values(options)
    layout = find_layout(workload, options.variant, tiny=options.tiny, fill=PHYSICAL)
    refusals.require_plans(options, rows)
    several = training.models_of(options, rows)
    trained = training.resolve(options, workload, layout, rows, [each.network for each in several if each.network])
    if trained is not None:
        model = choose(workload.models, layout.variant, trained.model)
        workload = replace(workload, batch=model.batch, batch_source=model.source)
    inferred = training.inference_of(options, workload, layout, rows)
    step = None if trained or inferred else step_time(workload, options.compute, layout.variant, tiny=options.tiny)
    scale = 1.0
    if options.tiny and step is not None and step.kind != GIVEN and not step.tiny:
        scale = layout.sample_bytes / workload.variants[layout.variant](False, PHYSICAL).sample_bytes
    every = training.validation_every(options, workload, layout, rows)
    streams = streaming_of(options, rows)
    notes: tuple[str, ...] = ()
    if every and streams is not None and not streams.how.known:  # of which nobody asked for any
        every, notes = 0, (NO_PASSES,)
    dealt = {name: with_stream_order(row, streams) for name, row in readers.items()}
    return Request(options, dealt, workload, layout, step, scale, every, trained, inferred, streams, several, notes)


def streaming_of(options: Options, rows: Sequence[Policy]) -> Streaming | None:
    """The streams that the options mean; None where no reader has any.

    UsageError for options that do not fit together; EnvironmentFailure without ADIOS2.
    """
    names = ("stream", "producers", "inline", "stream_engine", "stream_transport", "stream_queue", "stream_full")
    given = opt.given(options, *names)
    if not any(row.delivery == STREAM for row in rows):
        refuse(given, " is for readers that stream. Add --reader stream, or leave it out.")
        return None
    if options.inline:
        for flag in given.keys() - {"--inline", "--stream-queue"}:
            if (flag, given[flag]) != ("--stream", PLANNED):
                raise UsageError(
                    f"--inline: a thread of each trainer's process is its producer, by the plan of that trainer. Leave "
                    f"out {flag}, or --inline."
                )
    mode = find_mode(options.stream or PLANNED)
    if not mode.known:
        _require_demanded(options)
    engine, full = options.stream_engine or adios.SST, options.stream_full or FULL[0]
    if engine == adios.BP and (mode.distribution != "AllToAll" or not mode.known):
        raise UsageError(
            f"--stream {mode.name} --stream-engine {engine}: only a network stream deals batches while trainers take "
            f"them. Use --stream-engine {adios.SST}, or --stream {ALL} or {PLANNED}."
        )
    transport = options.stream_transport or adios.WAN
    if engine == adios.BP and options.stream_transport is not None:
        raise UsageError(
            f"--stream-transport {transport}: --stream-engine {engine} writes files. Leave one of the two out."
        )
    if not options.inline:
        adios.require()
    producers = 0 if options.inline else options.producers or 1
    queue, timeout = options.stream_queue or QUEUE, watch.timeout() or FOR_EVER
    return Streaming(mode.name, producers, engine, queue, full, timeout, transport)


def _require_demanded(options: Options) -> None:
    """UsageError for what needs ranks that take equally many steps, or a plan that says which samples a rank gets."""
    ranks = max(options.nodes) * options.ranks_per_node
    refused = {
        "--sync step": options.sync == "step",
        f"--shard {options.shard}": options.shard in ONE_ORDER,
        f"--validation {options.validation}": options.validation not in (None, "none"),
        "--predict": options.predict,
        f"--compute {options.compute}": options.mode == training.TRAIN and ranks > 1 and options.exchange != "none",
    }
    refuse(
        refused,
        f": with --stream {ON_DEMAND} ranks take unequal numbers of steps, so that they cannot meet after each, and "
        f"no plan says which samples a rank gets. Leave one out; --stream {PLANNED} goes with all.",
    )


def with_stream_order(row: Policy, streaming: Streaming | None) -> Policy:
    """The row with what its streams promise."""
    if row.delivery != STREAM or streaming is None:
        return row
    return replace(row, order_known=streaming.how.known)
