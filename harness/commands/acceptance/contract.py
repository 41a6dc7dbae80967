"""The limits of a plan: from the file beside it or from the plan itself, and whether the plan can answer them."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from dlio_bench import documents
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.acceptance.outlook import Foreseen
from dlio_bench.harness.commands.acceptance.plan import CampaignPlan
from dlio_bench.harness.commands.checkpoints import limited
from dlio_bench.harness.commands.run.asked.training import TRAIN
from dlio_bench.harness.ground.user_files import to_toml
from dlio_bench.reports.checkpoint.metrics import CHECKPOINT_METRICS
from dlio_bench.reports.judging.limits import CEILING_SHARE, Limits

NAME = "limits.toml"
MOST_RUNS = 8  # that a message names
ONLY_TRAINING = 'Only a run that trains has it: write compute = "train"'
EMULATED = 'Write compute = "emulate:v100", or another step time'


def limits_of(plan: CampaignPlan, path: Path) -> tuple[Limits, bytes]:
    """The limits of the plan that lies in `path`, and the bytes of a file with them. UsageError, EnvironmentFailure.

    They go by the name of their copy in the campaign's folder, which is what the other party judges with.
    """
    if isinstance(plan.limits, str):
        beside = path.parent / plan.limits
        if not beside.is_file():
            raise UsageError(
                f"'{path}': limits: '{beside}' is no file. Name a TOML file of limits beside the plan "
                "(`dlio-bench help limits`), or write a table [limits]."
            )
        return replace(limited.load(beside), name=NAME), documents.read_document(beside)
    with tempfile.TemporaryDirectory(prefix="dlio-bench-limits-") as folder:
        file = Path(folder) / NAME
        content = to_toml(plan.limits).encode(errors="replace")
        file.write_bytes(content)
        try:
            return limited.load(file), content
        except UsageError as error:
            raise UsageError(str(error).replace(f"'{file}'", f"'{path}': limits")) from None


def require_answerable(plan: CampaignPlan, path: Path, asked: Limits, runs: Sequence[Foreseen]) -> None:
    """UsageError for limits that no result of the plan in `path` can meet; names file, key and plan key, and the fix.

    runs: what is foreseen of each run, and of checkpoints.
    """
    where = f"'{path.parent / plan.limits}'" if isinstance(plan.limits, str) else f"'{path}': limits"
    lacks = [{} if entry.request is None else missing_metrics(plan, entry) for entry in runs]
    for limit in asked.limits:
        key = f'{where}: [{limit.workload}.{limit.reader}."{limit.scale}"] {limit.metric}'
        covered = [
            number for number, entry in enumerate(runs) if entry.has(limit.metric) and limit.covers(*entry.measures)
        ]
        if not covered:
            measured = ", ".join(f"{entry.measures[0]} {entry.measures[2]}" for entry in runs[:MOST_RUNS])
            table = "[[checkpoint]]" if limit.metric in CHECKPOINT_METRICS else "[[run]]"
            raise UsageError(
                f"{key}: '{path}' does not measure it. It runs {measured}{', ...' if len(runs) > MOST_RUNS else ''}. "
                f"Add a {table} to the plan, or take the limit out."
            )
        for number in covered:
            if lack := lacks[number].get(limit.metric):
                raise UsageError(
                    f"{key}: {runs[number].part.name} of '{path}' cannot have it, as {lack.why}. {lack.fix}, or take "
                    "the limit out."
                )
    settings = asked.settings
    for name, needed, given in (
        ("trials", settings.trials, plan.trials),
        ("min_seconds", settings.min_seconds, plan.min_seconds),
    ):
        if given < needed:
            raise UsageError(
                f"{where}: {name} is {needed:g}, but '{path}' has {name} = {given:g}: every result would be INVALID. "
                f"Write {name} = {needed:g} or more into the plan."
            )
    if settings.cache not in (None, plan.cache) and (settings.cache, plan.cache) != ("cold", "cold-epochs"):
        raise UsageError(
            f'{where}: cache is "{settings.cache}", but \'{path}\' has cache = "{plan.cache}": every result would be '
            "INVALID. Write the same into both."
        )
    for entry in runs:
        if entry.request is not None and any(limit.covers(*entry.measures) for limit in asked.limits):
            _require_steps(plan, path, f"{where}: min_steps is {settings.min_steps}", settings.min_steps, entry)


def _require_steps(plan: CampaignPlan, path: Path, key: str, needed: int, entry: Foreseen) -> None:
    """UsageError for a run whose trials have fewer steps than `needed`. A first look may still lengthen some."""
    assert entry.request is not None
    assert entry.part.run is not None
    assert entry.part.source is not None
    size = entry.request.trial_size(entry.part.source.samples)
    if entry.request.looks_first or size.trial_steps >= needed:
        return
    table, options = f"run[{plan.run.index(entry.part.run)}]", entry.request.options
    if options.steps is not None and options.steps < needed:
        has, fix = f"{table}.steps = {options.steps}", f"Write steps = {needed} or more"
    else:
        has = f"{size.trial_steps} steps in {size.epochs} x the {entry.part.source.samples} samples of its data"
        fix = f"Write epochs = {-(-needed * size.epochs // size.trial_steps)} or more"
    raise UsageError(
        f"{key}, but {entry.part.name} of '{path}' has {has}: its results would be INVALID. {fix} into {table}, or ask "
        "for fewer in min_steps."
    )


class Lack(NamedTuple):
    """why: what the plan says, with its key. fix: what to write into the plan instead."""

    why: str
    fix: str


def missing_metrics(plan: CampaignPlan, entry: Foreseen) -> Mapping[str, Lack]:
    """The metrics that no result of a run can have, by name; of a run that is foreseen."""
    return {name: lack for names, lack in _missing_metrics(plan, entry) for name in names}


def _missing_metrics(plan: CampaignPlan, entry: Foreseen) -> Iterator[tuple[tuple[str, ...], Lack]]:
    """Rules of `reports.numbers.statistics.per_trial`, where a metric is None for what was asked."""
    part, request = entry.part, entry.request
    assert part.run is not None
    assert request is not None
    options, table = request.options, f"run[{plan.run.index(part.run)}]"
    compute = f'{table}.compute is "{options.compute}"'
    assert part.source is not None
    size = request.trial_size(part.source.samples)

    if size.epochs < 2 and not request.looks_first:
        names = ("first_epoch_seconds", "later_epochs_seconds", "steady_stall_share", "steady_au")
        yield names, Lack(f"a trial of {table} has one epoch", f"Write epochs = 2 or more into {table}")
    if size.trial_steps <= size.epochs and not request.looks_first:
        fix = f"Write a smaller batch or more steps into {table}, or more steps or times_memory into [dataset]"
        yield ("au",), Lack(f"an epoch of {table} has one step, and the first step of an epoch does not count", fix)
    if options.mode != TRAIN:
        yield ("allreduce_seconds",), Lack(f"{compute}: no gradients are exchanged", ONLY_TRAINING)
    elif part.scale == (1, 1):
        fix = f"Write more nodes or ranks_per_node into {table}"
        yield ("allreduce_seconds",), Lack("a single rank exchanges no gradients", fix)
    if request.step_time is None:
        yield ("compute_overrun",), Lack(f"{compute}: no compute is emulated", EMULATED)
    if options.mode == "none":
        yield ("au", "steady_au", "over_bound"), Lack(f"{compute}: nothing is computed", EMULATED)
    passes, _ = request.passes(part.source.validation_samples, size)
    if passes is None:
        fix = 'Write compute = "train", or name the reader upstream, with data that have a validation split'
        yield ("validation_seconds", "validation_stall_share"), Lack(f"{table} has no validation passes", fix)
    if options.sync == "epoch":
        fix = 'Write sync = "step", or leave sync out'
        yield ("harness_share",), Lack(f'{table}.sync is "epoch": ranks do not meet in the loop', fix)
    if options.emulate_pfs is None:
        fix = f'Write emulate_pfs = "bandwidth=400MB/s,cache=2GB", say, into {table}'
        yield ("bytes_client_cache",), Lack(f"only an emulated client cache is counted, and {table} has none", fix)
    if plan.storage is None:
        yield (CEILING_SHARE,), Lack("the plan does not measure the storage", "Add a table [storage] to it")
    elif options.emulate_pfs is not None:
        fix = f"Take emulate_pfs out of {table}"
        yield (CEILING_SHARE,), Lack(f"{table}.emulate_pfs is given, and its ceiling is not measured", fix)
