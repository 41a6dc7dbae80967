"""The figures of a report that show whole trials, as plain {"data", "layout", "words"} dicts in plotly.js's own terms.

Nothing here draws. `words` tell a figure to those who cannot see it, with its numbers. Figures of steps and of bytes
are in `step_figures` and `byte_figures`.
"""

from collections.abc import Sequence

from dlio_bench.reports.comparing import comparison
from dlio_bench.reports.comparing.comparable import groups, places
from dlio_bench.reports.comparing.comparison import axes_change, rows_of
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers.metrics import METRICS
from dlio_bench.reports.run import predictions, sentences, tables
from dlio_bench.reports.run.result_drawing import (
    centres,
    colours,
    error_bars,
    finish_figure,
    lay_out_rows,
    parts,
    readers_of,
    row_layout,
    rows,
)
from dlio_bench.reports.view import drawing
from dlio_bench.reports.view.drawing import INK, Figure, escape_markup
from dlio_bench.reports.view.formatting import format_share, format_time, format_times, interval, join_words, number

LEAST_LABELLED = 4  # per cent: narrower pieces of a bar have no room for their number
BAR = 24  # px of a row
BELOW = 0.2  # of a row: trials lie below the interval, which they would hide
STRONG = ("share_stall", "share_compute")  # their colours want light numbers


def times(results: Sequence[Result]) -> Figure:
    """Elapsed time of a trial: a bar for the median with its interval, a mark for each trial, and the time over the
    first reader's of the same node count on the right. results: in the order of `comparable.groups`.
    """
    shape, labels = rows(results), tables.labels(results)
    values = [result.metrics["elapsed_seconds"] for result in results]
    trials = [[trial.elapsed_seconds for trial in result.measured_trials] for result in results]
    told = [_describe_time(label, result) for label, result in zip(labels, results, strict=True)]
    data: list[Figure] = [
        {"type": "bar", "orientation": "h", "y": shape.places, "x": [value.value for value in values], "name": "median",
         "marker": {"color": colours(results), "opacity": 0.5}, "showlegend": False,
         "error_x": error_bars(centres(values)), "hovertext": [escape_markup(said) for said in told],
         "hovertemplate": "%{hovertext}<extra></extra>"},
        {"type": "scatter", "mode": "markers", "name": "a trial", "marker": {"color": INK, "size": 4},
         "y": [place + BELOW for place, seconds in zip(shape.places, trials, strict=True) for _ in seconds],
         "x": [value for seconds in trials for value in seconds],
         "hovertemplate": "%{x:.4g} s<extra>a trial</extra>"},
    ]  # fmt: skip
    if all(result.compute.mode != "none" for result in results):
        data.append({
            "type": "scatter", "mode": "markers", "y": shape.places, "name": "no-I/O bound",
            "x": [result.value("no_io_seconds") for result in results],
            "marker": {"symbol": "line-ns", "size": 14, "line": {"width": 2, "color": "--grave"}},
            "hovertemplate": "%{x:.4g} s<extra>no-I/O bound</extra>",
        })  # fmt: skip
    ends = {"type": "scatter", "mode": "markers", "x": [0], "y": [0], "yaxis": "y2", "opacity": 0, "showlegend": False,
            "hoverinfo": "skip"}  # fmt: skip
    layout = row_layout(shape, "elapsed time of a trial (s)", BAR, rangemode="tozero")
    layout["yaxis2"] = layout["yaxis"] | {"overlaying": "y", "side": "right", "ticktext": _row_ends(results)}
    return finish_figure([*data, ends], layout, f"Bars: {'; '.join(told)}.", results)


def _describe_time(label: str, result: Result) -> str:
    """'naive: 5.2 s a trial, 94 % 5.1 s … 5.3 s'."""
    metric = result.metrics["elapsed_seconds"]
    certain = (
        f", {sentences.coverage(result)} {interval(metric)}"
        if metric.ci
        else f", {sentences.describe_certainty(result)}"
    )
    return f"{label}: {number(metric)} a trial{certain}"


def _row_ends(results: Sequence[Result]) -> list[str]:
    """What stands at the end of each row: '5.2 s · 0.61×'."""
    compared = rows_of(results)
    texts = []
    for result in results:
        row = compared.get(id(result))
        beside = "" if row is None else f" · {format_times(row.ratio)[0]}×"
        texts.append(number(result.metrics["elapsed_seconds"]) + beside)
    return texts


