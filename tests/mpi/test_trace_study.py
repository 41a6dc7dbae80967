"""`trace` of the published pipelines, with four ranks: the study's tables, and parts that add up to the loop."""

import json
from pathlib import Path

import pytest

from dlio_bench.harness.cli import main
from dlio_bench.reports import accounting, timeline
from dlio_bench.reports.result import load
from dlio_bench.reports.timeline import TRAINER
from tests.processes import dlio

RANKS = 4
READING = {
    "hepcnnb": ("additive", "HDF5 File Read"), "cdb": ("merged", "Time to Read Single Image"),
    "cosmoflow": ("waiting", None), "imagenet": ("waiting", None),  # TensorFlow reads by itself
}  # fmt: skip


@pytest.mark.parametrize("workload", READING)
def test_each_published_pipeline_yields_the_tables(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dlio(
        tmp_path, "run", workload, "--tiny", "--nodes", str(RANKS), "--reader", "upstream", "--epochs", "2",
        "--trials", "1", "--warmup-trials", "0", "--no-verify", "--trace", "spans", "--out", str(tmp_path / "run"),
    )  # fmt: skip
    place = tmp_path / "run" / f"upstream-{RANKS}x1"
    capsys.readouterr()
    assert main(["trace", str(place), "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)
    result, steps = load(place)
    loop = steps["loop"][0]
    how, component = READING[workload]
    assert told["read_components"] == [component] * (component is not None)
    assert list(told["accounts"]) == list(dict.fromkeys((how, "waiting")))
    account = told["accounts"][how]
    assert account["epochs"].keys() == {"0", "1"}
    assert 0 < account["share"] < 1
    if how == "additive":  # parts of a node that follow each other
        assert sum(account["totals"].values()) == pytest.approx(loop.mean(), rel=0.01)
    elif how == "merged":
        assert 0.98 * loop.max() < account["totals"]["training"] < 1.5 * loop.sum()
    assert (told["published"] is not None) == (workload in ("hepcnnb", "cdb"))
    assert told["bandwidth"]["read_bytes"] == result.trials[0].bytes_requested
    assert 0 < told["critical_path"]["total"] < loop.sum()
    spans = timeline.load(place)
    records = [span for span in timeline.spans(spans, 0) if span.thread == TRAINER]
    ends = {span.rank: span.end for span in records if span.component == "Training Loop"}
    within = [span for span in records if span.end <= ends[span.rank]]
    for rank, parts in accounting.exclusive(within).items():
        assert sum(parts.values()) == pytest.approx(float(loop[rank]), rel=0.01)
