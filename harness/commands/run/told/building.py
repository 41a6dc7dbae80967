"""Makes the draft of a result from what the ranks measured: facts and checks, no judgement."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

from msgspec import Struct, structs
from msgspec.structs import asdict

from dlio_bench import __version__
from dlio_bench.benchmarks.profile import DERIVED, ESTIMATE, GIVEN, MEASURED
from dlio_bench.benchmarks.workload import Workload, validation_share
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import VALIDATION
from dlio_bench.harness.cluster import walltime
from dlio_bench.harness.commands.run.asked.job import MEMORY, Job, files_of, passes_of, samples_of, uses_tensorflow
from dlio_bench.harness.commands.run.asked.jobs import options_document
from dlio_bench.harness.commands.run.asked.request import Request
from dlio_bench.harness.commands.run.asked.tracing import TENSORFLOW
from dlio_bench.harness.commands.run.measured.documents import JobMeasured, ReaderMeasured
from dlio_bench.harness.commands.run.told.checks import Count, checks
from dlio_bench.harness.commands.run.told.trials import trial
from dlio_bench.harness.plan.policies import OWN, STREAM, Policy
from dlio_bench.harness.plan.validation import Passes, epochs_of
from dlio_bench.harness.readers.placed.tiers import DISK, RAM
from dlio_bench.harness.storage.pfs.spec import PROCESS, PfsSpec, describe
from dlio_bench.harness.streams.adios import SST
from dlio_bench.reports.checkpoint import marks as checkpoint_marks
from dlio_bench.reports.document import types
from dlio_bench.reports.document.environment import Ceiling, EmulatedPfs, Host, Launcher
from dlio_bench.reports.document.marks import COLD_BEFORE, SERVED, TENSORFLOW_TRACE
from dlio_bench.reports.document.trials import (
    Trial,
    was_served_from_cache,
)
from dlio_bench.reports.document.types import (
    Compute,
    Data,
    Draft,
    ModelPlan,
    Named,
    Network,
    Plan,
    PlannedPasses,
    Split,
)
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.storage import Document, ceiling_for
from dlio_bench.units import format_bytes, format_seconds

CLOCKS_APART = 0.1  # seconds
SIZES = {MEMORY: "memory_bytes", RAM: "ram_tier_bytes", DISK: "disk_tier_bytes"}  # of a NodeRoom
APART = 0.01  # of the largest: what is free in memory is never quite the same


class RunSetting(Struct, frozen=True):
    """What the command knows of a run beyond the job."""

    request: Request
    dataset: Dataset
    notes: tuple[str, ...]
    storage: Document | None = None  # of `dlio-bench storage`


def build(
    reader: str,
    setting: RunSetting,
    measured: JobMeasured,
    reader_measured: ReaderMeasured,
    steps: Steps,
) -> Draft:
    """One reader's draft result. `reader_measured`, `steps`: what the ranks measured of this reader, and its arrays."""
    job, environment = measured.job, measured.environment
    files = files_of(job, setting.dataset)
    count = Count(
        reader_measured.steps_per_epoch,
        reader_measured.different_samples,
        job,
        samples_of(job, setting.dataset),
        job.readers[reader].demanded,
    )
    passes = _passes_document(passes_of(job, setting.dataset).get(reader))
    trials = [trial(count, environment, reader_measured, passes, steps, number) for number in range(job.all_trials)]
    manifest, request, storage = setting.dataset.manifest, setting.request, setting.storage
    workload, row = request.workload, job.readers[reader]
    pipeline = workload.upstream if row.delivery == OWN else None
    stored_bytes = sum(file.bytes for file in files)
    return Draft(
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        command=["dlio-bench", *sys.argv[1:]],
        options=options_document(reader, job, request, setting.dataset),
        version=__version__,
        workload=Named(workload.name, workload.title),
        dataset=Data(
            digest=setting.dataset.digest,
            folder=setting.dataset.home,
            variant=manifest.variant,
            fill=manifest.fill,
            seed=manifest.seed,
            files=len(files),
            samples=count.dataset_samples,
            stored_bytes=stored_bytes,
            view=list(job.view),
            view_bytes=sum(epoch.in_training("bytes_useful") for epoch in trials[0].epochs)
            / (trials[0].samples * job.deliveries),
            validation=_validation_split(job, setting.dataset),
            owner="given" if request.options.data else "made",
        ),
        policy=types.Policy(
            alias=reader,
            name=row.name,
            order=reader_measured.order,
            placement=row.placement,
            delivery=row.delivery,
            source=row.source if pipeline is None else pipeline.source,
            exactly_once=row.exactly_once,
            order_known=row.order_known,
            decode=reader_measured.decode,
            check_crc=job.options.check_crc,
            options=reader_measured.options,
        ),
        plan=Plan(
            nodes=job.nodes,
            ranks_per_node=job.ranks_per_node,
            ranks=job.ranks,
            batch=job.batch,
            published_batch=workload.batch,
            published_batch_source=workload.batch_source,
            epochs=job.epochs,
            steps_per_epoch=count.steps,
            steps=count.steps * job.epochs,
            samples_per_epoch=count.samples,
            dropped_samples=count.dropped,
            shard=job.options.shard,
            copies=job.copies,
            models=_models(job, reader_measured.trained),
            streams=streams_of(job, row),
            last=job.last,
            seed=job.seed,
            sync=cast(types.Sync, job.sync),
            trials=job.trials,
            warmup_trials=job.warmup_trials,
            cache=cast(types.CacheMode, job.cache),
            io=cast(types.IoMode, job.options.io),
            validation=_planned_passes(job, passes, workload),
            view_bytes_per_epoch=trials[0].epochs[0].in_training("bytes_useful"),
            node_memory_bytes=job.node_memory,
            comparable=not _is_short(job, setting, count, trials),
            min_seconds=request.minimum.seconds,
            min_steps=request.minimum.steps,
            # what the published pipeline does worse than it could is done here too
            notes=[
                *setting.notes,
                *_retry_note(environment.launcher),
                *node_notes(job, environment.hosts, environment.rank_hosts[0]),
                *(() if pipeline is None else pipeline.defects),
            ],
        ),
        compute=_emulated_compute(job, request)
        if (network := reader_measured.trained[0]) is None
        else Compute(
            **asdict(network), mode="train" if job.infer is None else "infer", asked_step_seconds=None, kind=None
        ),
        marks=_marks(job, row, setting, count, trials, is_verified=reader_measured.verified is not None),
        checks=checks(job, count, row, trials, passes, reader_measured.verified, reader_measured.damage),
        trials=trials,
        environment=structs.replace(
            environment,
            emulated_pfs=None
            if job.pfs is None
            else EmulatedPfs(**structs.asdict(job.pfs), says=_describe_emulation(job, job.pfs)),
            # stored bytes on both sides: what is delivered may be decompressed, or a part
            ceiling=None
            if storage is None
            else Ceiling(ceiling_for(storage, stored_bytes / count.dataset_samples), storage.folder),
            restarts=walltime.restarts(os.environ) or None,
        ),
    )


