"""How many emulated accelerators a storage feeds: the search, what limits it, and how it is told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.harness.cli import main
from dlio_bench.harness.commands.capacity.command import Scale, largest, scales
from dlio_bench.reports import capacity as document
from dlio_bench.reports.capacity import Capacity, Limit, Probe, Runs, view
from tests.goldens import require_golden
from tests.results import complete


def test_ranks_fill_a_node_before_nodes_are_added() -> None:
    assert [str(scale) for scale in scales(3, 2)] == ["1x1", "1x2", "2x2", "3x2"]
    assert [scale.accelerators for scale in scales(3, 2)] == [1, 2, 4, 6]


@given(ranks=st.integers(1, 200), feeds=st.integers(0, 220))
def test_the_search_finds_the_largest_scale_that_holds_with_few_runs(ranks: int, feeds: int) -> None:
    tried = scales(1, ranks)
    asked: list[Scale] = []

    def holds(scale: Scale) -> bool:
        asked.append(scale)
        return scale.accelerators <= feeds

    answer = largest(tried, holds)
    assert answer == min(ranks, feeds)
    assert len(asked) == len(set(asked)) <= 2 * ranks.bit_length()
    assert answer == ranks or tried[answer] in asked  # the next one was shown to fail


def runs(*au: float, busy: float = 0.3, client_bound: bool = False) -> Runs:
    return Runs(
        folder="1x1", au=list(au), delivered_bandwidth=2.5e8, host_cpu_busy_share=busy, client_bound=client_bound
    )


def probe(ranks: int, measured: Runs, null: float = 0.99, *, confirmed: bool = False) -> Probe:
    return Probe(nodes=1, ranks_per_node=ranks, runs=measured, null=runs(null), confirmed=confirmed)


def capacity(*probes: Probe, accelerators: int, limit: Limit = "storage", at_least: int | None = None) -> Capacity:
    return Capacity(
        command=["dlio-bench", "capacity", "cdb"], version="0", workload="cdb", accelerator="emulate:v100",
        reader="double-buffer", step_seconds=0.2, batch=1, steps=64, target=0.9, at_least=at_least,
        accelerators=accelerators, nodes=1 if accelerators else 0, limited_by=limit, marks=["VIRTUAL NODES"],
        probes=list(probes),
    )  # fmt: skip


def test_every_run_must_reach_the_target_and_the_null_run_tells_who_is_judged() -> None:
    assert probe(4, runs(0.93, 0.9, 0.95)).holds(0.9)
    assert not probe(4, runs(0.99, 0.89, 0.99)).holds(0.9)
    assert not probe(4, runs(0.5)).client_limited(0.9)
    assert probe(4, runs(0.5), null=0.89).client_limited(0.9)
    assert probe(4, runs(0.5, client_bound=True)).client_limited(0.9)


CASES: dict[str, Capacity] = {
    "fewer than asked": capacity(
        probe(4, runs(0.95)), probe(6, runs(0.4)), probe(5, runs(0.85), null=0.98),
        probe(4, runs(0.93, 0.91, 0.92), confirmed=True), accelerators=4, at_least=6,
    ),
    "what held at first fails when confirmed": capacity(
        probe(3, runs(0.95)), probe(4, runs(0.92)), probe(4, runs(0.92, 0.8)), accelerators=3
    ),
    "a target missed by little": capacity(probe(2, runs(0.89996)), accelerators=0),
    "a storage that feeds nobody": capacity(probe(1, runs(0.2)), accelerators=0),
}  # fmt: skip


def test_texts_are_the_golden_ones() -> None:
    require_golden("capacity", {name: view(found).text() for name, found in CASES.items()})


def test_a_scale_that_misses_the_target_as_its_epochs_begin_is_told_so(
    draft_and_steps: Callable[..., tuple[dict[str, Any], Any]],
) -> None:
    draft, steps = draft_and_steps(nodes=1)  # epochs of 8 steps
    late = np.zeros_like(steps["stall"])
    late[:, :, [1, 9]] = 2.0  # seconds that the second step of each epoch waits for its data
    moved = {"stall": steps["stall"] + late, "start": steps["start"] + np.cumsum(late, axis=2) - late}
    steps |= moved | {"loop": steps["loop"] + late.sum(axis=2)}
    told = document.runs(complete(draft, steps), steps, Path("1x2"))
    assert told.settled_au is not None
    assert max(told.au) < 0.5 < min(told.settled_au)
    low, high = (replace(capacity(probe(2, told), accelerators=0), target=target) for target in (0.5, 1.0))
    assert "in the later half of each epoch 2 accelerators reached AU" in " ".join(view(low).text().split())
    assert "note" not in view(high).text()  # later halves do not reach it either


def test_an_emulated_file_system_decides_how_long_a_search_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["capacity", "cdb", "--tiny", "--ranks-per-node", "1", "--compute", "emulate:5ms", "--cache-dir"]
    seconds = []
    for bandwidth in ("unlimited", "100kB/s"):
        more = ["--emulate-pfs", f"bandwidth={bandwidth}", "--dry-run", "--json"]
        assert main([*words, str(tmp_path), *more]) == 0
        plan = json.loads(capsys.readouterr().out)
        seconds.append(plan["seconds"]["confirmation"])
    assert seconds[1] - seconds[0] > plan["stored_bytes"] / 100e3


def test_ranks_that_somebody_else_started_are_no_offer_and_one_of_them_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["capacity", "--help"])
    assert "none:" not in capsys.readouterr().out
    for number, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("PMI_RANK", number)
        assert main(["capacity", "cdb", "--tiny", "--launcher", "none"]) == 2
        assert capsys.readouterr().err.count("which --launcher none cannot do") == lines
