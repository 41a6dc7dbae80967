"""The sentences that answer first: which reader is fastest, by how much, why, and what each axis of its policy gave."""

from collections.abc import Callable
from typing import Any

import pytest

from dlio_bench.reports.comparing import comparison
from dlio_bench.reports.document.types import Result
from tests.goldens import require_golden
from tests.results import complete

Drafted = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture
def made(draft_and_steps: Callable[..., Drafted]) -> Callable[..., Result]:
    """(reader, nodes, trials, change) -> a result; `change` may alter the draft and the steps first."""

    def make(reader: str = "prefetch", nodes: int = 4, trials: int = 3, change: Any = None) -> Result:
        draft, steps = draft_and_steps(reader, nodes, trials)
        if change:
            change(draft, steps)
        return complete(draft, steps)

    return make


def placed(draft: dict[str, Any], _: dict[str, Any]) -> None:
    """A placement that spares the file system two thirds of the bytes."""
    draft["policy"]["placement"] = "cooperative"
    for trial in draft["trials"]:
        for part in (trial, *trial["epochs"]):
            part["bytes_ram"] = 2 * part["bytes_requested"] // 3
            part["bytes_requested"] -= part["bytes_ram"]


def rated(elapsed: list[float]) -> Callable[..., None]:
    """Trials of these elapsed times, in seconds."""

    def change(draft: dict[str, Any], steps: dict[str, Any]) -> None:
        for trial, seconds in zip(draft["trials"][1:], elapsed, strict=True):
            trial["elapsed_seconds"] = seconds
        steps["loop"][1:] = [[seconds - 0.01] * steps["loop"].shape[1] for seconds in elapsed]

    return change


def less(draft: dict[str, Any], steps: dict[str, Any]) -> None:
    """Fewer bytes, for which no placement is the cause."""
    placed(draft, steps)
    draft["policy"]["placement"] = "none"


NOISE = {"naive": [10.0, 11, 9, 10.5, 9.5, 10], "prefetch": [10.1, 10.8, 9.2, 10.4, 9.4, 10]}
CASES: dict[str, Callable[[Any], list[Result]]] = {
    "fastest by placement": lambda made: [made("naive"), made("shuffled"), made("prefetch", change=placed)],
    "fastest with an interval": lambda made: [made("naive", trials=5), made("prefetch", trials=5)],
    "no cause is known": lambda made: [made("prefetch"), made("prefetch", change=rated([20.0, 20.1, 20.2]))],
    "reads less": lambda made: [made("naive"), made(change=less)],
    "ranges overlap": lambda made: [
        made("naive", change=rated([11.5, 12.5, 13.5])), made(change=rated([10.0, 11.0, 12.0]))
    ],
    "the interval has 1": lambda made: [made(name, trials=6, change=rated(taken)) for name, taken in NOISE.items()],
    "one trial": lambda made: [made(reader, trials=1) for reader in ("naive", "prefetch")],
    "the first is the fastest": lambda made: [made("prefetch"), made("naive"), made("shuffled")],
    "two are the fastest": lambda made: [made("naive"), made("prefetch"), made("prefetch")],
    "two node counts": lambda made: [made(reader, nodes) for nodes in (4, 1) for reader in ("naive", "prefetch")],
    "every axis apart": lambda made: [made("naive"), made("shuffled"), made("prefetch")],
    "two axes at once": lambda made: [made("naive"), made("prefetch")],
    "shuffled first": lambda made: [made("shuffled"), made("naive"), made("prefetch")],
    "the same twice": lambda made: [made("naive"), made("naive")],
    "one axis": lambda made: [made("shuffled"), made("prefetch")],
}  # fmt: skip


def told(results: list[Result]) -> str:
    """The answer, what each axis is credited with, and every reader beside the one that it differs from least."""
    beside = [sentence for each in comparison.comparisons(results) for sentence in each.sentences]
    return "\n".join([*comparison.answer(results), "credits:", *comparison.axis_sentences(results), "beside:", *beside])


def test_answers_and_credits_are_the_golden_ones(made: Callable[..., Result]) -> None:
    require_golden("answers", {name: told(of(made)) for name, of in CASES.items()}, width=250)


def test_there_is_no_answer_where_readers_may_not_be_compared(made: Callable[..., Result]) -> None:
    tiny = made(change=lambda draft, _: draft.update(marks=["TINY"]))
    for refused in ([made("naive"), tiny], [made()]):
        assert comparison.answer(refused) == []
        assert comparison.axis_sentences(refused) == []


def test_readers_that_differ_in_one_axis_alone_lead_from_one_to_the_other(made: Callable[..., Result]) -> None:
    readers = [made("naive"), made("prefetch", change=placed), made("shuffled"), made("prefetch")]
    steps = comparison.walk(readers[0], readers[1], readers)
    axes = [axis for step in steps for axis in comparison.differing_axes(*step)]
    assert axes == ["order", "delivery", "placement"]
