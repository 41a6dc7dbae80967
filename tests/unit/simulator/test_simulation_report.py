"""The report of a simulation: its document, figures and page, from the JSON alone."""

import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.cli import main
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.simulation import figures as simulation_figures
from dlio_bench.reports.simulation.types import Simulation
from dlio_bench.reports.simulation.view import view
from tests.goldens import require_golden
from tests.pages import Page

BOUND = 1000.0
RATIOS = {"naive": 4.24, "clairvoyant": 1.003, "staged": None}


def row(policy: str, ratio: float | None, **more: Any) -> dict[str, Any]:
    none = ratio is None
    return {
        "policy": policy,
        "seconds": None if ratio is None else BOUND * ratio,
        "stall_seconds": None if ratio is None else BOUND * (ratio - 1),
        "bytes": {} if none else {"ram": 4_000_000_000, "disk": 0, "remote": 10, "pfs": 7_000_000_000},
        "over_bound": None if ratio is None else ratio - 1,
        "pfs_in_steps": policy == "naive",
        "reason": "Node 0 has no </script> room." if none else None,
    } | more


def document(**axes: list[int]) -> Simulation:
    """One case, or a grid whose first cell is the slowest: every later one is 1 % nearer to the bound."""
    case = {"title": "Some & <others>", "samples": 10, "bytes": 10**9, "batch": 2, "epochs": 3, "seed": 1}
    draft: dict[str, Any] = {
        "schema": simulation.SCHEMA,
        "version": "0.1.0",
        "command": ["dlio-bench", "simulate", "--scenario", "S2"],
        "system": {"name": "deck", "tiers": {"staging": 10**9}},
        "pfs_clients": "worst",
    }
    if not axes:
        rows = [row("lower-bound", 1.0, bytes={}), *(row(name, ratio) for name, ratio in RATIOS.items())]
        extent = {"nodes": 4, "steps": 30, "simulated_nodes": 4}
        return simulation.complete(draft | {"kind": "simulation", "case": case | extent, "rows": rows})
    places = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    rows = [
        row(name, None if ratio is None else 1 + (ratio - 1) * 0.99**number, at=at)
        for number, at in enumerate(places)
        for name, ratio in RATIOS.items()
    ]
    cells = [{"at": at, "nodes": at.get("nodes", 4), "steps": 3, "simulated_nodes": 4} for at in places]
    grid = {"axes": [{"name": name, "values": values} for name, values in axes.items()], "cells": cells, "rows": rows}
    nodes = {} if "nodes" in axes else {"nodes": 4}
    return simulation.complete(draft | {"kind": "simulation-grid", "case": case | nodes} | grid)


def test_maps_lay_the_first_axis_across_and_the_second_down() -> None:
    found = simulation.maps(document(ram=[0, 10**9, 2 * 10**9], disk=[0, 10**10]))
    assert [one.title for one in found] == ["Fastest policy", "naive", "clairvoyant", "staged"]
    fastest, naive, *_ = found
    assert (naive.x, naive.y) == (("0 B", "1 GB", "2 GB"), ("0 B", "10 GB"))
    assert [[cell.at for cell in line] for line in naive.cells] == [
        [{"ram": ram, "disk": disk} for ram in (0, 10**9, 2 * 10**9)] for disk in (0, 10**10)
    ]
    assert {cell.policy for line in naive.cells for cell in line} == {"naive"}
    assert {cell.policy for line in fastest.cells for cell in line} == {"clairvoyant"}


def test_a_third_axis_makes_a_map_for_each_of_its_values() -> None:
    found = simulation.maps(document(nodes=[2, 4], ram=[0, 1], disk=[5, 6]))
    assert [one.title for one in found[2:4]] == ["naive · disk 5 B", "naive · disk 6 B"]
    assert [[cell.at for cell in line] for line in found[3].cells] == [
        [{"nodes": nodes, "ram": ram, "disk": 6} for nodes in (2, 4)] for ram in (0, 1)
    ]
    assert found[3].across == "nodes"
    assert found[3].down == "ram of a node"


