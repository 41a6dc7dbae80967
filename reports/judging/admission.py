"""Why a result may not be used: its own checks, its own numbers, and what the limits ask of every result."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from dlio_bench.reports.checkpoint import metrics as checkpoint_metrics
from dlio_bench.reports.checkpoint.types import Document, checks
from dlio_bench.reports.document.environment import Host
from dlio_bench.reports.document.marks import ALTERED, COLD_BEFORE, SERVED
from dlio_bench.reports.document.trials import LEAST_DEVICE
from dlio_bench.reports.document.types import Check, Metric, Result
from dlio_bench.reports.judging.judgement import Reason
from dlio_bench.reports.judging.limits import Settings
from dlio_bench.reports.numbers import statistics
from dlio_bench.reports.numbers.meetings import Floats
from dlio_bench.reports.numbers.metrics import METRICS
from dlio_bench.reports.view.formatting import format_time, plural
from dlio_bench.units import format_bytes

CONTENT_CHECK = "content"
TOO_FEW = "trials"  # alone, it leaves a result undecided, not INVALID
WAS_ALTERED = "its files are not as they were written"
SAME = 1e-9  # relative: processors add up in another order, which changes the last digits
COLD = ("cold", *COLD_BEFORE)  # of limits: the cache is dropped before the reads of every trial
NOTHING = 1e-12  # absolute: shares that are zero but for rounding


def of_run(result: Result, values: Mapping[str, Floats | None] | str, asked: Settings) -> list[Reason]:
    """All reasons, in a fixed order; none for a result that may be used. values: of its metrics, or why it has none."""
    altered = [Reason("altered", f"its digest does not match: {WAS_ALTERED}")] if ALTERED in result.marks else []
    return [
        *altered,
        *failed_check_reasons(result.checks),
        *_numbers(result, values),
        *too_little([trial.elapsed_seconds for trial in result.measured_trials], asked),
        *_steps(result, asked),
        *_caches(result, asked),
    ]


def of_checkpoints(document: Document, asked: Settings) -> list[Reason]:
    """The same of a result of checkpoints. `min_steps` is for runs."""
    return [
        *failed_check_reasons(checks(document)),  # made again from the trials
        *differing(document.metrics, checkpoint_metrics.metrics(document.trials), "trials"),
        *too_little([trial.seconds for trial in document.trials], asked),
        *_caches_of_checkpoints(document, asked),
    ]


# ---- rules for results of every kind


def failed_check_reasons(checks: Iterable[Check]) -> Iterator[Reason]:
    """Checks that did not hold."""
    for check in checks:
        if not check.ok:
            yield Reason(check.name, f"expected {check.expected}; found {check.found}")


def differing(stated: Mapping[str, Metric], again: Mapping[str, Metric], source: str) -> Iterator[Reason]:
    """Metrics that are not those which were worked out again; source: from what, such as `steps`."""
    none = Metric(None, "", None)
    for name, worked_out in again.items():
        metric = stated.get(name, none)
        for what, here, there in (
            ("", (metric.value,), (worked_out.value,)),
            (".ci", metric.ci or (None,), worked_out.ci or (None,)),
        ):
            if not _are_same(here, there):
                yield Reason(
                    "metrics",
                    f"metrics.{name}{what} is {_format_values(here)}, its {source} give {_format_values(there)}",
                )


def too_little(trial_seconds: Sequence[float], asked: Settings) -> Iterator[Reason]:
    """Fewer or shorter trials than the limits ask for."""
    if len(trial_seconds) < asked.trials:
        yield Reason(TOO_FEW, f"{plural(len(trial_seconds), 'timed trial')}, the limits ask for {asked.trials}")
    if min(trial_seconds) < asked.min_seconds:
        yield Reason(
            "min_seconds",
            f"the shortest trial took {format_time(min(trial_seconds))}, the limits ask for "
            f"{format_time(asked.min_seconds)}",
        )


def too_small(what: str, size: int, hosts: Iterable[Host], asked: Settings) -> Iterator[Reason]:
    """Data, of which a cold cache was not seen, that are not as many times the memory of all hosts as is asked for."""
    if asked.dataset_to_memory is None:
        return
    memory = [host.memory_bytes or 0 for host in hosts]
    ratio = size / sum(memory) if memory and all(memory) else None
    if ratio is None or ratio < asked.dataset_to_memory:
        has = "the memory of the hosts is not known" if ratio is None else (
            f"{what} {ratio:.3g} times the {format_bytes(sum(memory))} of memory of its {plural(len(memory), 'host')}"
        )  # fmt: skip
        yield Reason(
            "dataset_to_memory",
            f"{has}, the limits ask for {asked.dataset_to_memory:g} times, and a cold cache was not seen either",
        )


def too_fast(rate: float, what: str, nodes: int, asked: Settings) -> Iterator[Reason]:
    """More bytes a second than the nodes can receive."""
    if asked.node_bandwidth is not None and rate > nodes * asked.node_bandwidth:
        yield Reason(
            "node_bandwidth",
            f"{format_bytes(rate)}/s were {what}, and {plural(nodes, 'node')} can receive at most "
            f"{format_bytes(nodes * asked.node_bandwidth)}/s: some came from memory",
        )


# ---- of a run


def _numbers(result: Result, values: Mapping[str, Floats | None] | str) -> Iterator[Reason]:
    """Metrics that do not follow from the trials and the step times of the result."""
    if not isinstance(values, str):
        try:
            with np.errstate(all="ignore"):
                again = statistics.summary(values, METRICS)
        except (ArithmeticError, LookupError, ValueError) as error:
            values = str(error)
    if isinstance(values, str):
        yield Reason("metrics", f"its metrics cannot be worked out from its steps ({values})")
    else:
        yield from differing(result.metrics, again, "steps")


def _are_same(stated: tuple[float | None, ...], worked_out: tuple[float | None, ...]) -> bool:
    return len(stated) == len(worked_out) and all(
        a is b or (a is not None and b is not None and math.isclose(a, b, rel_tol=SAME, abs_tol=NOTHING))
        for a, b in zip(stated, worked_out, strict=True)
    )


def _format_values(values: tuple[float | None, ...]) -> str:
    return " … ".join("nothing" if value is None else f"{value:.6g}" for value in values)


def _steps(result: Result, asked: Settings) -> Iterator[Reason]:
    fewest = min(trial.steps for trial in result.measured_trials)
    if fewest < asked.min_steps:
        yield Reason("min_steps", f"a trial has {plural(fewest, 'step')}, the limits ask for {asked.min_steps}")


def _caches(result: Result, asked: Settings) -> Iterator[Reason]:
    """What may have come from memory: the cache as it was asked for, the size of the data, the rate into a node."""
    plan = result.plan
    if SERVED in result.marks:
        yield Reason(
            "served from cache",
            f"the cache was to be cold ({plan.cache}), and storage delivered less than {LEAST_DEVICE:.0%} of what was "
            "requested of files: the rest came from memory",
        )
    if asked.cache not in (None, plan.cache) and not (asked.cache == "cold" and plan.cache in COLD_BEFORE):
        yield Reason("cache", f"the cache was {plan.cache} before each trial, the limits ask for {asked.cache}")
    if not was_seen_cold(result):
        hosts = result.environment.hosts.values()
        yield from too_small("the dataset has", result.dataset.stored_bytes, hosts, asked)
    yield from too_fast(result.value("pfs_bandwidth"), "read from files", plan.nodes, asked)


def was_seen_cold(result: Result) -> bool:
    """Whether every host was seen to have (nearly) nothing of the dataset in its page cache, whenever it was read."""
    if SERVED in result.marks:
        return False
    hosts = [host for trial in result.measured_trials for host in trial.cache.hosts.values()]
    held = any(check.name == "cold cache" and check.ok for check in result.checks)
    return held and bool(hosts) and all(host.attestable and not host.memory_backed for host in hosts)


# ---- of checkpoints


def _caches_of_checkpoints(document: Document, asked: Settings) -> Iterator[Reason]:
    if asked.cache is not None and asked.cache not in COLD:
        yield Reason("cache", f"checkpoints are read from a cold cache, the limits ask for {asked.cache}")
    if not all(trial.attestable and not trial.memory_backed for trial in document.trials):
        held = document.bytes * document.checkpoints
        yield from too_small("the checkpoints of a trial have", held, document.hosts.values(), asked)
    rate = max(checkpoint_metrics.per_trial(document.trials, "checkpoint_read_bandwidth"))
    yield from too_fast(rate, "read", document.nodes, asked)
