"""`compare`: which results belong together, what it refuses, what limits on changes do, and what it prints."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness import cli
from dlio_bench.reports.comparing import comparison
from dlio_bench.reports.comparing.change_limits import parse
from dlio_bench.reports.comparing.changes import changes
from dlio_bench.reports.comparing.changes_text import render_changes
from dlio_bench.reports.document.measured import Measured
from dlio_bench.reports.document.result import save
from tests.goldens import require_golden
from tests.unit.reports.noisy import Made, noisy, noisy_run

Refused = Callable[..., str]
ELAPSED = ["elapsed_seconds"]


@pytest.fixture
def runs(draft_and_steps: Made, tmp_path: Path) -> Path:
    """Folders a and b of two readers each, b 10 % slower with prefetch; warm and few hold one result each."""
    results = {
        "a/naive-4x1": noisy_run(draft_and_steps, 1.0, 1, reader="naive"),
        "a/prefetch-4x1": noisy_run(draft_and_steps, 1.0, 2),
        "b/naive-4x1": noisy_run(draft_and_steps, 1.0, 3, reader="naive"),
        "b/prefetch-4x1": noisy_run(draft_and_steps, 1.1, 4, noise=0.01, version="9\x1b[31m"),
        "warm/prefetch-4x1": noisy_run(draft_and_steps, 1.0, 5, cache="warm"),
        "few/prefetch-4x1": noisy_run(draft_and_steps, 1.1, 6, trials=3),
    }
    for name, (result, steps) in results.items():
        save(result, steps, tmp_path / name)
    return tmp_path


def changed(before: Measured, after: Measured, *names: str, **options: bool) -> Any:
    """The only pair of two results."""
    [pair] = changes([before], [after], names, [], label_unequal=options.get("unequal", False)).pairs
    return pair


def test_texts_of_pairs_are_the_golden_ones(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str, status: int = 0) -> str:
        assert (
            cli.main(["compare", *(str(runs / word) if (runs / word).exists() else word for word in words)]) == status
        )
        return capsys.readouterr().out

    one, other, limits = "a/prefetch-4x1", "b/prefetch-4x1", ("elapsed_seconds>+3%", "stall_share>+2%")
    shutil.copytree(runs / "b" / "naive-4x1", runs / "again" / "naive")
    shutil.copytree(runs / "b" / "naive-4x1", runs / "again" / "copy")
    altered = shutil.copytree(runs / other, runs / "altered") / "result.json"
    altered.write_text(altered.read_text().replace('"cpu": "AMD EPYC"', '"cpu": "faster"'))
    require_golden("changes", {
        "two folders with limits": told("a", "b", *(f"--fail-if={limit}" for limit in limits), status=1),
        "few trials": told(one, "few"),
        "unequal work": told(one, "warm", "--unequal"),
        "an altered file": told(one, "altered"),
        "a result without a pair, and one that is named twice": told("again", one),
        "a history, and a run that is named twice": told(one, other, "few", one),
        "a metric without a value": told(one, other, "--metric", "allreduce_seconds", "--metric", "elapsed_seconds"),
    })  # fmt: skip


def test_json_has_it_all(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", str(runs / "a"), str(runs / "b" / "prefetch-4x1"), "--metric", "bytes_requested", "--json"]
    assert cli.main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["status"]) == ("dlio-bench/changes/1", 0)
    assert document["only_before"] == ["cdb · naive · 4 nodes × 1 rank"]
    [pair] = document["pairs"]
    [metric] = pair["metrics"]
    assert (metric["metric"], metric["change"], metric["shown"]) == ("bytes_requested", 0.0, False)


def test_few_trials_cannot_meet_a_limit(runs: Path, refused: Refused) -> None:
    before, after = str(runs / "a" / "prefetch-4x1"), str(runs / "few")
    message = refused("compare", before, after, "--fail-if", "elapsed_seconds>+5%")
    assert "5 trials on each side; there are 5 and 3. Run again with --trials 5" in message


def test_unequal_work_is_refused(runs: Path, refused: Refused) -> None:
    told = refused("compare", str(runs / "a" / "prefetch-4x1"), str(runs / "warm"))
    assert (
        "two of cdb · prefetch · 4 nodes × 1 rank are not compared, because of: cache regime (cold-epochs and warm)"
        in told
    )


def test_every_unequal_quantity_is_named(draft_and_steps: Made) -> None:
    def other(*trials: int, **parts: Any) -> Measured:
        def make(*arguments: Any) -> Any:
            draft, steps = draft_and_steps(*arguments)
            for name, values in parts.items():
                draft[name] |= values
            return draft, steps

        return noisy(make, 1.0, 1)

    same = other()
    assert changed(same, other(environment={"mpi": "another"})).unequal == []
    different = other(dataset={"digest": "sha256:\x1babc", "view": ["x"]}, compute={"asked_step_seconds": 0.5})
    reasons = changed(same, different, unequal=True).unequal
    assert [reason.partition(" (")[0] for reason in reasons] == ["dataset", "view", "compute"]
    assert all(reason.isprintable() for reason in reasons)
    assert (
        "prefetch (double-buffer) is SHORT" in changed(same, other(plan={"comparable": False}), unequal=True).unequal[0]
    )


def test_two_single_results_are_a_pair_whatever_their_readers(draft_and_steps: Made) -> None:
    naive = noisy(draft_and_steps, 1.0, 1, reader="naive", startup=0.5)
    prefetch = noisy(draft_and_steps, 1.0, 2, startup=0.5)
    pair = changed(naive, prefetch, *ELAPSED)
    assert [each.what for each in pair.differs][:2] == ["reader", "order"]
    assert not pair.paired  # their command lines differ


def test_readers_of_one_run_are_paired_and_runs_of_one_command_are_not(draft_and_steps: Made) -> None:
    first, second, later = (noisy_run(draft_and_steps, 1.0, seed, startup=startup)[0] for seed, startup in
                            ((1, 0.5), (2, 0.5), (3, 0.6)))  # fmt: skip
    assert comparison.are_paired(first, second)
    assert not comparison.are_paired(first, later)


def test_sides_that_do_not_pair_are_refused(draft_and_steps: Made) -> None:
    naive, prefetch, again = (
        noisy(draft_and_steps, 1.0, 1, reader=reader) for reader in ("naive", "prefetch", "naive")
    )
    with pytest.raises(UsageError, match="A and B have no result of the same workload"):
        changes([naive], [prefetch, prefetch], ELAPSED, [], label_unequal=False)
    with pytest.raises(UsageError, match="B has several results of cdb · naive · 4 nodes"):
        changes([naive], [prefetch, naive, again], ELAPSED, [], label_unequal=False)


def test_a_bad_rank_shows_in_the_stall_of_the_worst_rank(draft_and_steps: Made) -> None:
    good = noisy(draft_and_steps, 1.0, 1)
    pair = changed(good, noisy(draft_and_steps, 1.0, 2, bad_rank=0.2), "own_stall_share_worst_rank", "step_p99")
    worst, cost = pair.metrics
    assert worst.in_points
    assert worst.shown
    assert worst.change > 0.1
    assert cost.shown


def test_unequal_numbers_of_trials(draft_and_steps: Made) -> None:
    pair = changed(noisy(draft_and_steps, 1.0, 1, trials=7), noisy(draft_and_steps, 1.2, 2), *ELAPSED)
    assert pair.metrics[0].trials == (7, 5)
    assert pair.metrics[0].shown


def test_an_altered_file_cannot_be_judged(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = runs / "b" / "prefetch-4x1" / "result.json"
    document = json.loads(file.read_text())
    document["trials"][1]["elapsed_seconds"] *= 1.5
    file.write_text(json.dumps(document))
    limit = ["--fail-if", "elapsed_seconds>+900%"]
    assert cli.main(["compare", str(runs / "a" / "prefetch-4x1"), str(file), *limit]) == 5
    assert "cannot judge cdb · prefetch" in capsys.readouterr().err


def test_no_limit_holds_because_a_measurement_is_missing_or_is_the_same(runs: Path, refused: Refused) -> None:
    limit = ["--fail-if", "elapsed_seconds>+900%"]
    assert "B has no result of cdb · naive" in refused("compare", str(runs / "a"), str(runs / "b/prefetch-4x1"), *limit)
    assert "are the same result" in refused("compare", str(runs / "a"), str(runs / "a"), *limit)


def test_a_result_that_is_named_again_counts_once(runs: Path, refused: Refused) -> None:
    one = str(runs / "few")
    assert "cdb · prefetch · 4 nodes × 1 rank: 1 (named 3 times)" in refused("compare", one, one, one)
    shutil.copytree(runs / "a" / "naive-4x1", runs / "b" / "copy")
    both = refused("compare", str(runs / "b"), str(runs / "a" / "naive-4x1"), "--unequal")
    assert "A has several results of cdb · naive" in both


def test_columns_stay_apart_however_large_a_change_is(draft_and_steps: Made) -> None:
    for factor in (1e-4, 0.5, 3.0, 30.0, 9e3, 9e6):
        document = changes(
            [noisy(draft_and_steps, 1.0, 1)], [noisy(draft_and_steps, factor, 2, noise=0.2)], ELAPSED, [],
            label_unequal=False,
        )  # fmt: skip
        [row] = [line for line in render_changes(document, [], verbose=False).splitlines() if "  elapsed_s" in line]
        assert re.fullmatch(r"  elapsed_seconds( +\S+( [µm]?s)?){2} +\S+ % +\S+ … \S+  (not )?shown", row), row
        assert len(row) <= 80


def test_unequal_compute_is_told_in_words(draft_and_steps: Made) -> None:
    def slower(*arguments: Any) -> Any:
        draft, steps = draft_and_steps(*arguments)
        draft["compute"]["asked_step_seconds"] = 0.25
        return draft, steps

    pair = changed(noisy(draft_and_steps, 1.0, 1), noisy(slower, 1.0, 2), unequal=True)
    assert pair.unequal == ["compute (emulate, device v100, step 200 ms and emulate, device v100, step 250 ms)"]


def test_a_pattern_names_a_history(runs: Path, refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", str(runs / "[ab]*")]) == 2
    assert "a history needs 3 runs" in capsys.readouterr().err
    assert cli.main(["compare", *(str(runs / name) for name in ("a", "b", "few")), "--json"]) == 0
    [history] = json.loads(capsys.readouterr().out)["histories"]
    assert len(history["runs"]) == 3


def test_a_limit_is_missed_when_the_whole_interval_lies_beyond_it(draft_and_steps: Made) -> None:
    before, after = noisy(draft_and_steps, 1.0, 1), noisy(draft_and_steps, 1.1, 2)

    def missed(text: str) -> bool:
        return changes([before], [after], ELAPSED, [parse(text)], label_unequal=False).status == 1

    [metric] = changed(before, after, *ELAPSED).metrics
    low, high = (100 * bound for bound in metric.interval)
    assert missed(f"elapsed_seconds>+{low - 0.1:.1f}%")
    assert not missed(f"elapsed_seconds>+{low + 0.1:.1f}%")
    assert not missed(f"elapsed_seconds<+{high - 0.1:.1f}%")
    assert missed(f"elapsed_seconds<+{high + 0.1:.1f}%")
    with pytest.raises(UsageError, match="allreduce_seconds has no value"):
        missed("allreduce_seconds>+1%")
    ram = noisy(_with_ram(draft_and_steps), 1.0, 3)
    with pytest.raises(UsageError, match="bytes_ram was 0 before"):
        changes([before], [ram], ELAPSED, [parse("bytes_ram>+1%")], label_unequal=False)


def _with_ram(make: Made) -> Made:
    def made(*arguments: Any) -> Any:
        draft, steps = make(*arguments)
        for trial in draft["trials"]:
            trial["bytes_ram"] = 1000
        return draft, steps

    return made
