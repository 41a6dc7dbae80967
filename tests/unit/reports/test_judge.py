"""Results against limits: synthetic results with known answers."""

import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dlio_bench.reports import kinds
from dlio_bench.reports.document.marks import ALTERED, MARKS, SERVED, capping
from dlio_bench.reports.document.types import Metric, Result
from dlio_bench.reports.export import junit
from dlio_bench.reports.judging import judge as judging
from dlio_bench.reports.judging import limits
from dlio_bench.reports.judging import text as judgement_text
from dlio_bench.reports.judging.judgement import Judgement, Unreadable, as_json
from dlio_bench.reports.judging.limits import Limits
from dlio_bench.reports.numbers.intervals import spread
from dlio_bench.reports.numbers.meetings import Steps
from tests.goldens import require_golden
from tests.results import complete

Pair = tuple[Result, Steps]
Change = Callable[[dict[str, Any], dict[str, Any]], object]
Make = Callable[..., Pair]
ALLOWED = 'allow_marks = ["VIRTUAL NODES"]\n'
EASY = '[cdb.prefetch."4x1"]\nelapsed_seconds = { at_most = "1 h" }\n'


def judge(pairs: Sequence[Pair], *arguments: Any, **options: Any) -> Judgement:
    return judging.judge(kinds.all_measured(pairs), *arguments, **options)


@pytest.fixture
def make(draft_and_steps: Callable[..., tuple[dict[str, Any], dict[str, Any]]]) -> Make:
    """(change to draft and steps, reader, nodes, trials) -> a result and its steps."""

    def made(change: Change | None = None, reader: str = "prefetch", nodes: int = 4, trials: int = 5) -> Pair:
        draft, steps = draft_and_steps(reader, nodes, trials)
        if change is not None:
            change(draft, steps)
        return complete(draft, steps), steps

    return made


@pytest.fixture
def asked(tmp_path: Path) -> Callable[[str], Limits]:
    """The limits of a text."""

    def load(text: str) -> Limits:
        path = tmp_path / "limits.toml"
        path.write_text(text)
        return limits.load(path)

    return load


Asked = Callable[[str], Limits]


def took(*elapsed: float) -> Change:
    """A change: the elapsed seconds of the timed trials."""

    def change(draft: dict[str, Any], _steps: dict[str, Any]) -> None:
        for trial, seconds in zip(draft["trials"][1:], elapsed, strict=True):
            trial["elapsed_seconds"] = seconds

    return change


def outcome(judgement: Judgement) -> tuple[str, str, int]:
    return judgement.class_, judgement.verdict, judgement.status


def rules(judgement: Judgement) -> list[str]:
    return [reason.rule for judged in judgement.results for reason in judged.reasons]


def test_a_limit_that_the_whole_interval_meets_is_a_pass(make: Make, asked: Asked) -> None:
    pair = make(took(10.0, 10.1, 10.2, 10.3, 10.4))
    judgement = judge([pair], asked(f'{ALLOWED}[cdb.prefetch."4x1"]\nelapsed_seconds = {{ at_most = "10.4 s" }}'))
    assert outcome(judgement) == ("ACCEPTANCE", "pass", 0)
    [finding] = judgement.findings
    assert (finding.found, finding.median, finding.interval, finding.ok) == (10.4, 10.2, (10.0, 10.4), True)


def test_a_limit_that_lies_within_the_interval_is_undecided(make: Make, asked: Asked) -> None:
    pair = make(took(10.0, 10.1, 10.2, 10.3, 10.4))
    at_most, at_least = '{{ at_most = "10.3 s"{} }}', '{{ at_least = "10.1 s"{} }}'
    for side, end in ((at_most, 10.4), (at_least, 10.0)):
        judgement = judge([pair], asked(f'[cdb.prefetch."4x1"]\nelapsed_seconds = {side.format("")}'))
        assert outcome(judgement) == ("EXPLORE", "undecided", 6)
        [finding] = judgement.findings
        assert (finding.found, finding.ok, finding.undecided, finding.coverage) == (end, None, True, 0.9375)
        told = judgement_text.render(judgement)
        assert "EXPLORE, UNDECIDED\n  1 of 1 limit undecided: more trials may decide (--trials)" in told
        assert "undecided  elapsed_seconds" in told
        [case] = ET.fromstring(junit.of_judgement(judgement)).iter("testcase")
        assert [(child.tag, child.get("type")) for child in case] == [("error", "UNDECIDED")]
        median = side.format(', statistic = "median"')
        assert judge([pair], asked(f'[cdb.prefetch."4x1"]\nelapsed_seconds = {median}')).verdict == "pass"
    missed = asked('[cdb.prefetch."4x1"]\nelapsed_seconds = { at_most = "9.9 s" }')
    assert outcome(judge([pair], missed)) == ("EXPLORE", "fail", 1)