def credit_figure(results: Sequence[Result]) -> Figure | None:
    """Elapsed time behind over before each step on the way from the slow to the fastest reader of each node count.

    None where no result lies between them.
    """
    steps: dict[str, dict[str, tuple[float, tuple[float, float] | None]]] = {}
    for place, group in zip(dict.fromkeys(places(results, results)), groups(results).values(), strict=True):
        walk = comparison.walk(*comparison.extremes(group), group) if len(group) > 1 else []
        for before, after in walk:
            axes = comparison.differing_axes(before, after)
            change = axes_change(before, after).replace("->", "→") if len(axes) == 1 else join_words(axes)
            ratio = after.value("elapsed_seconds") / before.value("elapsed_seconds")
            at = steps.setdefault(place, {})
            at[change] = ratio, comparison.elapsed_ratio_interval(before, after)
    if not steps:
        return None
    told = [
        f"{at}, {change}: {_describe_ratio(*step)}" for at, parts in steps.items() for change, step in parts.items()
    ]
    changes = [step for at in steps.values() for step in at.values()]
    shape = lay_out_rows({place: list(at) for place, at in steps.items()})
    data: list[Figure] = [
        {"type": "bar", "orientation": "h", "y": shape.places, "base": 1, "x": [ratio - 1 for ratio, _ in changes],
         "marker": {"color": ["--better" if ratio < 1 else "--worse" for ratio, _ in changes], "opacity": 0.6},
         "error_x": error_bars(changes), "hovertext": [escape_markup(said) for said in told],
         "hovertemplate": "%{hovertext}<extra></extra>", "showlegend": False}
    ]  # fmt: skip
    layout = row_layout(shape, "after / before (×)", BAR)
    layout["shapes"] = [{"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1,
                         "line": {"color": INK, "width": 1}}]  # fmt: skip
    return finish_figure(data, layout, f"Bars: {'; '.join(told)}.", results)


def _describe_ratio(ratio: float, ends: tuple[float, float] | None) -> str:
    if ends is None:
        return f"{format_times(ratio)[0]}×, no interval"
    said, low, high = format_times(ratio, *ends)
    return f"{said}× (95 % {low}-{high})"


def epochs(results: Sequence[Result]) -> Figure:
    """Time of an epoch: a bar for the median of all, and a mark for each epoch, first and later ones apart."""
    shape, labels = rows(results), tables.labels(results)
    values = [result.metrics["epoch_seconds"] for result in results]
    data: list[Figure] = [
        {"type": "bar", "orientation": "h", "y": shape.places, "x": [value.value for value in values], "name": "median",
         "marker": {"color": colours(results), "opacity": 0.5}, "showlegend": False,
         "error_x": error_bars(centres(values)), "hovertemplate": "%{x:.4g} s<extra>median</extra>"}
    ]  # fmt: skip
    for first, name, symbol in ((True, "a first epoch", "diamond"), (False, "a later epoch", "circle-open")):
        seconds = [
            (place, epoch.seconds)
            for place, result in zip(shape.places, results, strict=True)
            for trial in result.measured_trials
            for epoch in trial.epochs
            if (epoch.epoch == 0) is first
        ]
        if seconds:
            data.append({
                "type": "scatter", "mode": "markers", "name": name, "x": [value for _, value in seconds],
                "y": [place for place, _ in seconds], "marker": {"color": INK, "size": 6, "symbol": symbol},
                "hovertemplate": "%{x:.4g} s<extra>%{fullData.name}</extra>",
            })  # fmt: skip
    told = [_describe_epochs(label, result) for label, result in zip(labels, results, strict=True)]
    layout = row_layout(shape, "time of an epoch (s)", BAR, rangemode="tozero")
    return finish_figure(data, layout, f"Bars: {'; '.join(told)}.", results)


def _describe_epochs(label: str, result: Result) -> str:
    metrics = result.metrics
    if metrics["later_epochs_seconds"].value is None:
        return f"{label}: {number(metrics['epoch_seconds'])} an epoch"
    first, later = (number(metrics[f"{which}_seconds"]) for which in ("first_epoch", "later_epochs"))
    return f"{label}: first epoch {first}, a later one {later}"


