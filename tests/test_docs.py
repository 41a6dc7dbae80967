"""The documentation: its reference is what the code says, its commands exist, its links lead somewhere."""

import ast
import os
import re
import shlex
import subprocess
from pathlib import Path
from runpy import run_path

import pytest
import yaml

from dlio_bench.harness.cli import main, parser
from dlio_bench.harness.commands.pages import pages
from dlio_bench.harness.plan.orders import ORDERS
from dlio_bench.harness.plan.policies import DELIVERIES, PLACEMENTS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = run_path(str(ROOT / "scripts" / "write-reference"))["pages"]()


def test_the_reference_is_what_the_code_says() -> None:
    stale = [page.name for page, text in REFERENCE.items() if page.read_text("utf-8") != text]
    assert stale == [], "run .venv-test/bin/python scripts/write-reference"


def anchors(page: Path) -> set[str]:
    """The names that a page's headings are linked by."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text("utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append((page.name, link))
    assert broken == []


def test_every_command_is_one_that_the_parser_takes() -> None:
    commands = []
    for page in PAGES:
        blocks = "\n".join(re.findall(r"(?ms)^ *```\w*\n(.*?)^ *```", page.read_text("utf-8")))
        commands += re.findall(r"(?m)^ *(?:\$ )?dlio-bench (.*)$", blocks.replace("\\\n", " "))
    assert len(commands) > 40
    for words in commands:
        given = shlex.split(words.partition(" > ")[0], comments=True)
        _, unknown = parser().parse_known_args(given)  # raises UsageError for others
        assert unknown == [], words


@pytest.mark.parametrize("name", ["github.yml", "gitlab.yml"])
def test_pipelines_give_commands_that_the_parser_takes_and_retry_what_may_pass(name: str, tmp_path: Path) -> None:
    document = yaml.safe_load((ROOT / "docs" / "examples" / name).read_text("utf-8"))
    jobs = document.get("jobs") or {name: job for name, job in document.items() if "script" in job}
    scripts = {
        job: [step["run"] for step in about["steps"] if "run" in step] if "steps" in about else about["script"]
        for job, about in jobs.items()
    }
    assert scripts.keys() == {"smoke", "measure"}
    for script in [line for lines in scripts.values() for line in lines]:
        for words in re.findall(r"dlio-bench (.*?)(?: \|\| .*)?$", script.replace("\\\n", " "), re.MULTILINE):
            _, unknown = parser().parse_known_args(shlex.split(words))
            assert unknown == [], words
    for job in scripts:
        assert "datasets" in str(jobs[job]) or job == "measure"  # kept by the cache
        assert "junit.xml" in str(jobs[job])

    stub = tmp_path / "dlio-bench"  # ends with the statuses that it is given, one after the other
    stub.write_text('#!/bin/sh\nread -r status < left; sed -i 1d left; exit "$status"\n')
    stub.chmod(0o755)
    retried = jobs["measure"].get("retry", {"max": 0, "exit_codes": []})
    for statuses in ([0], [1], [2], [5], [3, 0], [4, 1], [3, 3]):
        (tmp_path / "left").write_text("".join(f"{status}\n" for status in statuses))
        for _ in range(1 + retried["max"]):
            words = ["bash", "-e", "-c", *scripts["measure"]]
            env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": "s", "CI_JOB_ID": "1"}
            ended = subprocess.run(words, cwd=tmp_path, env=env, check=False).returncode
            if ended not in retried["exit_codes"]:
                break
        assert ended == statuses[-1]
        assert (tmp_path / "left").read_text() == ""


def test_every_page_is_reached_from_the_map() -> None:
    text = (ROOT / "docs" / "README.md").read_text("utf-8")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages - set(re.findall(r"\]\(([^)#]+)\)", text)) == {"README.md"}


def test_messages_name_pages_that_a_wheel_has() -> None:
    files = [
        path
        for room in ("benchmarks", "datagen", "harness", "reports", "docs/examples")
        for path in (ROOT / room).rglob("*")
    ]
    texts = {}
    for path in files:
        if path.suffix == ".py":
            tree = ast.parse(path.read_text("utf-8"))
            comments = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
            strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in comments)
            texts[path] = "\n".join(str(node.value) for node in strings)
        elif path.suffix in (".toml", ".j2"):
            texts[path] = path.read_text("utf-8")
    assert [path for path, text in texts.items() if re.search(r"\bdocs/[\w/-]+\.md", text)] == []
    named = {name for text in texts.values() for name in re.findall(r"`dlio-bench help ([\w.-]+)`", text)}
    assert {"limits", "metrics"} <= named <= pages().keys()


def test_help_prints_pages_examples_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    assert re.search(r"(?m)^  limits +Limits$", capsys.readouterr().out)
    for name, path in (("limits", "reference/limits.md"), ("limits.toml", "examples/limits.toml")):
        assert main(["help", name]) == 0
        assert capsys.readouterr().out == (ROOT / "docs" / path).read_text("utf-8")
    with pytest.raises(SystemExit, match="0"):
        main(["help", "doctor"])
    assert "usage: dlio-bench doctor" in capsys.readouterr().out
    assert main(["help", "limit"]) == 2
    assert "Did you mean 'limits'?" in capsys.readouterr().err
    names = [path.stem for path in (ROOT / "docs").rglob("*.md")]
    assert len(set(names)) == len(names)  # or one would hide another


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 1500
    assert (ROOT / "docs" / "report.png").stat().st_size < 200_000


@pytest.mark.parametrize(("room", "column"), [("reports", 1), ("harness", 2)])
def test_the_architecture_names_what_is_there(room: str, column: int) -> None:
    """A table of the rooms of each: every folder, and each single file."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = text.partition(f"room of `{room}/`")[2].partition("\n\n")[0]
    cells = [line.split("|")[column] for line in table.splitlines()[2:]]
    named = {name.rstrip("/") for cell in cells for name in re.findall(r"`([\w/]+(?:/|\.py))`", cell)}
    places = (ROOT / room, ROOT / room / "commands")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []
    folders = {path.name for place in places if place.is_dir() for path in place.iterdir() if path.is_dir()}
    folders -= {"commands", "root", "templates", "__pycache__"}
    assert folders <= {name.partition("/")[0] for name in named}


def test_the_page_of_readers_says_what_each_order_placement_and_delivery_is() -> None:
    text = (ROOT / "docs/reference/readers.md").read_text("utf-8")
    for title, known in (("orders", ORDERS), ("placements", PLACEMENTS), ("deliveries", DELIVERIES)):
        rows = text.partition(f"| {title} | |\n")[2].partition("\n\n")[0].splitlines()[1:]
        cells = "".join(row.split("|")[1] for row in rows)
        assert sorted(re.findall(r"`([\w .-]+)(?:\(k\))?`", cells)) == sorted(known)
