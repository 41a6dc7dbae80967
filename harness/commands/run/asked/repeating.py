"""Options that a result keeps, so that `run --from` repeats its run: everything that was decided is set in them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import fields, replace

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.job import path_of
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import Request
from dlio_bench.harness.readers.placed.tiers import DISK, RAM

PROFILE = "emulate:@"
BY_NODES = ("memory_per_node", "tiers")  # each node count has its own


def decided(job: Job, request: Request, data: Path) -> Options:
    """Options that make this job again, with all that was decided. Paths are absolute. data: folder or URL."""
    options = request.options
    _, is_profile, profile = options.compute.partition(PROFILE)
    return replace(
        options.unmeasured,
        nodes=(job.nodes,),
        scale_from="",
        readers=tuple(job.readers),
        orders=(),
        placements=(),
        deliveries=(),
        last=job.last,
        variant=request.layout.variant,
        data=data,
        max_data=None,
        cache_dir=None,
        batch=job.batch,
        epochs=job.epochs,
        trials=job.trials,
        warmup_trials=job.warmup_trials,
        validation="none" if job.validation is None else str(job.validation.every),
        min_seconds=request.minimum.seconds,
        compute=f"{PROFILE}{Path(profile).resolve()}" if is_profile else options.compute,
        resume=_absolute(options.resume),
        sync=job.sync,
        staging=job.staging_bytes,
        local_tier=_absolute(options.local_tier),
        tiers={RAM: job.tiers.ram, DISK: job.tiers.disk} if job.tiers.names else None,
        memory_per_node=job.node_memory,
        storage=_absolute(options.storage),
        system=str(Path(options.system).resolve())
        if options.system and Path(options.system).exists()
        else options.system,
        seed=job.seed,
        by_nodes={},
    )


def kept(reader: str, job: Job, request: Request, dataset: Dataset) -> dict[str, Any]:
    """Options, in JSON's own types, that make this job again for one of its readers."""
    data = Path(dataset.store) if dataset.store else dataset.folder.resolve()
    again = replace(decided(job, request, data), readers=(reader,), variant=dataset.manifest.variant)
    return dict(msgspec.to_builtins(again, enc_hook=str))


def restored(document: Mapping[str, Any]) -> Options:
    """The options that `kept` made. ValueError for a document that it did not make."""
    if unknown := sorted(set(document) - {field.name for field in fields(Options)}):
        raise ValueError(f"options.{unknown[0]} is no option of this version")
    options: Options = msgspec.convert(document, Options, dec_hook=path_of)
    return options


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.resolve()
