"""From what the ranks brought home to the draft of a result: facts and checks, no judgement."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench import __version__
from dlio_bench.benchmarks.profile import DERIVED, ESTIMATE, GIVEN, MEASURED
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.environment import timestamp
from dlio_bench.harness.plan.policies import OWN, Policy
from dlio_bench.harness.run.asked.job import Job
from dlio_bench.harness.run.asked.request import Request
from dlio_bench.harness.run.asked.shapes import files_of, samples_of
from dlio_bench.harness.run.told import passes, trained
from dlio_bench.harness.run.told.checks import Count, checks
from dlio_bench.harness.storage.pfs.spec import describe
from dlio_bench.harness.timeline import PHASES
from dlio_bench.reports.storage import ceiling_for


@dataclass(frozen=True)
class Setting:
    """What the command knows of a run and its ranks need not."""

    request: Request
    dataset: Dataset
    notes: tuple[str, ...]
    node_memory_bytes: int
    storage: Mapping[str, Any] | None = None  # a document of `dlio-bench storage`


Steps = Mapping[str, npt.NDArray[Any]]


def draft(
    reader: str, job: Job, setting: Setting, measured: Mapping[str, Any], own: Mapping[str, Any], steps: Steps
) -> dict[str, Any]:
    """One reader's draft result. `measured`: the job's json and launch; `own`, `steps`: the reader's json and npz."""
    files = files_of(job, setting.dataset)
    count = Count(own["steps_per_epoch"], own["different_samples"], job, samples_of(job, setting.dataset))
    trials = [
        _trial(
            job,
            count,
            [facts[number] for facts in own["ranks"]],
            measured,
            _epoch_seconds(steps, number),
            passes.pass_seconds(steps, number),
            own,
        )
        | trained.of_trial(job, [facts[number] for facts in own["ranks"]], steps, number)
        for number in range(job.warmup_trials + job.trials)
    ]
    manifest, row = setting.dataset.manifest, job.readers[reader]
    return {
        "schema": "dlio-bench/result/2",
        "kind": "run",
        "created": timestamp(),
        "command": ["dlio-bench", *sys.argv[1:]],
        "version": __version__,
        "workload": {"name": setting.request.workload.name, "title": setting.request.workload.title},
        "dataset": {
            "digest": setting.dataset.digest,
            "folder": str(setting.dataset.folder),
            "variant": manifest.variant,
            "fill": manifest.fill,
            "seed": manifest.seed,
            "files": len(files),
            "samples": count.dataset_samples,
            "stored_bytes": sum(file.bytes for file in files),
            "view": list(job.view),
            "view_bytes": passes.sample_bytes(job, trials[0]),
            "validation": passes.split(job, setting.dataset),
            "owner": "given" if setting.request.options.data else "made",
        },
        "policy": {
            "alias": reader,
            "name": row.name,
            "order": own["order"],
            "placement": row.placement,
            "delivery": row.delivery,
            "source": _source(row, setting.request.workload),
            "exactly_once": row.exactly_once,
            "order_known": row.order_known,
            "decode": own["decode"],
            "check_crc": job.check_crc,
            "options": own["options"],
        },
        "plan": {
            "nodes": job.nodes,
            "ranks_per_node": job.ranks_per_node,
            "ranks": job.ranks,
            "batch": job.batch,
            "published_batch": setting.request.workload.batch,
            "epochs": job.epochs,
            "steps_per_epoch": count.steps,
            "steps": count.steps * job.epochs,
            "samples_per_epoch": count.samples,
            "dropped_samples": count.dropped,
            "shard": job.shard,
            "copies": job.copies,
            "last": job.last,
            "seed": job.seed,
            "sync": job.sync,
            "trials": job.trials,
            "warmup_trials": job.warmup_trials,
            "cache": job.cache,
            "validation": passes.planned(job, own, setting.request.workload),
            "view_bytes_per_epoch": passes.in_training(trials[0]["epochs"][0], "bytes_useful"),
            "node_memory_bytes": setting.node_memory_bytes,
            "comparable": not _is_short(job, setting, count, trials),
            "min_seconds": setting.request.minimum.seconds,
            "min_steps": setting.request.minimum.steps,
            "notes": [*setting.notes, *_defects(row, setting.request.workload)],
        },
        "compute": trained.compute(job, own) if job.train or job.infer else _compute(job, setting.request),
        "marks": _marks(job, setting, count, trials, own),
        "checks": checks(job, count, row, trials, own),
        "trials": trials,
        "environment": {
            "hosts": measured["hosts"],
            "rank_hosts": measured["rank_hosts"],
            "rank_memory_bytes": measured["rank_memory_bytes"],
            "tier_folders": list(job.tier_folders),
            "emulated_pfs": None if job.pfs is None else {**asdict(job.pfs), "says": describe(job.pfs)},
            "launcher": measured["launcher"],
            "mpi": measured["mpi"],
            "ceiling": _ceiling(setting.storage, passes.sample_bytes(job, trials[0])),
            "startup_seconds": measured["startup_seconds"],
            "code_digest": job.code_digest,
        },
    }


