"""`--dry-run`: describes the plan."""

import shlex
from collections.abc import Sequence

from dlio_bench.benchmarks.published_models.models import models_by_name
from dlio_bench.free_space import SHARED_MEMORY
from dlio_bench.harness.commands.checkpoints.options import SHARDED
from dlio_bench.harness.commands.checkpoints.parts import default_shards, parts, sizes, total
from dlio_bench.harness.commands.run.asked.data import Source
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.request import Request
from dlio_bench.harness.commands.run.asked.sizing import TrialSize
from dlio_bench.harness.commands.run.asked.tracing import SPANS
from dlio_bench.harness.commands.run.asked.training import Validation
from dlio_bench.harness.commands.run.measured.recording import SHARE
from dlio_bench.harness.commands.run.told.checks import MOST_CLOCK_DRIFT, MOST_OVERRUN
from dlio_bench.harness.commands.run.told.foresight import foreseen, shape_of
from dlio_bench.harness.ground.options import DIRECT
from dlio_bench.harness.plan.policies import Policy
from dlio_bench.harness.plan.shape import PIPELINE
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.storage.cache import MOST_RESIDENT
from dlio_bench.harness.storage.pfs.spec import describe as describe_pfs
from dlio_bench.recorder import MOST_ROWS, ROW
from dlio_bench.reports.document.marks import COLD_BEFORE
from dlio_bench.reports.view.formatting import format_time, plural
from dlio_bench.units import format_bytes, format_percent, format_seconds
from dlio_bench.wrapping import wrap


def describe(request: Request, source: Source, size: TrialSize, job: Job, argv: Sequence[str]) -> str:
    """Describe what a run does, reads, keeps and checks, and what makes it INVALID, in at most 80 columns."""
    shape = shape_of(source, job)
    policies = list(job.readers.values())
    once = "each sample once an epoch" if all(row.exactly_once for row in policies) else "each sample as planned"
    per_epoch = min(shape.steps, job.steps or shape.steps)
    steps = per_epoch * job.epochs
    rank_bytes = per_epoch * job.batch * request.view_bytes
    dropped = shape.dropped + (shape.steps - per_epoch) * shape.step
    left = f"parts of a pass of {shape.steps}" if job.parted else f"{plural(dropped, 'sample')} dropped an epoch"
    node_bytes = rank_bytes * job.ranks_per_node
    seconds = format_time(steps * job.step_seconds * job.all_trials * len(job.readers))
    compute = f"{format_seconds(job.step_seconds)} of emulated compute" if job.step_seconds else "no compute"
    if job.train:
        compute, seconds = f"training of {job.train.model}", "as long as it takes"
    if job.infer:
        compute, seconds = f"forward through {job.infer.model}", "as long as it takes"
    content = "every delivered field of every sample against its CRC32C; " if job.options.verify else ""
    virtual = " (virtual: they share this machine)" if job.virtual else ""
    system = f"from {request.options.system}"
    if request.options.system is None:
        system = "after the machine is measured with test files beside the dataset"
    origin = f", from {request.options.scale_from}" if request.options.scale_from else ""
    rows = [
        (
            "dataset",
            f"{source.samples} samples, {format_bytes(source.stored_bytes)}{'' if source.exists else ', to be made'}",
        ),
        ("store", f"{job.store}, an object store: ranges of its objects are requested" if job.store else ""),
        ("folder", f"{job.dataset} (tables alone)" if job.store else job.dataset),
        ("sample", f"{format_bytes(request.view_bytes)} delivered: {', '.join(job.view)}"),
        ("scale", f"{plural(job.nodes, 'node')} x {plural(job.ranks_per_node, 'rank')}{virtual}{origin}"),
        (
            "models",
            f"{len(job.models)}, each with the whole plan and with {plural(job.model_per_node, 'rank')} of a node; "
            "models do not wait for each other"
            if len(job.models) > 1
            else "",
        ),
        ("step", f"{plural(job.batch, 'sample')} a rank, {compute}, ranks meet: {job.sync}"),
        ("trial", f"{_trial(request, job, steps, per_epoch)}; {left}"),
        (
            "trials",
            f"{job.trials} timed, {job.warmup_trials} warm-up, seeds from {job.seed}; compute takes {seconds} in all",
        ),
        ("takes", foreseen(request, source, job, steps)),
        (
            "rank",
            f"{format_bytes(rank_bytes)} an epoch; staging {format_bytes(job.staging_bytes)}, "
            f"up to {plural(job.most_threads, 'thread')}",
        ),
        ("node", f"{format_bytes(node_bytes)} an epoch against {format_bytes(job.node_memory)} of memory"),
        ("cache", f"{job.cache} (O_DIRECT)" if job.options.io == DIRECT and job.cache in COLD_BEFORE else job.cache),
        ("I/O", "direct: files of the dataset are read past the page cache" if job.options.io == DIRECT else ""),
        ("streams", _streams(job, job.batch * request.view_bytes)),
        ("validation", _validation(source, job, job.validation) if job.validation else ""),
        ("local tier", _local_tier(request, policies) if any(row.rule.files for row in policies) else ""),
        ("tiers", _tiers(job.tiers) if job.tiers.names else ""),
        ("shard", _sharing(job)),
        ("decode", "as the application decodes its samples" if job.decode else ""),
        ("CRC32C", "of every delivered field, in the reader's threads" if job.options.check_crc else ""),
        ("slow store" if job.store else "PFS", f"emulated: {describe_pfs(job.pfs)}" if job.pfs else ""),
        ("checkpoints", _checkpoint_load(job) if job.options.checkpoint_load else ""),
        ("trace", _trace(job) if SPANS in job.options.trace else ""),
        ("prediction", f"written before the ranks start, {system}" if request.options.predict else ""),
        ("launcher", shlex.join(argv)),
        *(
            (name, f"{row.name}: {row.order} x {row.placement} x {row.delivery} ({row.source})")
            for name, row in job.readers.items()
        ),
        *(("note", note) for note in size.notes),
        (
            "checked",
            f"one code and one dataset on all ranks; ids as planned, {once}; {content}64 bytes of "
            "every timed delivery; bytes read as planned; the clock",
        ),
        (
            "INVALID",
            f"when a check fails: more than {format_percent(MOST_RESIDENT)} of the dataset in the page cache before "
            f"a cold trial, emulated compute late by more than {format_percent(MOST_OVERRUN)} of the median trial, "
            f"clocks apart by more than {format_percent(MOST_CLOCK_DRIFT)}, ...",
        ),
    ]
    lines = [f"{job.workload}  {request.workload.title}"]
    for name, text in rows:
        lines += wrap(text, f"  {name:<10} ", whole_words=True) if text else []
    return "\n".join(lines)


