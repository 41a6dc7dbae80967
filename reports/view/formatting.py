"""Numbers and lists as people read them; every output uses these, so that the same metric reads the same everywhere."""

from collections.abc import Callable, Sequence

from dlio_bench.reports.document.types import Metric
from dlio_bench.units import format_bytes, format_seconds

NOTHING = "-"


def format_share(value: float) -> str:
    """0.4123 -> '41 %', 0.0613 -> '6.1 %'."""
    percent = 100 * value
    return f"{percent:.0f} %" if abs(percent) >= 9.95 else f"{percent:.1f} %"


def format_ratio(value: float) -> str:
    """1.527 -> '1.53x'."""
    return f"{value:.3g}×"


def format_times(*ratios: float) -> list[str]:
    """How many times as much, in two decimals; in more where a ratio other than 1 would read '1.00', or '0.00'."""
    for decimals in (2, 3, 4):
        texts = [f"{ratio:.{decimals}f}" for ratio in ratios]
        if not any(float(text) in (0, 1) and ratio not in (0, 1) for text, ratio in zip(texts, ratios, strict=True)):
            break
    return texts


def format_time(seconds: float) -> str:
    """A duration; `format_seconds`, but 0 is '0 s' and 0.9997 is '1 s'."""
    return "0 s" if seconds == 0 else format_seconds(1.0 if 0.9995 <= seconds < 1 else seconds)


FORMATS: dict[str, Callable[[float], str]] = {
    "s": format_time,
    "B": format_bytes,
    "B/s": lambda value: f"{format_bytes(value)}/s",
    "samples/s": lambda value: f"{value:.0f}" if value >= 1000 else f"{value:.3g}",
    "share": format_share,
    "ratio": format_ratio,
}


def _format(unit: str, value: float) -> str:
    """A value of a unit; what is counted, such as samples, is a whole number."""
    return FORMATS[unit](value) if unit in FORMATS else f"{value:.0f}"


def number(metric: Metric) -> str:
    """A metric's value with its unit, or '-' where it has none."""
    return NOTHING if metric.value is None else _format(metric.unit, metric.value)


def size(value: float | None) -> str:
    """Bytes, or '-' where nobody counted them."""
    return NOTHING if value is None else format_bytes(value)


def interval(metric: Metric) -> str:
    """A metric's confidence interval, '440 MB/s … 460 MB/s', or '-' where it has none."""
    if metric.ci is None:
        return NOTHING
    low, high = (_format(metric.unit, bound) for bound in metric.ci)
    return f"{low} … {high}"


def short_interval(metric: Metric) -> str:
    """As `interval`, with the unit once where both ends have the same: '440 … 460 MB/s'."""
    ends = interval(metric)
    low, dots, high = ends.partition(" … ")
    number_, _, unit = low.partition(" ")
    return f"{number_}{dots}{high}" if unit and high.endswith(f" {unit}") else ends


def plural(count: int, noun: str) -> str:
    """'1 node', '8 nodes'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def join_words(words: Sequence[str]) -> str:
    """'order', 'order and delivery', 'order, placement and delivery'."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
