"""Turns a request into jobs, one for each node count, with options that make the same job again (`run --from`).

A job has the sizes of the tiers that keep a node's samples, and the rates that a system description gives them.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import fields, replace

from dlio_bench.datagen.dataset import Dataset, open_dataset, store_of
from dlio_bench.datagen.manifest import NAME
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster import allocation
from dlio_bench.harness.cluster.environment import code_digest
from dlio_bench.harness.cluster.job import path_of
from dlio_bench.harness.cluster.system import MB, System, load_system
from dlio_bench.harness.commands.run.asked.job import MEMORY, Job
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.refusals import cache_regime, emulation
from dlio_bench.harness.commands.run.asked.request import Request
from dlio_bench.harness.commands.run.asked.sizing import TrialSize
from dlio_bench.harness.commands.run.asked.training import Validation, parse_models
from dlio_bench.harness.ground import defaults
from dlio_bench.harness.machine.memory import memory_bytes
from dlio_bench.harness.readers.placed.room import Room, no_tier, require_asked
from dlio_bench.harness.readers.placed.tiers import DISK, PFS, RAM, REMOTE, Tiers
from dlio_bench.harness.readers.threads import POOL_THREADS, reading_threads
from dlio_bench.harness.storage.pfs.spec import PfsSpec
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_bytes

RANK_BYTES = 60_000_000  # of memory that a rank needs besides its buffers: Python, NumPy, MPI
PROFILE = "emulate:@"
BY_NODES = ("memory_per_node", "tiers")  # each node count has its own


def jobs(request: Request, size: TrialSize, folder: Path, validation: Validation | None) -> list[Job]:
    """A job for each node count over the dataset in `folder`. `placed` fills in its digest and its local tiers.

    UsageError if the allocation or a node's memory is too small.
    """
    options = request.options
    seed = secrets.randbits(32) if options.seed is None else options.seed
    training, inference = request.training, request.inference
    goes_on = training is not None and training.resume is not None
    if training is not None and training.seed is not None:
        seed = training.seed
    allocated, memory, code = allocation.find(os.environ), memory_bytes(), code_digest()
    warmup_trials = defaults.WARMUP_TRIALS if options.warmup_trials is None else options.warmup_trials
    demanded = any(row.demanded for row in request.readers.values())
    pfs = _emulation(request, folder)
    planned = []
    for nodes in options.nodes:
        options = request.options.at_node_count(nodes)
        allocation.require(allocated, nodes)
        virtual = nodes > 1 and allocated is None
        per_node = options.ranks_per_node * len(request.models)
        job = Job(
            options=options,
            ranks_per_node=per_node,
            cache=cache_regime(options, tuple(request.readers.values())),
            workload=request.workload.name,
            readers=request.readers,
            nodes=nodes,
            virtual=virtual,
            dataset=str(folder),
            store=store_of(folder) or "",
            dataset_digest="",
            code_digest=code,
            view=request.workload.view,
            # networks are fed decoded samples
            decode=options.decode or training is not None or inference is not None,
            last=request.last,
            batch=size.batch,
            epochs=size.epochs,
            trials=1 if goes_on else options.trials or _trials(request, size),
            warmup_trials=0 if goes_on else warmup_trials,
            seed=seed,
            node_memory=options.memory_per_node or (memory // nodes if virtual else memory),
            sync=options.sync or ("step" if inference is None and not demanded else "none"),
            step_seconds=request.step_seconds(size.batch),
            threads=options.threads or _threads(options, folder, nodes * per_node if virtual else per_node),
            most_threads=options.threads or defaults.MOST_THREADS,
            # samples of varying length make batches larger than the mean: room for half as much again
            staging_bytes=options.staging or max(defaults.STAGING_BYTES, int(3 * request.view_bytes * size.batch)),
            tier_folders=(),
            real=allocated is not None,
            local_tier="" if allocated is None or options.local_tier is None else str(options.local_tier),
            validation=validation,
            steps=size.steps,
            parted=size.parted,
            train=training,
            infer=inference,
            pfs=pfs,
            streaming=request.streaming,
            models=request.models,
        )
        _require_memory(job)
        job = replace(job, tiers=tiers_of(job), left_open=undecided_tiers(job))
        planned.append(replace(job, options=resolved_options(job, request, folder)))
    return planned


def _emulation(request: Request, folder: Path) -> PfsSpec | None:
    """The emulated file system, with the way that reads of the dataset in `folder`, or one made there, are held up."""
    pfs, rows = request.options.emulate_pfs, tuple(request.readers.values())
    if pfs is None or store_of(folder):
        return pfs
    made = (folder / NAME).exists()
    return emulation(pfs, rows, open_dataset(folder).manifest.container if made else request.layout.container)


def tiers_of(job: Job) -> Tiers:
    """A node's tiers for a job, empty if no reader keeps samples. UsageError for unknown tiers, or too large ones.

    Real nodes decide for themselves what is `left_open`: then this is what they would have if they were this machine.
    """
    options = job.options
    system = None if options.system is None else load_system(options.system)
    asked, keeping = dict(options.tiers or {}), [name for name, row in job.readers.items() if row.rule.keeps_samples]
    require_asked(asked, ", ".join(job.readers), keep=bool(keeping))
    if not keeping:
        return Tiers()
    nodes = job.nodes if job.virtual else 1  # on this machine
    given = ({} if system is None else {tier.name: tier.capacity for tier in system.tiers[1:]}) | asked
    room = Room(job.node_memory, job.staging_bytes * job.ranks_per_node, options.local_tier, nodes)
    rates = None if system is None else _rates(system, job)
    if job.real:
        sizes = room.default | given
        return Tiers(sizes[RAM], sizes[DISK], rates)
    if not room.folder.is_dir():
        raise UsageError(f"--local-tier {room.folder} is not a folder. Give one on node-local storage.")
    tiers = room.tiers(given, "this machine" if nodes == 1 else f"each of {nodes} nodes of this machine")
    if not tiers.names:
        raise UsageError(no_tier(keeping[0], "this machine"))
    return replace(tiers, rates=rates)


def undecided_tiers(job: Job) -> tuple[str, ...]:
    """The sizes that real nodes find out for themselves, because neither the user nor a description gives them."""
    if not job.real:
        return ()
    options, given = job.options, set(job.options.tiers or {})
    if options.system is not None:
        given |= {tier.name for tier in load_system(options.system).tiers[1:]}
    sizes = [MEMORY] if options.memory_per_node is None else []
    if any(row.rule.keeps_samples for row in job.readers.values()):
        sizes += [RAM, *([DISK] if options.local_tier is not None else [])]
    return tuple(size for size in sizes if size not in given)


def _rates(system: System, job: Job) -> dict[str, float]:
    """Bytes a second that a thread gets from each source when all threads of all nodes read the PFS.

    SC'21, section 4, compares a node's share of the PFS with a thread's share of a tier; here the threads of a node
    share both. A network that nobody has measured (rate 0) is left out.
    """
    tiers = {tier.name: tier.read.rate_for(tier.threads) / tier.threads for tier in system.tiers[1:]}
    threads = job.threads * job.ranks_per_node
    rates = {PFS: min(system.pfs.rate_for(job.nodes) / job.nodes, system.pfs_link) / threads, **tiers}
    if system.network:
        rates[REMOTE] = min(system.network, max(tiers.values()))
    return {name: rate * MB for name, rate in rates.items()}


def require_machine(options: Options) -> None:
    """UsageError if this machine is too small for so many virtual nodes."""
    per_node = options.ranks_per_node * len(parse_models(options.models))
    ranks = max(options.nodes) * per_node
    if max(options.nodes) == 1 or allocation.nodes() is not None:
        return
    each = RANK_BYTES + (defaults.STAGING_BYTES if options.staging is None else options.staging)
    memory = memory_bytes()
    if ranks * each > memory:
        raise UsageError(
            f"--nodes {max(options.nodes)}: this machine is too small for so many virtual nodes. {ranks} ranks need "
            f"{format_bytes(ranks * each)} of memory ({format_bytes(each)} each, of which --staging is "
            f"{format_bytes(each - RANK_BYTES)}), and it has {format_bytes(memory)}. Ask for at most "
            f"--nodes {max(1, memory // (each * per_node))}, or run inside a scheduler's allocation."
        )


def held_bytes(planned: list[Job]) -> tuple[int, int]:
    """The most bytes of samples that staging buffers and tiers of a job hold, and that staging buffers alone hold."""
    staging = max(job.ranks * job.staging_bytes for job in planned)
    return max(job.ranks * job.staging_bytes + job.nodes * sum(job.tiers.capacities) for job in planned), staging


def _trials(request: Request, size: TrialSize) -> int:
    """Default number of timed trials: as many as intervals need, unless emulated compute makes them long."""
    if request.options.tiny:
        return defaults.TINY_TRIALS
    seconds = (defaults.TRIALS + defaults.WARMUP_TRIALS) * size.trial_steps * request.step_seconds(size.batch)
    return defaults.TRIALS if seconds <= defaults.MOST_SECONDS else defaults.FEW_TRIALS


def _threads(options: Options, folder: Path, ranks_on_host: int) -> int:
    """`reading_threads`, but threads that wait for an emulated file system or an object store need no core."""
    waiting = options.emulate_pfs is not None or store_of(folder) is not None
    return POOL_THREADS if waiting else reading_threads(ranks_on_host)


def _require_memory(job: Job) -> None:
    needed = job.staging_bytes * job.ranks_per_node
    if needed > job.node_memory:
        raise UsageError(
            f"{plural(job.ranks_per_node, 'rank')} with a staging buffer of {format_bytes(job.staging_bytes)} each "
            f"need {format_bytes(needed)}, but a node has {format_bytes(job.node_memory)}. Ask for a smaller --staging "
            "or fewer ranks."
        )


def resolved_options(job: Job, request: Request, data: Path) -> Options:
    """Options that make this job again, with all that was decided. Paths are absolute. data: folder or URL."""
    options = request.options
    _, is_profile, profile = options.compute.partition(PROFILE)
    return replace(
        options.measured_options,
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


def options_document(reader: str, job: Job, request: Request, dataset: Dataset) -> dict[str, Any]:
    """Options, in JSON's own types, that make this job again for one of its readers."""
    data = Path(dataset.store) if dataset.store else dataset.folder.resolve()
    again = replace(resolved_options(job, request, data), readers=(reader,), variant=dataset.manifest.variant)
    return dict(msgspec.to_builtins(again, enc_hook=str))


def options_from_document(document: Mapping[str, Any]) -> Options:
    """The options that `options_document` made. ValueError for a document that it did not make."""
    if unknown := sorted(set(document) - {field.name for field in fields(Options)}):
        raise ValueError(f"options.{unknown[0]} is no option of this version")
    options: Options = msgspec.convert(document, Options, dec_hook=path_of)
    return options


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.resolve()
