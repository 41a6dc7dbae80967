"""The trials of a result: what all ranks measured of one, added up; pure functions."""

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
from msgspec.structs import asdict, replace

from dlio_bench.counters import EpochCost, PassCost, total
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured.documents import RankTrial, ReaderMeasured
from dlio_bench.harness.commands.run.told.checks import Count
from dlio_bench.harness.plan.validation import epochs_of
from dlio_bench.harness.storage.cache import Residency
from dlio_bench.reports.document.environment import Environment
from dlio_bench.reports.document.trials import Cache, Cached, CheckpointLoad, Epoch, Pass, Training, Trial
from dlio_bench.reports.document.types import Passes
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.numbers.metrics import PHASES


def trial(
    count: Count,
    environment: Environment,
    reader_measured: ReaderMeasured,
    passes: Passes | None,
    steps: Steps,
    number: int,
) -> Trial:
    """One trial over all ranks. The job's time is the least interval around both barriers, summed over segments.

    The counters of an epoch include its validation pass.
    """
    job, ranks = count.job, [trials[number] for trials in reader_measured.ranks]
    seconds, validated = _epoch_seconds(steps, number), _pass_seconds(steps, number)
    elapsed = sum(min(parts) for parts in zip(*(rank.enclosing_seconds for rank in ranks), strict=True))
    epochs = [
        Epoch(
            **asdict(total(EpochCost, [rank.epochs[epoch] for rank in ranks])),
            epoch=epoch,
            seconds=seconds[epoch],
            validation=Pass(**asdict(total(PassCost, [rank.passes[epoch] for rank in ranks])), seconds=validated[epoch])
            if epoch in validated
            else None,
        )
        for epoch in range(job.epochs)
    ]
    models = len(job.models)
    held_out = models * passes.samples * len(validated) if passes else 0
    # over all ranks: each waits as long as the others
    validating = 0.0 if job.validation is None else job.validation.sample_seconds * held_out * job.copies
    batches = [count.steps * job.epochs if rank.batches is None else rank.batches for rank in ranks]
    asked = [job.step_seconds_of(rank) * of_rank + validating / job.ranks for rank, of_rank in enumerate(batches)]
    inferred = [rank.inference for rank in ranks if rank.inference is not None]
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
        cache=Cache(job.cache, _residency(ranks, environment.rank_hosts)),
        epochs=epochs,
        compute_asked_seconds=sum(asked),
        compute_actual_seconds=sum(rank.compute_seconds for rank in ranks),
        compute_late_seconds=max(rank.compute_seconds - of_rank for rank, of_rank in zip(ranks, asked, strict=True)),
        cpu_seconds=sum(rank.cpu_seconds for rank in ranks),
        host_cpu_busy_share=max((host.busy for host in busy), default=None),
        host_iowait_share=max((host.iowait for host in busy), default=None),
        cores=sum(host.cores or 0 for host in environment.hosts.values()),
        clock_drift_seconds=max((rank.clock_drift for rank in ranks), key=abs),
        # a reader without threads reads in the trainer's thread
        reader_threads=job.ranks * max(reader_measured.options["threads"], 1),
        rank_bytes=[sum(epoch.bytes_useful for epoch in rank.epochs) for rank in ranks],
        rank_batches=[] if any(rank.batches is None for rank in ranks) else batches,
        training=_training(job, ranks, steps, number),
        checkpoint_load=_checkpoint_load(job, ranks),
        # the scores are the same on every rank
        inference=replace(inferred[0], samples=sum(each.samples for each in inferred)) if inferred else None,
    )


def _epoch_seconds(steps: Steps, trial: int) -> list[float]:
    """Seconds of each epoch: first step's start to last step's end, on the slowest rank."""
    starts = steps["start"][trial]  # [ranks, steps]
    ends = starts + sum(steps[phase][trial] for phase in PHASES if phase in steps)
    epochs = steps["epoch"]
    return [
        float((ends[:, epochs == e].max(axis=1) - starts[:, epochs == e].min(axis=1)).max()) for e in np.unique(epochs)
    ]


def _pass_seconds(steps: Steps, trial: int) -> dict[int, float]:
    """Epoch -> seconds of its validation pass: from the first batch to the last of all ranks, on the slowest rank."""
    if "validation" not in steps:
        return {}
    seconds = steps["validation"][trial].max(axis=0)  # [ranks, passes]
    return dict(zip(steps["validation_epoch"].tolist(), seconds.tolist(), strict=True))


def _training(job: Job, ranks: Sequence[RankTrial], steps: Steps, trial: int) -> Training | None:
    """The training of a trial; None without one.

    The loss of a step is the mean over the ranks' batches, of all models. Seconds of all-reduces are the mean over the
    ranks. Bytes are those of one rank. Scores say which model they are of, where there are several.
    """
    reduced = [rank.training for rank in ranks if rank.training is not None]
    if not reduced:
        return None
    loss = steps["loss"][trial].mean(axis=0)  # [ranks, steps]
    epochs = epochs_of(job.epochs, job.validation.every) if job.validation else []
    first = [(model, ranks[rank]) for rank in range(job.ranks) for model, number in [job.model_of(rank)] if number == 0]
    several = len(first) > 1
    return Training(
        loss=[float(value) for value in loss],
        final_loss=float(loss[-1]),
        scores=[
            {"epoch": epoch, **({"model": model} if several else {}), **scores}
            for model, rank in first
            for epoch, scores in zip(epochs, rank.scores, strict=True)
        ],
        allreduce_seconds=sum(rank.allreduce_seconds for rank in reduced) / len(reduced),
        allreduce_bytes=max(rank.allreduce_bytes for rank in reduced),
        checkpoints=[saved for rank in reduced for saved in rank.checkpoints],
        generated=[made for rank in reduced for made in rank.generated],
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
