"""Step times: found by device, refused by name, and waited for without burning the CPU."""

import time

import pytest

from dlio_bench.benchmarks.profile import DERIVED, ESTIMATE
from dlio_bench.benchmarks.registry import WORKLOADS, find
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.training.compute import step_time, wait


@pytest.mark.parametrize("name", WORKLOADS)
def test_emulate_means_a_v100_for_every_workload(name: str) -> None:
    found = step_time(find(name), "emulate")
    assert found is not None
    assert found == step_time(find(name), "emulate:V100")
    assert found.device == "v100"
    assert step_time(find(name), "none") is None


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("tiny", [False, True])
def test_a_time_of_ones_own_is_that_of_a_step_whatever_is_in_it(batch: int, *, tiny: bool) -> None:
    request = look_up(Options("cdb", compute="emulate:50ms", tiny=tiny))
    assert request.step_seconds(batch) == pytest.approx(0.05)


def test_waiting_takes_the_time_and_leaves_the_cpu_free() -> None:
    clock, busy = time.perf_counter(), time.process_time()
    wait(0.2)
    assert time.perf_counter() - clock >= 0.2
    assert time.process_time() - busy < 0.1
    wait(0.0)


def test_deepcam_has_derived_step_times_and_another_variants_are_an_estimate() -> None:
    cdb = WORKLOADS["cdb"]
    own = step_time(cdb, "emulate", "deepcam")
    assert own is not None
    assert (own.device, own.kind, own.seconds(1), own.seconds(2)) == ("a100", DERIVED, 0.0554, 0.0723)
    other = step_time(cdb, "emulate:h100", "cori")
    assert other is not None
    assert other.kind == ESTIMATE