def _epoch_seconds(steps: Steps, trial: int) -> list[float]:
    """Seconds of each epoch: first step's start to last step's end, on the slowest rank."""
    starts = steps["start"][trial]  # [ranks, steps]
    ends = starts + sum(steps[phase][trial] for phase in PHASES if phase in steps)
    epochs = steps["epoch"]
    return [
        float((ends[:, epochs == e].max(axis=1) - starts[:, epochs == e].min(axis=1)).max()) for e in np.unique(epochs)
    ]


def _trial(
    job: Job,
    count: Count,
    ranks: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any],
    seconds: Sequence[float],
    validated: Mapping[int, float],
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """One trial over all ranks. The job's time is the least interval around both barriers, summed over segments.

    Bytes, and seconds of reading and decoding, of an epoch are with those of the validation pass behind it.
    """
    elapsed = sum(min(parts) for parts in zip(*(rank["enclosing_seconds"] for rank in ranks), strict=True))
    epochs = [
        {
            "epoch": epoch,
            "seconds": seconds[epoch],
            "bytes_useful": sum(rank["useful"][epoch] for rank in ranks),
            "bytes_requested": sum(rank["requested"][epoch] for rank in ranks),
            "bytes_planned": sum(rank["stored"][epoch] for rank in ranks),
            "bytes_device": _sum_known([rank["delivered"][epoch]["device"] for rank in ranks]),
            "bytes_client_cache": _sum_known([rank["delivered"][epoch]["client_cache"] for rank in ranks]),
            "bytes_local": sum(rank["local"][epoch] for rank in ranks),
            "bytes_remote": sum(rank["remote"][epoch] for rank in ranks),
            "bytes_ram": sum(rank["ram"][epoch] for rank in ranks),
            "bytes_spared": sum(rank["spared"][epoch] for rank in ranks),
            "bytes_kept": sum(rank["kept"][epoch] for rank in ranks),
            "remote_misses": sum(rank["remote_misses"][epoch] for rank in ranks),
            "read_seconds": sum(rank["read_seconds"][epoch] for rank in ranks),
            "decode_seconds": sum(rank["decode_seconds"][epoch] for rank in ranks),
            "validation": passes.one_pass(ranks, epoch, validated[epoch]) if epoch in validated else None,
        }
        for epoch in range(job.epochs)
    ]
    held_out = own["validation"]["samples"] * len(validated) if validated else 0
    # over all ranks, each of which waits as long as the others
    validating = 0.0 if job.validation is None else job.validation.sample_seconds * held_out * job.copies
    asked = job.step_seconds * count.steps * job.epochs * job.ranks + validating
    busy = [rank["host_cpu"] for rank in ranks if rank["host_cpu"] is not None]
    return {
        "trial": ranks[0]["trial"],
        "warmup": ranks[0]["trial"] < job.warmup_trials,
        "seed": ranks[0]["seed"],
        "elapsed_seconds": elapsed,
        "steps": count.steps * job.epochs,
        "samples": count.samples * job.epochs,
        "validation_samples": held_out,
        "cache": {"asked": job.cache, "hosts": _residency(ranks, measured["rank_hosts"])},
        "epochs": epochs,
        "bytes_useful": sum(epoch["bytes_useful"] for epoch in epochs),
        "bytes_requested": sum(epoch["bytes_requested"] for epoch in epochs),
        "bytes_device": _sum_known([epoch["bytes_device"] for epoch in epochs]),
        "bytes_client_cache": _sum_known([epoch["bytes_client_cache"] for epoch in epochs]),
        "bytes_local": sum(epoch["bytes_local"] for epoch in epochs),
        "bytes_remote": sum(epoch["bytes_remote"] for epoch in epochs),
        "bytes_ram": sum(epoch["bytes_ram"] for epoch in epochs),
        "bytes_spared": sum(epoch["bytes_spared"] for epoch in epochs),
        "bytes_kept": sum(epoch["bytes_kept"] for epoch in epochs),
        "remote_misses": sum(epoch["remote_misses"] for epoch in epochs),
        "read_seconds": sum(epoch["read_seconds"] for epoch in epochs),
        "decode_seconds": sum(epoch["decode_seconds"] for epoch in epochs),
        "compute_asked_seconds": asked,
        "compute_actual_seconds": sum(rank["compute_seconds"] for rank in ranks),
        "compute_late_seconds": max(rank["compute_seconds"] for rank in ranks) - asked / job.ranks,
        "cpu_seconds": sum(rank["cpu_seconds"] for rank in ranks),
        "host_cpu_busy_share": max((host["busy"] for host in busy), default=None),
        "host_iowait_share": max((host["iowait"] for host in busy), default=None),
        "cores": sum(host["cores"] for host in measured["hosts"].values()),
        "clock_drift_seconds": max((rank["clock_drift"] for rank in ranks), key=abs),
        # a reader without threads of its own reads in the trainer's
        "reader_threads": job.ranks * max(own["options"]["threads"], 1),
        "rank_bytes": [sum(rank["useful"]) for rank in ranks],
    }


