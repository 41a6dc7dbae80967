"""Inference: what `--compute infer` means and refuses, what a network predicts, batches that end smaller."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dlio_bench.batches import Batch, Block
from dlio_bench.benchmarks.hepcnnb.model import HEPCNNB_CNN, fields
from dlio_bench.benchmarks.model import Part, Sample
from dlio_bench.benchmarks.tensors import lend
from dlio_bench.errors import DataError, Diverged, UsageError
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.commands.run.asked.jobs import jobs
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.commands.run.asked.sizing import trial_size
from dlio_bench.harness.commands.run.asked.training import Inference as AskedInference
from dlio_bench.harness.commands.run.measured import loop
from dlio_bench.harness.plan.orders import Shape, find_order, steps_of
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training.checkpoint import Found, TrainingState, copies_of, save
from dlio_bench.harness.training.inference import Inference
from dlio_bench.harness.training.trainer import NOTHING, Emulated

pytestmark = pytest.mark.slow

SHAPE = (16, 16, 3)
BYTES = 16 * 16 * 3 * 4 + 4
SAMPLE = Sample((Part("data", "float32", SHAPE), Part("label", "int32", ())), SHAPE, fields)
TRAINING = 20  # samples with ids below it


def batch_of(first: int, samples: int) -> Batch:
    """Images whose brightness tells the class; always the same for the same ids."""
    parts = [np.zeros((0, BYTES), np.uint8)]
    for sample in range(first, first + samples):
        numbers = np.random.Generator(np.random.Philox(sample))
        label = numbers.integers(0, 2, 1).astype(np.int32)
        image = (numbers.standard_normal(SHAPE) + 2 * label[0]).astype(np.float32)
        parts.append(np.concatenate([image.ravel().view(np.uint8), label.view(np.uint8)])[None])
    content = np.concatenate(parts)
    starts = np.arange(samples + 1, dtype=np.int64) * BYTES
    return Batch(np.arange(first, first + samples), (Block(content.ravel(), starts),))


def network(weights: Found | None = None) -> Inference:
    made = Inference(Solo(), HEPCNNB_CNN, SAMPLE, device="cpu", seed=1, training=TRAINING, weights=weights)
    made.compile([(8, (BYTES,)), (3, (BYTES,))])
    return made


@pytest.fixture(scope="module")
def predicting() -> Inference:
    return network()


def scored(predicting: Inference, sizes: list[int]) -> Any:
    predicting.begin("prefetch", 0, 0)
    first = 0
    for size in sizes:
        predicting.step(batch_of(first, size))
        first += size
    return predicting.end().summary


def test_scores_do_not_depend_on_how_samples_are_cut_into_batches(predicting: Inference) -> None:
    whole, parts = scored(predicting, [30]), scored(predicting, [8, 8, 3, 8, 3, 0])
    assert whole.samples == parts.samples == 30
    assert whole.scores == pytest.approx(parts.scores)
    assert set(whole.scores) == {"accuracy", "auc"}
    # ten samples lie behind those of training: the fourth batch has some of both
    assert parts.held_out == pytest.approx(whole.held_out)
    assert scored(predicting, [TRAINING]).held_out == {}
    assert whole.scores["accuracy"] * 30 == pytest.approx(
        scored(predicting, [TRAINING]).scores["accuracy"] * TRAINING + whole.held_out["accuracy"] * 10
    )


def test_nothing_is_compiled_learnt_or_met(predicting: Inference) -> None:
    before = predicting._evaluate.experimental_get_tracing_count()  # type: ignore[attr-defined]
    weights = copies_of(predicting._network.variables)
    predicting.begin("prefetch", 0, 0)
    spent = predicting.step(batch_of(0, 8))
    assert spent.convert > 0
    assert spent.exchange == 0
    assert not predicting.meets
    assert predicting.step(batch_of(0, 0)) is NOTHING
    assert predicting._evaluate.experimental_get_tracing_count() == before  # type: ignore[attr-defined]
    for one, other in zip(weights, copies_of(predicting._network.variables), strict=True):
        assert np.array_equal(one, other)


def test_weights_of_a_checkpoint_predict(predicting: Inference, tmp_path: Path) -> None:
    weights = [one * 2 for one in copies_of(predicting._network.variables)]
    saved = save(tmp_path, TrainingState(5, 1, 3, weights, []))
    found = Found(TrainingState(5, 1, 3, weights, []), saved.path, ())
    other = network(found)
    for one, two in zip(copies_of(other._network.variables), weights, strict=True):
        assert np.array_equal(one, two)
    batch = lend(batch_of(0, 3))
    assert not np.array_equal(other._evaluate(batch)[0], predicting._evaluate(batch)[0])
    with pytest.raises(DataError, match="weights of another model"):
        network(replace(found, state=replace(found.state, weights=weights[:-1])))


def test_predictions_that_are_no_numbers_end_the_run() -> None:
    made = network()
    made._network.trainable_variables[-1].assign([np.nan, 0.0])
    made.begin("prefetch", 0, 0)
    with pytest.raises(Diverged, match="hepcnn predicts for samples"):
        made.step(batch_of(0, 8))


# ---- what is asked for


def test_an_inference_is_one_epoch_of_everything_and_ranks_do_not_meet(tmp_path: Path) -> None:
    request = look_up(Options("cdb", tiny=True, compute="infer:deeplab", nodes=(3,), batch=2))
    found = request.trial_size(17)
    assert (found.batch, found.epochs) == (2, 1)
    [job] = jobs(request, found, tmp_path, None)
    assert job.infer == AskedInference("deeplab")
    assert (job.last, job.sync, job.decode, job.validation, job.train) == ("keep", "none", True, None, None)
    assert (job.trials, job.warmup_trials) == (1, 1)
    again = look_up(Options("cdb", tiny=True, compute="infer", epochs=2, sync="step"))
    assert again.trial_size(16).epochs == 2
    assert jobs(again, again.trial_size(16), tmp_path, None)[0].sync == "step"


def test_weights_come_from_a_checkpoint_of_that_network(tmp_path: Path) -> None:
    save(tmp_path / "own", TrainingState(12, 3, 77, [], [], about={"model": "tiramisu", "ranks": 8, "batch": 5}))
    options = Options("cdb", tiny=True, compute="infer", resume=tmp_path / "own", trials=3, seed=5)
    request = look_up(options)
    assert request.inference is not None
    assert (request.inference.step, request.inference.resume) == (12, str(tmp_path / "own"))
    with pytest.raises(UsageError, match="model 'tiramisu'"):
        look_up(replace(options, compute="infer:deeplab"))
    with pytest.raises(UsageError, match="no checkpoint in"):
        look_up(replace(options, resume=tmp_path))


# ---- epochs that keep all samples


def test_a_batch_that_is_larger_than_what_ranks_have_is_no_reason_to_refuse() -> None:
    assert trial_size(5, ranks=4, published_batch=8, batch=8, whole=True).batch == 8
    with pytest.raises(UsageError, match="need 4 samples a step"):
        trial_size(3, ranks=4, published_batch=8, batch=1, whole=True)
    with pytest.raises(UsageError, match="need 32 samples a step"):
        trial_size(5, ranks=4, published_batch=8, batch=8)


def test_the_loop_takes_batches_that_are_smaller_or_empty() -> None:
    ids = find_order("global-shuffle")(Shape(10, 3, 3, last="keep"), 0, 1, 4)
    steps = [*steps_of(ids), np.zeros(0, np.int64)]
    log = StepLog.empty(3, 3)
    content = [Batch(own, (Block.even(np.ones((len(own), 4), np.uint8)),)) for own in steps]
    content[-1] = Batch(steps[-1], (Block(np.zeros(0, np.uint8), np.zeros(1, np.int64)),))
    loop.run_steps(
        Solo(), iter(content), steps, log, trainer=Emulated(), sync="none", ordered=True,
    )  # fmt: skip
    assert [(row >= 0).sum() for row in log.ids] == [3, len(steps[1]), 0]
    assert ((log.samples > 0) == (log.ids >= 0)).all()
    assert sorted(log.ids[log.ids >= 0]) == sorted(ids[ids >= 0])
