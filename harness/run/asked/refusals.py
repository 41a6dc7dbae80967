"""What a run is refused, before anything is made: options that are not known, out of range, or do not fit together."""

from collections.abc import Sequence

from dlio_bench.benchmarks.tensors import require_tensorflow
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.plan.model_parallel import require_readable
from dlio_bench.harness.plan.policies import OWN, REDRAWN, TF_DATA, Policy
from dlio_bench.harness.plan.shape import JOB, KEEP, LASTS, SHARDS
from dlio_bench.harness.run.asked.job import CACHE_MODES, SYNC_MODES
from dlio_bench.harness.run.asked.options import Options
from dlio_bench.harness.run.asked.training import INFER
from dlio_bench.harness.storage.pfs.emulation import available
from dlio_bench.refusals import require_at_least, unknown

MOST_SEED = 2**62  # every trial adds its number, and a plan's seed has 64 bits


def require_readers(options: Options, workload: Workload, rows: Sequence[Policy]) -> None:
    """UsageError for what the readers cannot do; EnvironmentFailure for what is missing on this machine."""
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


def _fills_first(row: Policy) -> bool:
    """Whether copies are made before the first step. (Other tiers are filled in each session.)"""
    return row.rule.first or row.rule.files is not None


def _tensorflow(row: Policy, workload: Workload) -> bool:
    """Whether a reader is made with TensorFlow."""
    return row.delivery == TF_DATA or (
        row.delivery == OWN and workload.upstream is not None and workload.upstream.tensorflow
    )


def require_values(options: Options) -> None:
    """UsageError for words that are not known, and for numbers out of range."""
    choices = (
        ("--cache", options.cache, CACHE_MODES),
        ("--sync", options.sync, SYNC_MODES),
        ("--shard", options.shard, SHARDS),
        ("--last", options.last, LASTS),
    )
    for flag, value, known in choices:
        if value is not None and value not in known:
            raise unknown(flag, value, known)
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


def require_plans(options: Options, rows: Sequence[Policy]) -> None:
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
        raise UsageError(
            f"{flag} counts steps of whole batches, and --last keep makes the last batch smaller. Leave one out."
        )
    if options.mode == "emulate":
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
    if options.mode == INFER:
        raise UsageError(f"{asked} leaves samples out, and --compute infer goes over each of them. Leave one out.")
    for row in rows:
        if row.order == REDRAWN:
            raise UsageError(
                f"{asked} cuts a pass over the samples into epochs, and reader '{row.name}' draws an order of its own "
                "for each epoch. Use another reader, such as prefetch."
            )
