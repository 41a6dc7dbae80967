"""Validation passes in text, page and tables, in the bound, and when results are compared."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dlio_bench.reports.comparing import comparable
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.run import html, tables, text
from dlio_bench.reports.view import formatting
from tests.goldens import require_golden
from tests.pages import Page
from tests.results import complete

Made = tuple[Result, dict[str, Any]]
Drafted = tuple[dict[str, Any], dict[str, Any]]
PASS_SECONDS = {"validation": 1.5, "validation_stall": 0.6, "validation_busy": 0.3}


def validating(draft: dict[str, Any]) -> None:
    draft["plan"]["validation"] = {"every_epochs": 2, "passes": 1, "order": "sequential", "samples": 8}
    for one in draft["trials"]:
        one["epochs"][0]["validation"] = None
        one["epochs"][1]["validation"] = {
            "seconds": 1.5, "bytes_useful": 40_000_000, "bytes_requested": 50_000_000, "read_seconds": 0.5
        }  # fmt: skip


def with_passes(draft_and_steps: Callable[..., Drafted], reader: str = "prefetch") -> Made:
    """One pass of 1.5 s, 0.6 of them in get, behind the second epoch."""
    draft, steps = draft_and_steps(reader)
    validating(draft)
    shape = (*steps["loop"].shape, 1)
    steps |= {name: np.full(shape, seconds) for name, seconds in PASS_SECONDS.items()}
    steps |= {"loop": steps["loop"] + 1.5, "validation_epoch": np.array([1])}
    for one in draft["trials"]:
        one["elapsed_seconds"] += 1.5
    return complete(draft, steps), steps


def test_a_validation_pass_is_told_once_in_every_output(
    draft_and_steps: Callable[..., Drafted],
) -> None:
    found, steps = with_passes(draft_and_steps)
    readers = [with_passes(draft_and_steps, reader)[0] for reader in ("naive", "prefetch")]
    texts = {"one reader": text.render([found], verbose=True), "two readers": text.render(readers, verbose=True)}
    require_golden("validation", texts)
    said = Page(html.page([(found, steps)])).text
    assert "1.5 s a pass behind every 2 epochs" in said
    rows = tables.trials([found])
    assert rows["validation_seconds"].isna().tolist()[:2] == [True, False]
    assert rows["validation_bytes_requested"][1] == 50_000_000
    # without one nothing is said of it
    assert "validation" not in text.render([complete(*draft_and_steps())], verbose=True)


def test_readers_with_other_passes_are_not_compared(draft_and_steps: Callable[..., Drafted]) -> None:
    one, other = with_passes(draft_and_steps)[0], complete(*draft_and_steps("naive"))
    assert "differ in validation passes (1 over 8 samples and none)" in comparable.refusals([one, other])[0]
    both = [with_passes(draft_and_steps, reader)[0] for reader in ("naive", "prefetch")]
    assert comparable.refusals(both) == []


def test_waiting_in_a_pass_counts_when_the_bound_is_asked_for(draft_and_steps: Callable[..., Drafted]) -> None:
    found, _ = with_passes(draft_and_steps)
    elapsed = found.metrics["elapsed_seconds"].value
    whole = (found.metrics["stall_share"].value * (elapsed - 1.5) + 0.6) / elapsed
    assert f"waited for data {formatting.format_share(whole)} of the time" in found.bound.evidence[0]
