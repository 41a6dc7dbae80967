"""Real training: a published network on TensorFlow, one step of forward, backward, exchange and update a batch."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from dlio_bench.batches import Batch
from dlio_bench.benchmarks.model import (
    Course,
    Model,
    Sample,
    build,
    compile_steps,
    keys,
    parameters,
    require_finite,
    require_finite_held_out,
    require_finite_samples,
    trace_updates,
)
from dlio_bench.benchmarks.tensors import WORD, lend, tensorflow
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.training.checkpoint import Found, TrainingState, copies_of, restore, save
from dlio_bench.harness.training.exchange.exchange import Exchange
from dlio_bench.harness.training.making import HeldOut
from dlio_bench.harness.training.trainer import StepOverhead, Trained
from dlio_bench.reports.document.trials import Checkpoint, Reduced
from dlio_bench.reports.document.types import Network


def pin_gpu(config: Any, host_rank: int) -> str | None:
    """Let this process see one GPU alone, and take its memory as needed; the name, None where the machine has none.

    `config`: tensorflow.config. `host_rank`: this rank's number on its machine; ranks beyond the number of GPUs share.
    Call it before TensorFlow computes anything. EnvironmentFailure where that is too late.
    """
    gpus = config.list_physical_devices("GPU")
    if not gpus:
        return None
    gpu = gpus[host_rank % len(gpus)]
    try:
        config.set_visible_devices([gpu], "GPU")
        # TensorFlow would take all memory of the device at once, and ranks that share it would find none
        config.experimental.set_memory_growth(gpu, enable=True)
    except (RuntimeError, ValueError) as error:
        raise EnvironmentFailure(
            f"The GPU {gpu.name} cannot be given to rank {host_rank} of this machine: {error}. TensorFlow was at work "
            "before; run dlio-bench in a process of its own."
        ) from error
    return str(gpu.name)


Widths = tuple[int, ...]  # bytes of a sample in each block of a batch


def start_tensorflow(comm: Comm, threads: int = 0) -> str:
    """Load TensorFlow with this rank's share of its machine; the device's name. EnvironmentFailure.

    Call it before anything is computed. A rank computes with as many threads as it has cores to itself, or as asked.
    """
    tf = tensorflow()
    gpu = pin_gpu(tf.config, comm.host_rank)
    threads = threads or max(1, int(comm.cores.rank))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if gpu is None:
        return "cpu"
    device = tf.config.get_visible_devices("GPU")[0]
    return str(tf.config.experimental.get_device_details(device).get("device_name", gpu))


class Checkpoints(Struct, frozen=True):
    """One after every so many steps, in `folder`/READER-`scale`/`kept`/trial-NUMBER.

    about: what must be the same to go on, see checkpoint.TrainingState.
    """

    every: int
    folder: Path
    scale: str
    about: dict[str, Any]
    kept: str = "checkpoints"

    def trial_folder(self, reader: str, trial: int) -> Path:
        """The folder of a trial, beside the result of its reader."""
        return self.folder / f"{reader}-{self.scale}" / self.kept / f"trial-{trial}"


class _Update(Struct):
    """One of the updates of a step, see benchmarks.model.Update. train(lent, key) -> (loss, gradients)."""

    train: Callable[..., Any]
    apply: Callable[[list[Any]], Any]
    optimizer: Any


class NetworkTrainer:
    """See Trainer. All ranks make it, and call everything but `forward` and `save`, together."""

    def __init__(
        self,
        comm: Comm,
        model: Model,
        sample: Sample,
        course: Course,
        exchange: Exchange,
        *,
        device: str,
        seed: int,
        checkpoints: Checkpoints | None = None,
        resumed: Found | None = None,
        last_trial: int = 0,
        precision: str | None = None,
    ) -> None:
        """`device`: what start_tensorflow said. `seed`: of the initial weights, which are rank 0's, or `resumed`.
        last_trial: behind which samples that the network makes are compared with held-out ones.

        DataError for a checkpoint of another network.
        """
        self._comm, self._model, self._course, self._exchange = comm, model, course, exchange
        self._network = build(model, sample.shape, seed=seed, precision=precision)
        self._updates = [self._make_update(*update) for update in trace_updates(model, sample, self._network)]
        self._states = [variable for update in self._updates for variable in update.optimizer.variables]
        self._variables = [*self._network.variables, *self._states]
        self._resumed = None if resumed is None else resumed.state
        if resumed is not None:
            restore(self._network.variables, resumed.state.weights, "weights", resumed.path)
            restore(self._states, resumed.state.optimizer, "an optimiser's state", resumed.path)
        self._start = exchange.broadcast(self._network.variables) + copies_of(self._states)
        _, self._evaluate = compile_steps(model, sample, self._network)
        self._device, self._seed, self._step = device, seed, 0
        self._checkpoints, self._saved, self._folder = checkpoints, list[Checkpoint](), Path()
        self._losses: list[float] = []
        self._counts: Any = None
        self._last_trial = last_trial
        self._held_out = None if model.making is None else HeldOut(comm, model, self._network, sample.shape)

    @property
    def meets(self) -> bool:
        """See Trainer."""
        return self._exchange.choice.kind != "none"

    @property
    def loss(self) -> float | None:
        """See Trainer."""
        losses = self._losses  # the next trial's are another list
        return losses[-1] if losses else None

    @property
    def described(self) -> Network:
        """What is trained, where, and how gradients are exchanged, for the result."""
        return description(
            self._model,
            self._network,
            self._device,
            published_parameters=self._model.parameters,
            exchange=self._exchange.choice.kind,
            exchange_why=self._exchange.choice.why,
        )

    def compile(self, training: Iterable[tuple[int, Widths]], validation: Iterable[tuple[int, Widths]]) -> None:
        """Take a step, or go forward, with a blank batch for each (samples, widths), so that no timed step compiles.

        All ranks take as many training steps.
        """
        with memory_errors(self._model):
            for samples, widths in dict.fromkeys(training):
                for update in self._updates:
                    _, gradients = update.train(blank(samples, widths), no_keys(samples))
                    update.apply(_tensors(self._exchange.reduce(gradients)))
            for samples, widths in dict.fromkeys(validation):
                outputs, labels = self._evaluate(blank(samples, widths), no_keys(samples))
                self._model.count(outputs.numpy(), labels.numpy())

    def begin(self, reader: str, trial: int, seed: int) -> None:
        """See Trainer."""
        if self._checkpoints is not None:
            self._folder = self._checkpoints.trial_folder(reader, trial)
        self._saved = []
        self._exchange.pending_means()  # drops a reduction that is still under way
        self._exchange.resume(None if self._resumed is None else self._resumed.lagged)
        self._exchange.costs.clear()
        for variable, value in zip(self._variables, self._start, strict=True):
            variable.assign(value)
        self._step = 0 if self._resumed is None else self._resumed.step
        self._seed, self._losses, self._counts = seed, [], None
        if self._held_out is not None:
            self._held_out.begin(wanted=trial == self._last_trial)

    def step(self, batch: Batch) -> StepOverhead:
        """See Trainer."""
        clock, began = time.perf_counter, time.perf_counter()
        lent, key = lend(batch), tensorflow().constant(keys(batch.ids, self._step, self._seed))
        converted, value, exchange = clock(), 0.0, 0.0
        rate = self._model.rate(self._step, self._course)
        for update in self._updates:
            with memory_errors(self._model):
                loss, gradients = update.train(lent, key)
                value = float(loss)
                self._finish()
            require_finite(value, self._model.name, self._step, rate)
            computed = clock()
            means = self._exchange.reduce(gradients)
            exchange += clock() - computed
            update.optimizer.learning_rate = rate
            with memory_errors(self._model):
                update.apply(_tensors(means))
                self._finish()
        self._losses.append(value)
        self._step += 1
        return StepOverhead(converted - began, exchange)

    def save(self) -> None:
        """See Trainer. Rank 0 writes; the others meet it in the next step's exchange."""
        checkpoints = self._checkpoints
        if checkpoints is None or self._comm.rank != 0 or self._step % checkpoints.every:
            return
        lagged = self._exchange.pending_means()
        state = TrainingState(
            self._step,
            self._course.epoch(self._step),
            self._seed,
            copies_of(self._network.variables),
            copies_of(self._states),
            None if lagged is None else [np.array(mean) for mean in lagged],
            checkpoints.about,
        )
        saved = save(self._folder, state)
        self._saved.append(Checkpoint(self._step, saved.nbytes, saved.ended - saved.started))

    def finish(self) -> float:
        """See Trainer."""
        return 0.0

    def forward(self, batch: Batch) -> None:
        """See Trainer."""
        with memory_errors(self._model):
            key = tensorflow().constant(keys(batch.ids, 0, self._seed))
            outputs, labels = self._evaluate(lend(batch), key)
            require_finite_samples(self._model, outputs.numpy())
            require_finite_held_out(self._model, labels.numpy())
            counts = self._model.count(outputs.numpy(), labels.numpy())
        if self._held_out is not None:
            self._held_out.keep_samples(key.numpy(), labels.numpy())
        self._counts = counts if self._counts is None else self._counts + counts

    def score(self) -> dict[str, float]:
        """See Trainer."""
        counts = [count for count in self._comm.allgather(self._counts) if count is not None]
        self._counts = None
        return {name: float(value) for name, value in self._model.score(np.sum(counts, axis=0)).items()}

    def end(self) -> Trained:
        """See Trainer."""
        self._exchange.pending_means()
        costs = self._exchange.costs
        seconds = sum(cost.ended - cost.started for cost in costs)
        nbytes = sum(cost.nbytes for cost in costs)
        generated = None
        if self._held_out is not None and self._held_out.wanted:
            before = self._start[: len(self._network.variables)]
            generated = self._held_out.compare_weights(before, self._exchange.broadcast(self._network.variables))
        reduced = Reduced(
            allreduce_seconds=seconds,
            allreduce_bytes=nbytes,
            checkpoints=self._saved,
            generated=[] if generated is None else [generated],
        )
        return Trained(np.array(self._losses), reduced)

    def close(self) -> None:
        """End the exchange. Not after a failure."""
        self._exchange.close()

    def _make_update(self, train: Callable[..., Any], variables: list[Any]) -> _Update:
        optimizer = self._model.optimizer()
        optimizer.build(variables)
        apply = tensorflow().function(lambda means: optimizer.apply(means, variables), autograph=False)
        return _Update(train, apply, optimizer)

    def _finish(self) -> None:
        """Wait for the device: a GPU is still at work when a call returns, also on what it has of the batch."""
        if self._device != "cpu":
            tensorflow().test.experimental.sync_devices()


