"""Results from the files and folders that a user names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.reports.document.collection import load_all
from dlio_bench.reports.document.result import save
from tests.results import complete

Made = Callable[..., tuple[dict[str, Any], dict[str, Any]]]


def test_results_come_in_the_order_of_their_run_and_once(draft_and_steps: Made, tmp_path: Path) -> None:
    for second, reader in enumerate(("shuffled", "naive", "prefetch")):
        draft, steps = draft_and_steps(reader, 1, 2)
        draft["created"] = f"2026-11-21T01:40:0{second}+00:00"
        save(complete(draft, steps), steps, tmp_path / reader)

    def readers(*paths: Path) -> list[str | None]:
        return [result.policy.alias for result, _ in load_all(paths)]

    assert readers(tmp_path) == ["shuffled", "naive", "prefetch"]
    assert readers(tmp_path / "prefetch", tmp_path) == ["prefetch", "shuffled", "naive"]
    assert readers(tmp_path / "naive" / "result.json") == ["naive"]


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no result\.json in it or below it"):
        load_all([tmp_path])
