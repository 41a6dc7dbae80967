"""The engine of the published simulations, held against what can be worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.harness.cluster.system import Rates, shipped_system
from dlio_bench.harness.plan.placement.rule import Behaviour, from_file_system
from dlio_bench.harness.plan.policies import POLICIES
from dlio_bench.harness.simulator import stepwise
from dlio_bench.harness.simulator.cases import SCENARIOS, Case
from dlio_bench.harness.simulator.model import Costs, Crowd, Trace, all_copies, costs, fill, round_robin, trace
from dlio_bench.harness.simulator.predict import WORST, lower_bound, run
from dlio_bench.harness.simulator.stepwise import LoggedClients

pytestmark = pytest.mark.slow

DECK = shipped_system("deck")
PLAIN = Costs(
    nodes=1, compute=1.0, write=0.0, pfs=(2.0, 2.0), local=(0.5,), remote=(1.0,), staging=100.0, staging_threads=1,
    threads=(1,),
)  # fmt: skip


def alone(*sizes: float) -> Trace:
    size = np.array(sizes)
    never = np.full(len(size), np.inf)
    return Trace(size, never, np.zeros(len(size), np.int8), (never,))


def small(nodes: int = 4, seed: int = 1, **changes: object) -> Case:
    """Scenario S2, a hundredth of it in samples and tiers; staging holds a few batches."""
    generator = np.random.default_rng(seed)
    sizes = np.maximum(1, generator.normal(1e6, 3e5, 400)).astype(np.int64)
    system = DECK.with_capacities({"staging": 40_000_000, "ram": 60_000_000, "disk": 90_000_000})
    return replace(Case("small", sizes, nodes, 5, 4, seed, system), **changes)  # type: ignore[arg-type] # any field


@pytest.mark.parametrize("name", [row.name for row in POLICIES.values() if row.simulated])
@settings(max_examples=6, deadline=None)
@given(st.integers(1, 6), st.integers(0, 99), st.integers(1, 200), st.integers(1, 900), st.integers(1, 200))
def test_every_access_is_served_and_its_wait_is_a_stall(
    name: str, nodes: int, seed: int, staging: int, ram: int, disk: int
) -> None:
    policy = POLICIES[name]
    if policy.placement in {POLICIES[row].placement for row in ("lbann-dynamic", "lbann-preload", "staged")}:
        ram = 1000  # they need it
    if policy.rule.redraw is not None:
        ram, disk = max(ram, 10), max(disk, 10)  # room for a sample to draw
    case = small(nodes, seed)
    sizes = {"staging": staging * 10**6, "ram": ram * 10**6, "disk": disk * 10**6}
    case = replace(case, system=case.system.with_capacities(sizes))
    outcome, _, before = run(case, policy, WORST)
    assert (outcome.stalls >= 0).all()
    if policy.rule.redraw is not None:
        return  # other samples are read than those of the bound
    wanted = np.array([case.megabytes[ids].sum() for ids in case.sequences])
    read = outcome.read.sum(axis=1)
    assert (read >= wanted * (1 - 1e-9)).all()
    assert (read <= 2 * wanted).all()  # a sample may be staged and read on demand
    if nodes == 1:
        assert outcome.seconds == pytest.approx(before + lower_bound(case) + outcome.stalls[0])
    else:
        assert outcome.seconds >= before + max(lower_bound(case), (outcome.stalls + wanted / 100).max()) * (1 - 1e-9)


def test_reading_on_demand_adds_up() -> None:
    on_demand = Behaviour(ahead=False)
    assert stepwise.simulate([alone(3, 1)], 1, on_demand, PLAIN).seconds == 3 * 2 + 3 + 1 * 2 + 1


def test_reading_ahead_overlaps_compute() -> None:
    # ready at 2, 4, 6; compute ends at 3, 5, 7
    outcome = stepwise.simulate([alone(1, 1, 1)], 1, Behaviour(ahead=True), PLAIN)
    assert outcome.seconds == 7
    assert outcome.stalls.tolist() == [2 + 1 + 1]
    assert outcome.read.tolist() == [[0, 0, 3]]
    twice = replace(PLAIN, staging_threads=2)  # ready at 2, 2, 4
    assert stepwise.simulate([alone(1, 1, 1)], 1, Behaviour(ahead=True), twice).seconds == 5


def test_a_full_buffer_waits_until_a_whole_batch_is_consumed() -> None:
    room = replace(PLAIN, staging=2.0, pfs=(1.0, 1.0))
    # 0 and 1 are staged at 1 and 2 and consumed until 3; only then is there room for 2, which is asked for right away
    outcome = stepwise.simulate([alone(1, 1, 1, 1)], 2, Behaviour(ahead=True), room)
    assert outcome.seconds == 3 + (1 + 1) + (1)  # 2 on demand; 3 was staged meanwhile


def test_what_never_fits_is_read_on_demand() -> None:
    tiny = replace(PLAIN, staging=0.5)
    assert stepwise.simulate([alone(1, 1, 1)], 1, Behaviour(ahead=True), tiny).seconds == 9


def test_a_step_ends_with_the_slowest_node() -> None:
    two = replace(PLAIN, nodes=2, pfs=(0.0, 0.0, 0.0))
    outcome = stepwise.simulate([alone(1, 5), alone(4, 2)], 1, Behaviour(ahead=False), two)
    assert outcome.seconds == 4 + 5
    assert outcome.stalls.tolist() == [0, 0]


def test_sources_are_chosen_by_time_and_cost() -> None:
    free = np.array([0.0, np.inf, 50.0])  # here at once; nowhere; too late
    one = Trace(np.ones(3), free, np.zeros(3, np.int8), (np.array([np.inf, 0.0, np.inf]),))
    demand = Behaviour(ahead=False)
    outcome = stepwise.simulate([one], 1, demand, PLAIN)
    assert outcome.seconds == (0.5 + 1) + (1.0 + 1) + (2.0 + 1)
    assert outcome.read.tolist() == [[1, 1, 1]]
    ahead = stepwise.simulate([one], 1, Behaviour(ahead=True), replace(PLAIN, pfs=(3.0, 3.0)))
    assert ahead.read[0].tolist() == [1, 1, 2]  # staged from the PFS, but on demand the other node is sooner
    waits = stepwise.simulate([one], 1, Behaviour(ahead=True, ahead_remote=True, waits=True), PLAIN)
    assert waits.read[0].tolist()[2] == 1  # 2 is read on demand rather than at 50


def test_tiers_are_filled_by_threads_in_turn() -> None:
    starts, ends = round_robin(np.array([3.0, 1.0, 1.0, 1.0, 5.0]), 2)
    assert starts.tolist() == [0, 0, 3, 1, 4]
    assert ends.tolist() == [3, 1, 4, 2, 9]


def test_a_copy_elsewhere_is_the_earliest_of_the_others() -> None:
    # each node fetches in its own order, so 0 is first on node 0 and last on node 2
    orders = ([0, 1, 2], [1, 0], [2, 1, 0])
    fills = [fill(from_file_system([np.array(ids)]), np.ones(4), PLAIN) for ids in orders]
    found = all_copies(fills, 4)
    assert [copies.local_done.tolist() for copies in found] == [
        [2, 4, 6, np.inf],
        [4, 2, np.inf, np.inf],
        [6, 4, 2, np.inf],
    ]
    remote = [copies.remote_done[0].tolist() for copies in found]
    assert remote == [[4, 2, 2, np.inf], [2, 4, 2, np.inf], [2, 2, 6, np.inf]]


def test_rates_are_linear_between_points_and_clamped() -> None:
    rates = Rates(((2, 10.0), (4, 30.0)))
    assert [rates.rate_for(n) for n in (1, 2, 3, 4, 9)] == [10, 10, 20, 30, 30]


def test_costs_are_those_of_the_published_scenarios() -> None:
    found = costs(DECK, 4)
    assert found.write == 1 / 200
    assert found.pfs[1:] == pytest.approx([1 / 66, 2 / 86, 3 / 129, 4 / 146])
    assert found.local == (1 / 21164, 1 / 86)
    assert found.remote == (1 / 10000, 1 / 86)
    assert costs(DECK, 8).worst_pfs == pytest.approx(8 / 146)


EPOCHS = 4
Z4 = 1.02938  # expected maximum of four standard normal variables
U = 1 / 200 + 4 / 146  # seconds per MB from the PFS with four nodes reading, preprocessing included


@pytest.fixture(scope="module")
def tenth() -> Case:
    """Scenario S2 with a tenth of its samples and of every tier, and fewer epochs."""
    scenario = SCENARIOS["S2"]
    capacities = {tier.name: tier.capacity // 10 for tier in DECK.tiers}
    sizes = scenario.sizes(seed=5)[:15_000]
    return Case("S2 / 10", sizes, 4, 25, EPOCHS, 5, DECK.with_capacities(capacities))


def test_closed_forms(tenth: Case) -> None:
    total = float(tenth.megabytes.sum())
    bound = EPOCHS * 150 * (25 * total / 15_000 + Z4 * 0.1 * 5) / 100
    init = total / 4 * U / 2
    staging_copies = (102_400 / 10 - total / 4) * (1 / 86 + 1 / 200) / 2
    expected = {
        "shuffled": EPOCHS * 150 * (25 * total / 15_000 + Z4 * 0.1 * 5) * (U + 1 / 100),
        "double-buffer": EPOCHS * total / 4 * U / 2,
        "lbann-preload": bound + init,
        "deepio-ordered": bound + init,
        "deepio-opportunistic": bound + init,
        "locality-aware": bound + init,
        "lbann-dynamic": init + (1 - 1 / EPOCHS) * bound,
        "parallel-staging": bound + init + staging_copies,
        "staged": bound + init,
    }
    assert lower_bound(tenth) == pytest.approx(bound, rel=1e-3)
    found = {name: run(tenth, POLICIES[name], WORST)[0].seconds for name in expected}
    assert found == pytest.approx(expected, rel=3e-3)


def test_a_sample_of_the_nodes_stands_for_all(tenth: Case) -> None:
    case = replace(tenth, nodes=40, batch=5, epochs=2, sizes=np.maximum(1000, tenth.sizes * 3 - 2_000_000))
    batches = np.stack([case.megabytes[ids].reshape(-1, 5).sum(axis=1) for ids in case.sequences])
    crowd = Crowd(batches.max(axis=0), case.nodes)
    for behaviour in (Behaviour(ahead=False), Behaviour(ahead=True)):
        traces = [trace(ids, case.megabytes, None, 2) for ids in case.sequences]
        whole = stepwise.simulate(traces, 5, behaviour, case.costs).seconds
        sampled = stepwise.simulate(traces[::4], 5, behaviour, case.costs, crowd=crowd).seconds
        assert sampled == pytest.approx(whole, rel=0.02)
        # the sampled nodes alone would end their steps too soon
        blind = stepwise.simulate(traces[::4], 5, behaviour, case.costs).seconds
        assert abs(blind - whole) >= abs(sampled - whole)
    idle = replace(case.costs, pfs=(0.0,) * 41, write=0.0)
    found = stepwise.simulate(
        [trace(ids, case.megabytes, None, 2) for ids in case.sequences[::4]], 5, Behaviour(True), idle, crowd=crowd
    )
    assert found.seconds == pytest.approx(lower_bound(case), rel=1e-9)


def test_published_clients_are_nodes_with_later_entries() -> None:
    clients = LoggedClients(4, [[], [], [], [0.0, 8.0]])
    clients.note_consumed(0, 5.0)
    clients.note_fetch(1, 7.0)
    assert clients.readers(2, 4.0) == 4
    assert clients.readers(2, 5.0) == 4
    assert clients.readers(2, 6.0) == 3
    assert clients.readers(1, 6.0) == 2
    assert clients.readers(2, 9.0) == 1
