"""What a campaign will do, before it does it: each part, how much data, about how long, and what would refuse it."""

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from dlio_bench.datagen.workers import usual_workers
from dlio_bench.errors import BenchError, UsageError
from dlio_bench.harness.cluster import allocation
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.commands.acceptance.campaign import why_unfinished
from dlio_bench.harness.commands.acceptance.datasets import RunDataset, Site
from dlio_bench.harness.commands.acceptance.parts import CampaignPart
from dlio_bench.harness.commands.acceptance.plan import CampaignPlan, errors_at
from dlio_bench.harness.commands.checkpoints import command as checkpoints
from dlio_bench.harness.commands.checkpoints.job import Job
from dlio_bench.harness.commands.checkpoints.options import CHECKPOINT
from dlio_bench.harness.commands.checkpoints.options import Options as CheckpointOptions
from dlio_bench.harness.commands.checkpoints.parts import total
from dlio_bench.harness.commands.parser import Parser
from dlio_bench.harness.commands.run.asked import data
from dlio_bench.harness.commands.run.asked.jobs import jobs, require_machine
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import Request, look_up
from dlio_bench.harness.commands.run.measurement import plan_launch
from dlio_bench.harness.commands.run.options import RUN
from dlio_bench.harness.commands.run.told.foresight import READ, SINGLE, START_SECONDS, making_seconds, run_seconds
from dlio_bench.harness.commands.storage_bench import sizing
from dlio_bench.harness.ground.options import Command, Commands, Given
from dlio_bench.reports.acceptance import Place, describe_mount
from dlio_bench.reports.checkpoint.metrics import CHECKPOINT_METRICS
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.judging.limits import SPREAD
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_bytes, format_seconds, parse_bytes
from dlio_bench.wrapping import printable, wrap

PATTERNS = 2  # of reads that `storage` times: front to back, and sample by sample


class Foreseen(Struct, frozen=True):
    """A part with what it takes. request: of a run. reason: why the part is not finished; None if it is."""

    part: CampaignPart
    request: Request | None
    seconds: float
    missing_bytes: int
    reason: str | None

    @property
    def measured(self) -> bool:
        """Whether it leaves a result that limits judge."""
        return self.part.run is not None or self.part.checkpoints is not None

    def has(self, metric: str) -> bool:
        """Whether its results have a metric at all."""
        return metric == SPREAD or (metric in CHECKPOINT_METRICS) == (self.part.checkpoints is not None)

    @property
    def measures(self) -> tuple[str, list[str], str]:
        """What limits call the results of a run: the workload, every name of its readers, nodes x ranks of a node."""
        scale = "x".join(map(str, self.part.scale))
        if self.part.checkpoints is not None:
            return self.part.checkpoints.model, [self.part.checkpoints.layout], scale
        assert self.part.source is not None
        rows = {} if self.request is None else self.request.readers
        readers = [name for alias, row in rows.items() for name in (alias, row.name)]
        return self.part.source.layout.workload, readers, scale


def foresee(plan: CampaignPlan, part: CampaignPart, site: Site, folder: Path) -> Foreseen:
    """What a part will take; `folder`: the campaign's. UsageError for a run that cannot be."""
    if part.checkpoints is not None:
        return _foresee_checkpoints(plan, part, folder)
    assert part.source is not None
    request = request_of(plan, part) if part.kind == "run" else None
    if request is not None:
        require_enough(plan, part, request, site)
    reason = why_unfinished(part, plan, folder)
    if part.kind == "storage" and reason is not None:
        _require_readers(plan, part.source)
    takes = 0.0 if reason is None else seconds(plan, part, request)
    return Foreseen(part, request, takes, part.source.missing_bytes() if part.kind == "data" else 0, reason)


