"""`trace` of several results: what it says first, its tables, JSON and page, from steps alone and with spans."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio_bench.components import BY_NAME
from dlio_bench.harness.cli import main
from dlio_bench.reports.traces import page as traced_page
from dlio_bench.reports.traces import scaling as traced
from dlio_bench.reports.traces import scaling_tables as traced_text
from dlio_bench.reports.traces.scaling import answers, missing
from dlio_bench.reports.traces.scaling_figures import figures
from dlio_bench.reports.traces.scaling_tables import came_last, tables
from dlio_bench.reports.traces.timeline import Timeline, Track
from tests.goldens import require_golden
from tests.pages import Page
from tests.results import Complete

GOLDEN = Path(__file__).parents[2] / "golden" / "result-3"
TRIAL = 1


def cases(
    made: Complete, *nodes: int, change: Any = None, timeline: Timeline | None = None
) -> list[traced.ScalingCase]:
    return [
        traced.case(f"prefetch, {count} nodes", *made("prefetch", count, change=change), TRIAL, timeline)
        for count in nodes
    ]


def scaling(*of: traced.ScalingCase) -> traced.Scaling:
    [only] = traced.scalings(of)
    return only


def row(told: list[Any], name: str, at: int) -> dict[str, str]:
    [table] = [table for table in told if table.name == name]
    return dict(zip(table.heads, table.rows[at][1], strict=True))


def timeline(spans: list[tuple[int, str, int, float, float]]) -> Timeline:
    """Spans (rank, component, epoch, start, end) of the trainer's thread of each rank."""
    ranks = 1 + max(rank for rank, *_ in spans)
    names = sorted({name for _, name, *_ in spans})
    of = {
        "track": [rank for rank, *_ in spans], "component": [names.index(name) for _, name, *_ in spans],
        "epoch": [epoch for _, _, epoch, *_ in spans], "start": [start for *_, start, _ in spans],
        "end": [end for *_, end in spans],
    }  # fmt: skip
    zeros = np.zeros(len(spans), dtype=np.int64)
    columns = {name: np.array(values) for name, values in of.items()}
    return Timeline(
        trial=zeros + TRIAL, step=zeros, file=zeros - 1, bytes=zeros, offset=zeros - 1, **columns, ranks=ranks,
        tracks=[Track(rank, "node01", rank, "trainer") for rank in range(ranks)],
        components=[BY_NAME[name] for name in names], files={}, clocks={}, lost={}, problems=("rank 3 had no room",),
    )  # fmt: skip


def hepcnnb(draft: dict[str, Any]) -> None:
    draft["workload"] = {"name": "hepcnnb", "title": "HEP-CNN"}


def shuffled(draft: dict[str, Any]) -> None:
    draft["policy"]["alias"] = "shuffled"
    draft["marks"] = [*draft["marks"], "SHORT"]


def more_samples(draft: dict[str, Any]) -> None:
    for trial in draft["trials"]:
        trial["samples"] *= 2


def of_tensorflow(draft: dict[str, Any]) -> None:
    draft["marks"].append("TF TRACE")


ITERATIONS = [(rank, "Training Iteration", 0, 0.0, 9.0) for rank in range(4)]
HEPCNNB_SPANS = [
    *ITERATIONS,
    *((rank, "validation", ~0, 9.0, 10.0) for rank in range(4)),
    (0, "Load File", 0, 0.0, 6.0), (0, "HDF5 File Read", 0, 0.0, 4.0),
    *((rank, "Load File", 0, 0.0, 2.0) for rank in (1, 2, 3)),
    *((rank, "HDF5 File Read", ~0, 0.0, 2.0) for rank in (1, 2, 3)),
]  # fmt: skip
AHEAD = [*ITERATIONS, (0, "pread", 0, 1.0, 7.0)]  # of nine seconds of steps six are read behind
RECORDS = [ITERATIONS[0], (0, "records", 0, 0.0, 4.0), (0, "pread", ~0, 9.0, 9.5)]
BOTH = [(rank, name, 0, 0.0, 9.0) for rank in range(4) for name in ("Training Iteration", "pread")]
THREADS = [(rank, "pread", 0, 0.0, 2.0) for rank in range(8)]  # 16 s beside a loop of some seconds


def cases_of_texts(made: Complete) -> dict[str, list[traced.ScalingCase]]:
    def spans(nodes: int, of: list[Any], change: Any = None) -> list[traced.ScalingCase]:
        return cases(made, nodes, change=change, timeline=timeline(of))

    return {
        "two node counts": cases(made, 1, 4),
        "two readers": [*cases(made, 4), *cases(made, 4, change=shuffled)],
        "unequal numbers of samples": [*cases(made, 1), *cases(made, 4, change=more_samples)],
        "spans of HEPCNNB": spans(4, HEPCNNB_SPANS, hepcnnb),
        "a reader that reads ahead": spans(4, AHEAD),
        "what TensorFlow reads by itself": spans(1, RECORDS),
        "what TensorFlow reads by itself, in its trace": spans(1, RECORDS, of_tensorflow),
        "two readers with spans": [*spans(4, BOTH), *spans(4, BOTH, shuffled)],
        "threads that compete": spans(1, THREADS),
        "one thread": spans(1, THREADS[:1]),
    }


