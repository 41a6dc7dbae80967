"""How often one node reads each sample over a job: counted on the plan, beside the binomial distribution."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from dlio_bench.reports.simulation.types import Accesses, Simulation

MOST_ROWS = 24  # of a text


def complete(histogram: Sequence[int], *, node: int, reads: int, delta: float) -> Accesses:
    """The document's part for `histogram` [epochs + 1]: how many samples `node` reads 0, 1, ... times in all epochs.

    reads: samples that the node reads in an epoch. Every epoch is a new shuffle of all samples, so a sample's reads by
    a node are binomial: `epochs` trials of probability reads / samples, 1 / nodes where no sample is dropped (Dryden
    et al., SC'21, section 3). often: samples read more than (1 + delta) times as often as the mean.
    """
    epochs, samples = len(histogram) - 1, sum(histogram)
    least = threshold(epochs, Fraction(reads, samples), delta)
    expected = [samples * share for share in binomial(epochs, reads / samples)]
    return Accesses(
        node=node,
        reads=reads,
        delta=delta,
        histogram=list(histogram),
        expected=expected,
        mean=epochs * reads / samples,
        often=sum(histogram[least:]),
        expected_often=math.fsum(expected[least:]),
    )


def threshold(epochs: int, share: Fraction, delta: float) -> int:
    """The least number of reads that is more than (1 + delta) times the mean, epochs * share.

    Both papers print the sum from ceil((1 + delta) mean) on, which counts the number itself where it is whole; their
    results (323 and 31,635 samples) are those of the strict inequality.
    """
    return math.floor((1 + Fraction(str(delta))) * epochs * share) + 1


def binomial(trials: int, share: float) -> list[float]:
    """Probabilities [trials + 1] of 0, 1, ... successes in `trials` of probability `share`, from 0 to 1."""
    if share in (0.0, 1.0):
        return [float(count == round(share * trials)) for count in range(trials + 1)]
    whole = math.lgamma(trials + 1)
    return [
        math.exp(
            whole
            - math.lgamma(count + 1)
            - math.lgamma(trials - count + 1)
            + count * math.log(share)
            + (trials - count) * math.log1p(-share)
        )
        for count in range(trials + 1)
    ]


def present(accesses: Accesses) -> slice:
    """From the least to the greatest number of reads that occurs, or is expected of half a sample at least."""
    counts = range(len(accesses.histogram))
    occurring = [n for n in counts if accesses.histogram[n] or accesses.expected[n] >= 0.5] or [0]
    return slice(occurring[0], occurring[-1] + 1)


def rows(accesses: Accesses) -> Iterator[tuple[str, int, float]]:
    """(times, samples, expected) of all numbers of reads in `present`, in at most MOST_ROWS equal steps."""
    shown = present(accesses)
    step = -(-(shown.stop - shown.start) // MOST_ROWS)
    for start in range(shown.start, shown.stop, step):
        end = min(start + step, shown.stop)
        name = str(start) if end == start + 1 else f"{start} to {end - 1}"
        yield name, sum(accesses.histogram[start:end]), math.fsum(accesses.expected[start:end])


def heading(document: Simulation) -> str:
    """'Node 0 reads a sample 5.62 times in the mean of 90 epochs.'"""
    accesses = document.accesses
    assert accesses is not None
    return (
        f"Node {accesses.node} reads a sample {accesses.mean:.3g} times in the mean, in {document.case.epochs} epochs."
    )


def conclusion(accesses: Accesses) -> str:
    """How many samples it reads much more often than the mean, and how many that should be."""
    times = (1 + accesses.delta) * accesses.mean
    return (
        f"It reads {accesses.often} samples more than {times:.4g} times, {1 + accesses.delta:g} x the mean; the "
        f"binomial distribution expects {accesses.expected_often:.1f}."
    )
