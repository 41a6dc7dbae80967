"""What the figures of all reports share: colours, fonts, axes."""

import math
from collections.abc import Sequence
from typing import Any

Figure = dict[str, Any]

STALL_SCALE: list[tuple[float, str]] = [(0, "#f7f5f0"), (0.35, "#f0cf9f"), (0.7, "#d9793f"), (1, "#7f2a1d")]
GAP = {"ticks": "outside", "ticklen": 8, "tickcolor": "rgba(0,0,0,0)"}  # between a name and its bar
GRID, INK = "#e4e2dc", "#33373d"


def compact(value: Any) -> Any:
    """The same structure with floats cut to 6 significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: compact(entry) for key, entry in value.items()}
    return [compact(entry) for entry in value] if isinstance(value, list | tuple) else value


def text(title: str) -> Figure:
    """A title in the figures' own size."""
    return {"text": title, "font": {"size": 13}}


def axis(title: str, **options: Any) -> Figure:
    """An axis with its title; `options` in plotly.js's own terms."""
    plain = {"title": text(title) | {"standoff": 8}, "gridcolor": GRID, "zerolinecolor": GRID, "automargin": True}
    return plain | options


def log_axis(title: str, values: Sequence[float]) -> Figure:
    """A logarithmic axis over values above 0, with whole numbers at its ticks: 20 and 50, not plotly's '2' and '5'.

    Ticks are 1, 2 and 5 times powers of ten, from the last one below the values to the first above them.
    """
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    steps = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    first, last = max(tick for tick in steps if tick <= low), min(tick for tick in steps if tick >= high)
    ticks = [tick for tick in steps if first <= tick <= last]
    room = 0.05  # of a decade, so that no mark is cut
    return axis(
        title,
        type="log",
        tickvals=ticks,
        ticktext=[f"{tick:,.6g}" for tick in ticks],
        range=[math.log10(first) - room, math.log10(last) + room],
    )


def layout(height: int) -> Figure:
    """What all figures share: fonts, margins, the legend above."""
    return {
        "height": height, "margin": {"l": 60, "r": 20, "t": 36, "b": 48}, "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff", "font": {"family": "system-ui, 'DejaVu Sans', sans-serif", "size": 13, "color": INK},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}, "hovermode": "closest",
    }  # fmt: skip