WHOLE = ("two node counts", "two readers", "spans of HEPCNNB", "a reader that reads ahead", "two readers with spans")


def test_texts_are_the_golden_ones(made: Complete) -> None:
    texts = {}
    for name, of in ((name, traced.scalings(of)) for name, of in cases_of_texts(made).items()):
        notes = [note for _, told in tables(of) for table in told if table.name == "bandwidth" for note in table.notes]
        shown = traced_text.render(of) if name in WHOLE else "".join(f"{note}\n" for note in [*missing(of[0]), *notes])
        texts[name] = f"{traced_text.answer_text(of)}\n{shown}"
    require_golden("trace", texts, width=280)
    assert all(len(line) <= 80 for name in WHOLE for line in texts[name].splitlines())


def test_the_answer_comes_first_and_is_a_share_of_the_steps(made: Complete) -> None:
    """Of rank r: 16 steps of 0.1 + 0.01 r + 0.001 s of waiting, half a second in the first; whole: all phases."""
    of = scaling(*cases(made, 4, 1))
    assert [case.nodes for case in of.cases] == [1, 4]
    for case in of.cases:
        _, steps = made("prefetch", case.nodes)
        wait = steps["stall"][TRIAL].sum()
        whole = sum(steps[name][TRIAL].sum() for name in ("stall", "check", "compute", "exchange"))
        account = case.account("waiting")
        assert account is not None
        assert account.share == pytest.approx(wait / whole)
    [sentence] = answers(of)
    shares = [f"{100 * (case.account('waiting').share or 0):.0f} %" for case in of.cases]  # type: ignore[union-attr]
    assert sentence == f"trainers waited for data {shares[0]} of their steps on 1 node, {shares[1]} on 4 nodes"


def test_seconds_and_bandwidth_stand_beside_their_ideal(made: Complete) -> None:
    """64 samples on 1 and on 4 nodes: unequal numbers of samples would have no common ideal."""
    of = scaling(*cases(made, 1, 4))
    [(_, told)] = tables([of])
    first, last = (case.account("waiting").totals["waiting"] for case in of.cases)  # type: ignore[union-attr]
    assert row(told, "nodes-waiting", 0)["× ideal"] == "1.00×"
    assert row(told, "nodes-waiting", 1)["× ideal"] == f"{4 * last / first:.2f}×"
    # 4 s of reading a rank, 2 x 1,132,462,080 bytes: 566 MB/s on one node and on each of four, of the same bytes
    assert row(told, "bandwidth", 0)["in a node's time"] == "566 MB/s (1.00×)"
    assert row(told, "bandwidth", 1)["in a node's time"] == "566 MB/s (0.25×)"
    assert {table.name for table in told if not table.rows} == {
        "published-merged", "published-bandwidth", "published-variants",
    }  # fmt: skip
    unequal = scaling(*cases(made, 1), *cases(made, 4, change=more_samples))
    [(_, told)] = tables([unequal])
    assert row(told, "nodes-waiting", 1)["× ideal"] == "-"


def test_recorded_spans_give_the_study_s_accounting_with_published_rows_beside(made: Complete) -> None:
    """Four nodes: read (4 + 2 + 2 + 2) / 4, load (12 - 10) / 4, training (36 + 4 - 12) / 4, in seconds a node."""
    [case] = cases(made, 4, change=hepcnnb, timeline=timeline(HEPCNNB_SPANS))
    of = scaling(case)
    [(_, told)] = tables([of])
    cells = row(told, "nodes-additive", 0)
    assert cells == {
        "read": "2.5", "load": "0.5", "training": "7", "checkpoint": "0", "I/O share": "25 %", "× ideal": "1.00×"
    }  # fmt: skip
    [beside] = [table for table in told if table.name == "nodes-additive"]
    assert beside.published[0] == (
        "64, LOCAL shuffle", ["91.21", "77.68", "2365.17", "-", "3.60 %", "1.00×"]
    )  # fmt: skip
    assert row(told, "epochs", 0) == {"epoch 1": "25 %", "all": "25 %"}
    assert case.overlap is not None
    assert case.overlap.first == 2.5
    assert missing(of) == []
    page = Page(traced_page.page([of])).text
    assert "4 nodes: rank 3 had no room." in page
    assert "Time by component" in page
    assert row(told, "bandwidth", 0)["calls"] == "4"


def test_what_tensorflow_reads_by_itself_is_no_reading(made: Complete) -> None:
    """Its batches come after reading, decoding and waiting: of these nobody knows the parts."""
    for change in (None, of_tensorflow):
        [case] = cases(made, 1, change=change, timeline=timeline(RECORDS))
        assert (case.readers, case.overlap, [account.how for account in case.accounts]) == ([], None, ["waiting"])
        assert (case.bandwidth.calls, case.bandwidth.merged_seconds, case.bandwidth.rule) == (None, None, None)


