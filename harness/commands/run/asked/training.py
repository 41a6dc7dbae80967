"""The networks of a run: `--compute train` and `infer`, `--models` side by side, and `--validation`; their options.

An inference predicts every sample of the dataset once. The ranks divide the samples and exchange no gradients
("Inference: dataset is distributed over processes", A. Gainaru, WANT workshop at NeurIPS 2023).
"""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.benchmarks.model import Model, choose, require_labels
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import PHYSICAL, RANDOM, VALIDATION, Layout
from dlio_bench.errors import UsageError, refuse
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.plan.policies import OWN, REDRAWN, Policy
from dlio_bench.harness.plan.shape import KEEP, ONE_ORDER
from dlio_bench.harness.streams.settings import ON_DEMAND, ROUND_ROBIN
from dlio_bench.harness.training.checkpoint import load_required
from dlio_bench.harness.training.exchange.options import DEFAULT_TIMEOUT, ExchangeOptions, require_valid
from dlio_bench.harness.training.libraries import require_libraries

TRAIN, INFER = "train", "infer"
MOST_MODELS = 64
RATE = "lr="
HOW = "Give a number, such as --models 3, or networks: --models NAME[:lr=X][,NAME...]"


class Training(Struct, frozen=True):
    """What a run trains, and how ranks exchange gradients (see ExchangeOptions)."""

    model: str
    kind: str | None
    fp16: bool
    lag: int
    hierarchical: bool
    timeout: float
    checkpoint: int  # steps between two checkpoints; 0: none
    resume: str | None = None  # folder of the checkpoint that the training continues, with its step and its seed
    step: int = 0
    seed: int | None = None
    leaders: int = 1
    precision: str | None = None  # None: the network's own

    def exchange(self, ranks_per_node: int) -> ExchangeOptions:
        """The options of the exchange."""
        return ExchangeOptions(
            self.kind, self.fp16, self.lag, self.hierarchical, self.leaders, ranks_per_node, self.timeout
        )


def resolve(
    options: Options, workload: Workload, layout: Layout, rows: Sequence[Policy], networks: Sequence[str] = ()
) -> Training | None:
    """The training that --compute train or train:MODEL means; None for another --compute.

    networks: that --models names. UsageError if options or readers (`rows`) do not allow it; EnvironmentFailure without
    a TensorFlow and, where it is named, a Horovod that fit.
    """
    if options.mode != TRAIN:
        _refuse_alone(options)
        return None
    model = choose(workload.models, layout.variant, options.compute.partition(":")[2] or None)
    require_labels(model)
    for each in (model, *(choose(workload.models, layout.variant, name) for name in networks)):
        _require_one_update(each, options)
    training = Training(
        model.name,
        options.exchange,
        options.fp16_gradients,
        options.gradient_lag,
        options.hierarchical,
        DEFAULT_TIMEOUT if options.exchange_timeout is None else options.exchange_timeout,
        options.checkpoint or 0,
        leaders=1 if options.leaders is None else options.leaders,
        precision=options.precision,
    )
    require_valid(training.exchange(options.ranks_per_node))
    if options.predict:
        raise UsageError("--predict needs a known step time. Use it with --compute emulate or none.")
    if options.last == KEEP:
        raise UsageError(
            "--last keep makes the last batches smaller, but ranks average gradients over batches of equal size. Use "
            "--last drop or pad."
        )
    if options.sync not in (None, "step") and options.exchange != "none":
        raise UsageError(
            f"--sync {options.sync}: ranks that train together meet at every step to exchange gradients. Leave it out, "
            "or train separately with --exchange none."
        )
    require_libraries(options.exchange)
    return training if options.resume is None else _resume_training(training, options, options.resume, rows)


def _require_one_update(model: Model, options: Options) -> None:
    """UsageError for a lag of a network whose steps have several updates, each of them of other gradients."""
    if options.gradient_lag and model.updates:
        raise UsageError(
            f"--gradient-lag {options.gradient_lag}: a step of {model.title} updates its networks one after the other, "
            "the second by what the first became, so that no gradients can come a step late. Leave it out."
        )


