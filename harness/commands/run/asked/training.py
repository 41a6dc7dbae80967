"""`--compute train`: resolves and checks its options."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.benchmarks.model import Model, choose, require_labels
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import PHYSICAL, RANDOM, Layout
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.plan.policies import OWN, REDRAWN, Policy
from dlio_bench.harness.plan.shape import KEEP
from dlio_bench.harness.training.checkpoint import load_required
from dlio_bench.harness.training.exchange.options import DEFAULT_TIMEOUT, ExchangeOptions, require_valid
from dlio_bench.harness.training.libraries import require_libraries

TRAIN, INFER = "train", "infer"


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
    return training if options.resume is None else _resumed(training, options, options.resume, rows)


def _require_one_update(model: Model, options: Options) -> None:
    """UsageError for a lag of a network whose steps have several updates, each of them of other gradients."""
    if options.gradient_lag and model.updates:
        raise UsageError(
            f"--gradient-lag {options.gradient_lag}: a step of {model.title} updates its networks one after the other, "
            "the second by what the first became, so that no gradients can come a step late. Leave it out."
        )


def _resumed(training: Training, options: Options, folder: Path, rows: Sequence[Policy]) -> Training:
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
    flags = {
        "--exchange": options.exchange is not None,
        "--fp16-gradients": options.fp16_gradients,
        "--gradient-lag": options.gradient_lag != 0,
        "--hierarchical": options.hierarchical,
        "--leaders": options.leaders is not None,
        "--exchange-timeout": options.exchange_timeout is not None,
        "--checkpoint": options.checkpoint is not None,
        "--resume": options.resume is not None and options.mode != INFER,
    }
    for flag, given in flags.items():
        if given:
            raise UsageError(
                f"{flag} is an option of training, and --compute {options.compute} trains nothing. Add --compute "
                "train, or leave it out."
            )
