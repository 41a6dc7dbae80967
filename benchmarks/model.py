"""The network that an application trains, told without loading TensorFlow: what a trainer needs of each workload.

A step on one rank, with `model` and `sample = model.sample(dataset)`:

    network = build(model, sample.shape)
    tensors = lend(batch)                                      # of dlio_bench.benchmarks.tensors: no copy
    loss, outputs = objective(model, sample, network, tensors, keys(batch.ids, step), training=True)
    optimizer.learning_rate = model.rate(step, course)
    optimizer.apply(averaged gradients, network.trainable_variables)

`objective` is made of TensorFlow operations: take it inside a tf.function with a GradientTape.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.batches import Ids
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import Diverged, EnvironmentFailure, UsageError, unknown

HIGHER, LOWER = "higher", "lower"
SINGLE, HALF, BRAIN = PRECISIONS = ("float32", "float16", "bfloat16")  # of compute; weights are float32
HALF_SCALE = 1024.0  # ours: of a loss in half precision, whose gradients would vanish else; they are divided by it
ALL, TRAINABLE = "all", "trainable"  # what a published number of parameters counts
LAYERS = 1 << 12  # that may draw masks, of one network
Counts = npt.NDArray[np.float64]
Tensor = Any  # TensorFlow has no complete types


class Part(Struct, frozen=True):
    """One array of a delivered sample, by name; numbers of four bytes."""

    name: str
    dtype: str  # "float32" or "int32"
    shape: tuple[int, ...]

    @property
    def words(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


class Fields(Struct, frozen=True):
    """What a network is trained by: inputs [n, ...] with the channels last, labels [n, ...], weights or None."""

    inputs: Tensor
    labels: Tensor
    weights: Tensor | None = None


class Sample(Struct, frozen=True):
    """The delivered form of a dataset's samples, that of its workload's Decode, and what becomes of it.

    parts: in the order in which they are delivered. shape: of one sample's inputs, [rows, ..., channels].
    fields: tensors of the parts, [n, *part.shape] each -> Fields; TensorFlow operations, for use inside a graph.
    """

    parts: tuple[Part, ...]
    shape: tuple[int, ...]
    fields: Callable[[Sequence[Tensor]], Fields]


Pieces = Mapping[int, npt.NDArray[np.float32]]  # sample -> value of each of its pieces, float32 [pieces]


class Cutting(Struct, frozen=True):
    """A network that predicts pieces of samples, and not samples. A sample is delivered as int32 [pieces] flags, then
    its pieces; those whose flag is 0 are left out.

    of: one piece. least: pieces of a batch, which closes at the end of the sample in which it has so many, and at the
    end of a file. values(outputs) -> float32 [n]: what is kept of outputs [n, ...]; pieces left out have 0.
    write(dataset, predictions, folder): the application's own files. agree(some, others) -> how far they are alike,
    by name.
    """

    of: Callable[[Dataset], Part]
    least: int
    values: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
    write: Callable[[Dataset, Pieces, Path], None]
    agree: Callable[[Pieces, Pieces], dict[str, float]]


class Update(Struct, frozen=True):
    """A part of a step: it updates some variables, with an optimiser and an exchange of gradients of its own.

    variables(network) -> those that it updates. loss(network, fields, keys) -> scalar, in training.
    """

    variables: Callable[[Any], list[Any]]
    loss: Callable[[Any, Fields, Tensor], Tensor]


class Making(Struct, frozen=True):
    """A network whose outputs are samples like those that it learns from, drawn from the keys; the fields' labels are
    the samples themselves.

    most: held-out samples that the made ones are compared with. missing() -> why some quantities cannot be measured on
    this machine, or None. measured(samples [n, ...], every) -> values by quantity, [k] each; every: also those
    quantities. combined: quantities whose distances are published as a sum. picture(made, held_out) -> a PNG file.
    """

    most: int
    missing: Callable[[], str | None]
    measured: Callable[[npt.NDArray[np.float32], bool], dict[str, npt.NDArray[np.float64]]]
    combined: tuple[str, ...]
    picture: Callable[[npt.NDArray[np.float32], npt.NDArray[np.float32]], bytes]


class Course(Struct, frozen=True):
    """What schedules go by: steps of an epoch, and samples of a step over all ranks."""

    steps_per_epoch: int
    batch: int

    def epoch(self, step: int) -> int:
        """Epoch of a step, both from 0."""
        return step // self.steps_per_epoch


class Model(Struct, frozen=True):
    """One published network with its loss, optimiser, schedule and measure of success.

    variants: those of the dataset that it takes. published_shape: of one sample's inputs, for which it has
    `parameters` (`counted`: ALL of them or the TRAINABLE ones). batch: samples a rank and step; epochs: of a full run.

    network(shape, width, dropout, seed) -> keras.Model of [inputs, keys]: `width` scales the channels (1: published),
    `dropout` False leaves it out. loss(outputs, fields) -> scalar, a mean over the local batch. penalty(network) ->
    scalar that is added to the loss in training. optimizer() -> keras.optimizers.Optimizer; its learning_rate is to be
    set to rate(step, course) before every step.

    count(outputs, labels) -> float64 [k], which adds up over batches and ranks; score(sums) -> values by name, `metric`
    among them, which is to become HIGHER or LOWER. chance: what the best constant output scores; None without labels.
    cutting: of samples, for a network of pieces, which has no labels and so only predicts. updates: of a step, one
    after the other, instead of one of all variables by `loss`, which is then None. making: of samples. precision: of
    compute; a network of HALF has a loss whose gradients do not vanish.
    """

    name: str
    title: str
    source: str
    variants: tuple[str, ...]
    published_shape: tuple[int, ...]
    parameters: int
    counted: str
    batch: int
    epochs: int
    sample: Callable[[Dataset], Sample]
    network: Callable[[tuple[int, ...], float, bool, int], Any]
    loss: Callable[[Tensor, Fields], Tensor] | None
    optimizer: Callable[[], Any]
    rate: Callable[[int, Course], float]
    count: Callable[[npt.NDArray[Any], npt.NDArray[Any]], Counts]
    score: Callable[[Counts], dict[str, float]]
    metric: str
    better: str
    chance: float | None
    penalty: Callable[[Any], Tensor] | None = None
    notes: tuple[str, ...] = ()  # where it departs from what was published, or follows it though it seems a mistake
    cutting: Cutting | None = None
    updates: tuple[Update, ...] = ()
    making: Making | None = None
    precision: str = SINGLE


def choose(models: Sequence[Model], variant: str, name: str | None = None) -> Model:
    """The model of that name, or the first that takes a dataset's `variant`. UsageError where there is none."""
    fitting = [model for model in models if variant in model.variants]
    if name is None:
        if not fitting:
            raise UsageError(f"No model takes data of the variant '{variant}'. Train on another variant.")
        return fitting[0]
    by_name = {model.name: model for model in models}
    if name not in by_name:
        raise unknown("model", name, list(by_name))
    chosen = by_name[name]
    if chosen not in fitting:
        raise UsageError(
            f"The model '{name}' takes data of the variants {', '.join(chosen.variants)}, and these are '{variant}'."
        )
    return chosen


