"""How often a node reads a sample: the published examples, and the counts of a plan beside the distribution."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.errors import DataError
from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.system import shipped_system
from dlio_bench.harness.simulator.cases import Case
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.simulation import figures as simulation_figures
from dlio_bench.reports.simulation.access_frequency import binomial, complete, present, rows, threshold
from dlio_bench.reports.simulation.view import view
from tests.pages import Page


# Dryden et al., SC'21, and Boehringer, ETH 2020: 323 and 31,635 of so many samples.
@pytest.mark.parametrize(
    ("nodes", "epochs", "samples", "delta", "published"),
    [(4, 1000, 10_000, 0.1, 322.94), (16, 90, 1_281_167, 0.8, 31_634.7)],
)
def test_the_published_examples(nodes: int, epochs: int, samples: int, delta: float, published: float) -> None:
    least = threshold(epochs, Fraction(1, nodes), delta)
    assert samples * math.fsum(binomial(epochs, 1 / nodes)[least:]) == pytest.approx(published, rel=1e-5)


def test_more_than_is_meant_strictly() -> None:
    assert threshold(1000, Fraction(1, 4), 0.1) == 276  # 1.1 x 250 is 275 sharp, whatever floats make of it
    assert threshold(20, Fraction(1, 1), 0.15) == 24


@given(st.integers(0, 300), st.floats(0, 1))
def test_probabilities_add_up_to_one_and_to_the_mean(trials: int, share: float) -> None:
    shares = binomial(trials, share)
    assert math.fsum(shares) == pytest.approx(1)
    mean = math.fsum(count * each for count, each in enumerate(shares))
    assert mean == pytest.approx(trials * share, abs=1e-9 * max(trials, 1))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 7), st.integers(0, 99))
def test_a_plan_is_counted_sample_by_sample(nodes: int, batch: int, epochs: int, rest: int, seed: int) -> None:
    sizes = np.full(3 * nodes * batch + rest, 1000)
    case = Case("plan", sizes, nodes, batch, epochs, seed, shipped_system("deck"))
    reads = [list(case.epoch(number)[:, 0].ravel()) for number in range(epochs)]
    times = [sum(sample in epoch for epoch in reads) for sample in range(len(sizes))]
    counted = case.access_histogram()
    assert counted.tolist() == [times.count(number) for number in range(epochs + 1)]
    found = complete(counted.tolist(), node=0, reads=case.per_epoch, delta=0.5)
    assert found.mean * len(sizes) == pytest.approx(sum(times))
    assert found.often == sum(number > 1.5 * found.mean + 1e-9 for number in times)
    shown = list(rows(found))
    assert len(shown) <= 24
    assert sum(samples for _, samples, _ in shown) == len(sizes)


def test_a_shuffled_plan_follows_the_distribution() -> None:
    case = Case("plan", np.full(40_000, 1000), 4, 10, 50, 7, shipped_system("deck"))
    found = complete(case.access_histogram().tolist(), node=0, reads=case.per_epoch, delta=0.3)
    for samples, expected in zip(found.histogram, found.expected, strict=True):
        assert abs(samples - expected) < 6 * math.sqrt(expected) + 3  # Poisson


def test_text_json_and_page_tell_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--scenario", "S1", "--epochs", "8", "--policy", "lower-bound", "--accesses", "0.5"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "Node 0 reads a sample 2 times in the mean, in 8 epochs." in text
    assert main([*words, "--json"]) == 0
    document = simulation.validate(json.loads(capsys.readouterr().out))
    found = document.accesses
    assert found is not None
    assert sum(found.histogram) == 10_000
    assert found.expected[2] == pytest.approx(10_000 * math.comb(8, 2) * 0.25**2 * 0.75**6)
    assert f"It reads {found.often} samples more than 3 times, 1.5 x the mean" in " ".join(text.split())
    assert simulation_figures.frequencies(found)["data"][0]["y"] == found.histogram[present(found)]
    page = Page(view(document).page())
    assert "frequencies" in page.plots
    assert "3 · How often a node reads a sample" in page.text
    bad = json.loads(json.dumps({"accesses": {"histogram": [1], "expected": []}}))
    with pytest.raises(DataError):
        simulation.validate(bad)