def _sharing(job: Job) -> str:
    """Who reads what, where ranks do not divide the dataset among them."""
    if job.copies == 1:
        return ""
    if job.options.shard == PIPELINE:
        return (
            f"pipeline: of {job.ranks} ranks the first reads every sample without its labels, and the last the labels, "
            "in one order"
        )
    return f"job: all {job.ranks} ranks read the whole dataset in one order"


def _trace(job: Job) -> str:
    of_rank, share = MOST_ROWS * ROW.itemsize, format_percent(SHARE)
    return (
        f"spans of every thread: up to {format_bytes(of_rank)} of memory a rank, "
        f"{format_bytes(of_rank * job.ranks_per_node)} a node, and no more than {share} of what is free in "
        f"{SHARED_MEMORY}; what is beyond it is counted"
    )


def _streams(job: Job, batch_bytes: float) -> str:
    """How batches are streamed, which ranks are launched for it, and what streams hold at most; empty without streams.

    A producer holds as many batches as its queue has, for each of its streams.
    """
    streaming, layout = job.streaming, job.layout
    if streaming is None:
        return ""
    queue, streams = streaming.queue_in_force(job.ranks), streaming.streams(job.ranks)
    shape = f"{plural(job.nodes, 'node')} x {plural(job.ranks_per_node, 'rank')} that train"
    if streaming.inline:
        how, where = f"{streaming.mode}, inline", f"{shape}, each with its producer; {job.ranks} are launched"
    else:
        how = f"{streaming.mode}, over {streaming.engine}"
        where = f"{shape}, and {plural(streaming.producers, 'producer')}; {plural(layout.ranks, 'rank')} are launched"
    if queue is None:
        return f"{how}; {where}. Files below the output folder hold every batch until the run ends"
    held = queue * batch_bytes * streams
    node = held * (job.ranks_per_node if streaming.inline else layout.extra_per_node)
    each = "its stream" if streams == 1 else f"each of its {streams} streams"
    return (
        f"{how}, a queue of {queue}, {streaming.full} when it is full; {where}. A producer holds up to "
        f"{format_bytes(held)}: {queue} x {format_bytes(batch_bytes)} for {each}; {format_bytes(node)} a node against "
        f"{format_bytes(job.node_memory)} of memory"
    )


def _trial(request: Request, job: Job, steps: int, per_epoch: int) -> str:
    resumed = job.train if job.train is not None and job.train.resume is not None else None
    epoch = "epoch" if resumed is None else "further epoch"
    text = f"{plural(steps, 'step')} in {plural(job.epochs, epoch)} of {per_epoch}"
    if resumed is not None:
        text += f", after the {plural(resumed.step, 'step')} of the checkpoint"
    if request.looks_first:
        text += f", or more: as many epochs as take {format_seconds(request.minimum.seconds)}, by a first look"
    return text


def _validation(source: Source, job: Job, validation: Validation) -> str:
    epochs = "each epoch" if validation.every == 1 else f"every {validation.every} epochs"
    seconds = format_seconds(validation.sample_seconds * job.batch)
    compute = f"{seconds} of emulated compute a batch" if validation.sample_seconds else "no compute"
    compute = f"forward through {job.train.model}" if job.train else compute
    return f"a pass over {source.validation_samples} samples after {epochs}, {compute}; the same for all readers"


def _checkpoint_load(job: Job) -> str:
    model, ranks = models_by_name()[job.options.checkpoint_load], job.ranks
    written = parts(model, ranks, default_shards(model, ranks), SHARDED, job.options.checkpoint_load_fraction)
    return (
        f"{format_bytes(total(written))} of {model.title} after every "
        f"{plural(job.options.checkpoint_load_every, 'step')}, in {plural(len(sizes(written)), 'file')}, each made "
        "durable; the last one is compared after each trial"
    )


def _local_tier(request: Request, rows: Sequence[Policy]) -> str:
    where = request.options.local_tier or "the temporary folder of each node"
    copies = [f"{row.name} copies {row.rule.files.description}" for row in rows if row.rule.files]
    return f"{where}: {'; '.join(copies)}"


def _tiers(tiers: Tiers) -> str:
    """The tiers that keep samples, and where the rates of sources come from."""
    sizes = [
        f"{format_bytes(size)} {where}"
        for size, where in ((tiers.ram, "in memory"), (tiers.disk, "on node-local storage"))
        if size
    ]
    rates = "rates of sources as measured" if tiers.rates is None else "rates of sources from --system"
    return f"{' and '.join(sizes)} a node for samples; {rates}"
