"""`report`: the page again from files, and what it does not replace."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest

from dlio_bench.harness.cli import main
from dlio_bench.reports.document.result import save
from dlio_bench.reports.run import html, published
from dlio_bench.reports.view.page import Compiled
from tests.pages import Page
from tests.results import complete

Made = Callable[..., tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture
def saved(draft_and_steps: Made, tmp_path: Path) -> Path:
    """The folder of a run of two readers, and that of another machine."""
    for host in ("old", "new"):
        for second, reader in enumerate(("naive", "prefetch")):
            draft, steps = draft_and_steps(reader, 2, 5)
            draft["created"] = f"2026-11-21T01:40:0{second}+00:00"
            draft["environment"]["hosts"] = {host: draft["environment"]["hosts"]["node01"]}
            draft["environment"]["rank_hosts"] = [host] * 2
            save(complete(draft, steps), steps, tmp_path / host / reader)
    return tmp_path


def test_the_page_of_a_run_is_written_again(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(saved / "old")]) == 0
    page = saved / "old" / "report.html"
    assert str(page) in capsys.readouterr().out
    assert "2 nodes × 1 rank on 1 host" in Page(page.read_text()).text
    first = page.read_bytes()
    assert main(["report", str(saved / "old"), "--json"]) == 0  # it replaces a report
    assert json.loads(capsys.readouterr().out) == {"report": str(page), "results": 2, "bytes": len(first)}
    assert page.read_bytes() == first
    assert main(["report", str(saved / "old" / "naive" / "result.json")]) == 0
    assert "naive" in (saved / "old" / "naive" / "report.html").read_text()


def test_results_of_several_machines_share_a_page(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved)
    assert main(["report", "old", "new"]) == 0
    assert capsys.readouterr().out == "report   report.html\n"
    said = Page(Path("report.html").read_text()).text
    assert " on 2 hosts · " in said
    assert "Environment: old, new" in said
    assert all(f"{reader}, {host}" in said for reader in ("naive", "prefetch") for host in ("old", "new"))


def test_a_file_that_is_no_report_is_not_replaced(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = saved / "thesis.html"
    other.write_text("<title>My thesis</title>")
    assert main(["report", str(saved / "old"), "--out", str(other)]) == 2
    assert "is there already, and is no report. Name another file with --out" in capsys.readouterr().err
    assert other.read_text() == "<title>My thesis</title>"
    beneath = saved / "thesis.html" / "page.html"
    assert main(["report", str(saved / "old"), "--out", str(beneath)]) == 2
    told = capsys.readouterr().err
    assert f"--out {beneath} cannot be written: {other} is no folder. Name a file in a folder that you may" in told
    long = saved / f"{'x' * 250}.html"  # a name as long as can be: no file can be written beside it
    assert main(["report", str(saved / "old"), "--out", str(long)]) == 4
    told = capsys.readouterr().err
    assert str(long) in told
    assert told.endswith(". Nothing was left in its place. Name a file in a folder that you may write to.\n")
    missing = saved / "new folder" / "page.html"
    assert main(["report", str(saved / "old"), "--out", str(missing)]) == 0
    assert missing.exists()


def test_limits_stand_on_the_page_with_what_was_found(saved: Path) -> None:
    limits = saved / "limits.toml"
    table = '[cdb.prefetch."2x1"]\n{metric} = {{ at_most = "{most}" }}\n'
    limits.write_text(table.format(metric="stall_share", most="99 %") + 'elapsed_seconds = { at_most = "1 s" }\n')
    assert main(["report", str(saved / "old"), "--limits", str(limits)]) == 0
    page = Page((saved / "old" / "report.html").read_text())
    assert "EXPLORE, FAIL" in page.text
    missed = r"cdb, prefetch, 2 nodes x 1 rank\s*EXPLORE, FAIL\s*elapsed\s*at most 1 s.*?MISSED\s*stall.*?holds"
    assert re.search(missed, page.text, re.DOTALL)
    assert "limits.toml" in page.text
    limits.write_text(table.format(metric="elapsed_seconds", most="1 h"))
    assert main(["report", str(saved / "old"), "--limits", str(limits)]) == 0
    assert "EXPLORE, PASS" in Page((saved / "old" / "report.html").read_text()).text


def test_a_page_keeps_the_judgement_that_the_folder_holds(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, limits = saved / "old", saved / "limits.toml"
    limits.write_text('[cdb."*"."2x1"]\nelapsed_seconds = { at_most = "1 s" }\n')
    assert main(["judge", str(old), "--limits", str(limits), "--json"]) == 1
    (old / "judgement.json").write_text(capsys.readouterr().out)

    def written(*words: str) -> str:
        assert main(["report", *words]) == 0
        return Page((old / "report.html").read_text()).text

    assert "EXPLORE, FAIL" in written(str(old), "--limits", str(limits))
    assert "EXPLORE, FAIL" in written(str(old))
    shutil.copytree(saved / "new" / "naive", old / "another")  # of which the judgement says nothing
    assert "EXPLORE, FAIL" not in written(str(old))
    shutil.rmtree(old / "another")
    result = old / "naive" / "result.json"
    result.write_text(result.read_text().replace("1234567", "1234568"))
    assert "EXPLORE, FAIL" not in written(str(old))
    (old / "judgement.json").write_text("{}")
    result.write_text(result.read_text().replace("1234568", "1234567"))
    assert main(["report", str(old)]) == 5
    assert "judgement.json' is of schema None" in capsys.readouterr().err


def test_published_values_stand_beside_those_of_the_run_with_their_source(draft_and_steps: Made) -> None:
    pairs = []
    for reader, batch in (("naive", 1), ("prefetch", 2)):
        draft, steps = draft_and_steps(reader)
        draft["plan"] |= {"published_batch_source": "the paper", "batch": batch}
        pairs.append((complete(draft, steps), steps))
    batches, *steps_of = published.values([result for result, _ in pairs])
    assert (batches.published, batches.here, batches.source) == ("1", "1 (naive); 2 (prefetch)", "the paper")
    assert [(value.published, value.here.partition(" (")[0], value.source) for value in steps_of] == [
        ("200 ms", "203 ms", "a table")
    ] * 2
    said = Page(html.page(pairs)).text
    assert "batch of a rank" in said
    assert "the paper" in said


def test_a_step_time_that_nobody_published_is_not_shown_as_published(draft_and_steps: Made) -> None:
    for kind in ("estimate", "measured", "given", None):
        draft, steps = draft_and_steps()
        draft["compute"]["kind"] = kind
        assert [value.title for value in published.values([complete(draft, steps)])] == ["batch of a rank"]


@pytest.mark.parametrize(
    ("forbidden", "folder", "kept"), [(False, "kept", 1), (True, "kept", 0), (False, "missing/kept", 0)]
)
def test_a_compiled_template_is_kept_where_python_keeps_modules(
    forbidden: bool, folder: str, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", forbidden)
    for source, text in (("{{ 1 + 1 }}", "2"), ("{{ 1 + 2 }}", "3")):  # an older one of the same name is replaced
        for _ in range(2):
            loader = jinja2.DictLoader({"page": source})
            templates = jinja2.Environment(loader=loader, bytecode_cache=Compiled(str(tmp_path / folder), "%s"))
            assert templates.get_template("page").render() == text
            assert len(list(tmp_path.rglob("*/*"))) == kept
