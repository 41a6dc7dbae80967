"""Why a result may not be used: its own checks, its own numbers, and what the limits ask of every result."""

import math
from collections.abc import Iterator

import numpy as np

from dlio_bench.reports import statistics
from dlio_bench.reports.formatting import format_time, plural
from dlio_bench.reports.judgement import Reason
from dlio_bench.reports.limits import Settings
from dlio_bench.reports.marks import ALTERED, SERVED
from dlio_bench.reports.meetings import Steps
from dlio_bench.reports.trials import LEAST_DEVICE
from dlio_bench.reports.types import COLD_BEFORE, Result
from dlio_bench.units import format_bytes

CONTENT_CHECK = "content"
TOO_FEW = "trials"  # alone, it leaves a result undecided, not INVALID
WAS_ALTERED = "its files are not as they were written"
SAME = 1e-9  # relative: processors add up in another order, which changes the last digits
NOTHING = 1e-12  # absolute: shares that are zero but for rounding


def reasons(result: Result, steps: Steps, asked: Settings) -> list[Reason]:
    """All reasons, in a fixed order; none for a result that may be used."""
    altered = [Reason("altered", f"its digest does not match: {WAS_ALTERED}")] if ALTERED in result.marks else []
    return [*altered, *_checks(result), *_numbers(result, steps), *_amount(result, asked), *_caches(result, asked)]


def _checks(result: Result) -> Iterator[Reason]:
    for check in result.checks:
        if not check.ok:
            yield Reason(check.name, f"expected {check.expected}; found {check.found}")


def _numbers(result: Result, steps: Steps) -> Iterator[Reason]:
    """Metrics that do not follow from the trials and the step times of the result."""
    try:
        with np.errstate(all="ignore"):
            again = statistics.metrics(result, steps)
    except (ArithmeticError, LookupError, ValueError) as error:
        yield Reason("metrics", f"its metrics cannot be worked out from its steps ({error})")
        return
    for name, metric in result.metrics.items():
        for what, stated, worked_out in (
            ("", (metric.value,), (again[name].value,)),
            (".ci", metric.ci or (None,), again[name].ci or (None,)),
        ):
            if not _same(stated, worked_out):
                yield Reason(
                    "metrics", f"metrics.{name}{what} is {_plain(stated)}, its steps give {_plain(worked_out)}"
                )


def _same(stated: tuple[float | None, ...], worked_out: tuple[float | None, ...]) -> bool:
    return len(stated) == len(worked_out) and all(
        a is b or (a is not None and b is not None and math.isclose(a, b, rel_tol=SAME, abs_tol=NOTHING))
        for a, b in zip(stated, worked_out, strict=True)
    )


def _plain(values: tuple[float | None, ...]) -> str:
    return " … ".join("nothing" if value is None else f"{value:.6g}" for value in values)


def _amount(result: Result, asked: Settings) -> Iterator[Reason]:
    measured = result.measured
    if len(measured) < asked.trials:
        yield Reason(TOO_FEW, f"{plural(len(measured), 'timed trial')}, the limits ask for {asked.trials}")
    shortest = min(trial.elapsed_seconds for trial in measured)
    if shortest < asked.min_seconds:
        yield Reason(
            "min_seconds",
            f"the shortest trial took {format_time(shortest)}, the limits ask for {format_time(asked.min_seconds)}",
        )
    fewest = min(trial.steps for trial in measured)
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
    if asked.dataset_to_memory is not None and not seen_cold(result):
        memory = [host.memory_bytes for host in result.environment.hosts.values()]
        known = [size for size in memory if size is not None and size > 0]
        ratio = result.dataset.stored_bytes / sum(known) if known and len(known) == len(memory) else None
        if ratio is None or ratio < asked.dataset_to_memory:
            has = (
                "the memory of the hosts is not known"
                if ratio is None
                else f"the dataset has {ratio:.3g} times the {format_bytes(sum(known))} of memory of its "
                f"{plural(len(memory), 'host')}"
            )
            yield Reason(
                "dataset_to_memory",
                f"{has}, the limits ask for {asked.dataset_to_memory:g} times, and a cold cache was not seen either",
            )
    if asked.node_bandwidth is not None:
        rate, most = result.value("pfs_bandwidth"), plan.nodes * asked.node_bandwidth
        if rate > most:
            yield Reason(
                "node_bandwidth",
                f"{format_bytes(rate)}/s were read from files, and {plural(plan.nodes, 'node')} can receive at most "
                f"{format_bytes(most)}/s: some came from memory",
            )


def seen_cold(result: Result) -> bool:
    """Whether every host was seen to have (nearly) nothing of the dataset in its page cache, whenever it was read."""
    if SERVED in result.marks:
        return False
    hosts = [host for trial in result.measured for host in trial.cache.hosts.values()]
    held = any(check.name == "cold cache" and check.ok for check in result.checks)
    return held and bool(hosts) and all(host.attestable and not host.memory_backed for host in hosts)