def _ceiling_bytes(plan: CampaignPlan, source: RunDataset, readers: int) -> int:
    """Bytes that a trial of the storage reads, at most."""
    assert plan.storage is not None
    asked = None if plan.storage.size is None else parse_bytes(plan.storage.size)
    return min(source.bytes, asked or sizing.steady_bytes(source.bytes // source.samples, readers))


def _require_readers(plan: CampaignPlan, source: RunDataset) -> None:
    """UsageError where the files of a dataset that is made for the plan have too few samples for [storage]."""
    assert plan.storage is not None
    if source.is_given:
        return
    readers, layout = max(plan.storage.ranks) * max(plan.storage.threads), source.layout
    files = [layout.file_bytes] * source.files[layout.splits[0].name]
    count = sizing.first_files(files, _ceiling_bytes(plan, source, readers))
    with errors_at("[storage]"):
        sizing.require_samples(min(source.samples, count * layout.samples_per_file), readers, count, source.folder)


def _foresee_checkpoints(plan: CampaignPlan, part: CampaignPart, folder: Path) -> Foreseen:
    assert part.checkpoints is not None
    with errors_at(f"checkpoint[{plan.checkpoint.index(part.checkpoints)}]"):
        job = checkpoint_job(part)
    reason = why_unfinished(part, plan, folder)
    moved = 3 * job.trials * job.checkpoints * total(job.parts)  # written, read, compared
    return Foreseen(part, None, 0.0 if reason is None else moved / READ + START_SECONDS, 0, reason)


def checkpoint_job(part: CampaignPart) -> Job:
    """The job of a part with checkpoints. UsageError for one that cannot be."""
    return checkpoints.job_of(CheckpointOptions(**_options(CHECKPOINT, part.words)))


def request_of(plan: CampaignPlan, part: CampaignPart) -> Request:
    """What a run's command asks for, every name resolved. UsageError that names the plan's key."""
    try:
        return _request(part.words)
    except UsageError as error:
        assert part.run is not None
        key = next(
            (f".{key}" for key in ("readers", *part.run.given_options) if _is_right_without(part.words, key)), ""
        )
        raise UsageError(f"run[{plan.run.index(part.run)}]{key}: {error}") from None


def _request(words: Sequence[str]) -> Request:
    return look_up(Options(**_options(RUN, words)))


def _options(command: Command, words: Sequence[str]) -> Given:
    """What the words of a command give. UsageError."""
    parser = Parser(prog="dlio-bench")
    made = parser.add_subparsers(dest="command")
    command.add(cast("Commands", made))
    return command.given_options(parser.parse_args(words))


def _is_right_without(words: Sequence[str], key: str) -> bool:
    """Whether a command would be right without the option of a plan's key."""
    at = words.index("--reader" if key == "readers" else f"--{key.replace('_', '-')}")
    try:
        _request([*words[:at], *words[at + 2 :]])
    except BenchError:
        return False
    return True


def require_all(plan: CampaignPlan, left: Sequence[Foreseen], *, in_allocation: bool) -> None:
    """UsageError or EnvironmentFailure if a run of the parts that are left would be refused.

    in_allocation: whether this process is in the allocation, if the plan's launcher needs one. Outside of it only that
    is asked which the plan says: whether buffers fit into memory_per_node.
    """
    here = in_allocation or plan.launcher in (None, *SINGLE)
    for entry in left:
        if entry.request is not None and (here or plan.memory is not None):
            _require_possible(entry.part, entry.request, here=here)


def _require_possible(part: CampaignPart, request: Request, *, here: bool) -> None:
    assert part.source is not None
    try:
        if here:
            require_machine(request.options)
        size = request.trial_size(part.source.samples)
        [job] = jobs(request, size, part.source.folder, None)
        if here:
            plan_launch(job)
    except BenchError as error:
        raise type(error)(f"The plan's run of {part.name} cannot be made here: {error}") from None


def seconds(plan: CampaignPlan, part: CampaignPart, request: Request | None) -> float:
    """About how long a part takes, with readers that keep up with the emulated compute."""
    source = part.source
    assert source is not None
    if part.kind == "data":
        here = making_seconds(source.layout, source.files, source.folder)
        ranks = (plan.dataset.nodes or 1) * (plan.dataset.ranks_per_node or 1)
        return here * usual_workers() / max(ranks, usual_workers())
    if part.kind == "storage":
        assert plan.storage is not None
        read = _ceiling_bytes(plan, source, max(plan.storage.ranks) * max(plan.storage.threads))
        counts = len(plan.storage.ranks) * len(plan.storage.threads)
        return counts * PATTERNS * plan.storage.trials * read / READ + START_SECONDS
    assert request is not None
    there = data.Source(source.folder, source.samples, source.bytes, None, source.validation_samples)
    try:
        return run_seconds(request, there)
    except BenchError:  # an allocation that is too small: `require_all` refuses it
        return START_SECONDS


def require_enough(plan: CampaignPlan, part: CampaignPart, request: Request, site: Site) -> None:
    """UsageError where the table's `steps` make a trial read less than the rule on memory asks for."""
    steps, source, (nodes, per_node) = request.options.steps, part.source, part.scale
    assert source is not None
    if steps is None:
        return
    needed = min(plan.dataset.times_memory * site.memory_of(nodes, plan), source.bytes)
    size = request.trial_size(source.samples)
    different = min(size.trial_steps * size.batch * nodes * per_node, source.samples)  # samples
    if (read := different * source.bytes / source.samples) < needed:
        raise UsageError(
            f"steps = {steps}: a trial of {part.name} reads {format_bytes(read)} of different samples, "
            f"and times_memory = {plan.dataset.times_memory:g} asks for {format_bytes(needed)}. Write at least "
            f"steps = {math.ceil(steps * needed / read)}, or leave steps out."
        )


def document(
    plan: CampaignPlan, digest: str, site: Site, places: Sequence[Place], free: int | None, foreseen: Sequence[Foreseen]
) -> dict[str, Any]:
    """The outlook as JSON: sizes in bytes, times in seconds."""
    left = [entry for entry in foreseen if entry.reason is not None]
    return {
        "system": plan.system.name,
        "plan_digest": digest,
        "memory_per_node": site.memory_per_node,
        "memory_declared": plan.memory is not None,
        "places": [to_json(place) for place in places],
        "hosts": _hosts(),
        "free_bytes": free,
        "missing_bytes": sum(entry.missing_bytes for entry in left),
        "seconds": sum(entry.seconds for entry in left),
        "parts": [
            {
                "kind": entry.part.kind,
                "name": entry.part.name,
                "title": entry.part.title,
                "finished": entry.reason is None,
                "reason": entry.reason,
                "seconds": entry.seconds,
                "missing_bytes": entry.missing_bytes,
                "needed_bytes": 0 if entry.part.source is None else entry.part.source.needed,
                "training_bytes": 0 if entry.part.source is None else entry.part.source.bytes,
                "command": ["dlio-bench", *entry.part.words],
            }
            for entry in foreseen
        ],
    }


def lines(
    plan: CampaignPlan,
    site: Site,
    sources: Sequence[RunDataset],
    places: Sequence[Place],
    foreseen: Sequence[Foreseen],
    out: Path,
    free: int | None,
) -> Iterator[str]:
    """The outlook as lines of at most 80 columns, long paths excepted."""
    yield f"acceptance of {printable(plan.system.name)}"
    of = "as this machine has" if plan.memory is None else "as the plan says"
    shared = ", which virtual nodes share" if plan.memory is None and not site.real_nodes else ""
    yield from wrap(f"{format_bytes(site.memory_per_node)} a node, {of}{shared}", _head("memory"))
    rule = f"at least {plan.dataset.times_memory:g} times the memory of all hosts"
    if plan.dataset.steps:
        rule += f", and {plan.dataset.steps} steps an epoch at the largest scale"
    yield from wrap(rule, _head("rule"))
    for source in sources:
        short = ""
        if source.bytes < source.needed:
            short = f"; only {format_bytes(source.bytes)} are published, so the caches must be seen to be empty"
        there = "given" if source.is_given else "there" if not source.missing_bytes() else "to be made"
        text = f"{source.name}: asked {format_bytes(source.needed)}, {format_bytes(source.bytes)} {there}{short}"
        yield from wrap(text, _head("data"))
    made = {str(source.folder.parent) for source in sources if not source.is_given}
    for place in places:
        room = f" ({format_bytes(free)} free)" if place.folder in made and free is not None else ""
        yield from wrap(f"{printable(place.folder)}{room}", _head("in"), whole_words=True)
        yield from wrap(printable(describe_mount(place.mount)), _head("  on"), whole_words=True)
    yield from wrap(_hosts(), _head("hosts"))
    trials = f"{plural(plan.trials, 'trial')} and {plan.warmup_trials} warm-up of at least {plan.min_seconds:g} s each"
    yield from wrap(f"{trials}, cache {plan.cache}: dropped, and looked at, before each", _head("runs"))
    yield ""
    for number, entry in enumerate(foreseen, start=1):
        state = "finished" if entry.reason is None else f"about {format_seconds(entry.seconds)}"
        if entry.missing_bytes:
            state += f", {format_bytes(entry.missing_bytes)}"
        yield from wrap(f"{entry.part.title}: {state}", f"  {number:>3}  ")
    left = [entry for entry in foreseen if entry.reason is not None]
    yield f"  {len(foreseen) + 1:>3}  judgement, page, digests"
    yield ""
    seconds, missing = sum(entry.seconds for entry in left), sum(entry.missing_bytes for entry in left)
    told = f"{plural(len(left), 'part')} of {len(foreseen)} to do: about {format_seconds(seconds)}" if left else (
        "every part is finished: only the judgement is made again"
    )  # fmt: skip
    yield from wrap(f"{told}{f', {format_bytes(missing)} of data to write' if missing else ''}", "  ")
    yield from wrap(f"into {out}", "  ", whole_words=True)


def _hosts() -> str:
    given = allocation.find(os.environ)
    return host_name() if given is None else f"{plural(given.nodes, 'node')} of {given}, as {host_name()} sees them"


def _head(name: str) -> str:
    return f"  {name:<8}"
