"""Makes the draft of a result from what the ranks measured: facts and checks, no judgement."""

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import cast

import numpy as np
from msgspec import Struct, structs
from msgspec.structs import asdict

from dlio_bench import __version__
from dlio_bench.benchmarks.profile import DERIVED, ESTIMATE, GIVEN, MEASURED
from dlio_bench.counters import EpochCost, total
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster import walltime
from dlio_bench.harness.commands.run.asked.choice import uses_tensorflow
from dlio_bench.harness.commands.run.asked.job import Job, files_of, samples_of
from dlio_bench.harness.commands.run.asked.repeating import kept
from dlio_bench.harness.commands.run.asked.request import Request
from dlio_bench.harness.commands.run.asked.tracing import TENSORFLOW
from dlio_bench.harness.commands.run.measured.documents import JobMeasured, RankTrial, ReaderMeasured
from dlio_bench.harness.commands.run.told import nodes, trained
from dlio_bench.harness.commands.run.told.checks import Count, checks
from dlio_bench.harness.plan.policies import OWN, STREAM, Policy
from dlio_bench.harness.storage.cache import Residency
from dlio_bench.harness.storage.pfs.spec import PROCESS, PfsSpec, describe
from dlio_bench.harness.streams.adios import SST
from dlio_bench.reports.checkpoint import marks as checkpoint_marks
from dlio_bench.reports.document import types
from dlio_bench.reports.document.environment import Ceiling, EmulatedPfs, Environment, Launcher
from dlio_bench.reports.document.marks import COLD_BEFORE, SERVED, TENSORFLOW_TRACE
from dlio_bench.reports.document.trials import Cache, Cached, CheckpointLoad, Epoch, Trial, was_served_from_cache
from dlio_bench.reports.document.types import Compute, Data, Draft, Named, Plan
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.numbers.metrics import PHASES
from dlio_bench.reports.storage import Document, ceiling_for


class Setting(Struct, frozen=True):
    """What the command knows of a run beyond the job."""

    request: Request
    dataset: Dataset
    notes: tuple[str, ...]
    storage: Document | None = None  # of `dlio-bench storage`


class Launched(Struct, frozen=True):
    """How the command started the job, and the seconds until its ranks were ready."""

    launcher: Launcher
    startup_seconds: float


