"""Results in the formats of other tools, each read back by the tool it is for."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from prometheus_client import parser
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pytest_benchmark.stats import Stats

from dlio_bench.harness import cli
from dlio_bench.reports.document.result import digest, save
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.export import openmetrics, pytest_benchmark
from dlio_bench.reports.export.measures import MEASURES
from dlio_bench.reports.numbers.metrics import METRICS
from tests.results import complete

Drafted = Callable[..., tuple[dict[str, Any], dict[str, Any]]]
HOSTILE = "=1+1\x1b]0;\n\r\u202e\ud800'\"\\ </x>"
HARMLESS = "=1+1\N{REPLACEMENT CHARACTER}]0;  \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}'\"\\ </x>"


@pytest.fixture
def saved(draft_and_steps: Drafted, tmp_path: Path) -> Callable[..., tuple[Result, Path]]:
    """(reader, trials, change) -> a result and its folder; `change` may alter the draft first."""

    def save_one(reader: str = "prefetch", trials: int = 5, change: Any = None) -> tuple[Result, Path]:
        draft, steps = draft_and_steps(reader, 2, trials)
        draft["created"] = f"2026-11-21T01:40:0{len(list(tmp_path.iterdir()))}+00:00"
        if change:
            change(draft)
        result = complete(draft, steps)
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        save(result, steps, folder)
        return result, folder

    return save_one


@pytest.fixture
def exported(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `export` prints."""

    def run(*words: object) -> str:
        assert cli.main(["export", *map(str, words)]) == 0
        out, told = capsys.readouterr()
        assert told == ""
        return out

    return run


def edited(folder: Path) -> Path:
    """The result with texts that somebody made up, in JSON's ASCII, and with the digest that fits them."""
    path = folder / "result.json"
    document = json.loads(path.read_text("utf-8"))
    document["workload"]["name"] = document["policy"]["alias"] = HOSTILE
    document["checks"][1].update(ok=False, found=HOSTILE)
    document["environment"]["hosts"] = {HOSTILE: {}}
    path.write_text(json.dumps(document | {"digest": digest(document)}))
    return folder


def test_csv_has_a_row_for_each_trial_and_epoch(saved: Any, exported: Any) -> None:
    (_, naive), (prefetch, other) = saved("naive"), saved("prefetch")
    rows = list(csv.DictReader(io.StringIO(exported(naive, other, "--to", "csv"))))
    assert len(rows) == 2 * 6 * 2
    last = prefetch.trials[-1]
    assert [rows[-1][name] for name in ("reader", "trial", "epoch", "warmup")] == ["prefetch", "5", "1", "False"]
    assert float(rows[-1]["epoch_seconds"]) == last.epochs[1].seconds
    assert float(rows[-1]["trial_seconds"]) == last.elapsed_seconds
    assert rows[-1]["validation_seconds"] == ""


def test_pandas_reads_the_tables_with_their_types(saved: Any, exported: Any, tmp_path: Path) -> None:
    result, folder = saved()
    tables = {
        name: pd.read_json(io.StringIO(exported(folder, "--to", "pandas", "--table", name)), orient="table")
        for name in ("trials", "metrics", "steps")
    }
    assert tables["trials"]["warmup"].tolist() == [True] * 2 + [False] * 10
    assert tables["trials"]["bytes_requested"].sum() == sum(trial.bytes_requested for trial in result.trials)
    metrics = tables["metrics"].set_index("metric")
    assert list(metrics.index) == [*METRICS, "elapsed_over_first"]
    for name, metric in result.metrics.items():
        ends = (float("nan"),) * 2 if metric.ci is None else metric.ci
        value = float("nan") if metric.value is None else metric.value
        assert metrics.loc[name, ["value", "ci_low", "ci_high"]].tolist() == pytest.approx([value, *ends], nan_ok=True)
    steps = tables["steps"]
    assert len(steps) == 6 * 2 * 16
    assert steps.query("trial == 3 and rank == 1 and step == 5")["stall_seconds"].item() == pytest.approx(0.113)


def test_the_table_of_trials_is_the_default(saved: Any, exported: Any) -> None:
    _, folder = saved()
    assert exported(folder, "--to", "csv") == exported(folder, "--to", "csv", "--table", "trials")


def test_the_export_goes_to_a_file(saved: Any, exported: Any, tmp_path: Path) -> None:
    result, folder = saved()
    path = tmp_path / "new" / "out.xml"
    told = json.loads(exported(folder, "--to", "junit", "--out", path, "--json"))
    assert told == {"to": "junit", "out": str(path), "bytes": path.stat().st_size, "results": [result.digest]}
    assert path.read_text() == exported(folder, "--to", "junit")