def test_published_values_stand_once_on_the_page_of_two_readers(made: Complete) -> None:
    page = Page(traced_page.page(traced.scalings(cases_of_texts(made)["two readers with spans"])))
    assert page.text.count("1243.21") == 2  # of the table against nodes, and of the variants
    assert "Published values: in this table of prefetch." in page.text


def test_every_line_of_a_figure_has_a_look_of_its_own(made: Complete) -> None:
    """Five readers with spans: a colour each, and a marker for each of its lines."""

    def named(reader: str) -> Any:
        return lambda draft: draft["policy"].update(alias=reader)

    spans = [(rank, name, epoch, 0.0, 9.0) for rank in range(4) for epoch in (0, 1) for name in ("Load", "pread")]
    several = timeline([(rank, name.replace("Load", "Training Iteration"), *rest) for rank, name, *rest in spans])
    of = [case for reader in "abcde" for case in cases(made, 2, 4, change=named(reader), timeline=several)]
    for name, figure in figures(traced.scalings(of)).items():
        if name != "critical":
            looks = [(line["line"], line["marker"]["symbol"]) for line in figure["data"]]
            assert len(looks) >= 5
            assert [look for at, look in enumerate(looks) if look in looks[:at]] == []
    assert "published lines" not in Page(traced_page.page(traced.scalings(of))).text  # over epochs: HEPCNNB's alone


def test_who_came_last_is_told_in_order() -> None:
    assert came_last([2, 0, 5]) == "rank 2 came last in 5 of 7 steps, rank 0 in 2"
    assert came_last([1, 1, 1, 1, 1, 1]).endswith("rank 3 in 1, 2 other ranks in the rest")


def test_the_command_prints_tables_of_a_real_result_and_all_of_it_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(GOLDEN, tmp_path / "second")
    page = tmp_path / "page.html"
    assert main(["trace", str(GOLDEN), str(tmp_path / "second"), "--html", str(page), "--trial", "2", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["result"] != second["result"]
    assert main(["trace", str(GOLDEN), "--trial", "2"]) == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 80 for line in text.splitlines())
    assert f"the loop took {1000 * first['critical_path']['loop']:.0f} ms" in text
    with np.load(GOLDEN / "steps.npz") as steps:
        assert first["accounts"]["waiting"]["totals"]["waiting"] == pytest.approx(steps["stall"][1].sum(axis=1).mean())
        assert first["critical_path"]["loop"] == pytest.approx(steps["loop"][1].mean())
        assert sum(first["critical_path"]["last"]) == steps["stall"].shape[2]
    total, loop = first["critical_path"]["total"], first["critical_path"]["loop"]
    assert f"{1000 * (loop - total):.1f} ms more than the path: ranks may have left meetings" in " ".join(text.split())
    assert Page(page.read_text()).plots.keys() == {"nodes0", "epochs0", "bandwidth0", "critical0"}


def test_a_damaged_file_of_spans_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(GOLDEN, tmp_path / "result")
    (tmp_path / "result" / "spans.npz").write_bytes(b"PK")
    page = tmp_path / "page.html"
    words = ["trace", str(tmp_path / "result"), "--html", str(page)]
    assert main(words) == 5
    text = " ".join(capsys.readouterr().out.replace("  problem  ", " ").split())
    assert main([*words, "--json"]) == 5
    [document] = json.loads(capsys.readouterr().out)
    assert (document["spans"]["recorded"], document["spans"]["usable"]) == (True, False)
    for told in (text, " ".join(Page(page.read_text()).text.split())):
        assert "spans were recorded, but cannot be used" in told
        assert "of spans: it is cut short" in told
        assert "no spans were recorded" not in told
        assert ".." not in told.replace("...", "")


def test_the_page_is_whole_and_takes_no_markup_from_results(made: Complete) -> None:
    def hostile(draft: dict[str, Any]) -> None:
        draft["policy"]["alias"] = "<script>alert(1)</script><b>\x1b[31m"
        draft["workload"]["title"] = "<img src=x>"
        draft["marks"] = ["<i>"]

    page = Page(text := traced_page.page(traced.scalings([*cases(made, 1, 4), *cases(made, 2, change=hostile)])))
    assert not page.fetched
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "<i>" not in text
    assert "\x1b" not in text
    assert "Content-Security-Policy" in text
    assert page.plots.keys() == {"nodes0", "epochs0", "bandwidth0", "ideal0", "critical0"}
    for plot in page.plots.values():
        assert plot["role"] == "img"
        assert str(plot["aria-label"]).split(": ")[0] in ("Lines", "Stacked bars")
    assert "1243.21" in page.text
    assert "published by the study" in page.text
    assert "published, 27 July 2018" in str(page.plots["nodes0"]["aria-label"])


def test_several_results_are_told_together_and_each_alone_where_that_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    both = [str(GOLDEN.with_name(name)) for name in ("result-2", "result-3")]
    for options, phases in (([*both], 0), ([*both, "--verbose"], 2), (both[:1], 1)):
        assert main(["trace", *options]) == 0
        told = capsys.readouterr().out
        assert told.count("worst rank") == phases
        assert ("name one result" in told) == (not phases)