def build(
    reader: str,
    job: Job,
    setting: Setting,
    measured: JobMeasured,
    launched: Launched,
    reader_measured: ReaderMeasured,
    steps: Steps,
) -> Draft:
    """One reader's draft result. `own`, `steps`: what the ranks measured of this reader, and its arrays."""
    files = files_of(job, setting.dataset)
    count = Count(
        reader_measured.steps_per_epoch,
        reader_measured.different_samples,
        job,
        samples_of(job, setting.dataset),
        job.readers[reader].demanded,
    )
    trials = [_trial(job, count, measured, reader_measured, steps, number) for number in range(job.all_trials)]
    manifest, request, storage = setting.dataset.manifest, setting.request, setting.storage
    workload, row = request.workload, job.readers[reader]
    pipeline = workload.upstream if row.delivery == OWN else None
    stored_bytes = sum(file.bytes for file in files)
    return Draft(
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        command=["dlio-bench", *sys.argv[1:]],
        options=kept(reader, job, request, setting.dataset),
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
            view_bytes=trained.sample_bytes(job, trials[0]),
            validation=trained.split(job, setting.dataset),
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
            models=trained.models(job, reader_measured.trained),
            streams=streams_of(job, row),
            last=job.last,
            seed=job.seed,
            sync=cast(types.Sync, job.sync),
            trials=job.trials,
            warmup_trials=job.warmup_trials,
            cache=cast(types.CacheMode, job.cache),
            io=cast(types.IoMode, job.options.io),
            validation=trained.planned(job, reader_measured.validation, workload),
            view_bytes_per_epoch=trials[0].epochs[0].in_training("bytes_useful"),
            node_memory_bytes=job.node_memory,
            comparable=not _is_short(job, setting, count, trials),
            min_seconds=request.minimum.seconds,
            min_steps=request.minimum.steps,
            # what the published pipeline does worse than it could is done here too
            notes=[
                *setting.notes,
                *_retried(launched.launcher),
                *nodes.notes(job, measured.hosts, measured.rank_hosts[0]),
                *(() if pipeline is None else pipeline.defects),
            ],
        ),
        compute=_emulated(job, request)
        if (network := reader_measured.trained[0]) is None
        else trained.compute(job, network),
        marks=_marks(job, row, setting, count, trials, is_verified=reader_measured.verified is not None),
        checks=checks(
            job, count, row, trials, reader_measured.validation, reader_measured.verified, reader_measured.damage
        ),
        trials=trials,
        environment=Environment(
            hosts=measured.hosts,
            rank_hosts=measured.rank_hosts,
            rank_memory_bytes=measured.rank_memory_bytes,
            cores_per_rank=measured.cores_per_rank,
            bound_processors=measured.bound_processors,
            interfaces=measured.interfaces,
            tier_folders=list(job.tier_folders),
            emulated_pfs=None if job.pfs is None else EmulatedPfs(**structs.asdict(job.pfs), says=_says(job, job.pfs)),
            launcher=launched.launcher,
            mpi=measured.mpi,
            # stored bytes on both sides: what is delivered may be decompressed, or a part
            ceiling=None
            if storage is None
            else Ceiling(ceiling_for(storage, stored_bytes / count.dataset_samples), storage.folder),
            startup_seconds=launched.startup_seconds,
            code_digest=job.code_digest,
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


def _says(job: Job, pfs: PfsSpec) -> str:
    """The emulated file system in words. Real hosts, each with a mount of its own, share no bucket."""
    parts = job.nodes > 1 and not job.virtual and pfs.bandwidth is not None
    shares = f", in equal parts for {job.nodes} hosts" if parts else ""
    return f"{describe(pfs)}{shares}{', held up in the processes that read' if pfs.via == PROCESS else ''}"


def _retried(launcher: Launcher) -> list[str]:
    if not launcher.retries:
        return []
    times = "once" if launcher.retries == 1 else "twice"
    return [f"{launcher.name} ended in MPI_Init by signal 11 and was started again, {times}, before any rank worked"]


def _epoch_seconds(steps: Steps, trial: int) -> list[float]:
    """Seconds of each epoch: first step's start to last step's end, on the slowest rank."""
    starts = steps["start"][trial]  # [ranks, steps]
    ends = starts + sum(steps[phase][trial] for phase in PHASES if phase in steps)
    epochs = steps["epoch"]
    return [
        float((ends[:, epochs == e].max(axis=1) - starts[:, epochs == e].min(axis=1)).max()) for e in np.unique(epochs)
    ]


def _trial(
    job: Job, count: Count, measured: JobMeasured, reader_measured: ReaderMeasured, steps: Steps, number: int
) -> Trial:
    """One trial over all ranks. The job's time is the least interval around both barriers, summed over segments.

    The counters of an epoch include its validation pass.
    """
    ranks = [trials[number] for trials in reader_measured.ranks]
    seconds, validated = _epoch_seconds(steps, number), trained.pass_seconds(steps, number)
    elapsed = sum(min(parts) for parts in zip(*(rank.enclosing_seconds for rank in ranks), strict=True))
    epochs = [
        Epoch(
            **asdict(total(EpochCost, [rank.epochs[epoch] for rank in ranks])),
            epoch=epoch,
            seconds=seconds[epoch],
            validation=trained.one_pass(ranks, epoch, validated[epoch]) if epoch in validated else None,
        )
        for epoch in range(job.epochs)
    ]
    models = len(job.models)
    held_out = models * reader_measured.validation.samples * len(validated) if reader_measured.validation else 0
    # over all ranks: each waits as long as the others
    validating = 0.0 if job.validation is None else job.validation.sample_seconds * held_out * job.copies
    batches = [count.steps * job.epochs if rank.batches is None else rank.batches for rank in ranks]
    asked = [job.step_seconds_of(rank) * of_rank + validating / job.ranks for rank, of_rank in enumerate(batches)]
    busy = [rank.host_cpu for rank in ranks if rank.host_cpu is not None]
    return Trial(
        **asdict(total(EpochCost, epochs)),
        trial=ranks[0].trial,
        warmup=ranks[0].trial < job.warmup_trials,
        seed=ranks[0].seed,
        elapsed_seconds=elapsed,
        steps=count.steps * job.epochs,
        samples=models * count.samples * job.epochs,
        validation_samples=held_out,
        cache=Cache(job.cache, _residency(ranks, measured.rank_hosts)),
        epochs=epochs,
        compute_asked_seconds=sum(asked),
        compute_actual_seconds=sum(rank.compute_seconds for rank in ranks),
        compute_late_seconds=max(rank.compute_seconds - of_rank for rank, of_rank in zip(ranks, asked, strict=True)),
        cpu_seconds=sum(rank.cpu_seconds for rank in ranks),
        host_cpu_busy_share=max((host.busy for host in busy), default=None),
        host_iowait_share=max((host.iowait for host in busy), default=None),
        cores=sum(host.cores or 0 for host in measured.hosts.values()),
        clock_drift_seconds=max((rank.clock_drift for rank in ranks), key=abs),
        # a reader without threads reads in the trainer's thread
        reader_threads=job.ranks * max(reader_measured.options["threads"], 1),
        rank_bytes=[sum(epoch.bytes_useful for epoch in rank.epochs) for rank in ranks],
        rank_batches=[] if any(rank.batches is None for rank in ranks) else batches,
        training=trained.training(job, ranks, steps, number),
        checkpoint_load=_checkpoint_load(job, ranks),
        inference=trained.inference([rank.inference for rank in ranks if rank.inference is not None]),
    )


def _checkpoint_load(job: Job, ranks: Sequence[RankTrial]) -> CheckpointLoad | None:
    """The checkpoints that were written beside a trial; None where none were asked for."""
    loads = [rank.load for rank in ranks if rank.load is not None]
    if not job.options.checkpoint_load or not loads:
        return None
    took = sum(sum(load.seconds) for load in loads)
    cached = [load.compared_cached for load in loads]
    return CheckpointLoad(
        model=job.options.checkpoint_load,
        fraction=job.options.checkpoint_load_fraction,
        every=job.options.checkpoint_load_every,
        bytes=sum(load.bytes[0] for load in loads if load.bytes),
        seconds=[max(each) for each in zip_longest(*(load.seconds for load in loads), fillvalue=0.0)],
        fsyncs=sum(sum(load.fsyncs) for load in loads),
        fsync_share=sum(sum(load.synced) for load in loads) / took if took else 0.0,
        waited_share=sum(sum(load.waited) for load in loads) / took if took else 0.0,
        compared_bytes=sum(load.compared_bytes for load in loads),
        compared_cached=None if None in cached else sum(filter(None, cached)),
    )


def _residency(ranks: Sequence[RankTrial], hosts: Sequence[str]) -> dict[str, Cached]:
    """Host -> the share of the dataset in its page cache before the clock started, in the worst segment."""
    by_host: dict[str, list[list[Residency]]] = {}
    for rank, host in zip(ranks, hosts, strict=True):
        by_host.setdefault(host, []).append(rank.residency)
    cached = {}
    for host, shares in sorted(by_host.items()):
        segments = list(zip(*shares, strict=True))
        whole = sum(share.bytes for share in segments[0])
        notes = [share.note for segment in segments for share in segment if share.note]
        cached[host] = Cached(
            resident_share=max(sum(share.resident_bytes for share in segment) for segment in segments) / max(whole, 1),
            attestable=all(share.attestable for segment in segments for share in segment),
            memory_backed=any(share.memory_backed for segment in segments for share in segment),
            bytes=whole,
            note=notes[0] if notes else None,
        )
    return cached


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


def _emulated(job: Job, request: Request) -> Compute:
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
        source=f"{step_time.told(job.batch)}: {step_time.source}{shrunken}",
        profile=None if profile is None else types.Profile(**profile),
    )


def _is_short(job: Job, setting: Setting, count: Count, trials: Sequence[Trial]) -> bool:
    timed = [trial.elapsed_seconds for trial in trials if not trial.warmup]
    return not setting.request.minimum.is_met(count.steps * job.epochs, timed)


def _marks(
    job: Job, row: Policy, setting: Setting, count: Count, trials: Sequence[Trial], *, is_verified: bool
) -> list[str]:
    hosts = [host for trial in trials for host in trial.cache.hosts.values()]
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
        "CACHE NOT ATTESTED": job.cache != "as-is" and job.pfs is None and any(_is_hidden(host) for host in hosts),
        SERVED: job.cache in COLD_BEFORE and was_served_from_cache([trial for trial in trials if not trial.warmup]),
        "CONTENT NOT VERIFIED": not is_verified,
    }
    of_load = checkpoint_marks.of_trials([trial for trial in trials if not trial.warmup])
    return [*(mark for mark, holds in marks.items() if holds), *of_load]


def _is_hidden(host: Cached) -> bool:
    """Whether nothing is known of a host's cache. Data on a memory file system are always known to be in memory."""
    return not host.attestable and not host.memory_backed
