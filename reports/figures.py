"""The figures of the report as plain {"data", "layout"} dicts in plotly.js's own terms; nothing here draws.

Floats are cut to 6 significant digits and long series thinned, so that a page of a large run stays small.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlio_bench.reports import drawing, sentences, statistics, tables
from dlio_bench.reports.drawing import GAP, INK, STALL_SCALE, Figure, compact
from dlio_bench.reports.meetings import Floats, Steps
from dlio_bench.reports.metrics import METRICS, SHARES
from dlio_bench.reports.types import Metric, Result

MAX_POINTS = 20_000
LEAST_LABELLED = 4  # per cent: narrower pieces of a bar have no room for their number
COLOURS = ("#3f6c9b", "#d08a3c", "#5b9279", "#a65a7a", "#7a74a8", "#8a8f45", "#4fa3a5", "#9a6b4f")
PHASE_COLOURS = dict(
    zip(
        SHARES,
        ("#c8553d", "#e9b872", "#a65a7a", "#3f6c9b", "#9db4c8", "#7a74a8", "#7d9b76", "#d9d9d6"),
        strict=True,
    )
)
BYTES = {"bytes_useful": "#3f6c9b", "bytes_requested": "#9db4c8", "bytes_device": "#d08a3c"}


def times(results: Sequence[Result]) -> Figure:
    """Elapsed time of a trial and of its epochs: a bar for the median, a mark for each trial or epoch."""
    labels, colours = tables.labels(results), _reader_colours(results)
    names = [_both_axes(result, label) for result, label in zip(results, labels, strict=True)]
    table = tables.trials(results)
    table = table[~table["warmup"]]
    data: list[Figure] = []
    for axis, metric in (("", "elapsed_seconds"), ("2", "epoch_seconds")):
        values = [result.metrics[metric] for result in results]
        data.append({
            "type": "bar", "orientation": "h", "xaxis": f"x{axis}", "y": names, "x": [v.value for v in values],
            "marker": {"color": [_tint(colour) for colour in colours]}, "error_x": _error_bars(values),
            "showlegend": False, "name": "median", "hovertemplate": "%{x:.4g} s<extra>median</extra>",
        })  # fmt: skip
    for position, (label, name, colour) in enumerate(zip(labels, names, colours, strict=True)):
        rows, legend = table[table["result"] == label], position == 0
        trials = rows.drop_duplicates("trial")["trial_seconds"].tolist()
        first, later = (rows[rows["epoch"].eq(0) == is_first]["epoch_seconds"].tolist() for is_first in (True, False))
        for axis, seconds, title, symbol in (
            ("", trials, "a trial", "circle"),
            ("2", first, "a first epoch", "diamond"),
            ("2", later, "a later epoch", "circle-open"),
        ):
            data.append({
                "type": "scatter", "mode": "markers", "xaxis": f"x{axis}", "y": [name] * len(seconds), "x": seconds,
                "name": title, "legendgroup": title, "showlegend": legend and bool(seconds),
                "marker": {"color": colour, "size": 7, "symbol": symbol},
                "hovertemplate": "%{x:.4g} s<extra>%{fullData.name}</extra>",
            })  # fmt: skip
    if all(result.compute.mode != "none" for result in results):
        data.append({
            "type": "scatter", "mode": "markers", "y": names, "name": "no-I/O bound",
            "x": [result.value("no_io_seconds") for result in results],
            "marker": {"symbol": "line-ns", "size": 26, "line": {"width": 2, "color": INK}},
            "hovertemplate": "%{x:.4g} s<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    layout = drawing.layout(140 + 56 * len(results)) | {
        "bargap": 0.4,
        "xaxis": drawing.axis("trial, elapsed (s)", domain=[0, 0.48], rangemode="tozero"),
        "xaxis2": drawing.axis("epoch (s)", domain=[0.52, 1], rangemode="tozero"),
        "yaxis": drawing.axis("", autorange="reversed", showgrid=False, **GAP),
    }
    return _figure(data, layout, results)


def phases(results: Sequence[Result]) -> Figure:
    """Where the trainer's time goes: the exclusive shares of the loop, stacked to one."""
    labels = tables.labels(results)
    data = []
    for name in sentences.shares(results):
        shares = [100 * (result.metrics[name].value or 0.0) for result in results]
        texts = [f"{share:.0f} %" if share >= LEAST_LABELLED else "" for share in shares]
        light = name in ("share_stall", "share_compute")
        data.append({
            "type": "bar", "orientation": "h", "name": METRICS[name].title, "y": labels, "x": shares,
            "text": texts, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
            "textfont": {"color": "#ffffff" if light else INK}, "marker": {"color": PHASE_COLOURS[name]},
            "hovertemplate": "%{y}: %{x:.3g} %<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    layout = drawing.layout(130 + 44 * len(results)) | {
        "barmode": "stack",
        "bargap": 0.35,
        "xaxis": drawing.axis("share of the loop's wall time (%)", range=[0, 100.5]),
        "yaxis": drawing.axis("", autorange="reversed", showgrid=False, **GAP),
    }
    layout["legend"] |= {"traceorder": "normal"}
    return _figure(data, layout, results)


def stall_map(result: Result, steps: Steps, ceiling: float) -> Figure:
    """Stall of each rank and step in the median trial, seconds; `ceiling` is the colour scale's end, shared by maps."""
    grid = steps["stall"][statistics.median_trial(result)]
    cells, by_rank, by_step = _shrink(grid)
    ranks, count = cells.shape
    data = [{
        "type": "heatmap", "z": cells.tolist(), "x0": (by_step - 1) / 2, "dx": by_step, "y0": (by_rank - 1) / 2,
        "dy": by_rank, "zmin": 0, "zmax": ceiling, "colorscale": STALL_SCALE, "xgap": 1 if count <= 64 else 0,
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
    return _figure(data, layout, [result])


def stall_ceiling(pairs: Sequence[tuple[Result, Steps]]) -> float:
    """The greatest stall of any median trial, seconds: the end of the colour scale that all maps share."""
    return max(float(steps["stall"][statistics.median_trial(result)].max()) for result, steps in pairs) or 1.0


def step_times(pairs: Sequence[tuple[Result, Steps]]) -> Figure:
    """Distribution of what a step costs (its slowest rank), one curve a measured trial."""
    results = [result for result, _ in pairs]
    curves = sum(len(statistics.measured(result)) for result in results)
    data: list[Figure] = []
    for (result, steps), label, colour in zip(pairs, tables.labels(results), _result_colours(results), strict=True):
        cost = statistics.step_cost(steps)
        for number, row in enumerate(statistics.measured(result)):
            values = np.sort(cost[row])
            share = np.arange(1, len(values) + 1) / len(values)
            keep = _kept(len(values), MAX_POINTS // curves)
            data.append({
                "type": "scatter", "mode": "lines", "x": values[keep].tolist(), "y": share[keep].tolist(),
                "name": label, "legendgroup": label, "showlegend": number == 0,
                "line": {"shape": "hv", "width": 1.6, "color": colour},
                "opacity": 0.85, "hovertemplate": f"trial {result.trials[row].trial}: %{{y:.0%}} of the steps "
                "within %{x:.3g} s<extra>%{fullData.name}</extra>",
            })  # fmt: skip
    layout = drawing.layout(340) | {
        "xaxis": drawing.axis("cost of a step: stall + check + compute of its slowest rank (s)", rangemode="tozero"),
        "yaxis": drawing.axis("share of the steps", range=[0, 1.02], tickformat=".0%"),
    }
    return _figure(data, layout, results)


def scaling(results: Sequence[Result]) -> Figure:
    """Samples per second against nodes, with the line that perfect scaling from the smallest run would give."""
    data: list[Figure] = []
    readers = list(dict.fromkeys(sentences.reader(result) for result in results))
    for position, reader in enumerate(readers):
        chosen = sorted((r for r in results if sentences.reader(r) == reader), key=lambda r: r.plan.nodes)
        nodes = [result.plan.nodes for result in chosen]
        rates = [result.metrics["samples_per_second"] for result in chosen]
        values = [result.value("samples_per_second") for result in chosen]
        colour = COLOURS[position % len(COLOURS)]
        data.append({
            "type": "scatter", "mode": "lines+markers", "x": nodes, "y": values, "name": reader,
            "line": {"color": colour}, "marker": {"size": 8}, "error_y": _error_bars(rates),
        })  # fmt: skip
        data.append({
            "type": "scatter", "mode": "lines", "x": nodes, "y": [values[0] * n / nodes[0] for n in nodes],
            "line": {"color": colour, "dash": "dot", "width": 1}, "name": "perfect scaling",
            "showlegend": position == 0, "hoverinfo": "skip",
        })  # fmt: skip
    ticks = sorted({result.plan.nodes for result in results})
    layout = drawing.layout(340) | {
        "xaxis": drawing.axis("nodes", type="log", tickvals=ticks, ticktext=[str(tick) for tick in ticks]),
        "yaxis": drawing.log_axis("samples per second", [value for line in data for value in line["y"]]),
    }
    return _figure(data, layout, results)


def bytes_by_epoch(results: Sequence[Result]) -> Figure:
    """Bytes of each epoch, median over the trials: useful (the view), requested (reads), and what the storage gave."""
    table = tables.epochs(results)
    data: list[Figure] = []
    for column, colour in BYTES.items():
        values = [None if math.isnan(value) else value / 1e9 for value in table[column]]
        places = [table["result"].tolist(), [f"epoch {epoch + 1}" for epoch in table["epoch"]]]
        data.append({"type": "bar", "x": places, "y": values, "name": sentences.title(column, results),
                     "marker": {"color": colour},
                     "hovertemplate": "%{y:.4g} GB<extra>%{fullData.name}</extra>"})  # fmt: skip
    layout = drawing.layout(320) | {
        "barmode": "group",
        "bargap": 0.3,
        "xaxis": drawing.axis("", type="multicategory", showgrid=False),
        "yaxis": drawing.axis("GB (10⁹ bytes) in an epoch", rangemode="tozero"),
    }
    return _figure(data, layout, results)


def _shrink(grid: Floats) -> tuple[Floats, int, int]:
    """`grid` [ranks, steps] in blocks of (by_rank, by_step) so that it has few enough cells; a block is its maximum."""
    by_rank = by_step = 1
    side = math.isqrt(MAX_POINTS)
    if grid.size > MAX_POINTS:
        by_rank = max(1, math.ceil(grid.shape[0] / side))
        by_step = max(1, math.ceil(grid.shape[1] / (MAX_POINTS // math.ceil(grid.shape[0] / by_rank))))
    grid = np.maximum.reduceat(grid, np.arange(0, grid.shape[0], by_rank), axis=0)
    return np.maximum.reduceat(grid, np.arange(0, grid.shape[1], by_step), axis=1), by_rank, by_step


def _kept(count: int, most: int) -> npt.NDArray[np.int64]:
    """Positions 0 .. count-1, evenly thinned to about `most`, first and last always among them."""
    return np.unique(np.linspace(0, count - 1, min(count, max(most, 2))).round().astype(np.int64))


def _both_axes(result: Result, label: str) -> str:
    policy = result.policy
    return f"<b>{label}</b><br>{policy.order} · {policy.delivery}"


def _reader_colours(results: Sequence[Result]) -> list[str]:
    """One colour a reader, whatever its node count."""
    readers = list(dict.fromkeys(sentences.reader(result) for result in results))
    return [COLOURS[readers.index(sentences.reader(result)) % len(COLOURS)] for result in results]


def _result_colours(results: Sequence[Result]) -> list[str]:
    """One colour a result, again from the start when they run out."""
    return [COLOURS[position % len(COLOURS)] for position in range(len(results))]


def _error_bars(values: Sequence[Metric]) -> Figure:
    """Confidence intervals as bars, hidden when there are none."""
    known = [(value.value, *value.ci) for value in values if value.ci is not None and value.value is not None]
    if len(known) < len(values):
        return {"visible": False}
    above = [high - value for value, _, high in known]
    below = [value - low for value, low, _ in known]
    return {"type": "data", "array": above, "arrayminus": below, "color": INK, "thickness": 1.2, "width": 5}


def _epoch_lines(epoch: npt.NDArray[np.int64]) -> list[Figure]:
    edges = np.flatnonzero(np.diff(epoch)) + 0.5
    return [{"type": "line", "x0": edge, "x1": edge, "yref": "paper", "y0": 0, "y1": 1,
             "line": {"color": INK, "width": 1.2, "dash": "dot"}} for edge in edges.tolist()]  # fmt: skip


def _tint(colour: str) -> str:
    """The colour mixed with white, so that points of the full colour stand out on their bar."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(0.45 * part + 0.55 * 255):02x}" for part in parts)


def _figure(data: list[Figure], layout: Figure, results: Sequence[Result]) -> Figure:
    """Data and layout, with a watermark across the figure when a result in it is no measurement."""
    word = next((word for word in ("INVALID", "TINY") if any(_is(result, word) for result in results)), None)
    if word:
        text = "TINY: not a measurement" if word == "TINY" else "INVALID"
        size = min(48, 0.15 * layout["height"])
        layout = layout | {"annotations": [{
            "text": text, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False, "textangle": -6,
            "font": {"size": size, "color": "#8c1c13"}, "opacity": 0.3,
        }]}  # fmt: skip
    return dict(compact({"data": data, "layout": layout}))


def _is(result: Result, word: str) -> bool:
    return result.class_ == word or word in result.marks
