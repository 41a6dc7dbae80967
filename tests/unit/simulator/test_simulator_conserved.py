"""The engine that conserves the file system's bandwidth: closed forms, the bound on bytes, and `run --predict`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.harness.cluster.system import MB, Rates, Tier, shipped_system
from dlio_bench.harness.plan.policies import POLICIES
from dlio_bench.harness.simulator.cases import SCENARIOS, Case
from dlio_bench.harness.simulator.predict import predict
from dlio_bench.reports.simulation.types import Row
from tests.unit.simulator.test_keeping import BATCH, EPOCHS, SAMPLES, SIZE
from tests.unit.simulator.test_keeping import run as keeping_run
from tests.unit.simulator.test_runtime import machine

DECK = shipped_system("deck")
T4 = 146.0  # MB/s of the file system with four nodes reading
U = 4 / 146 + 1 / 200  # seconds per MB of one thread that reads alone in its node, preprocessing included


def small(ram: float, disk: float, *, nodes: int = 4, seed: int = 1, epochs: int = 5) -> Case:
    """480 samples of about a MB; each tier holds this share of the dataset, all nodes together."""
    sizes = np.maximum(1, np.random.default_rng(seed).normal(1e6, 3e5, 480)).astype(np.int64)
    whole = int(sizes.sum()) / nodes
    tiers = {"staging": 30_000_000, "ram": int(ram * whole), "disk": int(disk * whole)}
    return Case("small", sizes, nodes, 5, epochs, seed, DECK.with_capacities(tiers))


def found(case: Case, name: str) -> Row:
    (row,) = predict(case, [name])
    return row


def seconds(case: Case, name: str) -> float:
    row = found(case, name)
    assert row.seconds is not None
    return row.seconds


@pytest.mark.parametrize("name", [row.name for row in POLICIES.values() if row.simulated])
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 6), st.integers(0, 99), st.floats(0, 1.5), st.floats(0, 1.5))
def test_nobody_draws_more_than_the_file_system_has(name: str, nodes: int, seed: int, ram: float, disk: float) -> None:
    case = small(ram, disk, nodes=nodes, seed=seed, epochs=3)
    row = found(case, name)
    if row.seconds is None:
        assert row.reason
        return
    assert row.bytes["pfs"] / MB <= row.seconds * min(DECK.pfs.rate_for(nodes), nodes * DECK.pfs_link) * (1 + 1e-9)
    assert row.over_bound is not None
    if POLICIES[name].rule.redraw is None:  # else other samples are read than those of the bound
        assert row.over_bound >= -1e-9
    if POLICIES[name].rule.keep is None:
        assert row.bytes["pfs"] == case.megabytes[np.concatenate(case.sequences)].sum().round(6) * MB


def test_closed_forms() -> None:
    case = small(0, 0)
    volume = 5 * float(case.megabytes.sum())
    # the threads of a node together get no more than its share
    assert seconds(case, "double-buffer") == pytest.approx(volume / T4, rel=0.02)
    batches = np.stack([case.megabytes[ids].reshape(-1, 5).sum(axis=1) for ids in case.sequences])
    assert seconds(case, "shuffled") == pytest.approx(batches.max(axis=0).sum() * (U + 1 / 100))
    # without tiers there is nothing to keep
    assert seconds(case, "clairvoyant") == seconds(case, "cooperative") == seconds(case, "double-buffer")
    # each byte once, before the first step or beside it; then everything is at hand
    roomy = small(1.1, 0)
    bound = seconds(roomy, "lower-bound")
    largest_share = max(part.sum() for part in np.split(roomy.megabytes, 4))
    assert seconds(roomy, "lbann-preload") == pytest.approx(bound + largest_share / (T4 / 4), rel=0.005)
    assert seconds(roomy, "cooperative") == pytest.approx(bound * 4 / 5 + volume / 5 / T4, rel=0.02)


@pytest.mark.parametrize("share", [0.1, 0.35, 0.8, 1.1])
def test_cooperative_reads_the_least_that_anybody_could(share: float) -> None:
    """F + (E - 1) (F - C): each epoch reads each sample once, so no more than C of F can be had from tiers."""
    case = small(share * 0.6, share * 0.4)
    volume = float(case.sizes.sum())
    least = volume + 4 * max(volume - sum(case.capacities) * 4, 0.0)
    read = {name: found(case, name).bytes["pfs"] for name in ("cooperative", "clairvoyant", "double-buffer")}
    largest = int(case.sizes.max()) * 8 * 4  # a tier ends with what does not fit
    assert least <= read["cooperative"] * (1 + 1e-9) <= least * 1.001 + largest
    assert read["cooperative"] <= read["clairvoyant"] + largest
    assert read["clairvoyant"] < read["double-buffer"]


def test_cooperative_wins_where_tiers_hold_half_and_ties_at_a_fifth() -> None:
    ratios = []
    for share in (0.2, 0.5, 1.0):
        row = SCENARIOS["S1"]
        sizes = row.sizes(1)[:4000]
        system = DECK.with_capacities({"ram": int(share * int(sizes.sum()) / 4), "disk": 0})
        case = Case("S1", sizes, row.nodes, row.batch, row.epochs, 1, system)
        ratios.append(seconds(case, "cooperative") / seconds(case, "clairvoyant"))
    assert ratios[0] == pytest.approx(1, abs=0.01)
    assert ratios[1] < 0.97
    assert ratios[2] < 0.95


def test_a_holder_that_has_not_begun_brings_what_it_is_asked_for() -> None:
    # lbann-dynamic waits for the planned copy: everything is read once, whoever asks first
    row = found(small(1.2, 0, epochs=3), "lbann-dynamic")
    assert row.bytes["pfs"] == pytest.approx(small(1.2, 0).sizes.sum())


def test_a_tier_slower_than_the_file_system_is_left_empty() -> None:
    case = small(0, 1)
    quick = replace(case.system, pfs=replace(DECK.pfs, points=((1, 4000.0),)))
    row = found(replace(case, system=quick), "cooperative")
    assert row.bytes["disk"] == row.bytes["remote"] == 0


@pytest.mark.parametrize("kept", [0, 8, 16, 64])
def test_it_tells_what_a_prediction_of_a_run_tells(kept: int) -> None:
    """`run --predict` follows every read on the same rules: the same bytes, and about the same time."""
    rates = Rates(((1, 10_000.0),))
    tiers = (Tier("staging", 4 * BATCH * SIZE, 2, rates, rates), Tier("ram", kept * SIZE, 2, rates, rates))
    system = replace(machine(), tiers=tiers)
    case = Case("x", np.full(SAMPLES, SIZE), 4, BATCH, EPOCHS, 7, system, step_seconds=0.001)
    for name, bytes_, time in (("cooperative", 0, 0.07), ("clairvoyant", 0.12, 0.25)):
        pfs, _, keeping, ranks = keeping_run(name, 4, kept * SIZE, step_seconds=0.001)
        row = found(case, name)
        assert row.bytes["pfs"] == pytest.approx(pfs.bytes, rel=bytes_, abs=1)
        assert row.bytes["pfs"] + row.bytes["remote"] == pfs.bytes + keeping.remote
        assert row.seconds == pytest.approx(max(rank.ends.max() for rank in ranks), rel=time)