def _resume_training(training: Training, options: Options, folder: Path, rows: Sequence[Policy]) -> Training:
    """The training that continues a checkpoint: one trial, with the checkpoint's seed. UsageError; DataError."""
    for flag, given, only in (("--trials", options.trials, 1), ("--warmup-trials", options.warmup_trials, 0)):
        if given not in (None, only):
            raise UsageError(f"{flag} {given}: --resume continues a training in one trial. Leave {flag} out.")
    for row in rows:
        if row.delivery == OWN or not row.order_known or row.order == REDRAWN:
            raise UsageError(
                f"--resume: reader '{row.name}' starts its order again with each run, so that the training cannot "
                "continue where it stopped. Use another reader, such as prefetch."
            )
    state = load_required(folder, {}).state
    if options.seed not in (None, state.seed):
        raise UsageError(
            f"--seed {options.seed}: the training in {folder} has seed {state.seed} and continues with it. Leave "
            "--seed out."
        )
    return replace(training, resume=str(folder.resolve()), step=state.step, seed=state.seed)


def require_labelled(options: Options, dataset: Dataset) -> None:
    """UsageError for a network on random bytes: their labels are no classes, and some numbers are not finite."""
    if options.mode in (TRAIN, INFER) and dataset.manifest.fill == RANDOM:
        raise UsageError(
            f"--compute {options.mode} needs samples with labels, and the dataset in {dataset.folder} was filled with "
            f"'{RANDOM}' bytes. Generate one with --fill {PHYSICAL}."
        )


def _refuse_alone(options: Options) -> None:
    """UsageError for an option of training without --compute train. An inference may have --resume."""
    names = ("exchange", "precision", "fp16_gradients", "gradient_lag", "hierarchical", "leaders", "exchange_timeout")
    training = opt.given(options, *names, "checkpoint", *([] if options.mode == INFER else ["resume"]))
    trains_nothing = f"--compute {options.compute} trains nothing. Add --compute train, or leave it out."
    refuse(dict.fromkeys(training, True), f" is an option of training, and {trains_nothing}")


class Inference(Struct, frozen=True):
    """The network of a run that predicts, and the folder and step of the checkpoint with its weights.

    resume: None: the network has the weights that a training starts with.
    """

    model: str
    resume: str | None = None
    step: int = 0


def inference_of(options: Options, workload: Workload, layout: Layout, rows: Sequence[Policy]) -> Inference | None:
    """The inference that --compute infer or infer:MODEL means; None for another --compute.

    UsageError if options or readers (`rows`) do not allow it; EnvironmentFailure without a TensorFlow that fits.
    """
    if options.mode != INFER:
        return None
    model = choose(workload.models, layout.variant, options.compute.partition(":")[2] or None)
    _require_whole(options, rows)
    if options.predict:
        raise UsageError("--predict needs a known step time. Use it with --compute emulate or none.")
    require_libraries(None, f"--compute {INFER}")
    if options.resume is None:
        return Inference(model.name)
    state = load_required(options.resume, {"model": model.name}).state
    return Inference(model.name, str(options.resume.resolve()), state.step)


def _require_whole(options: Options, rows: Sequence[Policy]) -> None:
    """UsageError for options and readers that leave samples out or deliver some twice."""
    refused = {
        f"--last {options.last}": options.last not in (None, KEEP),
        f"--steps {options.steps}": options.steps is not None,
        f"--shard {options.shard}": options.shard in ONE_ORDER,
        f"--validation {options.validation}": options.validation not in (None, "none"),
    }
    refuse(
        refused,
        ": an inference predicts every sample of the dataset once, on one of the ranks. Leave it out. For less work, "
        "give less data with --max-data or --data.",
    )
    for row in rows:
        if row.delivery == OWN or not row.exactly_once:
            why = "is the application's published pipeline for training" if row.delivery == OWN else "reads some twice"
            raise UsageError(
                f"An inference predicts every sample of the dataset once, and reader '{row.name}' {why}. Use another "
                "reader, such as prefetch."
            )


class Validation(Struct, frozen=True):
    """A pass over the validation split follows every `every`-th epoch.

    sample_seconds: of emulated compute for a sample; 0: no compute is emulated.
    """

    every: int
    sample_seconds: float = 0.0


