"""The sentences that answer first: which reader is fastest, by how much, why, and what each axis of its policy gave."""

from collections.abc import Callable
from typing import Any

import pytest

from dlio_bench.reports.comparing import comparison
from dlio_bench.reports.document.types import Result
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


def test_answer_names_the_fastest_the_ratio_and_the_cause(made: Callable[..., Result]) -> None:
    few = comparison.answer([made("naive"), made("shuffled"), made("prefetch", change=placed)])
    assert few == [
        "prefetch takes 0.65 × the time of naive (no interval: 3 trials): its placement saves 1.51 GB of 2.26 GB from "
        "the file system; it reads ahead and waits 2.61 s for data, not 5.81 s"
    ]
    (many,) = comparison.answer([made("naive", trials=5), made("prefetch", trials=5)])
    assert many.startswith("prefetch takes 0.65 × the time of naive (95 % 0.65-0.66): it reads ahead and waits ")


def test_nothing_is_claimed_that_the_numbers_do_not_show(made: Callable[..., Result]) -> None:
    (slower,) = comparison.answer([made("prefetch"), made("prefetch", change=rated([20.0, 20.1, 20.2]))])
    assert slower.endswith("the time of prefetch #2 (no interval: 3 trials)")  # nobody waits less: no cause is known

    def less(draft: dict[str, Any], steps: dict[str, Any]) -> None:
        placed(draft, steps)
        draft["policy"]["placement"] = "none"

    assert "it reads less, by 1.51 GB of 2.26 GB" in comparison.answer([made("naive"), made(change=less)])[0]


def test_no_difference_is_shown_where_the_interval_has_1_or_the_ranges_overlap(made: Callable[..., Result]) -> None:
    one, other = made(change=rated([10.0, 11.0, 12.0])), made("naive", change=rated([11.5, 12.5, 13.5]))
    assert comparison.answer([other, one]) == [
        "prefetch and naive do not differ measurably: 0.88 × (no interval: 3 trials)"
    ]
    noisy = [
        made(reader, trials=6, change=rated(elapsed))
        for reader, elapsed in (("naive", [10.0, 11, 9, 10.5, 9.5, 10]), ("prefetch", [10.1, 10.8, 9.2, 10.4, 9.4, 10]))
    ]
    (said,) = comparison.answer(noisy)
    assert "do not differ measurably" in said
    assert "(95 % " in said
    single = [made(reader, trials=1) for reader in ("naive", "prefetch")]
    assert "(no interval: 1 trial, so it may be chance)" in comparison.answer(single)[0]


def test_the_first_reader_may_be_the_fastest(made: Callable[..., Result]) -> None:
    (said,) = comparison.answer([made("prefetch"), made("naive"), made("shuffled")])
    assert said.startswith("prefetch takes 0.79 × the time of shuffled, the next fastest (")
    equal = [made("naive"), made("prefetch"), made("prefetch")]
    assert comparison.answer(equal)[0].endswith("; it and prefetch #2 do not differ measurably")


def test_there_is_an_answer_for_each_node_count_and_none_where_readers_may_not_be_compared(
    made: Callable[..., Result],
) -> None:
    both = [made(reader, nodes) for nodes in (4, 1) for reader in ("naive", "prefetch")]
    assert [said[:23] for said in comparison.answer(both)] == ["at 1 node prefetch take", "at 4 nodes prefetch tak"]
    tiny = made(change=lambda draft, _: draft.update(marks=["TINY"]))
    for refused in ([made("naive"), tiny], [made()]):
        assert comparison.answer(refused) == []
        assert comparison.credits(refused) == []


def test_each_axis_is_credited_by_readers_that_differ_in_it_alone(made: Callable[..., Result]) -> None:
    readers = [made("naive"), made("prefetch", change=placed), made("shuffled"), made("prefetch")]
    assert comparison.credits(readers[:1] + readers[2:]) == [
        "from naive to prefetch: order (sequential -> global-shuffle) 0.83 ×; delivery (on demand -> ahead) 0.79 ×"
    ]
    assert comparison.credits([readers[0], readers[3]]) == [
        "naive and prefetch differ in order and delivery; add --reader shuffled,double-buffer to see what each "
        "contributes"
    ]
    assert comparison.credits(readers[2:]) == [
        "delivery (on demand -> ahead) alone differs between shuffled and prefetch"
    ]
    assert comparison.credits([readers[0], readers[2], readers[1]])[0].startswith(
        "from naive to prefetch: order (sequential -> global-shuffle) 0.83 ×; placement and delivery (none, on demand"
    )
    steps = comparison.walk(readers[0], readers[1], readers)
    axes = [axis for step in steps for axis in comparison.axes_changed(*step)]
    assert axes == ["order", "delivery", "placement"]
