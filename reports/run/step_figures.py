"""The figures of a report that show single steps: the map of stall by rank and step, and how steps are distributed.

Floats are cut to 6 significant digits and long series thinned, so that a page of a large run stays small.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers import statistics
from dlio_bench.reports.numbers.meetings import Floats, Steps
from dlio_bench.reports.run import tables
from dlio_bench.reports.run.result_drawing import DASH_NAMES, colours, dashes, finish_figure, flag_names, readers_of
from dlio_bench.reports.view import drawing
from dlio_bench.reports.view.drawing import INK, Figure
from dlio_bench.reports.view.formatting import format_time, number, plural

MAX_POINTS = 20_000
FAR_BEYOND = 4
SHORTEST = 1e-6  # s: a logarithmic axis has no 0
HEAT = [(0, "--heat0"), (0.35, "--heat1"), (0.7, "--heat2"), (1, "--heat3")]


def stall_map(result: Result, steps: Steps, ceiling: float) -> Figure:
    """Stall of each rank and step in the median trial, seconds; `ceiling` is the colour scale's end, shared by maps."""
    grid = steps["stall"][statistics.median_trial(result)]
    cells, by_rank, by_step = _shrink(grid)
    ranks, count = cells.shape
    data = [{
        "type": "heatmap", "z": cells.tolist(), "x0": (by_step - 1) / 2, "dx": by_step, "y0": (by_rank - 1) / 2,
        "dy": by_rank, "zmin": 0, "zmax": ceiling, "colorscale": HEAT, "xgap": 1 if count <= 64 else 0,
        "ygap": 1 if ranks <= 64 else 0, "hovertemplate": "rank %{y}, step %{x}: %{z:.3g} s<extra></extra>",
        "colorbar": {"title": drawing.text("stall (s)") | {"side": "right"}, "thickness": 12, "outlinewidth": 0},
    }]  # fmt: skip
    layout = drawing.layout(max(190, min(460, 130 + 14 * ranks))) | {
        "xaxis": drawing.axis("step", showgrid=False, zeroline=False),
        "yaxis": drawing.axis(
            "rank", showgrid=False, zeroline=False, autorange="reversed", tick0=0, dtick=math.ceil(len(grid) / 8)
        ),
        "shapes": _epoch_lines(steps["epoch"]),
    }
    layout["margin"] |= {"t": 30}
    return finish_figure(data, layout, _describe_map(result, grid), [result])


def _describe_map(result: Result, grid: Floats) -> str:
    rank, step = np.unravel_index(int(grid.argmax()), grid.shape)
    by_rank = grid.sum(axis=1)
    worst = int(by_rank.argmax())
    return (
        f"Heat map of {tables.labels([result])[0]}: stall of {plural(grid.shape[0], 'rank')} in "
        f"{plural(grid.shape[1], 'step')} of the median trial. The greatest is {format_time(float(grid.max()))}, of "
        f"rank {rank} in step {step}. Rank {worst} waits longest, {format_time(float(by_rank[worst]))} in all; the "
        f"mean of the ranks is {format_time(float(by_rank.mean()))}."
    )


def stall_ceiling(pairs: Sequence[tuple[Result, Steps]]) -> float:
    """The end of the colour scale that all maps share, seconds: the greatest stall of any median trial, or, where few
    cells are far beyond all others (the first step of a staged epoch), the stall that 99 of 100 cells stay below.
    """
    grids = [steps["stall"][statistics.median_trial(result)] for result, steps in pairs]
    greatest = max(float(grid.max()) for grid in grids)
    most = max(float(np.percentile(grid, 99)) for grid in grids)
    return (most if 0 < most < greatest / FAR_BEYOND else greatest) or 1.0


def scale_end(pairs: Sequence[tuple[Result, Steps]]) -> str:
    """The end of the colour scale in words, if there are greater stalls; else ''."""
    end = stall_ceiling(pairs)
    beyond = any(float(steps["stall"][statistics.median_trial(result)].max()) > end for result, steps in pairs)
    return format_time(end) if beyond else ""


