"""Several models on one dataset: who trains what, what cannot go together, and what a result says of each."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dlio_bench.harness.cli import main
from dlio_bench.harness.commands.run.asked.training import TrainedModel, parse_models
from dlio_bench.harness.streams.crew import CrewLayout, model_of
from dlio_bench.harness.streams.dealing import PlanBatch, batches_of_producer
from dlio_bench.reports.numbers import models
from dlio_bench.reports.numbers.meetings import model_of_ranks
from tests.results import complete, drafted

Draft = Callable[..., tuple[dict[str, Any], dict[str, Any]]]


def test_models_are_counted_or_named_with_their_learning_rates() -> None:
    assert parse_models(None) == parse_models("1") == (TrainedModel(),)
    assert parse_models("3") == (TrainedModel(),) * 3
    assert parse_models("cnn, cnn:lr=0.2") == (TrainedModel("cnn"), TrainedModel("cnn", 0.2))


def test_each_node_hosts_as_many_ranks_of_each_model() -> None:
    layout = CrewLayout(nodes=2, trainers_per_node=6, producers=1, models=3)
    trainers = [layout.trainer(rank) for rank in range(layout.ranks)]
    kept = [trainer for trainer in trainers if trainer is not None]
    assert kept == list(range(12))
    placed = [model_of(trainer, 6, 3) for trainer in kept]
    assert [model for model, _ in placed] == [0, 0, 1, 1, 2, 2] * 2
    for model in range(3):  # a model's ranks fill node after node, in its own numbers
        assert [number for of, number in placed if of == model] == [0, 1, 2, 3]


def test_a_producer_publishes_the_plan_of_one_model() -> None:
    plans = [[PlanBatch(0, np.array([rank, step])) for step in range(3)] for rank in range(2)]
    sent = [batch for producer in range(2) for batch in batches_of_producer(plans, "planned", producer, 2)]
    assert sorted((batch.rank, batch.position) for batch in sent) == [
        (rank, step) for rank in (0, 1) for step in range(3)
    ]


def test_help_tells_which_readers_share_samples_between_models(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "except where ranks of a node keep samples for each other (prefetch, cooperative, clairvoyant, ...)" in told


def two_models(made: tuple[dict[str, Any], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of four ranks of a node as those of two models."""
    draft, steps = made
    plan = {"nodes": 1, "ranks_per_node": 4, "ranks": 4, "models": [{}, {"network": "cnn", "learning_rate": 0.2}]}
    return draft | {"plan": draft["plan"] | plan}, steps


def test_each_model_is_told_by_its_ranks_alone(draft_and_steps: Draft) -> None:
    draft, steps = two_models(draft_and_steps(nodes=4))
    slow = copy.deepcopy(steps)
    slow["loop"][:, 2:] *= 2  # the second model
    slow["stall"][:, 2:] += 1.0
    before, after = complete(draft, steps), complete(draft, slow)
    assert [model.ranks for model in after.models] == [[0, 1], [2, 3]]
    assert [model.name for model in after.models] == ["model 0", "model 1: cnn, rate 0.2"]
    assert after.models[0] == before.models[0]
    rows = [trial for trial in range(len(draft["trials"])) if not draft["trials"][trial]["warmup"]]
    assert after.models[1].metrics["elapsed_seconds"].value == pytest.approx(
        float(np.median(slow["loop"][rows][:, 2:].max(axis=1)))
    )
    # models do not wait for each other: the job's bound is that of its slowest model, not of the slowest rank of steps
    assert after.models[1].metrics["stall_share"].value != before.models[1].metrics["stall_share"].value


def test_a_step_of_one_model_does_not_end_with_that_of_another(draft_and_steps: Draft) -> None:
    draft, steps = two_models(draft_and_steps(nodes=4))
    steps["compute"][:, :2, 0::2] = 1.0  # the models compute long by turns
    steps["compute"][:, 2:, 1::2] = 1.0
    apart = complete(draft, steps).value("no_io_seconds")
    together = complete(draft | {"plan": draft["plan"] | {"models": []}}, steps).value("no_io_seconds")
    assert together > 1.5 * apart


def test_ranks_that_models_cannot_share_equally_are_refused(draft_and_steps: Draft) -> None:
    draft, _ = two_models(draft_and_steps(nodes=4))
    assert model_of_ranks(drafted(draft).plan) is not None
    with pytest.raises(ValueError, match=r"plan\.models"):
        drafted(draft | {"plan": draft["plan"] | {"models": [{}, {}, {}]}})


def test_how_often_the_dataset_was_read_is_told(draft_and_steps: Draft) -> None:
    draft, steps = two_models(draft_and_steps(nodes=4))
    stored = draft["dataset"]["stored_bytes"]
    epochs = draft["plan"]["epochs"]
    trials = [trial | {"bytes_requested": 2 * stored * epochs} for trial in draft["trials"]]
    result = complete(draft | {"trials": trials, "marks": []}, steps)
    assert models.dataset_reads(result) == pytest.approx(2.0)
    assert "read 2.0 times" in (models.models_together(result) or "")
    assert models.models_together(complete(*draft_and_steps(nodes=4))) is None
