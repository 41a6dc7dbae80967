"""`--compute train`: what is asked for, and whether it can be."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dlio_bench.benchmarks.model import choose
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import PHYSICAL, RANDOM, Layout
from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.policies import OWN, REDRAWN, Policy
from dlio_bench.harness.plan.shape import KEEP
from dlio_bench.harness.run.asked.options import Options
from dlio_bench.harness.training.checkpoint import required
from dlio_bench.harness.training.exchange.options import DEFAULT_TIMEOUT, ExchangeOptions, require_valid
from dlio_bench.harness.training.libraries import require_libraries

TRAIN, INFER = "train", "infer"


@dataclass(frozen=True)
class Training:
    """What a run trains, and how gradients are exchanged, as in ExchangeOptions."""

    model: str
    kind: str | None
    fp16: bool
    lag: int
    hierarchical: bool
    timeout: float
    checkpoint: int  # steps from one to the next; 0: none
    resume: str | None = None  # folder of the checkpoint to go on from, its step and its seed
    step: int = 0
    seed: int | None = None

    def exchange(self, ranks_per_node: int) -> ExchangeOptions:
        """The options of the exchange."""
        return ExchangeOptions(self.kind, self.fp16, self.lag, self.hierarchical, ranks_per_node, self.timeout)


def asked(options: Options, workload: Workload, layout: Layout, rows: Sequence[Policy]) -> Training | None:
    """What `--compute train` or `--compute train:MODEL` asks for of readers `rows`; None for another --compute.

    UsageError for what does not fit together; EnvironmentFailure where TensorFlow or Horovod is missing or another.
    """
    if options.mode != TRAIN:
        _refuse_alone(options)
        return None
    model = choose(workload.models, layout.variant, options.compute.partition(":")[2] or None)
    found = Training(
        model.name,
        options.exchange,
        options.fp16_gradients,
        options.gradient_lag,
        options.hierarchical,
        DEFAULT_TIMEOUT if options.exchange_timeout is None else options.exchange_timeout,
        options.checkpoint or 0,
    )
    require_valid(found.exchange(options.ranks_per_node))
    if options.predict:
        raise UsageError("--predict foretells runs whose step time is known. Use it with --compute emulate or none.")
    if options.last == KEEP:
        raise UsageError(
            "--last keep: gradients are averaged over ranks whose batches are of one size, and last ones would not be. "
            "Use --last drop or pad."
        )
    if options.sync not in (None, "step") and options.exchange != "none":
        raise UsageError(
            f"--sync {options.sync}: ranks that train together meet in the exchange of gradients, at every step. Leave "
            "it out, or train apart with --exchange none."
        )
    require_libraries(options.exchange)
    return found if options.resume is None else _resumed(found, options, options.resume, rows)


def _resumed(found: Training, options: Options, folder: Path, rows: Sequence[Policy]) -> Training:
    """A training that goes on: one trial, with the seed that it was begun with. UsageError; DataError."""
    for flag, given, only in (("--trials", options.trials, 1), ("--warmup-trials", options.warmup_trials, 0)):
        if given not in (None, only):
            raise UsageError(f"{flag} {given}: a training goes on once. With --resume leave it out.")
    for row in rows:
        if row.delivery == OWN or not row.order_known or row.order == REDRAWN:
            raise UsageError(
                f"--resume: the order of reader '{row.name}' begins anew with each run, so that the training cannot go "
                "on where it was. Use another reader, such as prefetch."
            )
    state = required(folder, {}).state
    if options.seed not in (None, state.seed):
        raise UsageError(
            f"--seed {options.seed}: the training in {folder} was begun with {state.seed}, and goes on with it. Leave "
            "--seed out."
        )
    return replace(found, resume=str(folder.resolve()), step=state.step, seed=state.seed)


def require_trainable(training: Training | None, dataset: Dataset) -> None:
    """UsageError for a training on data that mean nothing: their labels are no classes, their numbers not finite."""
    if training is not None and dataset.manifest.fill == RANDOM:
        raise UsageError(
            f"--compute train learns from what samples show, and the dataset in {dataset.folder} was filled with "
            f"'{dataset.manifest.fill}' bytes. Generate one with --fill {PHYSICAL}."
        )


def _refuse_alone(options: Options) -> None:
    """Options of training without training; an inference may have the weights of a checkpoint."""
    given = {
        "--exchange": options.exchange is not None,
        "--fp16-gradients": options.fp16_gradients,
        "--gradient-lag": options.gradient_lag != 0,
        "--hierarchical": options.hierarchical,
        "--exchange-timeout": options.exchange_timeout is not None,
        "--checkpoint": options.checkpoint is not None,
        "--resume": options.resume is not None and options.mode != INFER,
    }
    for flag, there in given.items():
        if there:
            raise UsageError(
                f"{flag} is of training, and with --compute {options.compute} nothing is trained. Add --compute train, "
                "or leave it out."
            )