def validation_every(options: Options, workload: Workload, layout: Layout, rows: Iterable[Policy]) -> int:
    """Epochs from one validation pass to the next; 0: no passes. UsageError.

    Without --validation, published pipelines and trainings validate. All readers of a run do the same.
    """
    value, published = options.validation, workload.validation
    has_split = options.data is not None or any(split.name == VALIDATION for split in layout.splits)
    if value is None:
        training = options.mode == TRAIN
        as_published = training or any(row.delivery == OWN for row in rows)
        return published.every if as_published and published is not None and has_split else 0
    if value == "none":
        return 0
    if not has_split:
        raise UsageError(
            f"--validation {value}: {workload.name} {layout.variant} has no validation split. Use --validation none, "
            "or another --variant."
        )
    if value == "published":
        if published is None:
            raise UsageError(
                f"--validation published: how {workload.name} validates was not published. Give a number of epochs."
            )
        return published.every
    if not re.fullmatch("[1-9][0-9]{0,8}", value):
        raise UsageError(
            f"--validation '{value}' is not known. Use none, published, or the number of epochs from one pass to the "
            "next, which is 1 or more."
        )
    return int(value)


class TrainedModel(Struct, frozen=True):
    """One of several models. network: its name, None for the workload's; rate: its constant learning rate, None for the
    published schedule."""

    network: str | None = None
    rate: float | None = None


def parse_models(text: str | None) -> tuple[TrainedModel, ...]:
    """The models that --models names; one without it. UsageError for text that names none."""
    if text is None:
        return (TrainedModel(),)
    if text.strip().isdecimal():
        count = int(text)
        if not 1 <= count <= MOST_MODELS:
            raise UsageError(f"--models {text}: a run trains 1 to {MOST_MODELS} models. {HOW}.")
        return (TrainedModel(),) * count
    return tuple(_model(text, name.strip()) for name in text.split(","))


def _model(text: str, name: str) -> TrainedModel:
    network, colon, rate = name.partition(":")
    if not network or (colon and not rate.startswith(RATE)):
        raise UsageError(f"--models {text}: '{name}' names no model. {HOW}.")
    if not colon:
        return TrainedModel(network)
    try:
        value = float(rate.removeprefix(RATE))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(f"--models {text}: '{name}' has no learning rate above 0. {HOW}, such as lr=0.2.")
    return TrainedModel(network, value)


def models_of(options: Options, rows: Sequence[Policy]) -> tuple[TrainedModel, ...]:
    """The models of a run. UsageError for options and readers (`rows`) that do not go with several."""
    models = parse_models(options.models)
    if any(model.network for model in models) and (options.mode != TRAIN or ":" in options.compute):
        why = "names one too" if options.mode == TRAIN else "trains none"
        raise UsageError(
            f"--models {options.models} names networks, and --compute {options.compute} {why}. Use --compute train, or "
            f"--models {len(models)}."
        )
    if len(models) == 1:
        return models
    flag = f"--models {options.models}"
    refused: dict[str, str | Literal[False]] = {
        f"--shard {options.shard}": options.shard in ONE_ORDER and "makes all ranks parts of one model",
        "--compute infer": options.mode == INFER and "predicts with one network",
        "--resume": options.resume is not None and "goes on from the checkpoint of one model",
        f"--stream {ON_DEMAND}": options.stream == ON_DEMAND and "gives each batch to one trainer alone",
        f"--stream {ROUND_ROBIN}": options.stream == ROUND_ROBIN
        and max(options.nodes) * options.ranks_per_node > 1
        and "deals the batches of a step to trainers in turn, and several models of several ranks take them in another "
        "order",
        "--inline": options.inline and "gives each trainer a producer of its own, so that no two share a stream",
    }
    for other, reason in refused.items():
        if reason:
            raise UsageError(f"{flag}: {other} {reason}. Leave out one of the two.")
    for row in rows:
        if row.order == REDRAWN:
            raise UsageError(
                f"{flag}: reader '{row.name}' draws the order of a node from what that node keeps, and all models of a "
                "node share that. Use another reader, such as stream or prefetch."
            )
    return models
