"""What was predicted before a run, beside what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlio_bench.reports import tables, words

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """One prediction: `epochs` '1' or '2-5', seconds of an epoch. predicted None: not made, for `reason`."""

    label: str
    epochs: str
    predicted: float | None
    measured: float
    reason: str | None = None

    @property
    def difference(self) -> str:
        """How far the prediction is from what was measured: '+3.1 %'; too low is negative."""
        if self.predicted is None:
            return words.NOTHING
        share = self.predicted / self.measured - 1
        return f"{'+' if share >= 0 else '-'}{words.format_share(abs(share))}"


def lines(results: Sequence[Result]) -> list[Line]:
    """The predictions of all results that have one: the first epoch, and the later ones together (their median)."""
    found = []
    for label, result in zip(tables.labels(results), results, strict=True):
        prediction, metrics, epochs = result.get("prediction"), result["metrics"], result["plan"]["epochs"]
        if prediction is None:
            continue
        several = metrics["first_epoch_seconds"]["value"] is not None
        first = metrics["first_epoch_seconds" if several else "epoch_seconds"]["value"]
        found.append(Line(label, "1", prediction["first_epoch_seconds"], first, prediction["reason"]))
        if several and prediction["reason"] is None:
            later = metrics["later_epochs_seconds"]["value"]
            numbers = "2" if epochs == 2 else f"2-{epochs}"
            found.append(Line(label, numbers, prediction["later_epochs_seconds"], later))
    return found


def notes(results: Sequence[Result]) -> list[str]:
    """What a reader should know of the predictions: the description they were made from, and its gaps."""
    said: dict[str, None] = {}
    for result in results:
        if (prediction := result.get("prediction")) is not None:
            said[f"predicted before the run from the system {prediction['system']}"] = None
            said.update(dict.fromkeys(prediction["notes"]))
    return list(said)
