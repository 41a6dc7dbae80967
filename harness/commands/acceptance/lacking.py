"""Which metrics the results of a run cannot have, and why: known from the plan, before anything runs."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dlio_bench.harness.commands.acceptance.outlook import Foreseen
from dlio_bench.harness.commands.acceptance.plan import Plan
from dlio_bench.harness.commands.run.asked.training import TRAIN
from dlio_bench.reports.judging.limits import CEILING_SHARE

ONLY_TRAINING = 'Only a run that trains has it: write compute = "train"'
EMULATED = 'Write compute = "emulate:v100", or another step time'


class Lack(NamedTuple):
    """why: what the plan says, with its key. fix: what to write into the plan instead."""

    why: str
    fix: str


def lacking(plan: Plan, entry: Foreseen) -> Mapping[str, Lack]:
    """The metrics that no result of a run can have, by name; of a run that is foreseen."""
    return {name: lack for names, lack in _lacks(plan, entry) for name in names}


def _lacks(plan: Plan, entry: Foreseen) -> Iterator[tuple[tuple[str, ...], Lack]]:
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