def description(model: Model, network: Any, device: str, **training: Any) -> Network:
    """A network and where it computes, for the result; `training`: what only a training has."""
    return Network(
        model=model.name,
        title=model.title,
        parameters=parameters(model, network),
        metric=model.metric,
        better=model.better,
        chance=model.chance,
        device=device,
        threads=int(tensorflow().config.threading.get_intra_op_parallelism_threads()),
        tensorflow=str(tensorflow().__version__),
        source=model.source,
        notes=list(model.notes),
        precision=str(network.compute_dtype),
        **training,
    )


def widths(batch: Batch) -> Widths:
    """Bytes of a sample in each block of a batch of samples that are all of one size."""
    return tuple(block.data.size // len(batch.ids) for block in batch.blocks)


def blank(samples: int, widths: Widths) -> tuple[Any, ...]:
    """What `lend` makes of a batch of such samples, all of whose numbers are 1 as integers, and next to 0 as floats.

    1 is a class in every workload; 0 is none where classes count from 1.
    """
    blank = [np.ones((samples, width // WORD), np.int32).view(np.float32) for width in widths]
    return tuple(tensorflow().constant(block) for block in blank)


def no_keys(samples: int) -> Any:
    """Keys of a blank batch."""
    return tensorflow().zeros((samples, 2), "int64")


def _tensors(means: Sequence[Any]) -> list[Any]:
    return [tensorflow().convert_to_tensor(mean) for mean in means]


@contextmanager
def memory_errors(model: Model) -> Iterator[None]:
    """EnvironmentFailure where the device has too little memory for a batch."""
    try:
        yield
    except tensorflow().errors.ResourceExhaustedError as error:
        raise EnvironmentFailure(
            f"{model.title} ran out of memory: {str(error.message).splitlines()[0]}. Use a smaller --batch, or fewer "
            "ranks on a machine."
        ) from error