def phases(results: Sequence[Result]) -> Figure:
    """Where the trainer's time goes: the exclusive shares of the loop, stacked to one."""
    shape, labels = rows(results), tables.labels(results)
    names = sentences.shares(results)
    data: list[Figure] = []
    for name in names:
        shares = [100 * (result.metrics[name].value or 0.0) for result in results]
        data.append({
            "type": "bar", "orientation": "h", "name": METRICS[name].title, "y": shape.places, "x": shares,
            "text": [f"{share:.0f} %" if share >= LEAST_LABELLED else "" for share in shares],
            "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
            "textfont": {"color": "--on-strong" if name in STRONG else "--on-pale"},
            "marker": {"color": f"--{name.replace('_', '-')}"},
            "hovertemplate": "%{x:.3g} %<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    layout = row_layout(shape, "share of the loop (%)", BAR, range=[0, 100.5]) | {"barmode": "stack"}
    layout["legend"] |= {"traceorder": "normal"}
    told = [
        f"{label}: " + ", ".join(
            f"{METRICS[name].title} {format_share(share)}" for name in names if (share := result.metrics[name].value)
        )
        for label, result in zip(labels, results, strict=True)
    ]  # fmt: skip
    return finish_figure(data, layout, f"Stacked bars: {'; '.join(told)}.", results)


def scaling(results: Sequence[Result]) -> Figure:
    """Samples per second against nodes, with the line that perfect scaling from the smallest run would give."""
    data: list[Figure] = []
    told = []
    readers = readers_of(results)
    for reader, colour in dict(zip(readers, colours(results), strict=True)).items():
        chosen = [result for result, name in zip(results, readers, strict=True) if name == reader]
        nodes = [result.plan.nodes for result in chosen]
        rates = [result.metrics["samples_per_second"] for result in chosen]
        values = [result.value("samples_per_second") for result in chosen]
        data.append({
            "type": "scatter", "mode": "lines+markers", "x": nodes, "y": values, "name": drawing.lines(reader),
            "line": {"color": colour}, "marker": {"size": 8}, "error_y": error_bars(centres(rates)),
            "hovertemplate": "%{x} nodes: %{y:.4g} samples/s<extra>%{fullData.name}</extra>",
        })  # fmt: skip
        data.append({
            "type": "scatter", "mode": "lines", "x": nodes, "y": [values[0] * n / nodes[0] for n in nodes],
            "line": {"color": colour, "dash": "dot", "width": 1}, "name": "perfect scaling",
            "showlegend": len(data) == 1, "hoverinfo": "skip",
        })  # fmt: skip
        at = join_words([str(count) for count in nodes])
        told.append(f"{reader}: {join_words(list(map(number, rates)))} samples/s on {at} nodes")
    ticks = sorted({result.plan.nodes for result in results})
    layout = drawing.layout(340) | {
        "xaxis": drawing.axis("nodes", type="log", tickvals=ticks, ticktext=[str(tick) for tick in ticks]),
        "yaxis": drawing.log_axis("samples per second", [value for line in data for value in line["y"]]),
    }
    return finish_figure(data, layout, f"Lines: {'; '.join(told)}.", results)


def prediction_figure(results: Sequence[Result]) -> Figure | None:
    """Seconds of an epoch as predicted before the run, beside those measured; None where nothing was predicted."""
    made = [line for line in predictions.lines(results) if line.predicted is not None]
    if not made:
        return None
    shape = parts([line.label for line in made], [f"epoch {line.epochs}" for line in made], results)
    data: list[Figure] = [
        {"type": "bar", "orientation": "h", "y": shape.places, "x": [line.measured for line in made],
         "name": "measured", "marker": {"color": "--accent", "opacity": 0.5},
         "hovertemplate": "%{x:.4g} s<extra>measured</extra>"},
        {"type": "scatter", "mode": "markers", "y": shape.places, "x": [line.predicted for line in made],
         "name": "predicted",
         "marker": {"color": "--grave", "size": 10, "symbol": "diamond-open", "line": {"width": 2}},
         "hovertemplate": "%{x:.4g} s<extra>predicted</extra>"},
    ]  # fmt: skip
    told = [
        f"{line.label}, epoch {line.epochs}: predicted {format_time(line.predicted or 0.0)}, measured "
        f"{format_time(line.measured)}" for line in made
    ]  # fmt: skip
    layout = row_layout(shape, "time of an epoch (s)", BAR, rangemode="tozero")
    return finish_figure(data, layout, f"Bars and marks: {'; '.join(told)}.", results)