def test_too_few_trials_decide_nothing_however_good_they_are(make: Make, asked: Asked) -> None:
    for trials, text in ((1, EASY), (4, EASY), (5, f"trials = 6\n{EASY}")):
        judgement = judge([make(trials=trials)], asked(text))
        assert (outcome(judgement), rules(judgement)) == (("EXPLORE", "undecided", 6), ["trials"])
        [finding] = judgement.findings
        assert (finding.ok, finding.undecided) == (None, True)
        assert "the limits ask for" in str(finding.reason)
    bad = {"name": "clock", "ok": False, "expected": "none", "found": "some"}
    spoiled = make(lambda draft, _: draft["checks"].append(bad), trials=1)
    assert outcome(judge([spoiled], asked(EASY))) == ("INVALID", "invalid", 3)


def test_one_bad_rank_misses_the_limit_of_the_worst_rank_alone(make: Make, asked: Asked) -> None:
    def one_waits(_draft: dict[str, Any], steps: dict[str, Any]) -> None:
        steps["stall"][:, 3, 1:] += 0.05

    text = '[cdb.prefetch."4x1"]\nown_stall_share = { at_most = "47 %" }\n'
    text += 'own_stall_share_worst_rank = { at_most = "50 %" }'
    assert judge([make()], asked(text)).verdict == "pass"
    judgement = judge([make(one_waits)], asked(text))
    assert {finding.metric: finding.ok for finding in judgement.findings} == {
        "own_stall_share": True,
        "own_stall_share_worst_rank": False,
    }


def test_spread_is_the_largest_distance_from_the_median_trial(make: Make, asked: Asked) -> None:
    pair = make(took(10.0, 10.0, 10.0, 10.0, 9.0))
    judgement = judge([pair], asked('[cdb.prefetch."4x1"]\nspread = { at_most = "5 %" }'))
    assert (judgement.status, judgement.findings[0].found) == (1, 0.1)
    assert spread(np.array([8.0, 10.0, 11.0])) == 0.2


def test_the_rate_is_judged_as_a_share_of_the_measured_ceiling(make: Make, asked: Asked) -> None:
    text = '[cdb.prefetch."4x1"]\nceiling_share = { at_least = "30 %" }'
    ceiling = {"bytes_per_second": 1e9, "folder": "/data"}
    judgement = judge([make(lambda draft, _: draft["environment"].update(ceiling=ceiling))], asked(text))
    [finding] = judgement.findings
    assert judgement.verdict == "pass"
    assert finding.interval is not None
    assert finding.found == finding.interval[0] < 0.39
    assert rules(judge([make()], asked(text))) == ["metrics"]


def test_who_measures_less_than_the_limits_ask_is_invalid(make: Make, asked: Asked) -> None:
    def fails(name: str) -> Change:
        check = {"name": name, "ok": False, "expected": "none", "found": "some"}
        return lambda draft, _: draft["checks"].append(check)

    def warm(draft: dict[str, Any], _steps: dict[str, Any]) -> None:
        draft["plan"]["cache"] = "warm"

    cases: list[tuple[str, Pair, list[str], int]] = [
        ("min_seconds = 60", make(), ["min_seconds"], 3),
        ("min_steps = 17", make(), ["min_steps"], 3),
        ('cache = "cold"', make(warm), ["cache"], 3),
        ("", make(fails("cold cache")), ["cold cache"], 3),
        ("", make(fails("content")), ["content"], 5),
        ("dataset_to_memory = 5", make(), ["dataset_to_memory"], 3),
        ('node_bandwidth = "90 MB/s"', make(), ["node_bandwidth"], 3),
        ('trials = 5\nmin_seconds = 5\nmin_steps = 16\ncache = "cold"\nnode_bandwidth = "1 GB/s"', make(), [], 0),
        ("dataset_to_memory = 0.15", make(), [], 0),
    ]
    for text, pair, broken, status in cases:
        judgement = judge([pair], asked(f"{text}\n{EASY}"))
        assert (rules(judgement), judgement.status) == (broken, status), text
        if broken:
            assert outcome(judgement)[:2] == ("INVALID", "invalid")
            assert [finding.ok for finding in judgement.findings] == [None]


