"""From a request to the jobs that measure it, one for each node count, and what they may use of a node."""

import os
import secrets
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.code import code_digest
from dlio_bench.harness.cluster.environment import usable_cores
from dlio_bench.harness.cluster.launchers import allocation_nodes
from dlio_bench.harness.machine.memory import memory_bytes
from dlio_bench.harness.readers.threads import MOST_THREADS
from dlio_bench.harness.run.asked.choice import policy
from dlio_bench.harness.run.asked.job import Job
from dlio_bench.harness.run.asked.options import Options
from dlio_bench.harness.run.asked.request import Request
from dlio_bench.harness.run.asked.sizing import Cut
from dlio_bench.harness.run.asked.tiers import with_tiers
from dlio_bench.harness.storage.pfs.spec import to_dict
from dlio_bench.reports.formatting import plural
from dlio_bench.units import format_bytes

TRIALS, FEW_TRIALS, TINY_TRIALS, WARMUP_TRIALS = 5, 3, 1, 1
MOST_SECONDS = 60.0  # of a reader's trials, with which five of them are the default
RANK_BYTES = 60_000_000  # of memory that a rank needs besides its buffers: Python, NumPy, MPI
POOL_THREADS = 4  # a rank, as in CDB's published pipeline
STAGING_BYTES = 256_000_000  # a rank, where batches fit into it


def jobs(request: Request, cut: Cut, folder: Path, validation: int) -> list[Job]:
    """A job for each node count over the dataset in `folder`; its digest and local tiers are filled in later.

    validation: epochs from one validation pass to the next, 0 for none.
    UsageError when the scheduler's allocation or a node's memory is too small.
    """
    options = request.options
    seed = secrets.randbits(32) if options.seed is None else options.seed
    training, inference = request.training, request.inference
    goes_on = training is not None and training.resume is not None
    if training is not None and training.seed is not None:
        seed = training.seed
    allocated = allocation_nodes(os.environ)
    code = code_digest()
    found = []
    for nodes in options.nodes:
        if allocated is not None and nodes > allocated:
            raise UsageError(
                f"--nodes {nodes}, but the scheduler's allocation has {allocated}. Ask for at most {allocated}."
            )
        if options.emulate_pfs is not None and allocated is not None:
            raise UsageError("--emulate-pfs plays nodes on one machine, but here a scheduler has given real ones.")
        virtual = nodes > 1 and allocated is None
        job = Job(
            workload=request.workload.name,
            readers=request.readers,
            nodes=nodes,
            ranks_per_node=options.ranks_per_node,
            virtual=virtual,
            tiny=options.tiny,
            dataset=str(folder),
            dataset_digest="",
            code_digest=code,
            view=request.workload.view,
            # networks take what their applications make of a sample
            decode=options.decode or training is not None or inference is not None,
            check_crc=options.check_crc,
            shard=options.shard,
            last=request.last,
            batch=cut.batch,
            epochs=cut.epochs,
            trials=1 if goes_on else options.trials or _trials(request, cut),
            warmup_trials=0 if goes_on else WARMUP_TRIALS if options.warmup_trials is None else options.warmup_trials,
            seed=seed,
            cache=options.cache,
            sync=options.sync or ("step" if inference is None else "none"),
            step_seconds=request.step_seconds(cut.batch),
            threads=options.threads
            or _threads(options, nodes * options.ranks_per_node if virtual else options.ranks_per_node),
            most_threads=options.threads or MOST_THREADS,
            # samples of varying length make batches larger than the mean: room for half as much again
            staging_bytes=options.staging or max(STAGING_BYTES, int(3 * request.view_bytes * cut.batch)),
            verify=options.verify,
            tier_folders=(),
            validation=validation,
            validation_sample_seconds=request.validation_seconds(cut.batch) if validation else 0.0,
            steps=cut.steps,
            parted=cut.parted,
            train=None if training is None else training.to_dict(),
            infer=None if inference is None else inference.to_dict(),
            pfs=None if options.emulate_pfs is None else to_dict(options.emulate_pfs),
        )
        _require_memory(options, job)
        rows = [policy(name, request.workload) for name in request.readers]
        found.append(with_tiers(options, job, rows, node_memory(options, job)))
    return found


def require_machine(options: Options) -> None:
    """UsageError where this machine is too small for so many virtual nodes."""
    ranks = max(options.nodes) * options.ranks_per_node
    if max(options.nodes) == 1 or allocation_nodes(os.environ) is not None:
        return
    each, own = RANK_BYTES + (STAGING_BYTES if options.staging is None else options.staging), memory_bytes()
    if ranks * each > own:
        raise UsageError(
            f"--nodes {max(options.nodes)}: this machine is too small for so many virtual nodes. {ranks} ranks need "
            f"{format_bytes(ranks * each)} of memory ({format_bytes(each)} each, of which --staging is "
            f"{format_bytes(each - RANK_BYTES)}), and it has {format_bytes(own)}. Ask for at most "
            f"--nodes {max(1, own // (each * options.ranks_per_node))}, or run inside a scheduler's allocation."
        )


def held_bytes(found: list[Job]) -> tuple[int, int]:
    """What a job's staging buffers and tiers hold of samples, and its staging buffers alone: the most of the jobs."""
    staging = max(job.ranks * job.staging_bytes for job in found)
    return max(job.ranks * job.staging_bytes + job.nodes * (job.ram_bytes + job.disk_bytes) for job in found), staging


def _trials(request: Request, cut: Cut) -> int:
    """Timed trials where nobody says: as many as intervals need, unless emulated compute makes them long."""
    if request.options.tiny:
        return TINY_TRIALS
    seconds = (TRIALS + WARMUP_TRIALS) * cut.trial_steps * request.step_seconds(cut.batch)
    return TRIALS if seconds <= MOST_SECONDS else FEW_TRIALS


def node_memory(options: Options, job: Job) -> int:
    """Memory budget of a node in bytes: what was asked for, else the machine's, shared by its virtual nodes."""
    own = memory_bytes()
    return options.memory_per_node or (own // job.nodes if job.virtual else own)


def reading_threads(ranks_on_host: int) -> int:
    """Threads of a rank's pools, whose size is fixed (copying to node-local storage, filling tiers, tf.data): two for
    each core it has to itself, so that one can wait while another computes.

    More than the cores can run would only delay the trainers that share them.
    """
    return max(1, min(POOL_THREADS, 2 * usable_cores() // ranks_on_host))


def _threads(options: Options, ranks_on_host: int) -> int:
    """Threads that an emulated file system keeps waiting need no core."""
    return POOL_THREADS if options.emulate_pfs is not None else reading_threads(ranks_on_host)


def _require_memory(options: Options, job: Job) -> None:
    budget, asked = node_memory(options, job), job.staging_bytes * job.ranks_per_node
    if asked > budget:
        raise UsageError(
            f"{plural(job.ranks_per_node, 'rank')} with a staging buffer of {format_bytes(job.staging_bytes)} each "
            f"need {format_bytes(asked)}, but a node has {format_bytes(budget)}. Ask for a smaller --staging or "
            "fewer ranks."
        )
