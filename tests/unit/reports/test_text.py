"""The terminal text: any number of results on one screen, nothing that a terminal would obey, and `show`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.harness.cli import main
from dlio_bench.reports.document import result
from dlio_bench.reports.document.types import Check, Result
from dlio_bench.reports.run import html, tables, text
from dlio_bench.wrapping import WIDTH, printable
from tests.goldens import require_golden
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


def of_workload(of: Result, workload: str, **plan: int) -> Result:
    return replace(of, workload=replace(of.workload, name=workload), plan=replace(of.plan, **plan))


def alike(pool: Pool, trials_of: int, **options: Any) -> list[Result]:
    return [
        named(pool[reader, trials_of], reader, options.get("marks", []), fails=options.get("fails", False))
        for reader in READERS
    ]


def of_two_workloads(pool: Pool) -> list[Result]:
    mixed = [
        of_workload(pool[reader, nodes], workload)
        for workload, nodes in (("cdb", 1), ("hepcnnb", 2)) for reader in ("naive", "prefetch")
    ]  # fmt: skip
    small = mixed[2].metrics | {"bytes_requested": replace(mixed[2].metrics["bytes_requested"], value=219e3)}
    return [*mixed[:2], replace(mixed[2], metrics=small), mixed[3]]


def with_marks(pool: Pool, marks: list[list[str]], *, fails: bool) -> list[Result]:
    return [
        named(pool[reader, 4], reader, its, fails=fails and not number)
        for number, (reader, its) in enumerate(zip(READERS, marks, strict=True))
    ]


MARKED = ["CACHE NOT ATTESTED", "EMULATED PFS", "REDUCED BATCH"]
SCREENS: dict[str, Callable[[Pool], list[Result]]] = {
    "many readers": lambda pool: [
        named(pool[reader, nodes], f"{reader}-{copy}", ["VIRTUAL NODES"], fails=False)
        for nodes in (1, 4) for copy in range(3) for reader in ("shuffled", "naive", "prefetch")
    ],
    "few trials": lambda pool: alike(pool, 2),
    "warnings of one kind": lambda pool: [*alike(pool, 2, marks=["ALTERED"], fails=True), pool["naive", 2]],
    "an invalid result among others": lambda pool: [
        named(pool[reader, nodes], reader, [], fails=(reader, nodes) == ("prefetch", 2))
        for nodes in (1, 2, 4) for reader in READERS
    ],
    "several workloads": of_two_workloads,
    "other ranks a node": lambda pool: [
        of_workload(pool[reader, 4], "cdb", ranks_per_node=count) for count, reader in enumerate(READERS, 1)
    ],
    "marks by whole names": lambda pool: with_marks(pool, [["VIRTUAL NODES"], [], []], fails=False),
    "marks by letters": lambda pool: with_marks(pool, [[*MARKED, "VIRTUAL NODES"], MARKED[:1], []], fails=True),
}  # fmt: skip


def test_screens_of_several_results_are_the_golden_ones(pool: Pool) -> None:
    chosen = ("an invalid result among others", "several workloads")
    verbose = {f"{name}, in detail": text.render(SCREENS[name](pool), verbose=True) for name in chosen}
    require_golden("screens", {name: text.render(of(pool)) for name, of in SCREENS.items()} | verbose)
    assert all(f"prefetch-{copy}" in text.render(SCREENS["many readers"](pool), verbose=True) for copy in range(3))


def test_results_of_one_reader_are_told_apart_by_their_samples(pool: Pool) -> None:
    one = pool["naive", 4]
    other = replace(one, dataset=replace(one.dataset, samples=128, digest="sha256:other"))
    assert tables.labels([one, other]) == ["naive, 64 samples", "naive, 128 samples"]


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
