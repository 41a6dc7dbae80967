"""`--dry-run`: the plan in words."""

import shlex
from collections.abc import Sequence

from dlio_bench.harness.plan.orders import Shape
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.run.checks import MOST_CLOCK_DRIFT, MOST_OVERRUN, MOST_RESIDENT
from dlio_bench.harness.run.job import Job
from dlio_bench.units import format_bytes, format_seconds


def describe(
    job: Job,
    *,
    samples: int,
    stored_bytes: int,
    view_bytes: float,
    memory_per_node: int,
    argv: Sequence[str],
    notes: Sequence[str],
    made: bool,
) -> str:
    """What a run would do, read, keep in memory and check, and what would make it INVALID."""
    shape = Shape(samples, job.ranks, job.batch)
    steps = shape.steps * job.epochs
    rank_bytes = shape.steps * job.batch * view_bytes
    compute = f"{format_seconds(job.step_seconds)} of emulated compute a step" if job.step_seconds else "no compute"
    seconds = steps * job.step_seconds * (job.trials + job.warmup_trials) * len(job.readers)
    lines = [
        f"{job.workload}: {', '.join(job.readers)} on {job.nodes} {'virtual ' if job.virtual else ''}"
        f"node{'s' if job.nodes > 1 else ''} x {job.ranks_per_node} rank{'s' if job.ranks_per_node > 1 else ''}",
        f"  dataset    {samples} samples, {format_bytes(stored_bytes)} in {job.dataset}"
        + (" (to be made)" if not made else ""),
        f"  a sample   {format_bytes(view_bytes)} delivered: {', '.join(job.view)}",
        f"  a step     {job.batch} sample{'s' if job.batch > 1 else ''} a rank, {compute}, synchronised by {job.sync}",
        f"  a trial    {steps} steps: {job.epochs} epoch{'s' if job.epochs > 1 else ''} of {shape.steps}; {shape.dropped} samples dropped an epoch",
        f"  trials     {job.trials} timed and {job.warmup_trials} warm-up, seeds from {job.seed}; "
        f"compute alone takes {format_seconds(seconds)} in all",
        f"  a rank     {format_bytes(rank_bytes)} an epoch, {format_bytes(job.staging_bytes)} of staging buffer, {job.threads} threads",
        f"  a node     {format_bytes(rank_bytes * job.ranks_per_node)} an epoch against {format_bytes(memory_per_node)} of memory",
        f"  cache      {job.cache}",
        f"  launcher   {shlex.join(argv)}",
    ]
    for name in job.readers:
        policy = find(name)
        lines.append(
            f"  {name:<10} {policy.name}: {policy.order} x {policy.placement} x {policy.delivery} ({policy.source})"
        )
    lines += [f"  note       {note}" for note in notes]
    content = "every stored field of every sample against its CRC32C; " if job.verify else ""
    lines += [
        f"  checked    one code and one dataset on all ranks; ids as planned, each sample once an epoch; {content}"
        "64 bytes of every timed delivery; bytes read as planned; the clock",
        f"  INVALID    when any check fails; more than {MOST_RESIDENT:.0%} of the dataset cached where cold was asked; "
        f"compute overrunning by more than {MOST_OVERRUN:.0%}; clocks apart by more than {MOST_CLOCK_DRIFT:.0%}",
    ]
    return "\n".join(lines)
