"""Who publishes which batch and who takes it, where ranks are, and what happens without ADIOS2."""

import importlib.util
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.harness.cli import main
from dlio_bench.harness.commands import doctor
from dlio_bench.harness.streams import adios
from dlio_bench.harness.streams.crew import CrewLayout, model_of
from dlio_bench.harness.streams.dealing import Dealt, PlanBatch, batches_of_producer, batches_on_demand, steps_of_rank
from dlio_bench.harness.streams.settings import ALL, MODES, ROUND_ROBIN, Streaming
from dlio_bench.reports import kinds
from dlio_bench.reports.comparing.comparable import comparable
from dlio_bench.reports.comparing.differing import differing, unequal
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.run import html, sentences, text
from dlio_bench.reports.run.tables import labels
from tests.processes import dlio
from tests.results import complete, load

PER_EPOCH = 3  # batches of a rank
KNOWN = [mode.name for mode in MODES.values() if mode.known]


@st.composite
def plans(draw: st.DrawFn) -> list[list[PlanBatch]]:
    """Of 1 to 4 ranks, of lengths that may differ, with ids that no other batch has."""
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4))
    ids = iter(range(1000))
    return [
        [PlanBatch(position // PER_EPOCH, np.array([next(ids), next(ids)], np.int64)) for position in range(length)]
        for length in lengths
    ]


def streams(plans: list[list[PlanBatch]], mode: str, producers: int) -> list[list[Dealt]]:
    return [list(batches_of_producer(plans, mode, producer, producers)) for producer in range(producers)]


@given(plans(), st.sampled_from(KNOWN), st.integers(1, 3))
@example([[PlanBatch(0, np.array([1]))], []], ROUND_ROBIN, 2)
def test_each_batch_is_published_once_and_each_position_has_one_for_each_rank(
    plans: list[list[PlanBatch]], mode: str, producers: int
) -> None:
    dealt = [batch for stream in streams(plans, mode, producers) for batch in stream]
    positions = max(map(len, plans))
    places = sorted((batch.position, batch.rank) for batch in dealt)
    assert places == [(position, rank) for position in range(positions) for rank in range(len(plans))]
    for batch in dealt:
        plan = plans[batch.rank]
        if batch.position < len(plan):
            assert batch.part is plan[batch.position]
        else:
            assert len(batch.part.ids) == 0
            assert batch.part.epoch == batch.position // PER_EPOCH
        label = batch.label()
        assert [label[name] for name in ("position", "rank", "epoch", "samples")] == [
            batch.position, batch.rank, batch.part.epoch, len(batch.part.ids),
        ]  # fmt: skip
        assert label["ids"] != replace(batch, part=PlanBatch(batch.part.epoch, batch.part.ids + 1)).label()[
            "ids"
        ] or not len(batch.part.ids)


@given(plans(), st.sampled_from(KNOWN), st.integers(1, 3))
def test_a_rank_takes_what_its_streams_carry_in_the_order_of_its_plan(
    plans: list[list[PlanBatch]], mode: str, producers: int
) -> None:
    """What a stream carries for a rank: all of it, its own, or, where ADIOS2 deals in turn, each step its part."""
    ranks, positions = len(plans), max(map(len, plans))
    for rank, plan in enumerate(plans):
        carried = [
            iter([batch for batch in stream if mode == ALL or batch.rank == rank])
            for stream in streams(plans, mode, producers)
        ]
        if mode == ROUND_ROBIN:
            carried = [iter(stream[rank::ranks]) for stream in streams(plans, mode, producers)]
        got = []
        for step in steps_of_rank(positions, ranks, mode, rank, producers):
            batch = next(carried[step.producer])
            assert (step.position == batch.position) if batch.rank == rank else (step.position is None)
            if batch.rank == rank and batch.position < len(plan):
                got.append(batch.part)
        assert [part.ids.tolist() for part in got] == [part.ids.tolist() for part in plan]
        assert not any(next(rest, None) for rest in carried)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 9))
def test_on_demand_each_batch_of_the_plan_of_all_lies_with_one_producer(
    ranks: int, producers: int, batches: int
) -> None:
    plan = [PlanBatch(at // (2 * ranks), np.array([at], np.int64)) for at in range(batches)]
    dealt = [list(batches_on_demand(plan, producer, producers, ranks)) for producer in range(producers)]
    assert sorted(int(batch.part.ids[0]) for stream in dealt for batch in stream) == list(range(batches))
    for stream in dealt:
        epochs = [batch.part.epoch for batch in stream]
        assert epochs == sorted(epochs)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 7))
