"""What the figures of all reports share: colours, fonts, axes."""

import math
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


def layout(height: int) -> Figure:
    """What all figures share: fonts, margins, the legend above."""
    return {
        "height": height, "margin": {"l": 60, "r": 20, "t": 36, "b": 48}, "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff", "font": {"family": "system-ui, 'DejaVu Sans', sans-serif", "size": 13, "color": INK},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}, "hovermode": "closest",
    }  # fmt: skip
