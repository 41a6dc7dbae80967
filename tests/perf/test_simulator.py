"""What the simulator costs, an access: `pytest tests/perf --benchmark-group-by=group`. Each runs once as a test."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from dlio_bench.harness.cluster.system import shipped_system
from dlio_bench.harness.plan.policies import POLICIES
from dlio_bench.harness.simulator.cases import SCENARIOS, Case
from dlio_bench.harness.simulator.predict import WORST, lower_bound, run


def case(nodes: int) -> Case:
    scenario = SCENARIOS["S2"]
    return Case("perf", scenario.sizes(1)[:20_000], nodes, 5, 2, 1, shipped_system("deck"))


@pytest.mark.benchmark(group="lower bound, 40 000 accesses")
def test_lower_bound(benchmark: BenchmarkFixture) -> None:
    assert benchmark(lower_bound, case(4)) > 0


@pytest.mark.benchmark(group="one row, 40 000 accesses")
@pytest.mark.parametrize("policy", ["shuffled", "double-buffer", "clairvoyant"])
@pytest.mark.parametrize("nodes", [4, 64])
def test_one_row(benchmark: BenchmarkFixture, policy: str, nodes: int) -> None:
    outcome, _, _ = benchmark(run, case(nodes), POLICIES[policy], WORST)
    assert outcome.seconds > 0
