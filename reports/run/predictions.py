"""What was predicted before a run, beside what was measured."""

from collections.abc import Sequence

from msgspec import Struct

from dlio_bench.reports.document.types import Result
from dlio_bench.reports.run import tables
from dlio_bench.reports.view.formatting import NOTHING, format_share


class Line(Struct, frozen=True):
    """One prediction: `epochs` '1' or '2-5', seconds of an epoch. predicted None: not made, for `reason`."""

    label: str
    epochs: str
    predicted: float | None
    measured: float
    reason: str | None = None

    @property
    def difference(self) -> str:
        """How far the prediction is from what was measured: '+3.1 %'; too low is negative."""
        if self.predicted is None or not self.measured:
            return NOTHING
        share = self.predicted / self.measured - 1
        return f"{'+' if share >= 0 else '-'}{format_share(abs(share))}"


def lines(results: Sequence[Result]) -> list[Line]:
    """The predictions of all results that have one: the first epoch, and the later ones together (their median)."""
    rows = []
    for label, result in zip(tables.labels(results), results, strict=True):
        prediction, metrics, epochs = result.prediction, result.metrics, result.plan.epochs
        if prediction is None:
            continue
        first, later = metrics["first_epoch_seconds"].value, metrics["later_epochs_seconds"].value
        measured = result.value("epoch_seconds") if first is None else first
        rows.append(Line(label, "1", prediction.first_epoch_seconds, measured, prediction.reason))
        if later is not None and prediction.reason is None:
            numbers = "2" if epochs == 2 else f"2-{epochs}"
            rows.append(Line(label, numbers, prediction.later_epochs_seconds, later))
    return rows


def notes(results: Sequence[Result]) -> list[str]:
    """Notes on the predictions: the system description that they come from, and what it lacks."""
    sentences: dict[str, None] = {}
    for result in results:
        if (prediction := result.prediction) is not None:
            sentences[f"predicted before the run from the system {prediction.system}"] = None
            sentences.update(dict.fromkeys(prediction.notes))
    return list(sentences)
