"""What each of several models came to that a run trained side by side: pure functions from (draft, steps)."""

import numpy as np

from dlio_bench.reports.document.marks import EMULATED_PFS
from dlio_bench.reports.document.types import Draft, Metric, ModelFigures, Result
from dlio_bench.reports.numbers import intervals, statistics
from dlio_bench.reports.numbers.meetings import (
    Floats,
    Ints,
    Meetings,
    Steps,
    job_stall,
    meetings,
    model_of_ranks,
    part,
    utilisation,
)
from dlio_bench.reports.numbers.metrics import METRICS
from dlio_bench.reports.view.formatting import FORMATS, NOTHING, number, plural, size

FINAL_LOSS = "final_loss"
NAMES = ("elapsed_seconds", "samples_per_second", "stall_share", "au", FINAL_LOSS)  # the columns
UNITS = {name: METRICS[name].unit for name in NAMES if name in METRICS} | {FINAL_LOSS: ""}
TITLES = {name: METRICS[name].title for name in NAMES if name in METRICS} | {FINAL_LOSS: "last loss"}


def figures(draft: Draft, steps: Steps) -> list[ModelFigures]:
    """The figures of each model, medians over the measured trials; empty where one model was trained.

    elapsed_seconds: from the common start to the end of its slowest rank's loop. samples_per_second, stall_share and au
    are those of `statistics`, of its ranks alone, in its own time. final_loss: mean over its ranks' last batches; None
    without training.
    """
    model = model_of_ranks(draft.plan)
    if model is None:
        return []
    return [
        _of_model(draft, steps, _model_name(draft, number), np.flatnonzero(model == number))
        for number in range(len(draft.plan.models))
    ]


def _model_name(draft: Draft, number: int) -> str:
    """'model 0', or 'model 1: resnet50, rate 0.2'."""
    planned = draft.plan.models[number]
    rate = None if planned.learning_rate is None else f"rate {planned.learning_rate:g}"
    about = ", ".join(part for part in (planned.network, rate) if part)
    return f"model {number}" + (f": {about}" if about else "")


def _of_model(draft: Draft, steps: Steps, name: str, ranks: Ints) -> ModelFigures:
    rows, plan = statistics.measured_positions(draft), draft.plan
    peers = Meetings(meetings(plan, steps).number)
    timed = {name: values if name == "epoch" else values[:, ranks] for name, values in part(steps, rows).items()}
    elapsed = steps["loop"][rows][:, ranks].max(axis=1)  # [trials]
    passes = statistics.validation(steps)[rows][:, ranks]
    training = elapsed - passes.min(axis=1).sum(axis=1)
    values: dict[str, Floats | None] = {
        "elapsed_seconds": elapsed,
        "samples_per_second": plan.samples_per_epoch * plan.epochs / training,
        "stall_share": job_stall(timed, peers) / training,
        "au": utilisation(timed, peers) if draft.compute.mode != "none" else None,
        FINAL_LOSS: steps["loss"][rows][:, ranks, -1].mean(axis=1) if "loss" in steps else None,
    }
    metrics = {}
    for metric, each in values.items():
        value = None if each is None else intervals.centre(each)
        ci = None if each is None else intervals.interval(each)
        metrics[metric] = Metric(value, UNITS[metric], ci)
    return ModelFigures(name=name, ranks=ranks.tolist(), metrics=metrics)


def titles(result: Result) -> list[str]:
    """The titles of the columns that a result has."""
    return [TITLES[name] for name in _known_metrics(result)]


def rows(result: Result) -> list[tuple[str, list[str]]]:
    """(name, cells) of each model, and of all together; empty where one model was trained."""
    if not result.models:
        return []
    known = _known_metrics(result)
    each = [(model.name, [_cell(model.metrics[name], name) for name in known]) for model in result.models]
    whole = [NOTHING if name == FINAL_LOSS else number(result.metrics[name]) for name in known]
    return [*each, ("together", whole)]


def _known_metrics(result: Result) -> list[str]:
    return [name for name in NAMES if any(model.metrics[name].value is not None for model in result.models)]


def _cell(metric: Metric, name: str) -> str:
    if name == FINAL_LOSS:
        return NOTHING if metric.value is None else f"{metric.value:.4g}"
    return number(metric)


def models_together(result: Result) -> str | None:
    """How fast several models are, each and together, and how often the dataset was read; None of one model."""
    if not result.models:
        return None
    return f"{plural(len(result.models), 'model')}, {_rates(result)}; {_file_system_reads(result)}"


def brief(result: Result) -> str | None:
    """As `models_together`, on one line."""
    if not result.models:
        return None
    return f"{len(result.models)}, {_rates(result)}; dataset read {dataset_reads(result):.1f} times"


def _rates(result: Result) -> str:
    rates = [value for model in result.models if (value := model.metrics["samples_per_second"].value) is not None]
    least, most = map(FORMATS["samples/s"], (min(rates), max(rates)))
    each = least if least == most else f"{least} to {most}"
    return f"{each} samples/s each, {number(result.metrics['samples_per_second'])} together"


def dataset_reads(result: Result) -> float:
    """How many times over the file system delivered what it has of the dataset, or was asked for it (`_counter`).

    In the measured trials: their bytes, over the stored bytes of an epoch x epochs, validation passes included.
    """
    trials, passes, split = result.measured_trials, result.plan.validation, result.dataset.validation
    stored = result.dataset.stored_bytes * result.plan.epochs
    if passes is not None and split is not None:
        stored += split.stored_bytes * passes.passes
    return float(sum(getattr(trial, _counter(result)) for trial in trials) / (stored * len(trials)))


def _counter(result: Result) -> str:
    """An emulated file system counts what it delivers. Elsewhere page caches of nodes answer a part, uncounted."""
    counted = EMULATED_PFS in result.marks and all(trial.bytes_device is not None for trial in result.measured_trials)
    return "bytes_device" if counted else "bytes_requested"


def _file_system_reads(result: Result) -> str:
    counter, plan = _counter(result), result.plan
    epoch = sum(getattr(trial, counter) for trial in result.measured_trials) / len(result.measured_trials) / plan.epochs
    who = "the emulated PFS delivered" if counter == "bytes_device" else "requested of the file system:"
    return (
        f"{who} {size(epoch)} an epoch, of a dataset of {size(result.dataset.stored_bytes)}: read "
        f"{dataset_reads(result):.1f} times"
    )
