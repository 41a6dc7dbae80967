"""Which results may stand side by side, which are left out, and why."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from dlio_bench.reports.document.marks import ALTERED, SERVED, TINY
from dlio_bench.reports.document.types import Compute, Plan, PlannedPasses, Result
from dlio_bench.reports.run import tables
from dlio_bench.reports.run.sentences import shortness
from dlio_bench.reports.view.formatting import format_time, join_words, plural

MOST_NAMED = 3  # of results that are left out


def _passes(plan: PlannedPasses | None) -> str:
    """What validation passes a trial has; readers may go through them in different orders."""
    return f"{plan.passes} over {plan.samples} samples" if plan else "none"


def _steps(result: Result) -> int | str:
    """Steps of a trial; where no sample is left out, readers may need different numbers of them for the same.

    Where ranks get batches as they ask for them: as many as each would take, had all taken equally many.
    """
    plan = result.plan
    if plan.last == "keep":
        return f"as many as {plan.epochs} x {plan.samples_per_epoch} samples need"
    if result.measured_trials[-1].rank_batches:
        return plan.epochs * -(-plan.samples_per_epoch // (plan.batch * plan.ranks))
    return plan.steps


def _models(plan: Plan) -> int | str:
    """How many models were trained, and which."""
    named = [f"{model.network} (rate {model.learning_rate})" for model in plan.models if model.network]
    return ", ".join(named) or max(1, len(plan.models))


def _compute(compute: Compute) -> tuple[tuple[str, Any], ...]:
    """What played the trainer: its kind, and what is known of it by name."""
    return (
        ("", compute.mode), ("device", compute.device), ("step", compute.asked_step_seconds),
        ("network", compute.model), ("exchange", compute.exchange), ("fp16", compute.fp16), ("lag", compute.lag),
        ("precision", compute.precision or (compute.model and "float32")),
        ("hierarchical", compute.hierarchical),
        ("leaders of a node", compute.leaders if compute.leaders != 1 else None),
    )  # fmt: skip


def _checkpoint_load(result: Result) -> str:
    """Checkpoints of a published size that were written beside the input: of what, how much of it, and how often."""
    for load in (trial.checkpoint_load for trial in result.measured_trials):
        if load is not None:
            return f"{load.model}, {100 * load.fraction:.12g} % of its bytes after every {plural(load.every, 'step')}"
    return "none"


SAME: dict[str, Callable[[Result], Any]] = {
    "workload": lambda result: result.workload.name,
    "dataset": lambda result: result.dataset.digest,
    "view": lambda result: tuple(result.dataset.view),
    "nodes": lambda result: result.plan.nodes,
    "ranks per node": lambda result: result.plan.ranks_per_node,
    "batch": lambda result: result.plan.batch,
    "steps": _steps,
    "ranks that each sample goes to": lambda result: result.plan.copies,
    "stages of a pipeline": lambda result: result.plan.ranks if result.plan.shard == "pipeline" else 0,
    "models": lambda result: _models(result.plan),
    "validation passes": lambda result: _passes(result.plan.validation),
    "checkpoints beside the input": _checkpoint_load,
    "synchronisation": lambda result: result.plan.sync,
    "cache regime": lambda result: result.plan.cache,
    "caches that served the reads": lambda result: "some" if SERVED in result.marks else "none",
    "I/O": lambda result: result.plan.io,
    "compute": lambda result: _compute(result.compute),
}
"""What must be equal before two readers' times may be put side by side."""


def comparable(results: Sequence[Result]) -> list[Result]:
    """The results that may stand side by side, in the order of `groups`; none where fewer than two may.

    Left out are those with a `fault`, and all of a workload and node count whose other ones did unequal work.
    """
    fit = groups([result for result in results if fault(result) is None])
    kept = [result for group in fit.values() if _inequality(group) is None for result in group]
    return kept if len(kept) > 1 else []


