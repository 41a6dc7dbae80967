"""Metrics of results in the text format of OpenMetrics 1.0, for Prometheus and its kin, and in Prometheus' own.

Specification: github.com/OpenObservability/OpenMetrics, specification/OpenMetrics.md. A unit is the suffix of its name,
and a base unit: ratios, not percent. TYPE, UNIT and HELP come in this order. What is not known has no sample, as NaN
would be a value. All samples of a family stand together. The last line is `# EOF`.
"""

from collections.abc import Iterator, Mapping, Sequence

from dlio_bench.counters import Quantity
from dlio_bench.errors import UsageError
from dlio_bench.reports.document.measured import Measured
from dlio_bench.reports.document.types import Metric
from dlio_bench.reports.export.measures import MEASURES, Exported, statistic
from dlio_bench.wrapping import printable

Named = Sequence[tuple[dict[str, str], Exported]]
PREFIX = "dlio_bench"
UNITS = {
    "s": "seconds",
    "B": "bytes",
    "B/s": "bytes_per_second",
    "samples/s": "samples_per_second",
    "samples": "samples",
    "requests": "requests",
    "calls": "calls",
    "share": "ratio",
    "ratio": "ratio",
}  # of a metric -> of OpenMetrics


def render(results: Sequence[Exported]) -> str:
    """The exposition: an Info family with what describes each result, and a gauge family for each metric.

    Workload, reader (or layout), nodes and ranks a node tell the results apart. UsageError for two that share all of
    these.
    """
    labels = [_labels(each.result) for each in results]
    for position, label in enumerate(labels):
        if label in labels[:position]:
            said = printable(f"{', '.join([*label.values()][:2])}, {results[position].result.scale}")
            raise UsageError(
                f"Two of the results are of {said} ranks, and a metric has one value for each workload, "
                f"{results[position].result.what} and scale. Export them one at a time."
            )
    named = list(zip(labels, results, strict=True))
    lines = [*_info(named), *_failed_checks(named)]
    for quantity in {**MEASURES, **results[0].result.quantities}.values():
        lines += _family(
            quantity, [(label, each.metrics[quantity.name]) for label, each in named if quantity.name in each.metrics]
        )
    return "\n".join((*lines, "# EOF")) + "\n"


def prometheus(results: Sequence[Exported]) -> str:
    """As `render`, in Prometheus' own text format."""
    return as_prometheus(render(results))


def as_prometheus(text: str) -> str:
    """An OpenMetrics exposition in Prometheus' text format 0.0.4, which node_exporter's textfile collector reads.

    That format has no units and no end, and of an Info family it knows neither type nor name: a gauge `..._info` of 1.
    Specification: prometheus.io/docs/instrumenting/exposition_formats.
    """
    lines = [line for line in text.splitlines() if not line.startswith(("# UNIT ", "# EOF"))]
    info = f"{PREFIX}_run"
    return "".join(
        f"{line.replace(f'{info} info', f'{info}_info gauge').replace(f'HELP {info} ', f'HELP {info}_info ')}\n"
        if line.startswith("# ")
        else f"{line}\n"
        for line in lines
    )


def family(quantity: Quantity) -> str:
    """The family of a metric: its name with its unit as suffix. stall_share -> dlio_bench_stall_ratio."""
    unit = UNITS[quantity.unit]
    base = quantity.name.removesuffix("_share").removesuffix(f"_{unit}").removeprefix("bytes_")
    return f"{PREFIX}_{base}" if base == unit else f"{PREFIX}_{base}_{unit}"


def _info(named: Named) -> Iterator[str]:
    yield f"# TYPE {PREFIX}_run info"
    yield f"# HELP {PREFIX}_run what was run, and what it is worth"
    for labels, each in named:
        result = each.result
        described = {"class": result.class_, "verdict": result.verdict, "marks": "; ".join(result.marks)}
        described |= {**result.facts, "created": result.created, "version": result.version, "digest": result.digest}
        yield sample(f"{PREFIX}_run_info", labels | described, 1)


def _failed_checks(named: Named) -> Iterator[str]:
    name = f"{PREFIX}_failed_checks"
    yield f"# TYPE {name} gauge"
    yield f"# HELP {name} checks that did not hold; above 0 the result is not to be used"
    for labels, each in named:
        yield sample(name, labels, sum(not check.ok for check in each.checks))


def _family(quantity: Quantity, values: Sequence[tuple[dict[str, str], Metric]]) -> Iterator[str]:
    """A metric of all results that have it. The label `statistic` tells its value from the ends of its interval."""
    known = [(labels, value) for labels, value in values if value.value is not None]
    if not known:
        return
    name = family(quantity)
    yield f"# TYPE {name} gauge"
    yield f"# UNIT {name} {UNITS[quantity.unit]}"
    yield f"# HELP {name} {_escape(quantity.meaning)}"
    for labels, value in known:
        assert value.value is not None
        yield sample(name, labels | {"statistic": statistic(quantity.name)}, value.value)
        if value.ci is not None:
            for end, bound in zip(("ci_low", "ci_high"), value.ci, strict=True):
                yield sample(name, labels | {"statistic": end}, bound)


def _labels(result: Measured) -> dict[str, str]:
    scale = {"nodes": str(result.nodes), "ranks_per_node": str(result.ranks_per_node)}
    return {"workload": result.workload, result.what: result.name} | scale


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    """A line: a name, its labels in braces, the value."""
    inner = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
    return f"{name}{{{inner}}} {value!r}"


def _escape(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
