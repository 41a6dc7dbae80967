"""`run --trace spans`: what every thread and process of every rank did, in one file beside the result."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio_bench.harness.cli import main
from dlio_bench.reports.document.result import load
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.numbers.metrics import PHASES
from dlio_bench.reports.traces import accounting, timeline
from dlio_bench.reports.traces.timeline import TRAINER, Timeline
from tests.processes import dlio

EPOCHS = 2
# Ranks of a pipeline that TensorFlow reads for have nothing to do with each other, and take seconds to load it.
RANKS = {"hepcnnb": 2, "cdb": 2, "cosmoflow": 1, "imagenet": 1}
READERS = {
    "cdb": ("upstream", "tfdata", "naive", "prefetch", "staged-subset"),
    "hepcnnb": ("upstream",),
    "cosmoflow": ("upstream",),
    "imagenet": ("upstream",),
}
OF_NODE = {"copy read", "tier read"}  # reads, but not of the dataset's files
# The study's accounting of each published pipeline, and what reads in it.
READING = {
    "hepcnnb": ("additive", "HDF5 File Read"), "cdb": ("merged", "Time to Read Single Image"),
    "cosmoflow": ("waiting", None), "imagenet": ("waiting", None),  # TensorFlow reads by itself
}  # fmt: skip
Traced = tuple[Result, Steps, Timeline]


@pytest.mark.parametrize("workload", READERS)
def test_every_thread_and_process_of_all_ranks_tells_what_it_did(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = RANKS[workload]
    warmup = int(workload == "cdb")  # two trials are told apart there
    dlio(
        tmp_path, "run", workload, "--tiny", "--nodes", str(ranks), "--reader", ",".join(READERS[workload]), "--epochs",
        str(EPOCHS), "--trials", "1", "--warmup-trials", str(warmup), "--no-verify", "--trace", "spans", "--local-tier",
        str(tmp_path), "--out", "run",
    )  # fmt: skip
    folders = {reader: tmp_path / "run" / f"{reader}-{ranks}x1" for reader in READERS[workload]}
    results: dict[str, Traced] = {reader: (*load(folder), timeline.load(folder)) for reader, folder in folders.items()}
    for reader, traced in results.items():
        the_parts_of_a_trainer_add_up_to_its_loop(reader, *traced)
        every_read_is_there_once_with_its_rank_epoch_step_and_bytes(reader, *traced)
    capsys.readouterr()
    a_published_pipeline_yields_the_study_s_tables(workload, *results["upstream"][:2], folders["upstream"], capsys)
    if workload == "hepcnnb":
        files_are_loaded_around_reading_them_and_the_accounting_of_the_study_adds_up(*results["upstream"])
    if workload == "cdb":
        of_extents = {reader: results[reader] for reader in ("naive", "prefetch")}
        the_study_s_tables_come_from_the_spans(of_extents, tmp_path / "run", capsys)
        processes_record_what_threads_wait_for(ranks, results["upstream"][2])
        copies_that_ranks_hand_over_are_recorded(results["staged-subset"][0], results["staged-subset"][2])
        samples_that_ranks_serve_are_recorded(results["prefetch"][2])


def the_parts_of_a_trainer_add_up_to_its_loop(reader: str, result: Result, steps: Steps, spans: Timeline) -> None:
    assert not spans.problems, reader
    assert not spans.lost, reader
    for trial in range(len(result.trials)):
        of_trainer = [span for span in timeline.spans(spans, trial) if span.thread == TRAINER]
        loops = {span.rank: span for span in of_trainer if span.component == "Training Loop"}
        within = [  # not files opened before the loop or closed behind it
            span for span in of_trainer if loops[span.rank].start <= span.start <= span.end <= loops[span.rank].end
        ]
        for rank, parts in accounting.exclusive(within).items():
            assert sum(parts.values()) == pytest.approx(float(steps["loop"][trial][rank]), rel=0.01), reader


def every_read_is_there_once_with_its_rank_epoch_step_and_bytes(
    reader: str, result: Result, steps: Steps, spans: Timeline
) -> None:
    kinds = np.array([part.kind == "read" and part.name not in OF_NODE for part in spans.components])
    kinds |= [part.name == "records" for part in spans.components]
    per_epoch = result.plan.steps // EPOCHS
    for trial in range(len(result.trials)):
        of_trial = spans.part(spans.trial == trial)
        reads = of_trial.part(kinds[of_trial.component])
        of_epochs = result.trials[trial].epochs
        for epoch in range(EPOCHS):
            of_epoch = np.isin(reads.epoch, [epoch, ~epoch])
            assert int(reads.bytes[of_epoch].sum()) == of_epochs[epoch].bytes_requested, (reader, epoch)
        assert set(reads.rank.tolist()) == set(range(result.plan.ranks)), reader
        training = reads.part(reads.epoch >= 0)
        assert (training.step // per_epoch == training.epoch).all(), reader
        assert (reads.step[reads.epoch < 0] == -1).all(), reader
        if not reads.are_of("records").any():
            assert (reads.file >= 0).all(), reader
        waiting = of_trial.part(of_trial.are_of("Call to Next Batch") & (of_trial.epoch >= 0))
        for rank in range(result.plan.ranks):
            stalls = (waiting.end - waiting.start)[waiting.rank == rank]
            assert np.allclose(stalls, steps["stall"][trial][rank], atol=1e-9), reader


def a_published_pipeline_yields_the_study_s_tables(
    workload: str, result: Result, steps: Steps, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(folder), "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)
    trial = told["trial"] - 1
    loop = steps["loop"][trial]
    iterations = sum(seconds[trial].sum(axis=1) for seconds in _phases(steps))  # of each rank
    how, component = READING[workload]
    assert told["read_components"] == [component] * (component is not None)
    assert list(told["accounts"]) == list(dict.fromkeys((how, "waiting")))
    account = told["accounts"][how]
    assert account["epochs"].keys() == {"0", "1"}
    assert 0 < account["share"] < 1
    if how == "additive":  # parts of a node that follow each other
        assert iterations.mean() * (1 - 1e-6) <= sum(account["totals"].values()) <= loop.mean() * (1 + 1e-6)
    elif how == "merged":
        assert iterations.max() * (1 - 1e-6) <= account["totals"]["training"] <= loop.sum()
    assert (told["published"] is not None) == (workload in ("hepcnnb", "cdb"))
    assert told["bandwidth"]["read_bytes"] == result.trials[trial].bytes_requested
    assert 0 < told["critical_path"]["total"] <= loop.sum() * (1 + 1e-6)


def files_are_loaded_around_reading_them_and_the_accounting_of_the_study_adds_up(
    result: Result, steps: Steps, spans: Timeline
) -> None:
    loads, reads, opens = (spans.part(spans.are_of(name)) for name in ("Load File", "HDF5 File Read", "open"))
    for outer, inner in ((loads, reads), (reads, opens)):
        assert len(outer) == len(inner) > 0
        for name in ("trial", "track", "epoch", "step", "file"):
            assert (getattr(outer, name) == getattr(inner, name)).all()
        assert (outer.start <= inner.start).all()
        assert (inner.end <= outer.end).all()
    for trial in range(len(result.trials)):
        by_epoch = accounting.additive(timeline.spans(spans, trial), result.plan.ranks)
        assert sorted(by_epoch) == list(range(EPOCHS))
        for epoch, parts in by_epoch.items():
            assert parts.read > 0
            assert parts.load > 0
            iterations = sum(seconds[trial][:, steps["epoch"] == epoch].sum() for seconds in _phases(steps))
            assert parts.total >= float(iterations) / result.plan.ranks * (1 - 1e-6)
        # what a rank does between the phases of a step is part of its iteration: long where others have the processor
        assert sum(parts.total for parts in by_epoch.values()) <= float(steps["loop"][trial].mean()) * (1 + 1e-6)


def processes_record_what_threads_wait_for(ranks: int, spans: Timeline) -> None:
    calls, images, files = (
        _sorted(spans.part(spans.are_of(name)))
        for name in ("Parallel Read Images with 4 Threads", "Time to Read Single Image", "image file read")
    )
    for outer, inner in ((calls, images), (images, files)):
        assert len(outer) == len(inner) > 0
        for name in ("trial", "rank", "epoch", "step", "file"):
            assert (getattr(outer, name) == getattr(inner, name)).all()
        assert (outer.start <= inner.start).all()
        assert (inner.end <= outer.end).all()
    for rank in range(ranks):
        [trainer] = {track.process for track in spans.tracks if track.rank == rank and track.thread == TRAINER}
        processes = {spans.tracks[track].process for track in images.track[images.rank == rank].tolist()}
        assert 1 <= len(processes) <= 4  # a busy machine may give one of them no time for an image
        assert trainer not in processes
    assert (accounting.merged_latency(timeline.spans(spans, 1), "Time to Read Single Image").keys()) == {0, 1}
    # a thread is in one call at a time
    for trial, track in {(trial, track) for trial in (0, 1) for track in np.unique(calls.track).tolist()}:
        of_track = calls.part((calls.trial == trial) & (calls.track == track))
        order = np.argsort(of_track.start)
        assert (of_track.end[order][:-1] <= of_track.start[order][1:]).all()


def copies_that_ranks_hand_over_are_recorded(result: Result, spans: Timeline) -> None:
    for trial in range(len(result.trials)):
        of_trial = spans.part(spans.trial == trial)
        read, written, handed = (
            of_trial.part(of_trial.are_of(name)) for name in ("stage read", "stage write", "hand-over")
        )
        assert sorted(handed.rank.tolist()) == list(range(result.plan.ranks))
        assert handed.bytes.sum() == result.trials[trial].bytes_remote > 0
        assert written.bytes.sum() == read.bytes.sum() + handed.bytes.sum()
        assert (written.file >= 0).all()


def samples_that_ranks_serve_are_recorded(spans: Timeline) -> None:
    served, asked = spans.part(spans.are_of("sample server")), spans.part(spans.are_of("remote read"))
    assert served.bytes.sum() == asked.bytes.sum() > 0


def _phases(steps: Steps) -> list[Any]:
    """Seconds [trial, rank, step] of each phase of a step."""
    return [steps[name] for name in PHASES if name in steps]


def _sorted(spans: Timeline) -> Timeline:
    """By what tells them apart: in a trial and epoch a rank reads a file once."""
    return spans.part(np.lexsort((spans.file, spans.epoch, spans.rank, spans.trial)))


def the_study_s_tables_come_from_the_spans(
    traced: dict[str, Traced], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every number here is worked out from the columns of spans.npz and steps.npz again."""
    assert main(["trace", str(folder), "--json", "--html", str(folder / "page.html")]) == 0
    told = {document["reader"]: document for document in json.loads(capsys.readouterr().out)}
    for reader, (result, steps, spans) in traced.items():
        document = told[reader]
        trial = document["trial"] - 1
        part = spans.part(spans.trial == trial)
        reads = part.part(part.are_of("pread", "stage read"))
        took = reads.end - reads.start
        rates = document["bandwidth"]
        assert rates["calls"] == len(reads)
        assert rates["read_bytes"] == result.trials[trial].bytes_requested
        assert rates["node_seconds"] == pytest.approx(took.sum() / result.plan.ranks)
        assert took.max() * (1 - 1e-9) <= rates["merged_seconds"] <= took.sum() * (1 + 1e-9)
        assert rates["by_node_seconds"] == pytest.approx(rates["read_bytes"] * result.plan.ranks / took.sum())
        iterations = part.part(part.are_of("Training Iteration"))
        merged = document["accounts"]["merged"]
        assert sum(entry["read"] for entry in merged["epochs"].values()) == pytest.approx(rates["merged_seconds"])
        assert merged["totals"]["training"] <= (iterations.end - iterations.start).sum() * (1 + 1e-9)
        elapsed = sum(merged["totals"].values()) - merged["counted_twice"]
        assert elapsed <= part.end.max() - part.start.min() + 1e-9
        stalls = steps["stall"][trial].sum(axis=1).mean()
        assert document["accounts"]["waiting"]["totals"]["waiting"] == pytest.approx(stalls)
        assert sum(document["critical_path"]["last"]) == result.plan.steps
        assert document["published"]["tables"][0]["workload"] == "cdb"
    assert "published by the study" in (folder / "page.html").read_text()