def streams_of(job: Job, row: Policy) -> types.Streams | None:
    """How a reader's batches are streamed; None of a reader that does not stream."""
    streaming = job.streaming
    if row.delivery != STREAM or streaming is None:
        return None
    queue = streaming.queue_in_force(job.ranks)
    return types.Streams(
        mode=streaming.mode,
        producers=streaming.producers,
        inline=streaming.inline,
        engine=None if streaming.inline else streaming.engine,
        transport=None if streaming.inline or streaming.engine != SST else streaming.transport,
        queue=queue,
        full=None if queue is None else streaming.full,
    )


def _describe_emulation(job: Job, pfs: PfsSpec) -> str:
    """The emulated file system in words. Real hosts, each with a mount of its own, share no bucket."""
    parts = job.nodes > 1 and not job.virtual and pfs.bandwidth is not None
    shares = f", in equal parts for {job.nodes} hosts" if parts else ""
    return f"{describe(pfs)}{shares}{', held up in the processes that read' if pfs.via == PROCESS else ''}"


def _retry_note(launcher: Launcher | None) -> list[str]:
    if launcher is None or not launcher.retries:
        return []
    times = "once" if launcher.retries == 1 else "twice"
    return [f"{launcher.name} ended in MPI_Init by signal 11 and was started again, {times}, before any rank worked"]


def _kind(request: Request, batch: int) -> str:
    """The kind of the emulated step time: derived if it was published for another batch, and our estimate if it was
    published for samples of another size.
    """
    profile = request.step_time
    assert profile is not None
    if profile.kind in (GIVEN, ESTIMATE) or (request.scale == 1 and profile.has(batch)):
        return profile.kind
    if profile.kind == MEASURED:  # between two batches, or of samples of another size
        return MEASURED if request.scale == 1 else ESTIMATE
    return DERIVED


def _emulated_compute(job: Job, request: Request) -> Compute:
    step_time = request.step_time
    if step_time is None:
        return Compute(mode="none", device=None, asked_step_seconds=0.0, kind=None, source=None)
    shrunken = "" if request.scale == 1 else f"; times {request.scale:.3g}, as samples of --tiny are smaller"
    profile = step_time.facts()
    return Compute(
        mode="emulate",
        device=step_time.device or None,
        asked_step_seconds=job.step_seconds,
        kind=_kind(request, job.batch),
        source=f"{step_time.describe_source(job.batch)}: {step_time.source}{shrunken}",
        profile=None if profile is None else types.Profile(**profile),
    )


