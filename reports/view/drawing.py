"""What the figures of all reports share: colours by name, fonts, axes, texts that cannot become markup.

A colour that starts with two dashes is a name of report.css; the page puts the light or the dark value in its place.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

Figure = dict[str, Any]

STALL_SCALE: list[tuple[float, str]] = [(0, "#f7f5f0"), (0.35, "#f0cf9f"), (0.7, "#d9793f"), (1, "#7f2a1d")]
GAP = {"ticks": "outside", "ticklen": 8, "tickcolor": "rgba(0,0,0,0)"}  # between a name and its bar
GRID, INK = "--grid", "--ink"
LONGEST = 80  # letters of a name: more would leave its figure no room
LINE, LINES = 22, 2  # letters of a line of it; lines
MOST_TICKS = 8
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "%": "&#37;"}  # % starts a field of a hover text


def round_floats(value: Any) -> Any:
    """The same structure with floats cut to 6 significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: round_floats(entry) for key, entry in value.items()}
    return [round_floats(entry) for entry in value] if isinstance(value, list | tuple) else value


def escape_markup(name: str) -> str:
    """A name from a file, so that plotly.js, which takes texts for markup (<b>, <a href>, &amp;), shows it letter by
    letter, and no longer than LONGEST letters.
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in name)
    short = printable if len(printable) <= LONGEST else f"{printable[: LONGEST - 1]}…"
    return "".join(ENTITIES.get(letter, letter) for letter in short)


def lines(name: str) -> str:
    """`escape_markup`, in at most LINES lines of at most LINE letters, broken behind blanks and hyphens."""
    pieces = [part[at : at + LINE] for part in re.findall(r"[^\s-]*[\s-]*", name) for at in range(0, len(part), LINE)]
    broken: list[str] = []
    for piece in pieces:
        if broken and len((broken[-1] + piece).rstrip()) <= LINE:
            broken[-1] += piece
        else:
            broken.append(piece)
    kept = [part.strip() for part in broken][:LINES]
    return "<br>".join(map(escape_markup, kept)) + ("…" if len(kept) < len(broken) else "")


def text(title: str) -> Figure:
    """A title in the figures' own size."""
    return {"text": title, "font": {"size": 13}}


def axis(title: str, **options: Any) -> Figure:
    """An axis with its title; `options` in plotly.js's own terms."""
    plain_axis = {"title": text(title) | {"standoff": 8}, "gridcolor": GRID, "zerolinecolor": GRID, "automargin": True}
    return plain_axis | options


def log_axis(title: str, values: Sequence[float]) -> Figure:
    """A logarithmic axis over values above 0, with whole numbers at its ticks: 20 and 50, not plotly's '2' and '5'.

    Ticks are 1, 2 and 5 times powers of ten, from the last one below the values to the first above them; the powers
    alone where these would be more than MOST_TICKS.
    """
    ticks = _ticks(min(values), max(values), (1, 2, 5))
    if len(ticks) > MOST_TICKS:
        ticks = _ticks(min(values), max(values), (1,))
    room = 0.05  # of a decade, so that no mark is cut
    return axis(
        title,
        type="log",
        tickvals=ticks,
        ticktext=[f"{tick:,.6g}" for tick in ticks],
        range=[math.log10(ticks[0]) - room, math.log10(ticks[-1]) + room],
    )


def _ticks(low: float, high: float, factors: Sequence[int]) -> list[float]:
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [factor * 10.0**power for power in powers for factor in factors]
    first, last = max(tick for tick in steps if tick <= low), min(tick for tick in steps if tick >= high)
    return [tick for tick in steps if first <= tick <= last]


def not_a_measurement(word: str, height: int) -> Figure:
    """The annotation that lies across a figure of no measurement. word: why it is none; height: of the figure, px."""
    return {
        "text": "TINY:<br>not a<br>measurement" if word == "TINY" else word, "xref": "paper", "yref": "paper",
        "x": 0.5, "y": 0.5, "showarrow": False, "textangle": -6, "opacity": 0.3,
        "font": {"size": min(22, 0.1 * height), "color": "--grave"},  # fits a telephone
    }  # fmt: skip


def layout(height: int) -> Figure:
    """What all figures share: fonts, margins, the legend above."""
    return {
        "height": height, "margin": {"l": 60, "r": 20, "t": 36, "b": 48}, "paper_bgcolor": "--card",
        "plot_bgcolor": "--card", "font": {"family": "system-ui, 'DejaVu Sans', sans-serif", "size": 13, "color": INK},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "bgcolor": "rgba(0,0,0,0)"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "--soft", "activecolor": INK},
        "hovermode": "closest", "hoverlabel": {"font": {"size": 13}},
    }  # fmt: skip
