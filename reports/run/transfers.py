"""Where the bytes of each epoch came from, so that no one takes a cache for the storage."""

from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct

from dlio_bench.reports.document.trials import Epoch
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.run import sentences, tables
from dlio_bench.reports.view.formatting import NOTHING, size

CACHED = "caches"
SOURCES = ("bytes_requested", "bytes_device", CACHED, "bytes_ram", "bytes_local", "bytes_remote")  # the columns
TIERS = ("bytes_ram", "bytes_local", "bytes_remote")


class SourceRow(Struct, frozen=True):
    """Bytes of some epochs ('2-5') of a result by source: the medians over the trials. copied: whether tiers or other
    ranks delivered some. misses: samples that other ranks were to send, and did not.

    cells: those of SOURCES in words; values: those of
    SOURCES, and `bytes_useful`, of the first of the epochs; None where nobody counted them.
    """

    label: str
    epochs: str
    cells: tuple[str, ...]
    values: Mapping[str, float | None]
    copied: bool
    misses: float


def titles(results: Sequence[Result]) -> list[str]:
    """The titles of the columns."""
    return [CACHED if name == CACHED else sentences.title(name, results) for name in SOURCES]


def rows(results: Sequence[Result]) -> list[SourceRow]:
    """The rows of all results, epochs of equal figures folded into one."""
    folded: list[SourceRow] = []
    for label, result in zip(tables.labels(results), results, strict=True):
        first = 0
        for number in range(len(result.measured_trials[0].epochs)):
            epochs = [trial.epochs[number] for trial in result.measured_trials]
            values = {name: _bytes(epochs, name) for name in (*SOURCES, "bytes_useful")}
            cells = tuple(_format_cell(name, values[name]) for name in SOURCES)
            misses = _median(epochs, "remote_misses") or 0.0
            if number and (folded[-1].cells, round(folded[-1].misses)) == (cells, round(misses)):
                same = folded.pop()
                epoch_numbers, misses, values = f"{first + 1}-{number + 1}", same.misses, dict(same.values)
            else:
                first, epoch_numbers = number, str(number + 1)
            copied = any(_median(epochs, name) for name in TIERS)
            folded.append(SourceRow(label, epoch_numbers, cells, values, copied, misses))
    return folded


def _bytes(epochs: Sequence[Epoch], source: str) -> float | None:
    """What a cache served the emulation counts; else it is what was requested and no device delivered, at least."""
    if source != CACHED:
        return _median(epochs, source)
    device, counted = _median(epochs, "bytes_device"), _median(epochs, "bytes_client_cache")
    if counted is not None or device is None:
        return counted
    return max(0.0, (_median(epochs, "bytes_requested") or 0.0) - device)


def _median(epochs: Sequence[Epoch], name: str) -> float | None:
    values = [getattr(epoch, name) for epoch in epochs]
    return None if None in values else float(median(values))


def _format_cell(source: str, value: float | None) -> str:
    return NOTHING if source in TIERS and not value else size(value)