def test_a_launched_rank_trains_or_publishes_or_makes_the_nodes_even(nodes: int, trainers: int, producers: int) -> None:
    layout = CrewLayout(nodes, trainers, producers)
    launched = range(layout.ranks)
    assert layout.ranks % nodes == 0
    assert [each for rank in launched if (each := layout.trainer(rank)) is not None] == list(range(nodes * trainers))
    assert sorted(each for rank in launched if (each := layout.producer(rank)) is not None) == list(range(producers))
    assert not any(layout.trainer(rank) is not None and layout.producer(rank) is not None for rank in launched)
    assert [layout.producer(layout.rank_of(producer)) for producer in range(producers)] == list(range(producers))
    shares = [
        sum(layout.node(layout.rank_of(producer)) == node for producer in range(producers)) for node in range(nodes)
    ]
    assert max(shares) - min(shares) <= 1  # nodes have equally many producers


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_models_have_equally_many_ranks_of_each_node(nodes: int, of_model: int, models: int) -> None:
    per_node = of_model * models
    places = [model_of(trainer, per_node, models) for trainer in range(nodes * per_node)]
    assert sorted(places) == [(model, rank) for model in range(models) for rank in range(nodes * of_model)]
    for trainer, (_, rank) in enumerate(places):
        assert rank // of_model == trainer // per_node  # ranks keep their node


