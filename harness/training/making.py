"""Samples that a network makes, beside held-out ones: how far their quantities are apart, before and behind training.

Source of the distances: sparticlesteve/atlas-gan @dde093a, atlasgan/validate.py (-ln p of the two-sample
Kolmogorov-Smirnov test, p at least exp(-700)).
"""

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.model import Model, require_finite_samples
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.training.checkpoint import copies_of
from dlio_bench.reports.comparing.difference import kolmogorov_smirnov
from dlio_bench.reports.document.trials import Distance, Generated, Quantity

Array = npt.NDArray[Any]
Values = dict[str, npt.NDArray[np.float64]]

LEAST_P = math.exp(-700)
NOTHING_HELD_OUT = "nothing to compare with: the run has no validation pass (--validation)"
CHUNK = 64  # samples made at once


class HeldOut:
    """The held-out samples of a trial's first validation pass, for the comparison behind the trial. Ranks keep those
    that they were given.
    """

    def __init__(self, comm: Comm, model: Model, network: Any, shape: Sequence[int]) -> None:
        """shape: of the network's inputs, which have nothing to do with what it makes. All ranks make it together, and
        learn then, before any training, which quantities all of them can measure.
        """
        assert model.making is not None
        self._comm, self._model, self._making, self._network = comm, model, model.making, network
        self._most = len(range(comm.rank, self._making.most, comm.size))  # over all ranks `most`
        self._missing = why_unmeasured(comm.allgather(self._making.missing()))
        self._make = tensorflow().function(
            lambda keys: network([tensorflow().zeros((CHUNK, *shape)), keys], training=False), autograph=False
        )
        self.begin(wanted=False)

    def begin(self, *, wanted: bool) -> None:
        """A trial begins; wanted: whether its end compares."""
        self.wanted = wanted
        self._samples = dict[tuple[int, ...], Array]()  # by key, which is the same in every pass

    def keep_samples(self, keys: npt.NDArray[np.int64], samples: Array) -> None:
        """Held-out samples [n, ...], as keys [n, 2] tell them apart."""
        for key, sample in zip(keys.tolist(), samples, strict=True):
            if self.wanted and len(self._samples) < self._most:
                self._samples.setdefault(tuple(key), sample)

    def compare_weights(self, before: Sequence[Array], after: Sequence[Array]) -> Generated | None:
        """What the network makes with two sets of weights, beside what was kept; on the first rank, None on others.

        All ranks call it together. The network's own weights stay. Diverged where something that it makes is no number.
        """
        keys = np.array(list(self._samples), np.int64).reshape(-1, 2)
        held_out = list(self._samples.values())
        weights = copies_of(self._network.variables)
        made = [self._generate_with(given, keys) for given in (before, after)]
        self._assign(weights)
        for samples in made:
            require_finite_samples(self._model, samples)
        groups = [np.array(held_out, np.float32).reshape(len(keys), *made[0].shape[1:]), *made]
        measured = [self._making.measured(samples, self._missing is None) for samples in groups]
        every = self._comm.gather((len(keys), measured)) or []
        if not every:
            return None
        total = sum(count for count, _ in every)
        if not total:
            return Generated(samples=0, quantities=[], missing=NOTHING_HELD_OUT)
        real, start, end = (_concatenate([groups[number] for _, groups in every]) for number in range(3))
        return Generated(
            samples=total,
            quantities=[
                Quantity(name=name, before=distance(values, start[name]), after=distance(values, end[name]))
                for name, values in real.items()
            ],
            combined=[name for name in self._making.combined if name in real],
            missing=self._missing,
            picture=base64.b64encode(self._making.picture(groups[2], groups[0])).decode(),
        )

    def _generate_with(self, weights: Sequence[Array], keys: npt.NDArray[np.int64]) -> Array:
        self._assign(weights)
        padded = np.concatenate([keys, np.zeros((-len(keys) % CHUNK or CHUNK, 2), np.int64)])
        chunks = [self._make(tensorflow().constant(part)).numpy() for part in np.split(padded, len(padded) // CHUNK)]
        made: Array = np.concatenate(chunks)[: len(keys)]
        return made

    def _assign(self, weights: Sequence[Array]) -> None:
        for variable, value in zip(self._network.variables, weights, strict=True):
            variable.assign(value)


def why_unmeasured(missing: Sequence[str | None]) -> str | None:
    """Why some quantities are measured on no rank: as one or more of the ranks cannot; None where all can."""
    lacking = [why for why in missing if why is not None]
    if not lacking:
        return None
    some = f" (on {len(lacking)} of {len(missing)} ranks)" if len(lacking) < len(missing) else ""
    return f"{lacking[0]}{some}"


def distance(some: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> Distance | None:
    """Of two groups of values; None where one has none. As published, p is that of large groups."""
    if not len(some) or not len(others):
        return None
    statistic, p = kolmogorov_smirnov(some, others)
    return Distance(statistic, abs(math.log(max(p, LEAST_P))))


def _concatenate(of_ranks: Sequence[Values]) -> Values:
    return {name: np.concatenate([values[name] for values in of_ranks]) for name in of_ranks[0]}
