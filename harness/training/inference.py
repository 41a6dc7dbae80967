"""Inference: batches go forward through a published network, and its predictions are scored."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.batches import Batch, Ids
from dlio_bench.benchmarks import model as models
from dlio_bench.benchmarks.model import Counts, Model, Sample
from dlio_bench.benchmarks.tensor_batches import lend
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.errors import Diverged
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.training.checkpoint import Found, restore
from dlio_bench.harness.training.network import Widths, blank, described, memory_errors, no_keys
from dlio_bench.harness.training.trainer import NOTHING, Spent
from dlio_bench.reports.document import trials
from dlio_bench.reports.document.types import Network


class Inferred(Struct, frozen=True):
    """What an inference of one trial left on one rank.

    summary: samples that this rank predicted, scores of the predictions of all ranks.
    """

    summary: trials.Inference
    phases: ClassVar[tuple[str, ...]] = ("convert",)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Nothing by step."""
        return {}


class Inference:
    """See Trainer. Nothing is learnt or exchanged: ranks do not meet, and each has its own network."""

    meets = False
    loss = None

    def __init__(
        self, comm: Comm, model: Model, sample: Sample, *, device: str, seed: int, training: int, weights: Found | None
    ) -> None:
        """`device`: what start_tensorflow said. `seed`: of the initial weights, where no `weights` are given.

        training: samples with ids below it are those of the training split. DataError for weights of another network.
        """
        self._comm, self._model, self._device, self._training = comm, model, device, training
        self._network = models.build(model, sample.shape, seed=seed)
        if weights is not None:
            restore(self._network.variables, weights.state.weights, "weights", weights.path)
        _, self._evaluate = models.traced(model, sample, self._network)
        self._samples = 0
        self._counts: dict[bool, Counts] = {}  # by whether the samples are of the training split

    @property
    def described(self) -> Network:
        """What predicts, and where, for the result."""
        return described(self._model, self._network, self._device)

    def compile(self, batches: Iterable[tuple[int, Widths]]) -> None:
        """Go forward with a blank batch for each (samples, widths), so that no timed step compiles."""
        with memory_errors(self._model):
            for samples, widths in dict.fromkeys(batches):
                outputs, labels = self._evaluate(blank(samples, widths), no_keys(samples))
                self._model.count(outputs.numpy(), labels.numpy())

    def begin(self, reader: str, trial: int, seed: int) -> None:  # noqa: ARG002 - a trainer's
        """See Trainer."""
        self._samples, self._counts = 0, {}

    def step(self, batch: Batch) -> Spent:
        """Predict a batch, and compare with its labels. Diverged where a prediction is no number."""
        if not len(batch.ids):
            return NOTHING
        began = time.perf_counter()
        lent, key = lend(batch), tensorflow().constant(models.keys(batch.ids, 0))
        converted = time.perf_counter()
        outputs, labels = self._forward_lent(lent, key)
        self._require_finite(outputs, batch.ids)
        models.require_finite_held_out(self._model, labels)
        seen = batch.ids < self._training
        for part in (True, False):
            chosen = seen == part
            if chosen.any():
                self._add(self._model.count(outputs[chosen], labels[chosen]), seen=part)
        self._samples += len(batch.ids)
        return Spent(converted - began)

    def save(self) -> None:
        """Nothing: weights stay as they are."""

    def finish(self) -> float:
        """See Trainer."""
        return 0.0

    def forward(self, batch: Batch) -> None:
        """As a step: an inference has no validation passes."""
        self.step(batch)

    def score(self) -> dict[str, float]:
        """See Trainer."""
        return {}

    def end(self) -> Inferred:
        """See Trainer. All ranks call it together."""
        counts = self._comm.allgather(self._counts)
        every = [part for of_rank in counts for part in of_rank.values()]
        held_out = [of_rank[False] for of_rank in counts if False in of_rank]
        return Inferred(trials.Inference(self._samples, self._score(every), self._score(held_out)))

    def _forward_lent(self, lent: Sequence[Any], *key: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        with memory_errors(self._model):
            outputs, labels = self._evaluate(lent, *key)
            return outputs.numpy(), labels.numpy()

    def _require_finite(self, outputs: npt.NDArray[Any], ids: Ids) -> None:
        if not np.isfinite(outputs).all():
            raise Diverged(
                f"Some of what {self._model.name} predicts for samples {ids[:4]}... is no number. Use weights of "
                "a training that did not diverge, or data whose values mean something (--fill physical)."
            )

    def _add(self, counts: Counts, *, seen: bool) -> None:
        """seen: whether they are of samples of the training split."""
        self._counts[seen] = self._counts[seen] + counts if seen in self._counts else counts

    def _score(self, counts: list[Counts]) -> dict[str, float]:
        if not counts:
            return {}
        return {name: float(value) for name, value in self._model.score(np.sum(counts, axis=0)).items()}