@pytest.fixture
def without_adios2(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment where ADIOS2 cannot be imported."""
    really = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name.partition(".")[0] == "adios2" else really(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.delenv(adios.SITE, raising=False)
    adios._library.cache_clear()
    yield
    adios._library.cache_clear()


@pytest.mark.usefixtures("without_adios2")
def test_without_adios2_a_streamed_run_is_refused_and_doctor_names_the_fix(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    said = refused("run", "cdb", "--tiny", "--reader", "stream", status=4)
    assert "there is no libadios2_c.so here. Install it: pip install 'dlio-bench[stream]'" in said
    assert not (tmp_path / "cache").exists()
    [finding] = [finding for finding in doctor.examine(tmp_path) if finding.name == "ADIOS2"]
    assert (finding.ok, finding.fix) == (None, "pip install 'dlio-bench[stream]'")


def test_an_adios2_that_does_not_load_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "adios2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "libadios2_c.so.2.12.1").write_bytes(b"not a library")
    (package / "libadios2_c.so").symlink_to("libadios2_c.so.2.12.1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(adios.SITE, raising=False)
    adios._library.cache_clear()
    [finding] = [finding for finding in doctor.examine(tmp_path) if finding.name == "ADIOS2"]
    assert finding.ok is None
    assert f"2.12.1, but it cannot be used: {package / adios.LIBRARY} does not load" in finding.found
    assert "pip install 'dlio-bench[stream]'" in str(finding.fix)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            ["--producers", "3"],
            ["planned, over sst, a queue of 4, block when it is full; 2 nodes x 2 ranks that train, and 3 producers; 8 "
             "ranks are launched", "up to 2.21 MB: 4 x 138 kB for each of its 4 streams; 4.42 MB a node"],
        ),
        (["--stream", "all", "--stream-queue", "2"], ["all, over sst, a queue of 5", "5 x 138 kB for its stream"]),
        (["--stream-engine", "bp"], ["planned, over bp; 2 nodes", "Files below the output folder hold every batch"]),
        (["--inline"], ["planned, inline, a queue of 4", "each with its producer; 4 are launched", "1.11 MB a node"]),
    ],
)  # fmt: skip
def test_a_dry_run_tells_the_layout_of_streams_and_the_memory_that_they_hold(
    asked: list[str],
    says: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(adios, "require", lambda: None)
    words = ["run", "cdb", "--tiny", "--batch", "2", "--reader", "stream", "--nodes", "2", "--ranks-per-node", "2"]
    assert main([*words, *asked, "--cache-dir", str(tmp_path), "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for sentence in says:
        assert sentence in told


STREAMS = {"mode": "on-demand", "producers": 2, "engine": "sst", "queue": 4, "full": "block"}


def streamed(made: tuple[dict[str, Any], dict[str, Any]], batches: list[int], **streams: Any) -> Result:
    draft, steps = made
    trials = [trial | {"rank_batches": batches} for trial in draft["trials"]]
    changed = {"plan": draft["plan"] | {"streams": STREAMS | streams}, "trials": trials}
    return complete(draft | changed, steps)


def test_a_result_tells_how_it_was_streamed(draft_and_steps: Callable[..., Any]) -> None:
    made = draft_and_steps(nodes=2)
    result = streamed(made, [21, 11])
    told = (
        "on-demand, 2 producers; over sst; at most 4 batches in a stream, block when it is full; batches a rank: 21, 11"
    )
    assert (sentences.streams(result) or "").startswith(told)
    assert told in " ".join(text.render([result], verbose=True).split())
    many = streamed(draft_and_steps(nodes=16), [*range(16)])
    assert "batches a rank: 0 to 15 on 16 ranks" in (sentences.streams(many) or "")
    inline = streamed(made, [], mode="planned", producers=0, inline=True, engine=None)
    assert (sentences.streams(inline) or "").startswith("planned, inline producers; at most 4")
    assert told.capitalize() in html.page([(result, made[1])])
    old = complete(*made)
    assert (old.plan.streams, old.measured_trials[0].rank_batches, sentences.streams(old)) == (None, [], None)


def test_the_plan_of_a_run_has_the_streams_of_readers_that_stream(tmp_path: Path) -> None:
    words = ["--tiny", "--reader", "stream,naive", "--inline", "--trials", "1", "--warmup-trials", "0", "--steps", "2"]
    dlio(tmp_path, "run", "cdb", *words, "--compute", "none", "--out", "out", DLIO_BENCH_CACHE=str(tmp_path / "cache"))
    streamed, naive = (load(tmp_path / "out" / f"{name}-1x1")[0] for name in ("stream", "naive"))
    assert streamed["plan"]["streams"] == {
        "mode": "planned", "producers": 0, "inline": True, "engine": None, "transport": None, "queue": 4,
            "full": "block",
    }  # fmt: skip
    assert naive["plan"]["streams"] is None


def test_results_that_were_streamed_differently_are_told_apart(draft_and_steps: Callable[..., Any]) -> None:
    made = draft_and_steps(nodes=2)
    before, after = streamed(made, []), streamed(made, [], mode="all", producers=3)
    assert unequal(*map(kinds.run, (before, after))) == []
    differ = [(thing.what, thing.before, thing.after) for thing in differing(*map(kinds.run, (before, after)))]
    assert ("stream mode", "on-demand", "all") in differ
    assert ("stream producers", "2", "3") in differ
    assert labels([before, after]) == ["prefetch, on-demand", "prefetch, all"]
    assert labels([before, complete(*made)])[1] == "prefetch"
    assert len(comparable([before, after])) == 2


def test_the_steps_of_the_slowest_rank_on_demand_do_not_make_work_unequal(draft_and_steps: Callable[..., Any]) -> None:
    draft, steps = draft_and_steps(nodes=4)  # 2 epochs of 64 samples, a sample a step
    draft["plan"] |= {"batch": 2}
    even, dealt = (streamed((draft, steps), batches) for batches in ([], [9, 3, 2, 2]))
    assert unequal(kinds.run(replaced(even, steps=16)), kinds.run(replaced(dealt, steps=18))) == []
    assert unequal(kinds.run(replaced(even, steps=16)), kinds.run(replaced(even, steps=18))) == ["steps (16 and 18)"]
    assert unequal(kinds.run(replaced(even, steps=18)), kinds.run(replaced(dealt, steps=18))) == ["steps (18 and 16)"]


def replaced(result: Result, **changes: Any) -> Result:
    return msgspec.structs.replace(result, plan=msgspec.structs.replace(result.plan, **changes))


@pytest.mark.parametrize(
    ("streaming", "queue"),
    [
        (Streaming(), 4),
        (Streaming("all"), 9),
        (Streaming(producers=0), 4),
        (Streaming(engine="bp"), None),
    ],
)
def test_the_queue_in_force(streaming: Streaming, queue: int | None) -> None:
    assert streaming.queue_in_force(trainers=8) == queue


@pytest.mark.parametrize(("mode", "passes"), [("on-demand", False), ("planned", True)])
def test_a_training_on_demand_leaves_out_its_published_validation(
    mode: str, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(adios, "require", lambda: None)
    words = ["run", "cdb", "--tiny", "--reader", "stream", "--stream", mode, "--compute", "train"]
    assert main([*words, "--cache-dir", str(tmp_path), "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert (" validation a pass over " in told) == passes
    assert ("no validation passes: with --stream on-demand no plan says which samples a rank gets" in told) != passes


@pytest.mark.parametrize("prefix", ["", "lib/cmake/adios2"])
def test_the_adios2_of_a_site_comes_before_the_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libadios2_c.so.2.10.2").touch()
    (tmp_path / "lib" / adios.LIBRARY).symlink_to("libadios2_c.so.2.10.2")
    monkeypatch.setenv(adios.SITE, str(tmp_path / prefix))
    assert (adios.library(), adios.version()) == (tmp_path / "lib" / adios.LIBRARY, "2.10.2")
    monkeypatch.setenv(adios.SITE, str(tmp_path / "elsewhere"))
    assert adios.library() is None
