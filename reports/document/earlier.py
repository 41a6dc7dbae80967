"""Results of schemas 1 to 4, brought to the present one: their metrics are worked out again, by the present formulas.

Until schema 4 intervals were percentile bootstraps, which cover less than 95 % of few trials. Until schema 3 the
bandwidth of the file system was what readers requested of it, caches included, over the whole time,
and "cold" was cold before each trial alone. Schema 2 called two metrics requested_bytes and device_bytes. Schema 1 had
AU as compute / (compute + stall), stall as the mean of what ranks waited themselves, and one number, below 0 at times,
for bytes that tiers delivered less those brought there beforehand.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dlio_bench.reports.document.marks import COLD_BEFORE, FIRST_EPOCH_COLD, SERVED
from dlio_bench.reports.document.trials import was_served_from_cache
from dlio_bench.reports.document.types import SCHEMA, Result
from dlio_bench.reports.numbers import bound, models, statistics
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.numbers.metrics import METRICS

SCHEMAS = ("dlio-bench/result/1", "dlio-bench/result/2", "dlio-bench/result/3", "dlio-bench/result/4")


def in_form(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of an earlier schema in the present form; its metrics are blank until `with_metrics` is asked."""
    blank = {name: {"value": 0.0, "unit": quantity.unit, "ci": None} for name, quantity in METRICS.items()}
    trials = document.get("trials")
    if document["schema"] == SCHEMAS[0]:
        trials = _split_counts(trials)
    plan = document.get("plan")
    if isinstance(plan, dict) and plan.get("cache") == "cold":
        plan = {**plan, "cache": FIRST_EPOCH_COLD}
    return {**document, "schema": SCHEMA, "plan": plan, "trials": trials, "metrics": blank}


def with_metrics(result: Result, steps: Steps) -> Result:
    """The same with all metrics, what bound the run, and its marks. Its `digest` stays that of the file."""
    metrics = statistics.metrics(result, steps)
    served = (
        result.plan.cache in COLD_BEFORE
        and was_served_from_cache(result.measured_trials)
        and SERVED not in result.marks
    )
    marks = [*result.marks, SERVED] if served else result.marks
    determined, of_models = bound.determine(result, metrics, steps), models.figures(result, steps)
    return replace(result, metrics=metrics, models=of_models, bound=determined, marks=marks)


def _split_counts(part: Any) -> Any:
    """Trials, their epochs and passes, with bytes spared and bytes kept as two counts."""
    if isinstance(part, list):
        return [_split_counts(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    parts = {name: _split_counts(value) if name in ("epochs", "validation") else value for name, value in part.items()}
    if isinstance(net := part.get("bytes_spared"), int | float):
        parts |= {"bytes_spared": max(net, 0), "bytes_kept": max(-net, 0)}
    return parts