def require_labels(model: Model) -> None:
    """UsageError for a network whose samples have no labels to be trained by."""
    if model.cutting is not None:
        raise UsageError(
            f"{model.title} predicts pieces of samples, which have no labels: nothing can train it here. Use --compute "
            "infer, or another workload."
        )


def constant(model: Model, rate: float) -> Model:
    """The model with one learning rate for all steps, instead of its published schedule."""
    return replace(model, rate=lambda step, course: rate)  # noqa: ARG005 - a schedule's


def build(
    model: Model,
    shape: tuple[int, ...],
    *,
    width: float = 1,
    dropout: bool = True,
    seed: int = 0,
    precision: str | None = None,
) -> Any:
    """A keras.Model of [inputs [n, *shape], keys int64 [n, 2]] with float32 outputs, its weights drawn from `seed`.

    precision: one of PRECISIONS; None: the model's own.
    UsageError for a shape that is too small for the network. EnvironmentFailure where TensorFlow is not installed.
    """
    from dlio_bench.benchmarks.networks import under_policy

    with under_policy(precision or model.precision):
        return model.network(shape, width, dropout, seed)


def keys(ids: Ids, step: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """int64 [n, 2] that dropout masks are drawn from: a function of sample, step (of the whole run) and seed alone.

    So a sample's mask is the same on whichever rank and at whichever place of a batch it comes.
    """
    return np.stack([ids + (seed % (1 << 31) << 32), np.full(len(ids), step * LAYERS)], axis=1)


def objective(
    model: Model, sample: Sample, network: Any, lent: Sequence[Tensor], key: Tensor, *, training: bool
) -> tuple[Tensor, Tensor]:
    """(loss, outputs [n, ...]) of a lent batch; the loss has the model's penalty where it is trained."""
    from dlio_bench.benchmarks.tensors import tensorflow, unpack

    fields = sample.fields(unpack(lent, sample.parts))
    outputs = network([fields.inputs, tensorflow().convert_to_tensor(key)], training=training)
    assert model.loss is not None
    loss = model.loss(outputs, fields)
    if training and model.penalty is not None:
        loss += model.penalty(network)
    return loss, outputs


def compile_steps(model: Model, sample: Sample, network: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compiled for steps: train(lent, key) -> (loss, gradients of the trainable variables), and
    evaluate(lent, key=None) -> (outputs, labels), without dropout; a network that makes samples draws from the key.

    A batch of another size is compiled for anew.
    """
    from dlio_bench.benchmarks.tensors import tensorflow, unpack

    tf, scale = tensorflow(), _loss_scale(model, network)

    def train(lent: Sequence[Tensor], key: Tensor) -> tuple[Tensor, list[Tensor]]:
        with tf.GradientTape() as tape:
            loss, _ = objective(model, sample, network, lent, key, training=True)
            scaled = loss if scale is None else loss * scale
        return loss, _gradients(tape, scaled, network.trainable_variables, scale)

    def evaluate(lent: Sequence[Tensor], key: Tensor | None = None) -> tuple[Tensor, Tensor]:
        fields = sample.fields(unpack(lent, sample.parts))
        if key is None:
            key = tf.zeros((tf.shape(fields.inputs)[0], 2), tf.int64)
        return network([fields.inputs, key], training=False), fields.labels

    # AutoGraph has nothing to translate here, and would log what it cannot
    return tf.function(train, autograph=False), tf.function(evaluate, autograph=False)


def trace_updates(model: Model, sample: Sample, network: Any) -> list[tuple[Callable[..., Any], list[Any]]]:
    """(train(lent, key) -> (loss, gradients), compiled; the variables that these are of) for each update of a step."""
    from dlio_bench.benchmarks.tensors import tensorflow, unpack

    tf, scale = tensorflow(), _loss_scale(model, network)

    def compile_update(update: Update) -> tuple[Callable[..., Any], list[Any]]:
        variables = update.variables(network)

        def train(lent: Sequence[Tensor], key: Tensor) -> tuple[Tensor, list[Tensor]]:
            fields = sample.fields(unpack(lent, sample.parts))
            with tf.GradientTape() as tape:
                loss = update.loss(network, fields, key)
                scaled = loss if scale is None else loss * scale
            return loss, _gradients(tape, scaled, variables, scale)

        return tf.function(train, autograph=False), variables

    if not model.updates:
        return [(compile_steps(model, sample, network)[0], network.trainable_variables)]
    return [compile_update(update) for update in model.updates]


def _loss_scale(model: Model, network: Any) -> float | None:
    """What the loss is multiplied by where a network that was published in single precision computes in half."""
    return HALF_SCALE if network.compute_dtype == HALF and model.precision != HALF else None


def _gradients(tape: Any, loss: Tensor, variables: Sequence[Any], scale: float | None) -> list[Tensor]:
    found: list[Tensor] = tape.gradient(loss, [variable.value for variable in variables])
    return found if scale is None else [gradient / scale for gradient in found]


def parameters(model: Model, network: Any) -> int:
    """Parameters of a network, counted as the published number counts them."""
    variables = network.variables if model.counted == ALL else network.trainable_variables
    return sum(math.prod(variable.shape) for variable in variables)


def require_finite_samples(model: Model, made: npt.NDArray[Any]) -> None:
    """Diverged where a network makes samples that hold no number."""
    if model.making is not None and not np.isfinite(made).all():
        raise Diverged(
            f"Some of what {model.name} makes is no number: the training diverged. Use a smaller learning rate, single "
            "precision, or data whose values mean something (--fill physical)."
        )


def require_finite_held_out(model: Model, samples: npt.NDArray[Any]) -> None:
    """EnvironmentFailure where samples that made ones are compared with hold no number."""
    if model.making is not None and not np.isfinite(samples).all():
        raise EnvironmentFailure(
            f"Some of the dataset's samples that {model.name} compares with hold no number, so distances from them "
            "mean nothing. Use data whose values mean something (--fill physical)."
        )


def require_finite(loss: float, model: str, step: int, rate: float) -> None:
    """Diverged where a loss is not a finite number."""
    if not math.isfinite(loss):
        raise Diverged(
            f"The loss of {model} is {loss} at step {step}, with a learning rate of {rate:g}: the training diverged. "
            "Use a smaller learning rate, single precision, or data whose values mean something (--fill physical)."
        )


def cross_entropy(outputs: Tensor, given: Fields) -> Tensor:
    """Mean cross-entropy of the labels, which are not smoothed."""
    from dlio_bench.benchmarks.tensors import tensorflow

    tf = tensorflow()
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(given.labels, outputs))