def test_pytest_benchmark_compares_two_exports(saved: Any, exported: Any, tmp_path: Path) -> None:
    def slower(draft: dict[str, Any]) -> None:
        for trial in draft["trials"]:
            trial["elapsed_seconds"] *= 2

    for name, change in (("a.json", None), ("b.json", slower)):
        folders = [saved(reader, change=change)[1] for reader in ("naive", "prefetch")]
        exported(*folders, "--to", "pytest-benchmark", "--out", tmp_path / name)
    command = [sys.executable, "-m", "pytest_benchmark", "compare", "a.json", "b.json", "--columns=min,mean,rounds"]
    done = subprocess.run(
        [*command, "--group-by=name", "--sort=mean", "--csv=table.csv"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [table] = [path.read_text() for path in tmp_path.glob("table.csv")]
    means: dict[str, list[float]] = {}
    for row in csv.DictReader(io.StringIO(table)):
        means.setdefault(row["name"], []).append(float(row["mean"]))
    assert list(means) == ["cdb[naive-2x1]", "cdb[prefetch-2x1]"]
    for before, after in means.values():
        assert after == pytest.approx(2 * before)
    assert done.stdout.count("cdb[prefetch-2x1] (") == 2, done.stdout


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 9])
def test_statistics_are_those_of_pytest_benchmark(count: int) -> None:
    seconds = [9.0, 1.0, 1.5, 1.25, 2.0, 1.75, 30.0, 1.1, 1.2][:count]
    theirs = Stats()
    for value in seconds:
        theirs.update(value)
    ours = pytest_benchmark.stats(seconds)
    assert {name: ours[name] for name in Stats.fields} == pytest.approx(theirs.as_dict())


def test_junit_has_a_suite_for_each_result_and_a_case_for_each_check(saved: Any, exported: Any) -> None:
    def broken(draft: dict[str, Any]) -> None:
        draft["checks"][1].update(ok=False, found="3 fields differ")

    result, folder = saved("naive")
    root = ElementTree.fromstring(exported(folder, saved(change=broken)[1], "--to", "junit"))
    assert root.attrib == {"tests": "4", "failures": "1", "errors": "0", "time": root.attrib["time"]}
    held, failed = root
    assert held.attrib["name"] == "cdb: naive"
    assert float(held.attrib["time"]) == pytest.approx(sum(trial.elapsed_seconds for trial in result.trials), abs=1e-5)
    facts = {each.attrib["name"]: each.attrib["value"] for each in held.iter("property")}
    assert facts["class"] == "EXPLORE"
    assert float(facts["elapsed_seconds [s]"]) == pytest.approx(result.value("elapsed_seconds"))
    assert [case.attrib["name"] for case in failed.iter("testcase")] == ["exactly once", "content"]
    [failure] = root.iter("failure")
    assert failure.attrib["message"] == "expected CRC32C of 320 fields as generated; found 3 fields differ"


def test_altered_files_count_as_a_failed_check(saved: Any, exported: Any) -> None:
    _, folder = saved()
    path = folder / "result.json"
    path.write_text(path.read_text("utf-8").replace('"version": "0', '"version": "9'), "utf-8")
    [failed] = ElementTree.fromstring(exported(folder, "--to", "junit")).iterfind(".//testcase[failure]")
    assert failed.attrib["name"] == "files as written"
    text = exported(folder, "--to", "openmetrics")
    assert samples(text)["dlio_bench_failed_checks"] == {("prefetch", None): 1}
    assert 'marks="VIRTUAL NODES; ALTERED"' in text


def samples(text: str) -> dict[str, dict[tuple[str, str | None], float]]:
    """Family -> (reader, statistic) -> value, read by the parser of Prometheus' own client, which checks the format."""
    return {
        family.name: {
            (sample.labels["reader"], sample.labels.get("statistic")): sample.value for sample in family.samples
        }
        for family in text_string_to_metric_families(text)
    }


