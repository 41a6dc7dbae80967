"""`dlio-bench simulate`, as a user meets it: the published table, the rows, the paragraphs of what cannot be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.system import load, shipped_system
from dlio_bench.harness.plan.placement.rule import Sizes
from dlio_bench.harness.simulator import command, scale
from dlio_bench.harness.simulator.cases import SCENARIOS, Case
from dlio_bench.harness.simulator.predict import CONSERVED, WORST, lower_bound, names, predict
from dlio_bench.harness.simulator.predict import PUBLISHED as PUBLISHED_CLIENTS
from tests.unit.simulator.test_published_simulations import scenario

pytestmark = pytest.mark.slow

# Scenario 2 of the published simulations, seconds (Boehringer, ETH 2020; the slides print the same)
PUBLISHED = {
    "lower-bound": 3825.66, "clairvoyant": 3836.12, "lbann-dynamic": 4051.12, "deepio-opportunistic": 4432.90,
    "deepio-ordered": 4433.27, "lbann-preload": 4433.27, "locality-aware": 4433.27, "parallel-staging": 4972.65,
    "staging-pool": 4982.27, "naive": 15130.54,
}  # fmt: skip

SYSTEM = """
[declared]
name = "here"
device = "v100"
ranks_per_node = 2
preprocess = 400
network = 10000
pfs_link = 5000
[declared.pfs]
1 = 500
8 = 1000
[declared.tiers.staging]
capacity = "1GB"
threads = 2
read = { 1 = 10000 }
[declared.tiers.ram]
capacity = "100GB"
threads = 2
read = { 1 = 8000, 4 = 16000 }
write = { 1 = 4000 }
"""


def simulate(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["simulate", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_published_table_of_scenario_2_comes_out(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--scenario", "S2", "--pfs-clients", "published", "--policy", "lower-bound")
    (row,) = simulate(capsys, *words)["rows"]
    assert row["seconds"] == pytest.approx(PUBLISHED["lower-bound"], rel=0.001)
    # the rows over the bound, which a part of the scenario tells
    rows = list(predict(scenario("S2", 20), command.policies("all", PUBLISHED_CLIENTS), PUBLISHED_CLIENTS))
    over = {row.policy: row.over_bound + 1 for row in rows if row.over_bound is not None}
    bound = PUBLISHED["lower-bound"]
    assert over == pytest.approx({name: seconds / bound for name, seconds in PUBLISHED.items()}, rel=0.002)
    assert {row.policy for row in rows if row.pfs_in_steps} == {"naive", "staging-pool", "clairvoyant"}


@pytest.mark.parametrize("scenario", ["S1", "S2", "S3", "S4"])
def test_the_lower_bounds_are_their_closed_forms(scenario: str) -> None:
    row = SCENARIOS[scenario]
    case = Case(scenario, row.sizes(3), row.nodes, row.batch, row.epochs, 3, shipped_system(row.system))
    steps = row.epochs * row.samples / (row.nodes * row.batch)
    expected = steps * (25 * row.mean + 1.02938 * row.deviation * 5) / 100  # 1.02938: mean maximum of four normals
    assert lower_bound(case) == pytest.approx(expected, rel=3e-3)  # sizes are cut off at 0 in S1


def test_rows_in_the_worst_case(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate(capsys, "--scenario", "s1", "--epochs", "2")
    rows = {row["policy"]: row for row in found["rows"]}
    assert list(rows) == list(names(CONSERVED))
    assert found["kind"] == "simulation"
    bound = rows["lower-bound"]["seconds"]
    for row in found["rows"]:
        assert row["seconds"] >= bound
        assert row["over_bound"] == pytest.approx(row["seconds"] / bound - 1)
        assert 0 <= row["stall_seconds"] <= row["seconds"]
    assert rows["shuffled"]["bytes"] == {"ram": 0, "disk": 0, "remote": 0, "pfs": 2 * found["case"]["bytes"]}
    # what is loaded before the first step is read from the PFS once, and every access from memory
    assert rows["lbann-preload"]["bytes"]["pfs"] == pytest.approx(found["case"]["bytes"])
    assert rows["lbann-preload"]["bytes"]["ram"] + rows["lbann-preload"]["bytes"]["remote"] == pytest.approx(
        2 * found["case"]["bytes"]
    )
    few = ("--scenario", "s1", "--epochs", "1", "--policy", "lower-bound,clairvoyant")
    assert simulate(capsys, *few) == simulate(capsys, *few)
    assert simulate(capsys, *few) != simulate(capsys, *few, "--seed", "2")


def test_what_does_not_apply_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    tiers = ("--tiers", "ram=40MB,disk=20MB")
    words = ("--scenario", "S1", "--epochs", "2", *tiers, "--policy", "lbann-preload,staged,shuffled")
    found = simulate(capsys, *words)
    preload, staged, naive = found["rows"]
    assert preload["seconds"] is staged["seconds"] is preload["over_bound"] is None
    assert "keeps the whole dataset in RAM" in preload["reason"]
    assert "Node 0 has 60 MB" in staged["reason"]
    assert naive["reason"] is None
    assert main(["simulate", *words]) == 0
    text = capsys.readouterr().out
    assert "does not apply: LBANN's data store" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_table_says_what_depends_on_the_readers_of_the_pfs(capsys: pytest.CaptureFixture[str]) -> None:
    for clients, said in (
        ("conserved", "all 4 nodes, always, whose threads share the node's part"),
        ("worst", "all 4 nodes, always (--pfs-clients worst)"),
        ("published", "as the published simulator counted them"),
    ):
        policies = "lower-bound,shuffled,lbann-preload"
        words = ("--scenario", "S1", "--epochs", "2", "--policy", policies, "--pfs-clients", clients)
        assert main(["simulate", *words]) == 0
        text = capsys.readouterr().out
        assert ("naive *" if clients == "published" else "shuffled *") in text
        assert "lbann-preload *" in text  # it fills its tiers from there
        assert "lower-bound *" not in text
        assert said in " ".join(text.split())


def test_a_published_scenario_shows_both_ways_to_count(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--scenario", "s1", "--epochs", "2", "--policy", "lower-bound,lbann-dynamic,cooperative")
    ours = {row["policy"]: row for row in simulate(capsys, *few)["rows"]}
    few = (*few[:-1], "lbann-dynamic", "--pfs-clients", "published")
    (theirs,) = simulate(capsys, *few)["rows"]
    assert ours["lbann-dynamic"]["over_bound_as_published"] == theirs["over_bound"]
    assert theirs["over_bound"] < ours["lbann-dynamic"]["over_bound"]
    assert "over_bound_as_published" not in {**ours["cooperative"], **ours["lower-bound"], **theirs}


def test_a_workload_on_a_described_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    path.write_text(SYSTEM)
    words = ("cosmoflow", "--nodes", "8", "--system", str(path), "--epochs", "1", "--policy", "lower-bound,shuffled")
    found = simulate(capsys, *words)
    assert found["case"]["nodes"] == 8
    assert found["system"]["tiers"] == {"staging": 10**9, "ram": 10**11}
    bound, naive = found["rows"]
    # equal samples: the bound is the published step time of every step
    workload = find("cosmoflow")
    per_node = workload.batch * 2
    assert found["case"]["batch"] == per_node
    expected = found["case"]["steps"] * per_node / 2 * workload.profiles["v100"].seconds(1)
    assert bound["seconds"] == pytest.approx(expected, rel=1e-6)
    assert naive["seconds"] > bound["seconds"]


def test_a_variant_has_its_own_samples_and_says_whose_step_time_it_takes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "here.toml"
    path.write_text(SYSTEM)
    words = ("cosmoflow", "--nodes", "8", "--system", str(path), "--epochs", "1", "--policy", "lower-bound")
    found = simulate(capsys, *words, "--variant", "sc18")
    assert found["case"]["title"] == "CosmoFlow, sc18"
    assert found["case"]["steps"] == 170_112 // (8 * found["case"]["batch"])
    assert "and taken for sc18" in found["case"]["step_time"]


def test_a_step_time_may_be_given_or_come_from_a_profile(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, profile = tmp_path / "here.toml", tmp_path / "mine.toml"
    path.write_text(SYSTEM + "[measured]\ncompute = 5\n")  # which is overruled
    profile.write_text(
        '[profile]\nschema = "dlio-bench/compute-profile/1"\nworkload = "cosmoflow"\nvariants = ["mlperf-v1"]\n'
        'device = "mine"\nkind = "measured"\nsource = "me"\n[rows.1]\nseconds = 0.02\n'
    )
    words = ("cosmoflow", "--nodes", "8", "--system", str(path), "--epochs", "1", "--policy", "lower-bound")
    assert "step_time" not in simulate(capsys, *words)["case"]
    for asked, seconds, said in (
        ("emulate:50ms", 0.05, "0.05 s for a batch of 1 (given; --compute)"),
        ("emulate:h100", 0.0035, "on h100 (published; "),
        (f"emulate:@{profile}", 0.02, "on mine (measured; me)"),
    ):
        found = simulate(capsys, *words, "--compute", asked)
        assert said in found["case"]["step_time"]
        # equal samples: the bound is the time of all steps
        assert found["rows"][0]["seconds"] == pytest.approx(found["case"]["steps"] * seconds, rel=1e-6)
    assert main(["simulate", *words, "--compute", "emulate:50ms"]) == 0
    assert "A step computes for 0.05 s for a batch of 1" in " ".join(capsys.readouterr().out.split())


@pytest.fixture(scope="module")
def of_imagenet() -> Sizes:
    """What is drawn for its samples, once: there are 1.3 million."""
    imagenet = find("imagenet")
    return command._workload_sizes(imagenet, find_layout(imagenet, None, tiny=False, fill=RANDOM), 1)


def test_a_step_takes_its_time_whatever_its_samples_weigh(
    of_imagenet: Sizes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_workload_sizes", lambda *_: of_imagenet)
    words = ("imagenet", "--nodes", "64", "--epochs", "1", "--policy", "lower-bound", "--system")
    found = simulate(capsys, *words, "cori", "--compute", "emulate:v100")
    assert found["case"]["steps"] == 312  # 1,281,167 images, 64 on each of 64 nodes
    assert found["rows"][0]["seconds"] == pytest.approx(312 * 0.195)
    # a machine's rate is that of a mean batch: 64 MB/s for 64 images of 114,660 bytes
    (bound,) = simulate(capsys, *words, "sc21")["rows"]
    assert bound["seconds"] == pytest.approx(312 * 64 * 0.114660 / 64, rel=0.01)


@pytest.mark.parametrize(
    ("workload", "seconds", "said"),
    [
        ("cosmoflow", 0.00551, "on a100 (published; "),
        ("cdb", 0.2001, "on v100, in place of a100 (estimate; none is known"),
    ],
)
def test_perlmutter_computes_on_its_own_device_where_a_step_is_known(
    capsys: pytest.CaptureFixture[str], workload: str, seconds: float, said: str
) -> None:
    words = (workload, "--nodes", "16", "--system", "perlmutter", "--epochs", "1", "--policy", "lower-bound")
    found = simulate(capsys, *words)
    assert said in found["case"]["step_time"]
    assert found["rows"][0]["seconds"] == pytest.approx(found["case"]["steps"] * seconds)


def test_imagenet_samples_have_the_published_sizes(of_imagenet: Sizes) -> None:
    assert len(of_imagenet) == 1_281_167
    assert of_imagenet.mean() == pytest.approx(114_660, rel=0.01)


def test_measured_values_replace_declared_ones(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    path.write_text(
        SYSTEM + "[measured]\nnetwork = 7000\n[measured.pfs]\n4 = 800\n[measured.tiers.ram.read]\n2 = 9000\n"
    )
    system = load(path)
    assert system.network == 7000
    assert system.pfs.points == ((4, 800.0),)
    ram = system.tiers[1]
    assert (ram.read.points, ram.write.points, ram.capacity) == (((2, 9000.0),), ((1, 4000.0),), 10**11)
    assert system.tiers[0].write == system.tiers[0].read


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[declared]", "[declard]"), "section 'declard'"),
        (("network = 10000", "netwrk = 1"), "key 'netwrk'"),
        (("network = 10000", "network = -1"), "network = -1.0 cannot|network = -1 cannot"),
        (("network = 10000", "network = nan"), "network = nan cannot"),
        (("network = 10000\n", ""), "network = None"),
        (("1 = 500\n", "one = 500\n"), "pfs.one"),
        (('capacity = "1GB"', "capacity = 1"), "staging.capacity = 1"),
        (('capacity = "1GB"', 'capacity = "1 barrel"'), "'1 barrel' is not a size"),
        (("threads = 2", "threads = 0"), "threads = 0"),
        (("tiers.staging", "tiers.buffer"), "the first tier is"),
        (("device", "["), "is not TOML"),
        (('device = "v100"', 'device = "abacus"'), "no step time on device abacus"),
    ],
)
def test_a_system_file_that_cannot_be_used(
    refused: Callable[..., str], tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    path = tmp_path / "here.toml"
    path.write_text(SYSTEM.replace(*change, 1))
    message = refused("simulate", "cdb", "--nodes", "2", "--system", str(path))
    assert any(part in message for part in said.split("|"))


def test_policies_have_the_names_of_readers_and_published_rows_their_own() -> None:
    assert command.policies("shuffled,prefetch,staged", CONSERVED) == ("shuffled", "cooperative", "staged")
    for asked in ("shuffled,double-buffer", "naive,staging-pool"):
        assert command.policies(asked, PUBLISHED_CLIENTS) == ("naive", "staging-pool")


def test_the_longer_a_job_runs_the_fewer_of_its_nodes_are_simulated() -> None:
    sizes = np.full(SCENARIOS["imagenet22k"].samples, 200_000)
    for nodes, epochs, simulated in ((1024, 1, 32), (1024, 10, 32), (1024, 40, 21), (1024, 100, 8), (32, 2, 32)):
        assert scale.sampled_nodes(Case("large", sizes, nodes, 32, epochs, 1, shipped_system("sc21"))) == simulated


def test_a_large_job_is_estimated_from_some_of_its_nodes() -> None:
    row = SCENARIOS["imagenet22k"]
    generator = np.random.default_rng(4)
    sizes = np.rint(1e6 * np.abs(generator.normal(row.mean, row.deviation, 12_000))).astype(np.int64)
    # a slow file system, so that copies on other nodes matter
    system = shipped_system("deck").with_capacities({"staging": 20_000_000})
    case = Case("small", sizes, 48, 5, 6, 4, system)
    few = ["lower-bound", "shuffled", "double-buffer", "clairvoyant"]
    for clients, policies in ((WORST, few), (CONSERVED, [*few, "cooperative"])):
        whole = {found.policy: found for found in predict(case, policies, clients)}
        for found in scale.predict(case, policies, clients, scale.FEWEST_SAMPLED):
            exact = whole[found.policy]
            assert found.seconds is not None
            assert found.seconds == pytest.approx(exact.seconds, rel=1e-6 if found.policy == "lower-bound" else 0.06)
            assert found.bytes == pytest.approx(exact.bytes, rel=0.1, abs=0.02 * case.sizes.sum())
    (left_out,) = scale.predict(case, ["cooperative"], WORST, 12)
    assert left_out.seconds is None
    assert left_out.reason is not None
    assert "Only 12 of 48 nodes are simulated" in left_out.reason
    assert "--pfs-clients conserved" in left_out.reason
