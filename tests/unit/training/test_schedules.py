"""Learning rates of the published runs, at the points that the sources name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.benchmarks.model import Course
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.benchmarks.schedules import cosmoflow, resnet

RATES = {model.name: model.rate for workload in WORKLOADS.values() for model in workload.models}


@pytest.mark.parametrize(("name", "rate"), [("hepcnn", 1e-3), ("tiramisu", 1e-5), ("deeplab", 1e-4), ("vgg16", 5e-5)])
def test_some_rates_are_constant(name: str, rate: float) -> None:
    assert {RATES[name](step, Course(10, 1)) for step in (0, 1, 10, 10_000)} == {rate}


def test_the_run_with_three_parameters_decays_over_a_hundred_epochs() -> None:
    at, course = RATES["cosmoflow-sc18"], Course(steps_per_epoch=10, batch=8192)
    assert [at(step, course) for step in (0, 500, 1000, 5000)] == pytest.approx([1e-3, 5.5e-4, 1e-4, 1e-4])


def test_cosmoflow_is_warmed_up_by_epochs_and_decays_behind_those_named() -> None:
    course = Course(steps_per_epoch=10, batch=256)  # four times the batch of the base rate
    by_epoch = [cosmoflow(10 * epoch, course) for epoch in (0, 1, 2, 3, 4, 32, 33, 64, 65, 127)]
    assert by_epoch == pytest.approx([1e-3, 1.75e-3, 2.5e-3, 3.25e-3, 4e-3, 4e-3, 1e-3, 1e-3, 5e-4, 5e-4])
    assert cosmoflow(19, course) == cosmoflow(10, course)  # whole epochs


def test_cosmoflow_at_its_base_batch_needs_no_warm_up() -> None:
    assert {cosmoflow(step, Course(10, 64)) for step in range(330)} == {1e-3}


def test_resnet_is_warmed_up_by_steps_and_cut_by_ten_at_30_60_80() -> None:
    course = Course(steps_per_epoch=100, batch=1024)
    points = {0: 0.0, 1: 0.4 / 500, 250: 0.2, 500: 0.4, 3000: 0.4, 3001: 0.04, 6000: 0.04, 6001: 0.004, 8001: 0.0004}
    assert {step: resnet(step, course) for step in points} == pytest.approx(points)


def test_the_climate_runs_have_the_rates_of_the_next_smaller_published_one() -> None:
    scales = {2: 1e-4, 64 * 12: 1e-4, 1023 * 12: 0.0064, 1024 * 12: 0.4096, 4560 * 12: 3.2768}  # 6 ranks x 2 a node
    assert {batch: RATES["tiramisu-summit"](7, Course(10, batch)) for batch in scales} == scales
    at = [RATES["deepcam"](step, Course(10, 2048)) for step in (0, 200, 400, 1200, 1201, 9000)]
    assert at == pytest.approx([0, 0.00275, 0.0055, 0.0055, 0.00055, 0.00055])
    assert RATES["deepcam"](0, Course(10, 2)) == 0.001


@given(st.sampled_from(sorted(RATES)), st.integers(0, 10**7), st.integers(1, 10**5), st.integers(1, 10**5))
def test_rates_are_never_negative_and_never_above_the_scaled_peak(
    name: str, step: int, steps_per_epoch: int, batch: int
) -> None:
    own = {"deepcam": 0.0055, "tiramisu-summit": 3.2768, "deeplab-summit": 0.0064}
    peak = {"cosmoflow": max(1e-3, 1e-3 * batch / 64), "resnet50": 0.1 * batch / 256, **own}.get(name, 1e-3)
    assert 0 <= RATES[name](step, Course(steps_per_epoch, batch)) <= peak * (1 + 1e-12)