def test_one_axis_is_a_single_map_of_the_policies() -> None:
    (one,) = simulation.maps(document(nodes=[2, 4, 8]))
    assert (one.x, one.y) == (("2", "4", "8"), ("naive", "clairvoyant", "staged"))
    assert one.cells[1][2].at == {"nodes": 8}


def test_colours_go_by_the_time_over_the_bound_on_one_scale() -> None:
    found = simulation.maps(document(ram=[0, 1], disk=[0, 1]))
    end = simulation_figures.ceiling(found)
    assert end == 6  # the tick above 4.24
    naive = simulation_figures.heat_map(found[1], end)
    shades, numbers = naive["data"][0], naive["data"][-1]
    assert shades["z"][0][0] == pytest.approx(math.log(4.24) / math.log(6), rel=1e-5)
    assert (shades["zmin"], shades["zmax"]) == (0, 1)
    assert [row[0].over_bound for row in found[1].cells] != [row[1].over_bound for row in found[1].cells]
    assert numbers["text"][0] == "4.24×*<br>4,240 s"
    assert list(zip(numbers["x"], numbers["y"], strict=True)) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    # light cells carry dark numbers, dark cells light ones
    clairvoyant = simulation_figures.heat_map(found[2], end)["data"][-1]
    assert set(clairvoyant["textfont"]["color"]) == {"#000000"}
    assert set(simulation_figures.heat_map(found[1], 4.24)["data"][-1]["textfont"]["color"]) == {"#ffffff"}


def test_the_scale_darkens_steadily_so_that_it_reads_without_colour() -> None:
    greys = [simulation_figures.luminance(step / 50) for step in range(51)]
    assert greys == sorted(greys, reverse=True)
    assert greys[0] > 0.9
    assert greys[-1] < 0.1


@pytest.mark.parametrize("end", [1.25, 2, 6, 64, 1000, 12345.0])
def test_the_ticks_of_the_scale_stand_apart(end: float) -> None:
    found = simulation_figures.ticks(end)
    places = [place for place, _ in found]
    assert (places[0], places[-1], found[0][1]) == (0, 1, "1×")
    assert all(later - early >= 0.09 for early, later in itertools.pairwise(places))


def test_what_does_not_apply_is_hatched_and_says_why() -> None:
    staged = simulation.maps(document(ram=[0, 1], disk=[0, 1]))[3]
    figure = simulation_figures.heat_map(staged, 2)
    assert figure["data"][0]["z"] == [[None, None], [None, None]]
    hatched = figure["data"][1]
    assert hatched["marker"]["pattern"]["shape"] == "/"
    assert list(zip(hatched["x"], hatched["base"], strict=True)) == [(0, -0.47), (1, -0.47), (0, 0.53), (1, 0.53)]
    assert all("does not apply: Node 0 has no &lt;/script&gt; room." in said for said in hatched["hovertext"])
    assert set(figure["data"][-1]["text"]) == {"<b>n/a</b>"}


def test_bars_split_the_time_at_the_bound_and_the_bytes_by_source() -> None:
    figure = simulation_figures.bars(document())
    bound, over, *sources = figure["data"]
    assert bound["y"] == ["lower-bound", "clairvoyant *", "naive *"]  # fastest first; staged does not apply
    assert bound["x"] == pytest.approx([BOUND] * 3)
    assert over["x"] == pytest.approx([0, 3, 3240])
    assert [source["name"] for source in sources] == ["RAM", "disk", "other nodes", "PFS"]
    assert sources[3]["x"] == [0, 7, 7]