def refusals(results: Sequence[Result]) -> list[str]:
    """Every reason why not all of these results stand side by side, each with the results it is about, once.

    Empty where all are compared, and of a single result.
    """
    if len(results) < 2:
        return []
    head = "not compared" if comparable(results) else "no comparison"
    faults: dict[str, dict[str, str]] = {}
    for label, result in zip(tables.labels(results), results, strict=True):
        if (wrong := fault(result)) is not None:
            faults.setdefault(wrong.partition(" ")[0], {})[label] = wrong
    fit = groups([result for result in results if fault(result) is None])
    unequal = [(places(results, group)[0], why) for group in fit.values() if (why := _inequality(group))]
    return [
        *(f"{head}: {_subject(list(told), len(results))} {next(iter(told.values()))}" for told in faults.values()),
        *(f"{head}{f', {place}' if len(fit) > 1 else ''}: {why}" for place, why in unequal),
    ]


def fault(result: Result) -> str | None:
    """What is wrong with a result that may not stand beside any other: 'INVALID (content)'; None where it may."""
    if ALTERED in result.marks:
        return "ALTERED (its digest does not match)"
    if result.class_ == "INVALID":
        failed = [check.name for check in result.checks if not check.ok]
        return f"INVALID ({', '.join(failed)})" if failed else "INVALID"
    if TINY in result.marks:
        return "TINY (shrunken samples: the times are not those of the workload)"
    return None if result.plan.comparable else f"SHORT: {shortness(result)}"


def _subject(names: Sequence[str], everyone: int) -> str:
    """'naive is', 'naive and prefetch are', '5 results, such as naive, are', 'all 6 results are'."""
    if len(names) > MOST_NAMED:
        return (
            f"all {everyone} results are"
            if len(names) == everyone
            else (f"{len(names)} results, such as {names[0]}, are")
        )
    joined = "; ".join(names) if any("," in name for name in names) else join_words(names)
    return f"{joined} {'is' if len(names) == 1 else 'are'}"


def _inequality(group: Sequence[Result]) -> str | None:
    """What work of these results, of one workload and node count, was not the same, or None."""
    for quantity, key in SAME.items():
        values = list(dict.fromkeys(key(result) for result in group))
        if len(values) > 1:
            return f"the results differ in {quantity} ({' and '.join(map(_format_value, values))})"
    return None


def groups(results: Sequence[Result]) -> dict[tuple[str, int], list[Result]]:
    """Results of the same workload and node count together: workloads in their order, node counts rising."""
    workloads = list(dict.fromkeys(result.workload.name for result in results))
    keyed: dict[tuple[str, int], list[Result]] = {}
    for result in sorted(results, key=lambda result: (workloads.index(result.workload.name), result.plan.nodes)):
        keyed.setdefault((result.workload.name, result.plan.nodes), []).append(result)
    return keyed


def by_group(results: Sequence[Result]) -> list[Result]:
    """The results in the order of their groups."""
    return [*chain.from_iterable(groups(results).values())]


def places(everyone: Sequence[Result], results: Sequence[Result]) -> list[str]:
    """'4 nodes' of each of `results`, or 'cdb, 4 nodes' if `everyone` is of several workloads."""
    several = len({result.workload.name for result in everyone}) > 1
    return [(f"{result.workload.name}, " if several else "") + plural(result.plan.nodes, "node") for result in results]


def readable(value: Any) -> Any:
    """A value of SAME for people: 'emulate, device v100, step 200 ms' of compute; others as they are."""
    if not (isinstance(value, tuple) and value and isinstance(value[0], tuple)):
        return value
    known = [(name, part) for name, part in value if part not in (None, "")]
    return ", ".join(f"{name} {format_time(part) if name == 'step' else part}".strip() for name, part in known)


def _format_value(value: Any) -> str:
    told = readable(value)
    return "/".join(map(str, told)) if isinstance(told, tuple) else str(told)
