"""`run --trace spans`: what every thread of every rank did, in one file beside the result."""

import json
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.harness.cli import main
from dlio_bench.reports import accounting, timeline
from dlio_bench.reports.result import load
from dlio_bench.reports.timeline import TRAINER
from tests.processes import dlio

RANKS, READERS = 4, ("naive", "prefetch", "staged")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("spans")
    dlio(
        out, "run", "cdb", "--tiny", "--nodes", str(RANKS), "--reader", ",".join(READERS), "--epochs", "2",
        "--trials", "1", "--trace", "spans", "--local-tier", str(out), "--out", str(out / "run"),
    )  # fmt: skip
    return out / "run"


@pytest.mark.parametrize("reader", READERS)
def test_the_parts_of_a_trainer_add_up_to_its_loop_and_reads_to_the_bytes_of_the_result(
    folder: Path, reader: str
) -> None:
    place = folder / f"{reader}-{RANKS}x1"
    result, steps = load(place)
    spans = timeline.load(place)
    assert not spans.problems
    for trial in range(len(result.trials)):
        of_trial = spans.part(spans.trial == trial)
        records = [span for span in timeline.spans(of_trial, trial) if span.thread == TRAINER]
        ends = {span.rank: span.end for span in records if span.component == "Training Loop"}
        records = [span for span in records if span.end <= ends[span.rank]]  # without closing files behind the loop
        for rank, parts in accounting.exclusive(records).items():
            assert sum(parts.values()) == pytest.approx(float(steps["loop"][trial][rank]), rel=0.01)
        read = of_trial.of("pread", "stage read")
        assert int(of_trial.bytes[read].sum()) == result.trials[trial].bytes_requested
        assert (of_trial.file[read] >= 0).all()
        waiting = of_trial.part(of_trial.of("Call to Next Batch"))
        assert len(waiting) == RANKS * result.plan.steps
        for rank in range(RANKS):
            stalls = (waiting.end - waiting.start)[waiting.rank == rank]
            assert np.allclose(stalls, steps["stall"][trial][rank], atol=1e-9)
        assert set(of_trial.epoch[of_trial.of("compute")].tolist()) == {0, 1}


def test_the_study_s_tables_come_from_the_spans_of_four_ranks(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every number here is worked out from the columns of spans.npz and steps.npz again."""
    assert main(["trace", str(folder), "--json", "--html", str(tmp_path / "page.html")]) == 0
    told = {document["reader"]: document for document in json.loads(capsys.readouterr().out)}
    for reader in READERS:
        place = folder / f"{reader}-{RANKS}x1"
        result, steps = load(place)
        document = told[reader]
        trial = document["trial"]
        part = timeline.load(place)
        part = part.part(part.trial == trial)
        reads = part.part(part.of("pread", "stage read"))
        took = reads.end - reads.start
        rates = document["bandwidth"]
        assert rates["calls"] == len(reads)
        assert rates["read_bytes"] == result.trials[trial].bytes_requested
        assert rates["node_seconds"] == pytest.approx(took.sum() / RANKS)
        assert took.max() <= rates["merged_seconds"] <= took.sum()
        assert rates["by_node_seconds"] == pytest.approx(rates["read_bytes"] * RANKS / took.sum())
        iterations = part.part(part.of("Training Iteration"))
        merged = document["accounts"]["merged"]
        assert sum(entry["read"] for entry in merged["epochs"].values()) == pytest.approx(rates["merged_seconds"])
        assert merged["totals"]["training"] <= (iterations.end - iterations.start).sum()
        stalls = steps["stall"][trial].sum(axis=1).mean()
        assert document["accounts"]["waiting"]["totals"]["waiting"] == pytest.approx(stalls)
        assert sum(document["critical_path"]["last"]) == result.plan.steps
        assert document["published"]["tables"][0]["workload"] == "cdb"
    assert "published by the study" in (tmp_path / "page.html").read_text()
