"""Results as the JSON of pytest-benchmark: a benchmark for each result, whose rounds are the trials that count.

`pytest-benchmark compare A.json B.json` reads group, name, fullname and the statistics of a benchmark (its
storage/file.py and table.py). The statistics are those of its stats.py, version 5; times are in seconds.
"""

import json
import statistics
from collections.abc import Sequence
from typing import Any

from dlio_bench.reports.document.measured import Measured
from dlio_bench.reports.export.measures import Exported
from dlio_bench.wrapping import printable


def render(results: Sequence[Exported]) -> str:
    """The document. Readers of one workload at one scale are a group."""
    first = results[0].result
    document = {
        "machine_info": _machine(first),
        "commit_info": {"id": first.code_digest, "dirty": False, "project": "dlio-bench"},
        "benchmarks": [*map(_benchmark, results)],
        "datetime": max(each.result.created for each in results),
        "version": "5.0.0",  # of the format
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _benchmark(exported: Exported) -> dict[str, Any]:
    result, known = exported.result, exported.metrics
    name = printable(f"{result.workload}[{result.name}-{result.scale}]")
    return {
        "group": printable(f"{result.workload} {result.scale}"),
        "name": name,
        "fullname": name,
        "params": {
            result.what: printable(result.name),
            "nodes": result.nodes,
            "ranks_per_node": result.ranks_per_node,
        },
        "param": printable(f"{result.name}-{result.scale}"),
        "extra_info": {
            "class": result.class_,
            "verdict": result.verdict,
            "marks": result.marks,
            "digest": result.digest,
            "metrics": {name: metric.value for name, metric in known.items()},
            "intervals": {name: metric.ci for name, metric in known.items() if metric.ci is not None},
        },
        "options": {"warmup": result.warmup_seconds > 0},
        "stats": stats(result.seconds),
    }


def stats(seconds: Sequence[float]) -> dict[str, Any]:
    """The statistics of rounds, as pytest-benchmark works them out: its quartiles are not those of NumPy."""
    data, mean = sorted(seconds), statistics.mean(seconds)
    deviation = statistics.stdev(seconds) if len(seconds) > 1 else 0.0
    low, high = quartiles(data)
    spread = high - low
    inside = [value for value in data if low - 1.5 * spread <= value <= high + 1.5 * spread]
    beyond = sum(abs(value - mean) > deviation for value in data)
    outside = len(data) - len(inside)
    return {
        "min": data[0], "max": data[-1], "mean": mean, "stddev": deviation, "median": statistics.median(data),
        "q1": low, "q3": high, "iqr": spread, "ld15iqr": inside[0], "hd15iqr": inside[-1],
        "stddev_outliers": beyond, "iqr_outliers": outside, "outliers": f"{beyond};{outside}",
        "rounds": len(data), "iterations": 1, "total": sum(data), "ops": len(data) / sum(data), "data": list(seconds),
    }  # fmt: skip


def quartiles(data: Sequence[float]) -> tuple[float, float]:
    """First and third quartile of rising values: the medians of the halves; of an odd number, method 3 of
    https://en.wikipedia.org/wiki/Quartile#Computing_methods.
    """
    count, half = len(data), len(data) // 2
    if count == 1:
        return data[0], data[0]
    if count % 2 == 0:
        return statistics.median(data[:half]), statistics.median(data[half:])
    whole = count // 4
    if count % 4 == 1:
        return 0.25 * data[whole - 1] + 0.75 * data[whole], 0.75 * data[3 * whole] + 0.25 * data[3 * whole + 1]
    return 0.75 * data[whole] + 0.25 * data[whole + 1], 0.25 * data[3 * whole + 1] + 0.75 * data[3 * whole + 2]


def _machine(result: Measured) -> dict[str, Any]:
    """The first host: pytest-benchmark has place for one."""
    name, host = next(iter(result.hosts.items()))
    return {
        "node": printable(name),
        "processor": printable(host.cpu or ""),
        "machine": "",
        "python_implementation": "CPython",
        "python_version": printable(host.python or ""),
        "release": printable(host.kernel or ""),
        "system": "Linux",
        "cpu": {"brand_raw": printable(host.cpu or ""), "count": host.cores},
    }