def _is_short(job: Job, setting: RunSetting, count: Count, trials: Sequence[Trial]) -> bool:
    timed = [trial.elapsed_seconds for trial in trials if not trial.warmup]
    return not setting.request.minimum.is_met(count.steps * job.epochs, timed)


def _marks(
    job: Job, row: Policy, setting: RunSetting, count: Count, trials: Sequence[Trial], *, is_verified: bool
) -> list[str]:
    # data on a memory file system are always known to be in memory
    hidden = any(
        not host.attestable and not host.memory_backed for trial in trials for host in trial.cache.hosts.values()
    )
    marks = {
        "TINY": setting.dataset.manifest.tiny,
        "SHORT": bool(setting.request.minimum.seconds) and _is_short(job, setting, count, trials),
        "VIRTUAL NODES": job.virtual,
        "EMULATED PFS": job.pfs is not None,
        "EMULATED COMPUTE": setting.request.step_time is not None,
        "ESTIMATED STEP TIME": setting.request.step_time is not None and _kind(setting.request, job.batch) == ESTIMATE,
        "UNTRAINED NETWORK": job.infer is not None and job.infer.resume is None,
        TENSORFLOW_TRACE: TENSORFLOW in job.options.trace and uses_tensorflow(job, row),
        "REDUCED BATCH": job.batch < setting.request.workload.batch,
        "CACHE NOT ATTESTED": job.cache != "as-is" and job.pfs is None and hidden,
        SERVED: job.cache in COLD_BEFORE and was_served_from_cache([trial for trial in trials if not trial.warmup]),
        "CONTENT NOT VERIFIED": not is_verified,
    }
    of_load = checkpoint_marks.of_trials([trial for trial in trials if not trial.warmup])
    return [*(mark for mark, holds in marks.items() if holds), *of_load]


def node_notes(job: Job, hosts: Mapping[str, Host], first: str) -> Iterator[str]:
    """One sentence for each clock that is wrong and each size that a node lacks. first: the host of rank 0."""
    for name, host in hosts.items():
        ahead = host.clock_offset_seconds or 0.0
        if abs(ahead) > CLOCKS_APART:
            way = "ahead of" if ahead > 0 else "behind"
            yield (
                f"the clock of {name} is {format_seconds(abs(ahead))} {way} that of {first}; no number here compares "
                "times of two hosts"
            )
    for size in job.left_open:
        has = {name: getattr(host.room, SIZES[size]) or 0 for name, host in hosts.items() if host.room is not None}
        least, most = min(has, key=lambda name: has[name]), max(has, key=lambda name: has[name])
        if has[most] - has[least] > APART * has[most]:
            what = "memory" if size == MEMORY else f"the tier '{size}'"
            yield (
                f"{what} of every node is taken as {format_bytes(has[least])}, which {least} has; {most} has "
                f"{format_bytes(has[most])}"
            )


def _models(job: Job, networks: Sequence[Network | None]) -> list[ModelPlan]:
    """The models that a run trained side by side; empty where there is one. networks: of each."""
    if len(job.models) == 1:
        return []
    return [
        ModelPlan(learning_rate=model.rate)
        if network is None
        else ModelPlan(network=network.model, parameters=network.parameters, learning_rate=model.rate)
        for model, network in zip(job.models, networks, strict=True)
    ]


def _validation_split(job: Job, dataset: Dataset) -> Split | None:
    """The validation split, if the job reads it."""
    part = dataset.part(VALIDATION) if job.validation else None
    if part is None:
        return None
    stored = sum(dataset.manifest.files[number].bytes for number in part.files)
    return Split(len(part.files), len(part.samples), stored)


def _planned_passes(job: Job, passes: types.Passes | None, workload: Workload) -> PlannedPasses | None:
    """The validation passes of a trial, for the plan."""
    if passes is None or job.validation is None:
        return None
    published = workload.validation
    return PlannedPasses(
        **asdict(passes),
        every_epochs=job.validation.every,
        passes=len(epochs_of(job.epochs, job.validation.every)),
        compute_share=validation_share(workload),
        source=None if published is None else published.source,
    )


def _passes_document(passes: Passes | None) -> types.Passes | None:
    if passes is None:
        return None
    samples = passes.samples * passes.shape.ranks // passes.shape.copies
    return types.Passes(passes.order.name, samples, passes.shape.samples - samples)