def test_a_cache_that_was_seen_to_be_cold_counts_for_a_small_dataset(make: Make, asked: Asked) -> None:
    check = {"name": "cold cache", "ok": True, "expected": "at most 1 %", "found": "0 %"}

    def hidden(draft: dict[str, Any], _steps: dict[str, Any]) -> None:
        draft["checks"].append(check)
        draft["trials"][3]["cache"]["hosts"]["node01"]["attestable"] = False

    text = f"dataset_to_memory = 5\n{EASY}"
    assert judge([make(lambda draft, _: draft["checks"].append(check))], asked(text)).verdict == "pass"
    assert rules(judge([make(hidden)], asked(text))) == ["dataset_to_memory"]


def test_every_mark_but_one_caps_the_class_and_no_verdict(make: Make, asked: Asked) -> None:
    result, steps = make()
    for mark in set(MARKS) - {SERVED}:
        pair = replace(result, marks=[mark]), steps
        expected = "ACCEPTANCE" if mark == "REDUCED BATCH" else "EXPLORE"
        assert outcome(judge([pair], asked(EASY))) == (expected, "pass", 0), mark
        if mark != "TINY":
            assert judge([pair], asked(f'allow_marks = ["{mark}"]\n{EASY}')).class_ == "ACCEPTANCE"


def test_bytes_of_a_cache_are_invalid_where_cold_was_asked_for(make: Make, asked: Asked) -> None:
    """The first epoch of two was read from the device; no limits can allow that, and the rule of memory holds again."""

    def served(draft: dict[str, Any], _steps: dict[str, Any]) -> None:
        draft["checks"].append({"name": "cold cache", "ok": True, "expected": "at most 1 %", "found": "0 %"})
        draft["plan"]["cache"] = "first-epoch-cold"
        for trial in draft["trials"]:
            trial["epochs"][1]["bytes_device"] = 0
            trial["bytes_device"] = trial["epochs"][0]["bytes_device"]

    result, steps = make(served)
    rate = result.metrics["pfs_bandwidth"].value or 0
    first = [trial.epochs[0] for trial in result.measured_trials]
    assert rate <= max(epoch.bytes_requested / epoch.seconds for epoch in first)
    text = f'dataset_to_memory = 5\nallow_marks = ["{SERVED}", "VIRTUAL NODES"]\n{EASY}'
    assert judge([(result, steps)], asked(EASY)).verdict == "pass"
    marked = replace(result, marks=[SERVED])
    assert rules(judge([(marked, steps)], asked(text))) == ["served from cache", "dataset_to_memory"]


def test_no_limits_allow_shrunken_samples(make: Make, asked: Asked) -> None:
    assert capping(["TINY", "SHORT"], ["TINY", "SHORT"]) == ["TINY"]
    result, steps = make()
    judgement = judge([(replace(result, marks=["TINY", "SHORT"]), steps)], asked(EASY))
    assert "EXPLORE at best with SHORT, which allow_marks does not name" in judgement.reasons
    assert any(
        reason.startswith("EXPLORE at best with TINY, which allow_marks may not name") for reason in judgement.reasons
    )


def test_another_processors_last_digits_change_nothing(make: Make, asked: Asked) -> None:
    """A result of an earlier schema has its metrics worked out where it is judged."""
    result, steps = make()
    au = result.metrics["au"]
    assert au.value is not None
    near = replace(result, metrics=result.metrics | {"au": replace(au, value=au.value * (1 + 1e-13))})
    text = '[cdb.prefetch."4x1"]\nau = { at_least = "10 %" }'
    assert as_json(judge([(near, steps)], asked(text))) == as_json(judge([(result, steps)], asked(text)))


def test_numbers_that_do_not_follow_from_the_steps_are_named(make: Make, asked: Asked) -> None:
    result, steps = make()
    metrics = result.metrics | {"au": Metric(0.99, "share", result.metrics["au"].ci)}
    judgement = judge([(replace(result, metrics=metrics), steps)], asked(EASY))
    [reason] = judgement.results[0].reasons
    assert (judgement.status, reason.rule) == (3, "metrics")
    assert reason.text == "metrics.au is 0.99, its steps give 0.591985"
    marked = replace(result, marks=[*result.marks, ALTERED])
    assert rules(judge([(marked, steps)], asked(EASY))) == ["altered"]
    assert judge([(marked, steps), make(nodes=1)], asked(EASY.replace("4x1", "1x1"))).status == 3


def test_what_is_named_must_be_measured_and_what_is_not_named_does_not_count(make: Make, asked: Asked) -> None:
    text = f'{EASY}[cdb."*"."8x1"]\nau = {{ at_least = "1 %" }}'
    pairs = [make(), make(reader="naive", trials=2)]
    judgement = judge(pairs, asked(text))
    assert outcome(judgement) == ("INVALID", "invalid", 3)
    [missing] = judgement.missing
    assert (missing.table, missing.metric, missing.chosen) == ("cdb.*.8x1", "au", True)
    assert {judged.reader: judged.verdict for judged in judgement.results} == {"naive": "none", "prefetch": "pass"}
    partial = judge(pairs, asked(text), partial=True)
    assert (partial.verdict, [finding.chosen for finding in partial.missing]) == ("pass", [False])
    assert judge([make(nodes=1)], asked(text), partial=True).verdict == "invalid"
    assert judge([], asked(EASY)).status == 3


