"""The terminal text: any number of results on one screen, nothing that a terminal would obey, and `show`."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.harness.cli import main
from dlio_bench.reports.comparing import comparison
from dlio_bench.reports.document import result
from dlio_bench.reports.document.types import Check, Result
from dlio_bench.reports.run import html, tables, text
from dlio_bench.wrapping import WIDTH, printable
from tests.pages import Page
from tests.results import complete

Drafted = tuple[dict[str, Any], dict[str, Any]]
Pool = dict[tuple[str, int], Result]
READERS = ("naive", "shuffled", "prefetch")
SCREEN = 24 - 1 - 3  # without a prompt, and the lines on where the files are
MARKS = ("TINY", "SHORT", "VIRTUAL NODES", "CACHE NOT ATTESTED", "EMULATED PFS", "ALTERED", "A MARK OF LATER VERSIONS")
NASTY = (
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m",
    "\r\n\nfaked line",
    "\u202eright to left",
    "\x00\x08\x7f\u2028\x85",
)


@pytest.fixture(scope="module")
def pool() -> Pool:
    """A result of each reader at several node counts, with enough trials for intervals, and with fewer."""
    from tests.unit.conftest import draft_and_steps

    make = draft_and_steps.__wrapped__()
    trials = {1: 5, 2: 2, 4: 5}
    return {(reader, n): complete(*make(reader, n, trials[n])) for reader in READERS for n in trials}


def named(of: Result, name: str, marks: list[str], *, fails: bool) -> Result:
    """The result with another name of the reader and other marks, or one that fails a check at length."""
    changed = replace(of, policy=replace(of.policy, alias=name), marks=list(dict.fromkeys(marks)))
    failed = Check("another check", ok=False, expected="e " * 200, found="f" * 300)
    return replace(changed, class_="INVALID", checks=[*of.checks, failed]) if fails else changed


ONE = st.tuples(
    st.sampled_from(READERS),
    st.sampled_from((1, 2, 4)),
    st.one_of(st.sampled_from(READERS), st.text(max_size=90), st.just("a-reader-with-a-long-name-" * 4)),
    st.lists(st.sampled_from(MARKS), max_size=4),
    st.integers(0, 9),
)


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(picked=st.lists(ONE, min_size=1, max_size=20), alike=st.booleans())
def test_any_number_of_results_fits_one_screen(pool: Pool, picked: list[Any], *, alike: bool) -> None:
    results = [
        named(pool[reader, nodes], name, ["VIRTUAL NODES"] if alike else marks, fails=not alike and chance == 0)
        for reader, nodes, name, marks, chance in picked
    ]
    lines = text.render(results).split("\n")
    assert lines.pop() == ""
    assert len(lines) <= SCREEN
    for rendered in (lines, text.render(results, verbose=True).split("\n")):
        assert max(map(len, rendered)) <= WIDTH
        assert all(line.isprintable() for line in rendered)


@pytest.mark.parametrize("nasty", NASTY)
def test_nothing_from_a_file_reaches_the_terminal_as_a_command(pool: Pool, nasty: str) -> None:
    one = named(pool["naive", 1], nasty + "name", [nasty], fails=False)
    other = named(pool["prefetch", 1], "x" + nasty, ["TINY"], fails=True)
    for results in ([one], [other], [one, other]):
        for verbose in (False, True):
            shown = text.render(results, verbose=verbose)
            assert all(line.isprintable() for line in shown.split("\n"))
            assert len(shown.split("\n")) <= SCREEN + 1 or verbose
    assert printable("naïve × 3 µs · 漢字") == "naïve × 3 µs · 漢字"


def test_many_results_show_the_best_the_first_and_the_worst(pool: Pool) -> None:
    spread = [
        named(pool[reader, nodes], f"{reader}-{copy}", ["VIRTUAL NODES"], fails=False)
        for nodes in (1, 4) for copy in range(3) for reader in ("shuffled", "naive", "prefetch")
    ]  # fmt: skip
    shown = text.render(spread)
    rows = re.findall(r"^  (\w+-\d) +([14]) ", shown, re.MULTILINE)
    assert {("shuffled-0", "4"), ("prefetch-0", "4"), ("prefetch-0", "1")} <= set(rows)
    assert any(name.startswith("naive") for name, _ in rows)
    assert f"{18 - len(rows)} more rows: --verbose" in shown
    assert "at 4 nodes prefetch-0 takes 0.79 × the time of shuffled-0 (95 % " in " ".join(shown.split())
    assert all(f"prefetch-{copy}" in text.render(spread, verbose=True) for copy in range(3))


def test_warnings_of_one_kind_are_said_once(pool: Pool) -> None:
    few = [named(pool[reader, 2], reader, [], fails=False) for reader in READERS]
    assert text.render(few).count("--trials 5 or more") == 1
    failing = [named(of, of.policy.alias or "", ["ALTERED"], fails=True) for of in few]
    shown = text.render([*failing, pool["naive", 2]])
    assert shown.startswith("  WARNING          3 results: altered after it was written")
    assert shown.count("another check") == 1
    assert "3 results: another check: expected" in shown
    assert shown.count("no comparison: naive, ") == 1


def test_an_invalid_result_is_named_and_the_others_are_compared(pool: Pool) -> None:
    of = [
        named(pool[reader, nodes], reader, [], fails=(reader, nodes) == ("prefetch", 2))
        for nodes in (1, 2, 4) for reader in READERS
    ]  # fmt: skip
    shown = " ".join(text.render(of).split())
    assert shown.count("not compared: prefetch, 2 nodes is INVALID (another check)") == 1
    assert "FAILED prefetch, 2 nodes: another check: expected" in shown
    assert "at 4 nodes prefetch takes 0.65 × the time of naive" in shown
    assert re.search(r"^  prefetch +2 .* INVALID$", text.render(of), re.MULTILINE)
    two = [sentence for sentence in comparison.answer(of) if sentence.startswith("at 2 nodes shuffled takes 0.82 ×")]
    assert len(two) == 1
    detail = text.render(of, verbose=True)
    assert "INVALID    prefetch (double-buffer) · 2 nodes × 1 rank" in detail
    assert "answer           at 1 node prefetch takes" in detail


def of_workload(of: Result, workload: str, **plan: int) -> Result:
    return replace(of, workload=replace(of.workload, name=workload), plan=replace(of.plan, **plan))


def test_results_of_several_workloads_are_told_apart(pool: Pool) -> None:
    mixed = [
        of_workload(pool[reader, nodes], workload)
        for workload, nodes in (("cdb", 1), ("hepcnnb", 2)) for reader in ("naive", "prefetch")
    ]  # fmt: skip
    small = mixed[2].metrics | {"bytes_requested": replace(mixed[2].metrics["bytes_requested"], value=219e3)}
    mixed[2] = replace(mixed[2], metrics=small)
    shown = text.render(mixed)
    assert shown.startswith("EXPLORE    cdb + hepcnnb · naive, prefetch · 1, 2 nodes · 2 to 5 trials\n")
    table = shown.split("\n\n")[1].splitlines()
    assert [line.split()[0] for line in table[1:7]] == ["cdb:", "naive", "prefetch", "hepcnnb:", "naive", "prefetch"]
    assert table[7] == "  median of 2 to 5 trials, 95 % bootstrap interval"
    assert "  with cdb at 1 node prefetch takes 0.63 × the time of naive" in shown
    assert "hepcnnb naive, 2 nodes" in text.render(mixed, verbose=True)


def test_sizes_of_several_results_are_said_where_they_agree(pool: Pool) -> None:
    ranks = [of_workload(pool[reader, 4], "cdb", ranks_per_node=count) for count, reader in enumerate(READERS, 1)]
    assert "4 nodes × 1, 2, 3 ranks" in text.render(ranks)
    other = replace(ranks[1], dataset=replace(ranks[1].dataset, samples=128, digest="sha256:other"))
    assert tables.labels([ranks[0], replace(other, policy=ranks[0].policy, plan=ranks[0].plan)]) == [
        "naive, 64 samples",
        "naive, 128 samples",
    ]


def test_marks_stand_in_rows_by_whole_names(pool: Pool) -> None:
    rows = text.render([
        named(pool["naive", 4], "naive", ["VIRTUAL NODES"], fails=False),
        named(pool["prefetch", 4], "prefetch", [], fails=False),
    ])  # fmt: skip
    assert re.search(r"^  naive .* VIRTUAL NODES$", rows, re.MULTILINE)
    marks = ["CACHE NOT ATTESTED", "EMULATED PFS", "REDUCED BATCH"]
    shown = text.render([
        named(pool["naive", 4], "naive", [*marks, "VIRTUAL NODES"], fails=True),
        named(pool["shuffled", 4], "shuffled", marks[:1], fails=False),
        named(pool["prefetch", 4], "prefetch", [], fails=False),
    ])  # fmt: skip
    table = shown.split("\n\n")[1]
    assert re.search(r"^  naive .* INVALID abcd$", table, re.MULTILINE)
    assert re.search(r"^  shuffled .* c$", table, re.MULTILINE)
    assert "  a VIRTUAL NODES  b EMULATED PFS  c CACHE NOT ATTESTED  d REDUCED BATCH\n" in table


@pytest.fixture
def saved(draft_and_steps: Callable[..., Drafted], tmp_path: Path) -> list[Path]:
    """Files of two results, each in a folder of its own."""
    paths = []
    for second, reader in enumerate(("naive", "prefetch")):
        draft, steps = draft_and_steps(reader, 2, 2)
        draft["created"] = f"2026-11-21T01:40:0{second}+00:00"
        paths.append(result.save(complete(draft, steps), steps, tmp_path / "out" / reader))
    return paths


def test_show_prints_results_of_files_and_folders(saved: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    results = [result.load(path)[0] for path in saved]

    def show(*words: str) -> str:
        assert main(["show", *words]) == 0
        return capsys.readouterr().out

    folder = str(saved[0].parents[1])
    assert show(folder) == show(*map(str, saved)) == text.render(results)
    assert show(folder, "--verbose") == text.render(results, verbose=True)
    assert [shown["digest"] for shown in json.loads(show(folder, "--json"))] == [of.digest for of in results]


def test_show_and_the_page_tell_what_a_repetition_says(
    draft_and_steps: Callable[..., Drafted], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft, steps = draft_and_steps("naive", 2, 2)
    draft["repeats"] = {"digest": "sha256:earlier", "differs": ["kernel: 1.2.3; now <4>"]}
    found = complete(draft, steps)
    result.save(found, steps, tmp_path)
    assert main(["show", str(tmp_path)]) == 0
    assert "\n  differs now  kernel: 1.2.3; now <4>\n" in capsys.readouterr().out
    said = Page(html.page([(found, steps)])).text
    assert "This run repeats an earlier one; what differs now" in said
    assert "kernel: 1.2.3; now <4>" in said


def test_show_warns_of_a_file_that_was_edited(saved: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    saved[1].write_text(saved[1].read_text().replace('"cpu": "AMD EPYC"', '"cpu": "faster"'))
    assert main(["show", *map(str, saved)]) == 0
    assert capsys.readouterr().out.startswith("  WARNING          prefetch: altered after it was written")
    for way in ([], ["--verbose"]):
        assert main(["show", str(saved[1]), *way]) == 0
        told = capsys.readouterr().out
        assert "\n           its digest does not match: its files are not as they were written\n" in told
        assert "every check held" not in told
    assert main(["show", str(saved[0])]) == 0
    assert "WARNING" not in capsys.readouterr().out


def test_show_names_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "result.json").write_text('{"schema": "\x1b[31mred"}'.replace("\x1b", "\\u001b"))
    assert main(["show", str(tmp_path)]) == 5
    said = capsys.readouterr().err
    assert f"{tmp_path}/result.json" in said
    assert "\x1b" not in said
    assert main(["show", str(tmp_path / "nothing")]) == 2