def test_openmetrics_has_the_metrics_of_each_result(saved: Any, exported: Any) -> None:
    (naive, one), (prefetch, two) = saved("naive", trials=3), saved("prefetch")
    text = exported(one, two, "--to", "openmetrics")
    found = samples(text)
    assert found["dlio_bench_run"] == {("naive", None): 1, ("prefetch", None): 1}
    assert found["dlio_bench_failed_checks"] == {("naive", None): 0, ("prefetch", None): 0}
    stall = prefetch.metrics["stall_share"]
    assert stall.ci is not None
    assert found["dlio_bench_stall_ratio"] == {
        ("naive", "median"): naive.value("stall_share"),
        ("prefetch", "median"): stall.value,
        ("prefetch", "ci_low"): stall.ci[0],
        ("prefetch", "ci_high"): stall.ci[1],
    }
    assert found["dlio_bench_share_stall_ratio"]["naive", "mean"] == naive.value("share_stall")
    known = {name for name, metric in naive.metrics.items() if metric.value is not None}
    known.add("elapsed_over_first")
    assert {openmetrics.family(MEASURES[name]) for name in known} == found.keys() - {
        "dlio_bench_run",
        "dlio_bench_failed_checks",
    }
    # what the parser lets pass
    assert text.endswith("# EOF\n")
    assert "NaN" not in text
    for name, kinds in families(text).items():
        assert kinds in (["TYPE", "UNIT", "HELP"], ["TYPE", "HELP"])
        assert kinds == ["TYPE", "HELP"] or name.endswith(
            ("_seconds", "_bytes", "_per_second", "_ratio", "_samples", "_requests")
        )


def test_prometheus_own_format_has_the_same_samples_of_types_that_it_knows(saved: Any, exported: Any) -> None:
    """What node_exporter's textfile collector reads: its parser refuses a whole file for one unknown type."""
    folder = saved("naive")[1]
    text = exported(folder, "--to", "prometheus")
    before = exported(folder, "--to", "openmetrics")
    assert [line for line in text.splitlines() if line[0] != "#"] == [
        line for line in before.splitlines() if line[0] != "#"
    ]
    kinds = {family.type for family in parser.text_string_to_metric_families(text)}
    assert kinds == {"gauge"}
    comments = [line.split(" ", 3) for line in text.splitlines() if line.startswith("#")]
    assert {(kind, words) for _, kind, _, words in comments if kind == "TYPE"} == {("TYPE", "gauge")}
    assert {kind for _, kind, _, _ in comments} == {"TYPE", "HELP"}
    assert not any("\\" in words for *_, words in comments)  # it knows other escapes there
    names = {line.partition("{")[0] for line in text.splitlines() if line[0] != "#"}
    assert {name for _, kind, name, _ in comments if kind == "TYPE"} == names


def families(text: str) -> dict[str, list[str]]:
    """The lines of comment of each family, in their order."""
    order: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("# ") and line != "# EOF":
            _, kind, name, _ = line.split(" ", 3)
            order.setdefault(name, []).append(kind)
    return order


def test_every_metric_has_a_family_of_its_own() -> None:
    assert len({openmetrics.family(quantity) for quantity in METRICS.values()}) == len(METRICS)


def test_two_results_of_one_reader_and_scale_have_no_openmetrics(saved: Any, refused: Any) -> None:
    folders = [str(saved()[1]) for _ in range(2)]
    told = refused("export", *folders, "--to", "openmetrics")
    assert "Two of the results are of cdb, prefetch, 2x1 ranks" in told


@pytest.mark.parametrize("to", ["csv", "pandas", "pytest-benchmark", "junit", "openmetrics"])
def test_text_of_an_edited_file_does_no_harm(saved: Any, exported: Any, to: str) -> None:
    text = exported(edited(saved()[1]), "--to", to)
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    if to == "csv":
        [first, *_] = csv.DictReader(io.StringIO(text))
        assert first["workload"] == f"'{HARMLESS}"
        assert float(first["epoch_seconds"]) > 0
    elif to == "pandas":
        assert pd.read_json(io.StringIO(text), orient="table")["workload"][0] == HARMLESS
    elif to == "pytest-benchmark":
        assert json.loads(text)["benchmarks"][0]["params"]["reader"] == HARMLESS
    elif to == "junit":
        [failure] = ElementTree.fromstring(text).iter("failure")
        assert failure.attrib["message"].endswith(HARMLESS)
    else:
        run = next(family for family in text_string_to_metric_families(text) if family.name == "dlio_bench_run")
        assert run.samples[0].labels["workload"] == HARMLESS


def test_a_number_below_zero_is_no_formula(saved: Any, exported: Any) -> None:
    _, folder = saved()
    rows = csv.DictReader(io.StringIO(exported(folder, "--to", "csv", "--table", "metrics")))
    values = {row["metric"]: row["value"] for row in rows}
    assert not any(value.startswith("'") for value in values.values())
    assert values["bytes_client_cache"] == ""
