"""Results against limits: synthetic results with known answers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.reports import limits as limits_module
from dlio_bench.reports.judge import judge
from dlio_bench.reports.judgement import Finding, Judgement
from dlio_bench.reports.limits import Limits
from dlio_bench.reports.meetings import Steps
from dlio_bench.reports.types import Result
from tests.results import complete

Make = Callable[..., tuple[dict[str, Any], dict[str, Any]]]
Pair = tuple[Result, Steps]
ALLOWED = 'allow_marks = ["VIRTUAL NODES"]\n'
HEAD = '[cdb.prefetch."4x1"]\n'


@pytest.fixture
def make(draft_and_steps: Make) -> Callable[..., Pair]:
    """(changes to the draft, ...) -> a result of five trials and its steps, completed."""

    def made(
        change: Callable[[dict[str, Any], dict[str, Any]], Any] = lambda _draft, _steps: None,
        reader: str = "prefetch",
        nodes: int = 4,
        trials: int = 5,
    ) -> Pair:
        draft, steps = draft_and_steps(reader, nodes, trials)
        change(draft, steps)
        return complete(draft, steps), steps

    return made


def limits_of(tmp_path: Path, text: str) -> Limits:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    return limits_module.load(path)


def took(*elapsed: float) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """A change: the elapsed seconds of the timed trials."""

    def change(draft: dict[str, Any], _steps: dict[str, Any]) -> None:
        for trial, seconds in zip(draft["trials"][1:], elapsed, strict=True):
            trial["elapsed_seconds"] = seconds

    return change


def one(judgement: Judgement) -> Finding:
    [finding] = judgement.findings
    return finding


def test_a_limit_that_the_whole_interval_meets_is_a_pass(make: Callable[..., Pair], tmp_path: Path) -> None:
    text = f'{ALLOWED}{HEAD}elapsed_seconds = {{ at_most = "10.5 s" }}'
    judgement = judge([make(took(10.0, 10.1, 10.2, 10.3, 10.4))], limits_of(tmp_path, text))
    assert (judgement.class_, judgement.verdict, judgement.status) == ("ACCEPTANCE", "pass", 0)
    finding = one(judgement)
    assert (finding.found, finding.median, finding.interval, finding.ok) == (10.4, 10.2, (10.0, 10.4), True)


def test_a_limit_that_only_the_median_meets_is_missed(make: Callable[..., Pair], tmp_path: Path) -> None:
    pair = make(took(10.0, 10.1, 10.2, 10.3, 10.4))
    judgement = judge([pair], limits_of(tmp_path, f'{HEAD}elapsed_seconds = {{ at_most = "10.3 s" }}'))
    assert (judgement.class_, judgement.verdict, judgement.status) == ("EXPLORE", "fail", 1)
    by_median = f'{HEAD}elapsed_seconds = {{ at_most = "10.3 s", statistic = "median" }}'
    assert judge([pair], limits_of(tmp_path, by_median)).verdict == "pass"
    assert json.dumps(judgement.findings[0].limit) == '"at most 10.3 s"'