def test_the_page_of_a_grid_is_whole_and_says_its_figures_in_words() -> None:
    found = document(ram=[0, 10**9, 2 * 10**9], disk=[0, 10**10])
    page = Page(view(found).page())
    assert set(json.loads(page.scripts[0])) == set(page.plots) == {"map0", "map1", "map2", "map3"}
    assert page.fetched == []
    assert all(plot["role"] == "img" for plot in page.plots.values())
    label = page.plots["map1"]["aria-label"]
    assert label is not None
    assert label.startswith("Heat map of naive, ram of a node across, disk of a node down: ")
    assert "to 4.24× at ram 0 B, disk 0 B." in label
    assert "Some & <others>" in page.text
    for one in found.rows:
        if one.seconds is not None:
            assert simulation.seconds_text(one.seconds) in page.text
    assert "staged does not apply in any cell; at ram 0 B, disk 0 B: Node 0 has no </script> room." in page.text
    assert "naive, clairvoyant: in the cells with a star" in page.text
    assert "all 4 nodes, always (--pfs-clients worst)" in page.text


def test_the_page_of_one_case_has_bars_and_a_table() -> None:
    page = Page(view(document()).page())
    assert set(page.plots) == {"bars"}
    for said in ("naive *", "4,240.00", "324.00%", "7 GB", "does not apply", "dlio-bench simulate --scenario S2"):
        assert said in page.text


def test_texts_are_the_golden_ones() -> None:
    cases = {"one case": document(), "a grid": document(ram=[0, 10**9], disk=[0, 1]), "nodes": document(nodes=[4, 64])}
    require_golden("simulation", {name: view(found).text() for name, found in cases.items()})
    assert "In 1 of 2 cells not all nodes are simulated" in Page(view(cases["nodes"]).page()).text


@pytest.mark.parametrize(
    ("value", "said"), [(1.0, "1.000×"), (1.0994, "1.099×"), (1.0999, "1.10×"), (9.994, "9.99×"), (9.996, "10.0×")]
)
def test_ratios_are_finest_near_the_bound(value: float, said: str) -> None:
    assert simulation.ratio_text(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0.000 s"), (0.07, "0.07000 s"), (4.38, "4.380 s"), (999.96, "1,000 s"), (15131, "15,131 s")],
)
def test_seconds_stay_seconds(value: float, said: str) -> None:
    assert simulation.seconds_text(value) == said


def test_the_command_writes_the_json_and_a_page_made_from_it_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "what-if"
    words = ["simulate", "--scenario", "S1", "--epochs", "1", "--policy", "shuffled,cooperative", "--out", str(out)]
    assert main([*words, "--vary", "ram=0GB,1GB"]) == 0
    assert str(out / "report.html") in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "simulation.json"]
    found = simulation.load(out / "simulation.json")
    page = (out / "report.html").read_text("utf-8")
    assert view(found).page() == page
    assert main(["show", str(out)]) == 0
    assert capsys.readouterr().out == view(found).text()
    assert main(["report", str(out), "--out", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text("utf-8") == page


def test_what_is_no_simulation_is_refused(tmp_path: Path) -> None:
    made = document(ram=[0, 1])
    path = tmp_path / "simulation.json"
    simulation.save(made, path)
    assert simulation.load(path) == made
    whole = to_json(made)
    with pytest.raises(DataError, match="of schema 'dlio-bench/result/2'"):
        simulation.validate(whole | {"schema": "dlio-bench/result/2"})
    with pytest.raises(DataError, match="of schema None"):
        simulation.validate([])
    for where, wrong in (("seconds", "fast"), ("over_bound", None), ("at", {}), ("bytes", {"ram": -1})):
        broken = copy.deepcopy(whole)
        broken["rows"][0][where] = wrong
        with pytest.raises(DataError, match=rf"rows\[0\].*{where}"):
            simulation.validate(broken)
    without = {key: value for key, value in whole.items() if key != "cells"}
    with pytest.raises(DataError, match="a grid needs axes, cells"):
        simulation.validate(without)
    with pytest.raises(ValueError, match="a grid needs axes, cells"):
        simulation.complete(without)
    path.write_text(path.read_text()[:-9])
    with pytest.raises(DataError, match="is not JSON"):
        simulation.load(path)
    with pytest.raises(UsageError, match="does not exist"):
        simulation.load(tmp_path / "none.json")