def step_times(pairs: Sequence[tuple[Result, Steps]]) -> Figure:
    """Distribution of what a step costs (its slowest rank), one curve a measured trial; percentiles in its words."""
    results = [result for result, _ in pairs]
    labels = tables.labels(results)
    curves = sum(len(statistics.measured_positions(result)) for result in results)
    data: list[Figure] = []
    named: set[str] = set()
    looks = zip(labels, flag_names(readers_of(results), results), colours(results), dashes(results), strict=True)
    for (result, steps), (label, name, colour, dash) in zip(pairs, looks, strict=True):
        cost = statistics.step_cost(result, steps)
        for row in statistics.measured_positions(result):
            values = np.maximum(np.sort(cost[row]), SHORTEST)
            share = np.arange(1, len(values) + 1) / len(values)
            keep = _thin_positions(len(values), MAX_POINTS // curves)
            data.append({
                "type": "scatter", "mode": "lines", "x": values[keep].tolist(), "y": share[keep].tolist(),
                "name": drawing.lines(name),
                "legendgroup": drawing.escape_markup(name), "showlegend": name not in named,
                "line": {"shape": "hv", "width": 1.6, "color": colour, "dash": dash},
                "opacity": 0.85, "hovertemplate": f"trial {result.trials[row].trial + 1}: %{{y:.0%}} of the steps "
                f"within %{{x:.3g}} s<extra>{drawing.escape_markup(label)}</extra>",
            })  # fmt: skip
            named.add(name)
    layout = drawing.layout(340) | {
        "xaxis": drawing.log_axis("cost of a step (s)", [value for line in data for value in line["x"]]),
        "yaxis": drawing.axis("share of the steps", range=[0, 1.02], tickformat=".0%"),
    }
    told = [
        f"{label}: " + ", ".join(f"p{percent} {number(result.metrics[f'step_p{percent}'])}" for percent in (50, 95, 99))
        for label, result in zip(labels, results, strict=True)
    ]
    return finish_figure(data, layout, f"Curves of what a step costs. {'; '.join(told)}.", results)


def kinds(results: Sequence[Result]) -> str:
    """What the kinds of line in `step_times` stand for, where the node count of the results differs; else ''."""
    pairs = dict.fromkeys(zip(dashes(results), (plural(result.plan.nodes, "node") for result in results), strict=True))
    if len({nodes for _, nodes in pairs}) == 1:
        return ""
    return ", ".join(f"{nodes} {DASH_NAMES[dash]}" for dash, nodes in pairs)


def _shrink(grid: Floats) -> tuple[Floats, int, int]:
    """`grid` [ranks, steps] in blocks of (by_rank, by_step) so that it has few enough cells; a block is its maximum."""
    by_rank = by_step = 1
    side = math.isqrt(MAX_POINTS)
    if grid.size > MAX_POINTS:
        by_rank = max(1, math.ceil(grid.shape[0] / side))
        by_step = max(1, math.ceil(grid.shape[1] / (MAX_POINTS // math.ceil(grid.shape[0] / by_rank))))
    grid = np.maximum.reduceat(grid, np.arange(0, grid.shape[0], by_rank), axis=0)
    return np.maximum.reduceat(grid, np.arange(0, grid.shape[1], by_step), axis=1), by_rank, by_step


def _thin_positions(count: int, most: int) -> npt.NDArray[np.int64]:
    """Positions 0 .. count-1, evenly thinned to about `most`, first and last always among them."""
    return np.unique(np.linspace(0, count - 1, min(count, max(most, 2))).round().astype(np.int64))


def _epoch_lines(epoch: npt.NDArray[np.int64]) -> list[Figure]:
    edges = np.flatnonzero(np.diff(epoch)) + 0.5
    return [{"type": "line", "x0": edge, "x1": edge, "yref": "paper", "y0": 0, "y1": 1,
             "line": {"color": INK, "width": 1.2, "dash": "dot"}} for edge in edges.tolist()]  # fmt: skip
