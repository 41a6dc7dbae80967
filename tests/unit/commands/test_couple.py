"""Coupled workflows: what is refused, coupling through files, and what a document says."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import asdict, replace

from dlio_bench.benchmarks.grayscott.published import DECK, SLOWDOWNS
from dlio_bench.benchmarks.grayscott.solver import Slab, slab
from dlio_bench.errors import DataError, StreamTimeout
from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.commands.coupling.rank import rotate_cases
from dlio_bench.harness.commands.coupling.ways.files import HEAD, FileInlet, FileOutlet, output
from dlio_bench.reports.coupling import document as couple
from dlio_bench.reports.coupling import view as couple_view
from dlio_bench.reports.coupling.document import APART, BESIDE, SOLVER, TWINS, WORKFLOW, Document
from dlio_bench.reports.document import result_file
from dlio_bench.reports.document.typed import convert, to_json
from dlio_bench.reports.study.rows import of_couple
from tests.goldens import require_golden

SIZE = 8
WHOLE = slab(SIZE, 1, 0)
Refused = Callable[..., str]


def test_the_plan_is_told_before_anything_is_made(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["couple", "grayscott", "--through", "files", "--consumers", "2", "--dry-run"]
    assert main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["ranks"], plan["outputs"], plan["output_bytes"]) == (3, 20, 2 * 8 * 64**3)
    assert plan["read_bytes"] == plan["memory_bytes"] == 2 * plan["written_bytes"] == 40 * plan["output_bytes"]
    assert plan["cases"] == ["solver alone", "twins alone", "side by side", "one after the other", "files"]
    assert plan["ways"]["files"]["written_bytes"] == plan["written_bytes"]
    assert main(words) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "20 outputs of 4.19 MB" in told
    assert "files 83.9 MB written and 168 MB read in a case, on this machine" in told
    assert list(tmp_path.iterdir()) == []


def test_a_plan_tells_of_each_way_what_it_carries(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("dlio_bench.harness.streams.adios.require", lambda: None)
    words = ["couple", "grayscott", "--through", "bp,sst", "--dry-run"]
    assert main([*words, "--json"]) == 0
    ways = json.loads(capsys.readouterr().out)["ways"]
    written = 20 * 2 * 8 * 64**3
    assert ways["bp"] == {"written_bytes": written, "read_bytes": written, "sent_bytes": 0}
    assert ways["sst"] == {"written_bytes": 0, "read_bytes": 0, "sent_bytes": written}
    assert main(words) == 0
    assert "sst 83.9 MB sent to the twins over TCP; nothing written" in " ".join(capsys.readouterr().out.split())


def test_each_trial_begins_with_another_case() -> None:
    orders = [rotate_cases("abcd", trial) for trial in range(-1, 4)]
    assert [order[0] for order in orders] == ["d", "a", "b", "c", "d"]
    assert all(sorted(order) == list("abcd") for order in orders)


def state(number: int) -> np.ndarray:
    return np.random.default_rng(number).random((2, SIZE, SIZE, SIZE))


def ends(folder: Path, consumers: int, queue: int, seconds: float = 60.0) -> tuple[FileOutlet, list[FileInlet]]:
    inlets = [FileInlet(folder, consumer, [WHOLE], SIZE, seconds) for consumer in range(consumers)]
    return FileOutlet(folder, Solo(), WHOLE, consumers, queue, seconds), inlets


def test_a_full_queue_makes_the_solver_wait_and_a_late_twin_gets_everything(tmp_path: Path) -> None:
    outlet, (quick, late) = ends(tmp_path, consumers=2, queue=2)

    def produce() -> None:
        for number in range(1, 7):
            outlet.put(number, state(number))

    producer = threading.Thread(target=produce)
    producer.start()
    out = np.empty((2, SIZE, SIZE, SIZE))
    for number in (1, 2):
        quick.take(number, out)
        assert np.array_equal(out, state(number))
    assert not output(tmp_path, 3).exists()  # the late twin has taken nothing yet
    taker = threading.Thread(target=lambda: [quick.take(number, np.empty_like(out)) for number in range(3, 7)])
    taker.start()
    for number in range(1, 7):
        late.take(number, out)
        assert np.array_equal(out, state(number))
    for thread in (producer, taker):
        thread.join(60)
        assert not thread.is_alive()
    assert outlet.clock.waited > 0 < quick.clock.waited
    outlet.close()
    late.close()
    assert len([path for path in tmp_path.iterdir() if path.suffix == ""]) == 2  # the rest was taken and removed


def test_a_side_that_does_not_come_is_told_in_time(tmp_path: Path) -> None:
    outlet, (inlet,) = ends(tmp_path, consumers=1, queue=1, seconds=0.1)
    with pytest.raises(StreamTimeout, match="did not write output 1"):
        inlet.take(1, np.empty((2, SIZE, SIZE, SIZE)))
    outlet.put(1, state(1))
    with pytest.raises(StreamTimeout, match="twin 0 did not take output 1"):
        outlet.put(2, state(2))


def test_what_arrives_is_checked(tmp_path: Path) -> None:
    outlet, (inlet,) = ends(tmp_path, consumers=1, queue=0)
    out = np.empty((2, SIZE, SIZE, SIZE))
    for number in (1, 2, 3, 4):
        outlet.put(number, state(number))
    with output(tmp_path, 1).open("r+b") as file:  # a bit that flips
        file.seek(HEAD + 1000)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(DataError, match="checksum of output 1"):
        inlet.take(1, out)
    output(tmp_path, 3).replace(output(tmp_path, 2))  # an output that comes out of turn
    with pytest.raises(DataError, match="output 2 was to come, and 3 came"):
        inlet.take(2, out)
    output(tmp_path, 3).write_bytes(b"short")
    with pytest.raises(DataError, match="has 5 bytes"):
        inlet.take(3, out)
    with pytest.raises(DataError, match="behind the last"):
        FileInlet(tmp_path, 0, [Slab(0, SIZE)], SIZE, 1.0).close()


def timed(elapsed: float, moved: float = 0.0, waited: float = 0.0, loss: float | None = None) -> dict[str, Any]:
    return {"elapsed": elapsed, "moved": moved, "waited": waited, "outputs": 10, "loss": loss}


def document(
    trials: int = 5,
    ways: tuple[str, ...] = ("files", "sst"),
    simulation: str = "grayscott",
    marks: tuple[str, ...] = ("VIRTUAL NODES",),
    apart: tuple[str, ...] = (),
) -> Document:
    """Solver alone 1 s, twin alone 2 s in each trial; coupled through files the twin takes 3 s, through SST 2.1 s."""
    twin = {"twins alone": 2.0, BESIDE: 2.0, APART: 2.5, "files": 3.0, "bp": 2.5, "sst": 2.1}
    rows = []
    for number in range(trials):
        drift = 1 + number / 10  # of the machine: it meets all cases of a trial alike
        for case in ("solver alone", "twins alone", BESIDE, *apart, *ways):
            traffic = {"read_bytes": 10**9, "written_bytes": 10**9, "read_seconds": 1.5, "write_seconds": 0.5}
            rows.append({
                "trial": number, "warmup": False, "case": case,
                "sides": [
                    None if case == "twins alone" else timed(1.5 * drift if case == "files" else drift, moved=0.25),
                    None if case == "solver alone" else timed(twin[case] * drift, 0.5 * drift, 0.25 * drift, 0.4),
                ],
                "traffic": traffic if case == "files" else dict.fromkeys(traffic, 0),
            })  # fmt: skip
    content = {
        "simulation": simulation, "created": "2026-01-01T00:00:00+00:00", "version": "0",
        "command": ["dlio-bench", "couple"], "code_digest": "0",
        "settings": {
            "size": 64, "diffusion_u": 0.2, "diffusion_v": 0.1, "feed": 0.01, "kill": 0.05, "dt": 2.0, "noise": 1e-7,
            "steps": 100, "plotgap": 10, "seed": 0, "kernel": "numpy", "source": "example",
        },
        "outputs": 10, "output_bytes": 10**8, "producers": 1, "consumers": 1, "twin": "ours", "twin_parameters": 2610,
        "train_steps": 1, "queue": 4, "ways": list(ways), "trials": rows, "range": [[0.1, 1.0], [0.0, 0.6]],
        "published_range": None,
        "published": [
            {"coupling": "files", "consumers": 1, "ratio": 1.5, "bound": False, "words": "1.5x", "source": "deck"},
            {"coupling": "stream", "consumers": 3, "ratio": 1.05, "bound": True, "words": "5 %", "source": "deck"},
        ],
        "checks": [{"name": "order", "found": "all came"}], "marks": list(marks), "folder": "/tmp",
        "emulated_pfs": {"says": "400 MB/s", "bandwidth": 4e8}, "host": {"host": "here"},
        "schema": couple.SCHEMA, "kind": "couple",
    }  # fmt: skip
    return couple.complete(convert(content, Document))


def test_slowdowns_are_paired_by_trial_and_the_workflow_is_held_against_its_slower_side() -> None:
    told = document()
    assert couple.slowdown(told, "files", WORKFLOW).value == pytest.approx(1.5)
    assert couple.slowdown(told, "files", WORKFLOW).ci == pytest.approx((1.5, 1.5))  # the drift cancels out
    assert couple.slowdown(told, "sst", WORKFLOW).value == pytest.approx(1.05)
    assert couple.slowdown(told, "files", SOLVER).value == pytest.approx(1.5)
    assert couple.slowdown(told, "sst", TWINS).value == pytest.approx(1.05)
    assert couple.time_spread(told, "sst") == pytest.approx(0.4 / 1.2)
    assert told.marks == ["VIRTUAL NODES", "NOISY"]  # as both sides alone drift by as much
    assert document(trials=2).marks == ["VIRTUAL NODES"]
    assert couple.slowdown(document(trials=4), "files", WORKFLOW).ci is None
    parts = couple.shares(told, "files", TWINS)
    assert (parts.moved, parts.waited) == pytest.approx((1 / 6, 1 / 12))


def test_separate_runs_that_write_and_read_are_told_where_they_were_measured() -> None:
    told = document(apart=(APART,))
    assert couple.over_uncoupled(told, "files", APART).value == pytest.approx(1.2)
    rows = {row.attributes["case"]: row for row in of_couple(told, "f") if row.attributes["side"] == WORKFLOW}
    assert rows[APART].figures["elapsed_seconds"].tolist() == pytest.approx([2.5, 2.75, 3.0, 3.25, 3.5])
    assert APART not in {row.attributes["case"] for row in of_couple(document(), "f")}
    written = {case: row.figures["written_share"].tolist() for case, row in rows.items() if len(row.figures) > 1}
    assert written == {"files": [0.5] * 5}  # nothing was carried in the others


def test_bandwidth_that_is_asked_for_and_used_follows_from_measured_numbers() -> None:
    told = document()
    assert couple.demand(told) == pytest.approx(2 * 10**8 / (2.4 / 10))  # the median trial drifts by 1.2
    assert couple.busy(told, "files") == pytest.approx(2e9 / 4e8 / 3.6)
    assert couple.filling(told) == pytest.approx(0.5 / 10)
    assert couple.throughput(told, "sst") == pytest.approx(10**9 / 2.52)
    assert couple.busy(replace(told, emulated_pfs=None), "files") is None


def of_two_twins() -> Document:
    made = replace(document(), consumers=2)
    return replace(made, trials=[replace(trial, sides=[*trial.sides, trial.sides[1]]) for trial in made.trials])


def at_length() -> Document:
    """All ways, with the published figures of the deck and every mark."""
    marks = ("VIRTUAL NODES", "EMULATED PFS", "SHARED CORES", "FEW TRIALS")
    made = document(ways=("files", "bp", "sst"), marks=marks)
    says = "100 MB/s shared by all nodes, 25 MB/s a node, open 1 ms, no client cache"
    published = [convert(asdict(row) | {"source": DECK}, couple.Published) for row in SLOWDOWNS]
    return replace(made, published=published, emulated_pfs=replace(made.emulated_pfs, says=says))


CASES: dict[str, Document] = {
    "files and a stream": document(),
    "separate runs that write and read": document(apart=(APART,)),
    "without an emulated file system": replace(document(), emulated_pfs=None),
    "tiny": document(marks=("TINY",)),
    "four trials": document(4, marks=()),
    "two twins": of_two_twins(),
    "files alone": document(ways=("files",)),
    "every way, with all marks": at_length(),
}


def test_texts_are_the_golden_ones_and_the_answer_fits_a_screen() -> None:
    short = {name: couple_view.view(CASES[name]).text() for name in ("files and a stream", "every way, with all marks")}
    texts = {f"{name}, in detail": couple_view.view(made).text(verbose=True) for name, made in CASES.items()}
    require_golden("couple", short | texts)
    assert all(len(text.splitlines()) <= 21 for text in short.values())  # and a blank line, the folder, a prompt
    assert [couple.incomparable(made) is None for made in CASES.values()] == [
        name not in ("tiny", "four trials") for name in CASES
    ]


def test_the_page_answers_first_and_obeys_nothing_from_the_file() -> None:
    hostile = couple_view.view(document(simulation="<script>alert(1)</script>\x1b[2J"))
    assert "\x1b" not in hostile.text()
    page = hostile.page()
    assert "<script>alert(1)" not in page
    assert "\x1b" not in page
    assert page.count("1.05 (1.05-1.05)") >= 2
    assert "no comparison of speed: TINY" in couple_view.view(CASES["tiny"]).page()


def test_a_document_is_shown_again_and_a_damaged_one_is_refused(tmp_path: Path, capsys: Any) -> None:
    made = document()
    path = result_file.save(made, tmp_path / "kept")
    assert main(["show", str(path.parent)]) == 0
    assert capsys.readouterr().out == couple_view.view(made).text()
    assert main(["show", str(path.parent), "--verbose"]) == 0
    assert capsys.readouterr().out == couple_view.view(made).text(verbose=True)
    assert main(["show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [to_json(made)]
    assert main(["report", str(path.parent)]) == 0
    assert (path.parent / "report.html").read_text() == couple_view.view(made).page()
    assert main(["report", str(path), str(path.parent)]) == 2
    assert "Name it alone" in capsys.readouterr().err
    content = json.loads(path.read_text())
    content["trials"][0]["sides"][0]["elapsed"] = 0.5
    path.write_text(json.dumps(content))
    assert main(["show", str(path)]) == 5
    assert "altered" in capsys.readouterr().err
    content["trials"] = content["trials"][1:]
    content["digest"] = couple.digest(content)
    path.write_text(json.dumps(content))
    assert main(["show", str(path)]) == 5
    assert "lacks a case" in capsys.readouterr().err
