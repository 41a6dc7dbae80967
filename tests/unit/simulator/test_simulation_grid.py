"""What-if grids of `dlio-bench simulate`: every cell is the case simulated alone; what cannot be is refused first."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.harness.cli import main
from dlio_bench.harness.simulator import answers, command, scale
from dlio_bench.harness.simulator.options import Axis, parse_axis
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.simulation import document as simulation

pytestmark = pytest.mark.slow

SMALL = ("--scenario", "S1", "--epochs", "2")
SOME = "lower-bound,shuffled,clairvoyant,lbann-dynamic,cooperative"


def simulate(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["simulate", *words, "--json"]) == 0
    return to_json(simulation.validate(json.loads(capsys.readouterr().out)))


def test_every_cell_is_the_case_simulated_alone(capsys: pytest.CaptureFixture[str]) -> None:
    varied = ("--vary", "nodes=2,4", "--vary", "ram=0GB,60MB", "--vary", "disk=0GB,100MB")
    found = simulate(capsys, *SMALL, "--policy", SOME, *varied)
    assert found["kind"] == "simulation-grid"
    assert found["axes"] == [
        {"name": "nodes", "values": [2, 4]},
        {"name": "ram", "values": [0, 60_000_000]},
        {"name": "disk", "values": [0, 100_000_000]},
    ]
    places = [
        {"nodes": nodes, "ram": ram, "disk": disk}
        for nodes, ram, disk in itertools.product((2, 4), (0, 60_000_000), (0, 100_000_000))
    ]
    assert [cell["at"] for cell in found["cells"]] == places
    assert "nodes" not in found["case"]
    assert found["system"]["tiers"] == {"staging": 1_024_000_000}
    for cell in found["cells"]:
        at = cell["at"]
        sizes = f"ram={at['ram']}B,disk={at['disk']}B"
        alone = simulate(capsys, *SMALL, "--policy", SOME, "--nodes", str(at["nodes"]), "--tiers", sizes)
        rows = [{key: value for key, value in row.items() if key != "at"} for row in found["rows"] if row["at"] == at]
        single = "over_bound_as_published"  # of single cases
        assert rows == [{key: value for key, value in row.items() if key != single} for row in alone["rows"]]
        assert {key: cell[key] for key in ("nodes", "steps", "simulated_nodes")} == {
            key: alone["case"][key] for key in ("nodes", "steps", "simulated_nodes")
        }


def test_the_staging_buffer_is_an_axis_that_changes_what_has_no_tiers(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate(capsys, *SMALL, "--policy", "double-buffer", "--vary", "staging=700kB,3MB")
    small, large = found["rows"]
    assert small["seconds"] > large["seconds"]
    assert found["case"]["nodes"] == 4


def test_the_published_way_of_counting_holds_in_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*SMALL, "--policy", "naive,clairvoyant", "--pfs-clients", "published")
    found = simulate(capsys, *words, "--vary", "ram=40MB,80MB")
    alone = simulate(capsys, *words, "--tiers", "ram=80MB")
    assert [row["seconds"] for row in found["rows"][2:]] == [row["seconds"] for row in alone["rows"]]


def test_a_workload_is_varied_over_nodes_without_nodes_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("cosmoflow", "--system", "sc21", "--epochs", "1", "--policy", "lower-bound")
    found = simulate(capsys, *words, "--vary", "nodes=8,16")
    eight, sixteen = found["rows"]
    assert sixteen["seconds"] == pytest.approx(eight["seconds"] / 2, rel=0.01)
    assert eight == simulate(capsys, *words, "--nodes", "8")["rows"][0] | {"at": {"nodes": 8}}


def test_the_text_has_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*SMALL, "--policy", "shuffled,lbann-dynamic,clairvoyant", "--vary", "ram=0GB,60MB,100MB")
    found = simulate(capsys, *words)
    assert main(["simulate", *words]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 80
    shuffled = next(line for line in lines if line.startswith("  shuffled"))
    for row in found["rows"]:
        if row["policy"] == "shuffled":
            assert f"{row['seconds']:#.4g} s {row['over_bound'] + 1:.2f}×*" in shuffled
    dynamic = next(line for line in lines if line.startswith("  lbann-dynamic"))
    assert dynamic.count("n/a") == 2
    assert "lbann-dynamic does not apply in 2 of 3 cells; at ram 0 B: LBANN's data store" in " ".join(said.out.split())
    assert "cell 1 of 3  ram 0 B" in said.err
    assert "depends on how many nodes" in " ".join(said.out.split())


@pytest.mark.parametrize("count", [1, 7, 30])
def test_wide_tables_are_broken_into_blocks(capsys: pytest.CaptureFixture[str], count: int) -> None:
    sizes = ",".join(f"{size + 1}MB" for size in range(count))
    for more in ((), ("--vary", "disk=1MB,200MB")):
        policies = "lower-bound,shuffled,double-buffer"
        words = (*SMALL, "--epochs", "1", "--policy", policies, "--vary", f"ram={sizes}", *more)
        assert main(["simulate", *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        assert sum(line.count(" s ") for line in lines if line.startswith(("  double-buffer", "  1 MB"))) >= count


def test_a_large_job_is_refused_before_the_published_mode_starts(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "ALL_NODES", 10_000)
    said = refused("simulate", *SMALL, "--pfs-clients", "published", "--vary", "nodes=4,64")
    assert "Use --pfs-clients conserved, or fewer epochs" in said
    assert "cell 1" not in said


def test_a_long_grid_says_so_before_it_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*SMALL, "--policy", "shuffled,double-buffer", "--vary", "ram=10MB,20MB")
    assert main(["simulate", *words]) == 0
    assert "will take about" not in capsys.readouterr().err
    monkeypatch.setattr(answers, "SECONDS_AN_ACCESS", 1.0)
    assert main(["simulate", *words]) == 0
    said = capsys.readouterr().err
    # 20000 accesses of each policy, once: RAM changes neither
    assert said.startswith("dlio-bench: 2 cells of 2 policies will take about 11h06m.")
    assert "cell 1 of 2" in said.splitlines()[-1]
    assert main(["simulate", *SMALL, "--policy", "shuffled"]) == 0
    assert capsys.readouterr().err.startswith("dlio-bench: This will take about 5h33m. Fewer epochs")


def test_a_large_job_is_expected_to_take_what_its_sample_does() -> None:
    asked = command.Options(scenario="imagenet22k", nodes=1024, epochs=100, pfs_clients="worst")
    case = command.make_case(asked)
    names = ("lower-bound", "clairvoyant")
    expected = answers.expected_seconds(case, [Axis("ram", (1, 2))], names)
    every = 2 * case.accesses
    assert expected == pytest.approx(every * (8 / 1024 * answers.SECONDS_AN_ACCESS + answers.SECONDS_A_SAMPLED_ACCESS))


def test_axes_take_sizes_and_counts() -> None:
    assert parse_axis("ram=0GB, 10GiB") == Axis("ram", (0, 10 * 2**30))
    assert parse_axis(" nodes = 16,4 ") == Axis("nodes", (16, 4))


def test_a_grid_that_fails_leaves_no_folder(refused: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused("simulate", *SMALL, "--vary", "nodes=2,5000", "--out", str(out))
    assert not out.exists()
    out.mkdir()
    (out / "mine").write_text("dear")
    assert "not empty" in refused("simulate", *SMALL, "--vary", "nodes=2", "--out", str(out))
    assert [path.name for path in out.iterdir()] == ["mine"]
