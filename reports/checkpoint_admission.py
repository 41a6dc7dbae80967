"""Why a result of checkpoints may not be used: its own checks and numbers, and what the limits ask of every result."""

import math
from collections.abc import Iterator

from dlio_bench.reports import checkpoint_metrics
from dlio_bench.reports.admission import NOTHING, SAME, TOO_FEW
from dlio_bench.reports.checkpoint_types import Document, checks
from dlio_bench.reports.formatting import format_time, plural
from dlio_bench.reports.judgement import Reason
from dlio_bench.reports.limits import Settings
from dlio_bench.units import format_bytes

COLD = ("cold", "cold-epochs", "first-epoch-cold")  # of limits: the cache is dropped before the reads of every trial


def reasons(document: Document, asked: Settings) -> list[Reason]:
    """All reasons, in a fixed order; none for a result that may be used. `min_steps` is for runs."""
    return [*_checks(document), *_numbers(document), *_amount(document, asked), *_caches(document, asked)]


def _checks(document: Document) -> Iterator[Reason]:
    """Checks that did not hold, made again from the trials."""
    for check in checks(document):
        if not check.ok:
            yield Reason(check.name, f"expected {check.expected}; found {check.found}")


def _numbers(document: Document) -> Iterator[Reason]:
    """Metrics that do not follow from the trials."""
    for name, again in checkpoint_metrics.metrics(document.trials).items():
        stated = document.metrics.get(name)
        known = [] if stated is None else [stated.value, *(stated.ci or ())]
        here = [again.value, *(again.ci or ())]
        same = len(known) == len(here) and all(
            a is not None and b is not None and math.isclose(a, b, rel_tol=SAME, abs_tol=NOTHING)
            for a, b in zip(known, here, strict=True)
        )
        if not same:
            yield Reason("metrics", f"metrics.{name} is not what its trials give, {again.value:.6g}")


def _amount(document: Document, asked: Settings) -> Iterator[Reason]:
    trials = document.trials
    if len(trials) < asked.trials:
        yield Reason(TOO_FEW, f"{plural(len(trials), 'timed trial')}, the limits ask for {asked.trials}")
    shortest = min(trial.seconds for trial in trials)
    if shortest < asked.min_seconds:
        yield Reason(
            "min_seconds",
            f"the shortest trial took {format_time(shortest)}, the limits ask for {format_time(asked.min_seconds)}",
        )


def _caches(document: Document, asked: Settings) -> Iterator[Reason]:
    if asked.cache is not None and asked.cache not in COLD:
        yield Reason("cache", f"checkpoints are read from a cold cache, the limits ask for {asked.cache}")
    seen_cold = all(trial.attestable and not trial.memory_backed for trial in document.trials)
    if asked.dataset_to_memory is not None and not seen_cold:
        memory = [host.memory_bytes for host in document.hosts.values()]
        known = [size for size in memory if size]
        held = document.bytes * document.checkpoints
        if not known or len(known) < len(memory) or held < asked.dataset_to_memory * sum(known):
            yield Reason(
                "dataset_to_memory",
                f"the checkpoints of a trial have {format_bytes(held)}, the limits ask for "
                f"{asked.dataset_to_memory:g} times the memory of all hosts, and a cold cache was not seen either",
            )
    if asked.node_bandwidth is not None:
        rate = max(checkpoint_metrics.per_trial(document.trials, "checkpoint_read_bandwidth"))
        if rate > document.nodes * asked.node_bandwidth:
            yield Reason(
                "node_bandwidth",
                f"{format_bytes(rate)}/s were read, and {plural(document.nodes, 'node')} can receive at most "
                f"{format_bytes(document.nodes * asked.node_bandwidth)}/s: some came from memory",
            )
