"""Inference: batches go forward through a published network, and its predictions are scored."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.batches import Batch, Block, Ids
from dlio_bench.benchmarks.model import (
    Counts,
    Cutting,
    Model,
    Pieces,
    Sample,
    build,
    compile_steps,
    keys,
    require_finite_held_out,
)
from dlio_bench.benchmarks.tensors import lend, tensorflow
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError, Diverged, EnvironmentFailure, remedy
from dlio_bench.harness.cluster.comm import Comm, run_on_all_ranks
from dlio_bench.harness.training.checkpoint import Found, restore
from dlio_bench.harness.training.network import Widths, blank, description, memory_errors, no_keys
from dlio_bench.harness.training.trainer import NOTHING, StepOverhead
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
        self._network = build(model, sample.shape, seed=seed)
        if weights is not None:
            restore(self._network.variables, weights.state.weights, "weights", weights.path)
        _, self._evaluate = compile_steps(model, sample, self._network)
        self._samples = 0
        self._counts: dict[bool, Counts] = {}  # by whether the samples are of the training split

    @property
    def described(self) -> Network:
        """What predicts, and where, for the result."""
        return description(self._model, self._network, self._device)

    def compile(self, batches: Iterable[tuple[int, Widths]]) -> None:
        """Go forward with a blank batch for each (samples, widths), so that no timed step compiles."""
        with memory_errors(self._model):
            for samples, widths in dict.fromkeys(batches):
                outputs, labels = self._evaluate(blank(samples, widths), no_keys(samples))
                self._model.count(outputs.numpy(), labels.numpy())

    def begin(self, reader: str, trial: int, seed: int) -> None:  # noqa: ARG002 - a trainer's
        """See Trainer."""
        self._samples, self._counts = 0, {}

    def step(self, batch: Batch) -> StepOverhead:
        """Predict a batch, and compare with its labels. Diverged where a prediction is no number."""
        if not len(batch.ids):
            return NOTHING
        began = time.perf_counter()
        lent, key = lend(batch), tensorflow().constant(keys(batch.ids, 0))
        converted = time.perf_counter()
        outputs, labels = self._forward_lent(lent, key)
        self._require_finite(outputs, batch.ids)
        require_finite_held_out(self._model, labels)
        seen = batch.ids < self._training
        for part in (True, False):
            chosen = seen == part
            if chosen.any():
                self._add(self._model.count(outputs[chosen], labels[chosen]), seen=part)
        self._samples += len(batch.ids)
        return StepOverhead(converted - began)

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


Words = npt.NDArray[np.float32]


class PieceInference(Inference):
    """See Cutting. After each trial rank 0 writes what all ranks predicted, and compares it with the first reader's."""

    def __init__(
        self,
        comm: Comm,
        model: Model,
        cutting: Cutting,
        dataset: Dataset,
        folder: Path,
        scale: str,
        *,
        device: str,
        seed: int,
        weights: Found | None,
    ) -> None:
        """folder: of the run's results; files go to READER-`scale`/pieces in it. See Inference for the others."""
        self._piece = cutting.of(dataset)
        sample = replace(model.sample(dataset), parts=(self._piece,))
        training = dataset.training_samples
        super().__init__(comm, model, sample, device=device, seed=seed, training=training, weights=weights)
        self._cutting, self._dataset, self._folder, self._scale = cutting, dataset, folder, scale
        self._place = Path()  # of the files of this trial
        self._firsts = np.array([entry.first for entry in dataset.manifest.files])
        self._trial, self._first = -1, dict[int, Words]()  # what the first reader of this trial predicted
        self._values = dict[int, Words]()  # sample -> values of its pieces
        self._waiting: list[tuple[int, npt.NDArray[np.int64], Words]] = []  # sample, numbers of pieces, pieces

    def compile(self, batches: Iterable[tuple[int, Widths]]) -> None:
        """Once for any number of pieces, as that differs from batch to batch."""
        del batches
        evaluate: Any = self._evaluate  # a tf.function
        pieces = tensorflow().TensorSpec((None, self._piece.words), "float32")

        def of_pieces(lent: Sequence[Any]) -> Any:
            """With all arguments that are wanted: one left out, with a default, would be asked of each call."""
            return evaluate(lent)

        with memory_errors(self._model):
            self._evaluate = tensorflow().function(of_pieces, autograph=False).get_concrete_function((pieces,))
            self._predict_pieces(np.zeros((1, self._piece.words), np.float32))

    def begin(self, reader: str, trial: int, seed: int) -> None:
        """See Trainer."""
        super().begin(reader, trial, seed)
        self._place = self._folder / f"{reader}-{self._scale}" / "pieces"
        if trial != self._trial:
            self._trial, self._first = trial, {}
        self._values, self._waiting = {}, []

    def step(self, batch: Batch) -> StepOverhead:
        """Gather the pieces of a batch's samples, and predict those of each batch of pieces that closes."""
        if not len(batch.ids):
            return NOTHING
        began, computed = time.perf_counter(), 0.0
        for number, sample in enumerate(batch.ids.tolist()):
            if self._waiting and self._file(sample) != self._file(self._waiting[0][0]):
                computed += self.finish()
            self._gather(sample, batch.sample(number).view(np.float32))
            if sum(len(numbers) for _, numbers, _ in self._waiting) >= self._cutting.least:
                computed += self.finish()
        self._samples += len(batch.ids)
        return StepOverhead(time.perf_counter() - began - computed)

    def finish(self) -> float:
        """Predict the pieces that wait."""
        began = time.perf_counter()
        waiting, self._waiting = self._waiting, []
        pieces = [words for _, _, words in waiting if len(words)]
        if not pieces:
            return 0.0
        outputs, labels = self._predict_pieces(np.concatenate(pieces))
        samples = np.array([sample for sample, _, _ in waiting])
        self._require_finite(outputs, samples)
        self._add(self._model.count(outputs, labels), seen=bool(samples[0] < self._training))
        values, start = self._cutting.values(outputs), 0
        for sample, numbers, _ in waiting:
            self._values[sample][numbers] = values[start : start + len(numbers)]
            start += len(numbers)
        return time.perf_counter() - began

    def end(self) -> Inferred:
        """See Trainer."""
        inferred = super().end()
        every = self._comm.gather(self._values) or []
        agreed: dict[str, float] = {}

        def tell() -> None:
            if not every:
                return
            whole = _merge_predictions(every)
            self._write(whole)
            if self._first:
                agreed.update(self._cutting.agree(self._first, whole))
            else:
                self._first = whole

        run_on_all_ranks(self._comm, tell)
        self._values = {}
        summary = inferred.summary
        scores = {**summary.scores, **self._comm.allgather(agreed)[0]}
        return Inferred(type(summary)(summary.samples, scores, summary.held_out))

    def _gather(self, sample: int, content: Words) -> None:
        """content: flags, then pieces. They are copied: the memory is the reader's."""
        count = content.size // (1 + self._piece.words)
        numbers = np.flatnonzero(content[:count].view(np.int32))
        self._values[sample] = np.zeros(count, np.float32)
        self._waiting.append((sample, numbers, content[count:].reshape(count, -1)[numbers]))

    def _predict_pieces(self, pieces: Words) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        return self._forward_lent(lend(Batch(np.arange(len(pieces)), (Block.even(pieces),))))

    def _file(self, sample: int) -> int:
        return int(np.searchsorted(self._firsts, sample, side="right"))

    def _write(self, predicted: Pieces) -> None:
        try:
            self._cutting.write(self._dataset, predicted, self._place)
        except OSError as error:
            raise EnvironmentFailure(f"{self._place} cannot be written: {error.strerror}. {remedy(error)}.") from error


def _merge_predictions(of_ranks: Iterable[Pieces]) -> dict[int, Words]:
    """The predictions of all ranks. DataError where two predicted the same sample."""
    whole: dict[int, Words] = {}
    for predicted in of_ranks:
        if twice := sorted(whole.keys() & predicted.keys()):
            raise DataError(f"Samples {twice[:4]} were predicted by several ranks. Each must go to one.")
        whole.update(predicted)
    return whole
