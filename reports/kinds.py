"""The kinds of results that `judge`, `compare` and `export` take: how each becomes a `Measured`, and how it is read."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from dlio_bench.reports.checkpoint import marks, metrics
from dlio_bench.reports.checkpoint.types import Document
from dlio_bench.reports.comparing import comparable, comparison, differing
from dlio_bench.reports.document.collection import has_runs, load_all, of_checkpoints
from dlio_bench.reports.document.measured import Measured
from dlio_bench.reports.document.types import Metric, Result
from dlio_bench.reports.judging import admission, limits
from dlio_bench.reports.numbers import intervals, statistics
from dlio_bench.reports.numbers.meetings import Floats, Steps
from dlio_bench.reports.numbers.metrics import METRICS, SHARE
from dlio_bench.reports.run import sentences

HEADLINE = (
    "elapsed_seconds", "epoch_seconds", "first_epoch_seconds", "later_epochs_seconds", "samples_per_second",
    "delivered_bandwidth", "stall_share", "au", "step_p99", "bytes_requested", "bytes_device",
)  # fmt: skip
CHECKPOINT_HEADLINE = (
    "checkpoint_write_seconds", "checkpoint_write_bandwidth", "checkpoint_write_mean_rate", "checkpoint_read_seconds",
    "checkpoint_read_bandwidth", "checkpoint_read_mean_rate", "checkpoint_fsync_share",
)  # fmt: skip


def run(result: Result, steps: Steps | None = None) -> Measured:
    """A result of `run`. Without its steps there are no values of trials, and it cannot be judged."""
    values: Mapping[str, Floats | None] | str = {}
    if steps is not None:
        try:
            with np.errstate(all="ignore"):
                values = statistics.per_trial(result, steps)
        except (ArithmeticError, LookupError, ValueError) as error:
            values = str(error)
    policy, plan, environment = result.policy, result.plan, result.environment
    fault = comparable.fault(result)
    return Measured(
        what="reader",
        workload=result.workload.name,
        names=[name for name in (policy.alias, policy.name) if name is not None],
        nodes=plan.nodes,
        ranks_per_node=plan.ranks_per_node,
        created=result.created,
        version=result.version,
        code_digest=environment.code_digest,
        digest=result.digest,
        class_=result.class_,
        verdict=result.verdict,
        marks=[*dict.fromkeys([*result.marks, *marks.of_trials(result.measured_trials)])],
        checks=result.checks,
        hosts=environment.hosts,
        rank_hosts=environment.rank_hosts,
        seconds=[trial.elapsed_seconds for trial in result.measured_trials],
        warmup_seconds=sum(trial.elapsed_seconds for trial in result.trials if trial.warmup),
        quantities=METRICS,
        metrics=result.metrics,
        derived={
            limits.SPREAD: _spread_metric([trial.elapsed_seconds for trial in result.measured_trials]),
            limits.CEILING_SHARE: _ceiling_share(result),
        },
        values={} if isinstance(values, str) else values,
        headline=HEADLINE,
        reasons=partial(admission.of_run, result, values),
        fault=None if fault is None else f"{sentences.reader(result)} is {fault}",
        work={what: key(result) for what, key in comparable.SAME.items()},
        described=dict(differing.describe_setup(result)),
        turn=comparison.turn(result),
        facts={
            "order": policy.order,
            "placement": policy.placement,
            "delivery": policy.delivery,
            "dataset": result.dataset.digest,
        },
    )


def checkpoints(document: Document) -> Measured:
    """A result of `checkpoint`."""
    seconds = [trial.seconds for trial in document.trials]
    work = ("layout", "shards", "fraction", "checkpoints", "fsync")
    more = ("class_", "folder", "version", "code_digest")
    return Measured(
        what="layout",
        workload=document.workload,
        names=[document.layout],
        nodes=document.nodes,
        ranks_per_node=document.ranks_per_node,
        created=document.created,
        version=document.version,
        code_digest=document.code_digest,
        digest=document.digest,
        class_=document.class_,
        marks=[*dict.fromkeys([*document.marks, *marks.of_document(document)])],
        checks=document.checks,
        hosts=document.hosts,
        rank_hosts=document.rank_hosts,
        seconds=seconds,
        quantities=metrics.CHECKPOINT_METRICS,
        metrics=document.metrics,
        derived={limits.SPREAD: _spread_metric(seconds)},
        values={name: metrics.per_trial(document.trials, name) for name in metrics.CHECKPOINT_METRICS},
        headline=CHECKPOINT_HEADLINE,
        reasons=partial(admission.of_checkpoints, document),
        fault=f"{document.workload} {document.layout} is INVALID" if document.class_ == "INVALID" else None,
        work={"workload": document.workload, "nodes": document.nodes, "ranks per node": document.ranks_per_node}
        | {what: getattr(document, what) for what in work}
        | {"bytes": f"{document.bytes:,}"},
        described={what.strip("_").replace("_", " "): str(getattr(document, what)) for what in more}
        | {"marks": ", ".join(document.marks), "rank hosts": ", ".join(document.rank_hosts)},
    )


def all_measured(runs: Iterable[tuple[Result, Steps]], documents: Iterable[Document] = ()) -> list[Measured]:
    """Results of runs with their steps, then those of checkpoints."""
    return [*(run(*pair) for pair in runs), *map(checkpoints, documents)]


def load(path: Path) -> list[Measured]:
    """The results at or below a path: of runs, or, where there are none, of checkpoints. Errors as `load_all`.

    Of the steps only each trial's values stay in memory.
    """
    return all_measured(load_all([path])) if has_runs(path) else all_measured([], of_checkpoints([path]).values())


def _spread_metric(seconds: Sequence[float]) -> Metric:
    return Metric(intervals.spread(np.array(seconds)), SHARE, None)


def _ceiling_share(result: Result) -> Metric:
    """The rate of the file system over what `dlio-bench storage` measured."""
    ceiling, rate = result.environment.ceiling, result.metrics["pfs_bandwidth"]
    if ceiling is None or ceiling.bytes_per_second is None or rate.value is None:
        return Metric(None, SHARE, None)
    most = ceiling.bytes_per_second
    return Metric(rate.value / most, SHARE, None if rate.ci is None else (rate.ci[0] / most, rate.ci[1] / most))