def _source(row: Policy, workload: Workload) -> str:
    return workload.upstream.source if row.delivery == OWN and workload.upstream else row.source


def _defects(row: Policy, workload: Workload) -> tuple[str, ...]:
    """What the published pipeline does worse than it could, and what is therefore done here too."""
    return workload.upstream.defects if row.delivery == OWN and workload.upstream else ()


def _ceiling(document: Mapping[str, Any] | None, sample_bytes: float) -> dict[str, Any] | None:
    """The rate that `dlio-bench storage` found for samples of this size; its value is None where it found none."""
    if document is None:
        return None
    return {"bytes_per_second": ceiling_for(document, sample_bytes), "folder": document["folder"]}


def _residency(ranks: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> dict[str, Any]:
    """Per host: the share of the dataset found in its page cache before the clock started, the worst segment."""
    found: dict[str, Any] = {}
    for host in sorted(set(hosts)):
        shares = [rank["residency"] for rank, its_host in zip(ranks, hosts, strict=True) if its_host == host]
        segments = list(zip(*shares, strict=True))
        total = sum(share["bytes"] for share in segments[0])
        notes = [share["note"] for segment in segments for share in segment if share["note"]]
        found[host] = {
            "resident_share": max(sum(s["resident_bytes"] for s in segment) for segment in segments) / max(total, 1),
            "attestable": all(share["attestable"] for segment in segments for share in segment),
            "memory_backed": any(share["memory_backed"] for segment in segments for share in segment),
            "bytes": total,
            "note": notes[0] if notes else None,
        }
    return found


def _kind(request: Request, batch: int) -> str:
    """What the step time is that was waited for: one that was published for another batch is derived from it, and one
    for samples of another size an estimate of ours.
    """
    profile = request.step_time
    assert profile is not None
    if profile.kind in (GIVEN, ESTIMATE) or (request.scale == 1 and profile.has(batch)):
        return profile.kind
    if profile.kind == MEASURED:  # between two batches, or of samples of another size
        return MEASURED if request.scale == 1 else ESTIMATE
    return DERIVED


def _compute(job: Job, request: Request) -> dict[str, Any]:
    step_time = request.step_time
    if step_time is None:
        return {"mode": "none", "device": None, "asked_step_seconds": 0.0, "kind": None, "source": None}
    shrunken = "" if request.scale == 1 else f"; times {request.scale:.3g}, as samples of --tiny are smaller"
    return {
        "mode": "emulate",
        "device": step_time.device or None,
        "asked_step_seconds": job.step_seconds,
        "kind": _kind(request, job.batch),
        "source": f"{step_time.told(job.batch)}: {step_time.source}{shrunken}",
        "profile": step_time.facts(),
    }


def _is_short(job: Job, setting: Setting, count: Count, trials: Sequence[Mapping[str, Any]]) -> bool:
    timed = [trial["elapsed_seconds"] for trial in trials if not trial["warmup"]]
    return not setting.request.minimum.is_met(count.steps * job.epochs, timed)


def _marks(
    job: Job, setting: Setting, count: Count, trials: Sequence[Mapping[str, Any]], own: Mapping[str, Any]
) -> list[str]:
    hosts = [host for trial in trials for host in trial["cache"]["hosts"].values()]
    marks = {
        "TINY": setting.dataset.manifest.tiny,
        "SHORT": bool(setting.request.minimum.seconds) and _is_short(job, setting, count, trials),
        "VIRTUAL NODES": job.virtual,
        "EMULATED PFS": job.pfs is not None,
        "EMULATED COMPUTE": setting.request.step_time is not None,
        "ESTIMATED STEP TIME": setting.request.step_time is not None and _kind(setting.request, job.batch) == ESTIMATE,
        "UNTRAINED NETWORK": job.infer is not None and job.infer.resume is None,
        "REDUCED BATCH": job.batch < setting.request.workload.batch,
        "CACHE NOT ATTESTED": job.cache != "as-is" and job.pfs is None and any(_is_hidden(host) for host in hosts),
        "CONTENT NOT VERIFIED": own["verified"] is None,
    }
    return [mark for mark, holds in marks.items() if holds]


def _is_hidden(host: Mapping[str, Any]) -> bool:
    """Whether nothing is known of a host's cache; of data on a memory file system everything is."""
    return not host["attestable"] and not host["memory_backed"]


def _sum_known(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
