"""The figure of a report that shows bytes: by epoch, where they came from."""

from collections.abc import Sequence

from dlio_bench.reports.document.types import Result
from dlio_bench.reports.run import sentences, transfers
from dlio_bench.reports.run.result_drawing import finish_figure, parts, row_layout
from dlio_bench.reports.view.drawing import INK, Figure, escape_markup
from dlio_bench.reports.view.formatting import size

ROW = 22  # px
SERVED = {"bytes_device": "--from-device", transfers.CACHED: "--from-caches", "bytes_ram": "--from-ram",
          "bytes_local": "--from-local", "bytes_remote": "--from-remote"}  # fmt: skip


def bytes_by_epoch(results: Sequence[Result]) -> Figure:
    """Bytes of an epoch by who delivered them, medians over the trials; marks for those that the trainer was given
    (useful) and those that the reader requested of the file system. Equal epochs share a row.

    Where nobody counted what the device delivered, what was requested stands for device and caches together.
    """
    table = transfers.rows(results)
    shape = parts([row.label for row in table], [f"epoch {row.epochs}" for row in table], results)
    plain_bar: Figure = {"type": "bar", "orientation": "h", "y": shape.places}
    data: list[Figure] = []
    unknown = [row.values["bytes_device"] is None for row in table]
    sources = {"bytes_requested": "--from-anywhere"} | SERVED if any(unknown) else SERVED
    for source, colour in sources.items():
        values = [
            None if (source == "bytes_requested" and not is_unknown) or (source == transfers.CACHED and is_unknown)
            else row.values[source] for row, is_unknown in zip(table, unknown, strict=True)
        ]  # fmt: skip
        if source in ("bytes_device", "bytes_requested") or any(values):
            data.append(plain_bar | {
                "x": [None if value is None else value / 1e9 for value in values], "name": _title(source, results),
                "marker": {"color": colour}, "hovertext": [size(value) for value in values],
                "hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>",
            })  # fmt: skip
    for name, symbol, width in (("bytes_useful", "line-ns", 3), ("bytes_requested", "circle-open", 1.5)):
        values = [row.values[name] for row in table]
        data.append({
            "type": "scatter", "mode": "markers", "y": shape.places, "name": name.removeprefix("bytes_"),
            "x": [None if value is None else value / 1e9 for value in values],
            "marker": {"symbol": symbol, "size": 11, "color": INK, "line": {"width": width, "color": INK}},
            "hovertext": [size(value) for value in values],
            "hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    told = [f"{row.label}, epoch {row.epochs}: {_describe_row(row, results)}" for row in table]
    layout = row_layout(shape, "GB (10⁹ bytes)", ROW, rangemode="tozero") | {"barmode": "stack"}
    layout["legend"] |= {"traceorder": "normal"}
    return finish_figure(data, layout, f"Stacked bars: {'; '.join(told)}.", results)


def _title(source: str, results: Sequence[Result]) -> str:
    if source == "bytes_requested":
        return f"{sentences.storage(results)} or caches"
    return transfers.CACHED if source == transfers.CACHED else escape_markup(sentences.title(source, results))


def _describe_row(row: transfers.SourceRow, results: Sequence[Result]) -> str:
    told = [f"{title} {cell}" for title, cell in zip(transfers.titles(results), row.cells, strict=True) if cell != "-"]
    return ", ".join([f"useful {size(row.values['bytes_useful'])}", *told])