def test_all_tables_that_cover_a_result_hold_for_it(make: Make, asked: Asked) -> None:
    text = f'{EASY}[cdb."*"."*"]\nelapsed_seconds = {{ at_most = "1 ms" }}'
    judgement = judge([make()], asked(text))
    assert {finding.table: finding.ok for finding in judgement.findings} == {"cdb.prefetch.4x1": True, "cdb.*.*": False}
    by_row = EASY.replace("prefetch", '"double-buffer"')  # the row that the user called prefetch
    assert judge([make()], asked(by_row)).verdict == "pass"


def test_of_two_results_both_must_hold(make: Make, asked: Asked) -> None:
    good, bad = make(took(8.0, 8.0, 8.0, 8.0, 8.0)), make(took(9.0, 9.0, 9.0, 9.0, 9.0))
    text = '[cdb.prefetch."4x1"]\nelapsed_seconds = { at_most = "8.5 s" }'
    judgement = judge([good, bad, good], asked(text))  # a copy of the same result counts once
    assert (judgement.status, len(judgement.results)) == (1, 2)
    assert "cdb · prefetch · 4x1 has 2 results: each must hold every limit" in judgement.reasons
    assert as_json(judgement) == as_json(judge([bad, good], asked(text)))


def mixed(make: Make, asked: Asked) -> Judgement:
    """A judgement with a pass, a miss, an INVALID result, a missing one, one that no limit is for, a broken file."""
    text = (
        f'version = "2026-1"\ncache = "cold"\nmin_seconds = 2.5\n{ALLOWED}'
        + """
[cdb.prefetch."4x1"]
delivered_bandwidth = { at_least = "400 MB/s" }
own_stall_share_worst_rank = { at_most = "50 %" }
spread = { at_most = "5 %" }
stall_share = { at_most = "37.5 %", statistic = "median" }
[cdb.prefetch."1x1"]
au = { at_least = "10 %" }
[cdb.naive."4x1"]
au = { at_least = "10 %" }
[cdb."*"."8x1"]
samples_per_second = { at_least = 20 }
"""
    )

    def hostile(draft: dict[str, Any], _steps: dict[str, Any]) -> None:
        draft["checks"][1].update(ok=False, found="\x1b[2J <&> \ud7ff\x00 3 fields differ")

    pairs = [make(), make(nodes=1), make(hostile, reader="naive"), make(reader="shuffled")]
    return judge(pairs, asked(text), [Unreadable("cdb/result.json", "'cdb/result.json' is not JSON")])


def test_the_text_is_the_golden_one(make: Make, asked: Asked) -> None:
    require_golden("judgement", {"several results": judgement_text.render(mixed(make, asked))})


# acceptance systems read these: attributes of the JUnit schema of the Apache project
SUITE = {"name", "package", "id", "tests", "failures", "errors", "skipped", "hostname", "time", "timestamp"}


def test_junit_counts_what_its_cases_say(make: Make, asked: Asked) -> None:
    root = ET.fromstring(junit.of_judgement(mixed(make, asked)))
    [suite] = root
    assert set(suite.attrib) == SUITE
    assert suite.attrib["timestamp"] == "2026-11-21T01:40:00"
    cases = {str(case.get("name")): case for case in suite.iter("testcase")}
    assert all(set(case.attrib) == {"classname", "name", "time"} for case in cases.values())
    assert all("e" not in str(case.get("time")) for case in cases.values())
    ends = {name: case[0].tag for name, case in cases.items()}
    assert ends == {
        "prefetch 4x1": "failure", "prefetch 1x1": "system-out", "naive 4x1": "error", "* 8x1": "error",
        "shuffled 4x1": "skipped", "cdb/result.json": "error",
    }  # fmt: skip
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert suite.attrib[attribute] == str(list(ends.values()).count(tag))
    assert suite.attrib["tests"] == "6"
    [failure] = cases["prefetch 4x1"]
    for part in ("delivered_bandwidth: limit at least 400 MB/s, found 375 MB/s (ci_low)", "375 MB/s … 379 MB/s"):
        assert part in str(failure.get("message"))
    assert "\N{REPLACEMENT CHARACTER}[2J <&>" in str(cases["naive 4x1"][0].get("message"))
