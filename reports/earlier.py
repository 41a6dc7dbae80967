"""Results of schema 1, brought to the present one: their metrics are worked out again, by the present formulas.

Schema 1 had AU as compute / (compute + stall), stall as the mean of what ranks waited themselves, and one number,
below 0 at times, for bytes that tiers delivered less those brought there beforehand.
"""

from collections.abc import Mapping
from typing import Any

from dlio_bench.reports import bound, statistics
from dlio_bench.reports.meetings import Steps

SCHEMA = "dlio-bench/result/1"


def in_form(result: Mapping[str, Any], schema: str) -> dict[str, Any]:
    """A result of schema 1 in the form of `schema`, its metrics unknown until `worked_out` is asked."""
    unknown = {name: {"value": None, "unit": unit, "ci": None} for name, unit in statistics.UNITS.items()}
    return {**result, "schema": schema, "trials": _split(result.get("trials")), "metrics": unknown}


def worked_out(result: Mapping[str, Any], steps: Steps) -> dict[str, Any]:
    """The same with metrics, and what bound the run. Its `digest` stays that of the file."""
    metrics = statistics.metrics(result, steps)
    return {**result, "metrics": metrics, "bound": bound.determine(result, metrics, steps)}


def _split(part: Any) -> Any:
    """Trials, their epochs and passes, with bytes spared and bytes kept as two counts."""
    if isinstance(part, list):
        return [_split(one) for one in part]
    if not isinstance(part, dict):
        return part
    inner = {name: _split(value) if name in ("epochs", "validation") else value for name, value in part.items()}
    if isinstance(net := part.get("bytes_spared"), int | float):
        inner |= {"bytes_spared": max(net, 0), "bytes_kept": max(-net, 0)}
    return inner
