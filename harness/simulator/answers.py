"""The JSON document of one simulated case: the job, the machine, and a row for each policy."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import structs
from msgspec.structs import asdict

from dlio_bench import __version__
from dlio_bench.errors import UsageError
from dlio_bench.harness.simulator import accesses, scale
from dlio_bench.harness.simulator.cases import Case
from dlio_bench.harness.simulator.predict import LOWER_BOUND, PUBLISHED, Prediction, policy_of, predict
from dlio_bench.reports.simulation import access_frequency
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.simulation.types import Simulation
from dlio_bench.units import format_seconds

ALL_NODES = 10_000_000  # accesses up to which every node is simulated: about 200 bytes each


def answer(
    case: Case,
    names: Sequence[str],
    pfs_clients: str,
    delta: float | None,
    show: Callable[[str], None],
    *,
    as_published: bool = False,
) -> Simulation:
    """The document with the predictions of a case; with `delta`, also how often a node reads a sample. UsageError.

    `show` gets a line as each policy begins. as_published: beside each row, what the published way to count gives.
    """
    started, rows = time.monotonic(), list[Prediction]()
    show(f"policy 1 of {len(names)}  {names[0]}")
    for row in predictions(case, names, pfs_clients):
        rows.append(_beside_published(case, row) if as_published and pfs_clients != PUBLISHED else row)
        if left := names[len(rows) :]:
            eta = (time.monotonic() - started) / len(rows) * len(left)
            show(f"policy {len(rows) + 1} of {len(names)}  {left[0]}  eta {format_seconds(eta)}")
    document = simulation.complete(
        heading(case, pfs_clients)
        | {"kind": simulation.SINGLE, "case": about(case) | extent(case), "rows": [asdict(row) for row in rows]}
    )
    if delta is None:
        return document
    counted = accesses.histogram(case).tolist()
    frequency = access_frequency.complete(counted, node=accesses.NODE, reads=case.per_epoch, delta=delta)
    return structs.replace(document, accesses=frequency)


def _beside_published(case: Case, row: Prediction) -> Prediction:
    """The row with its distance to the bound in the published simulator, where that has the policy."""
    name = None if row.policy == LOWER_BOUND else policy_of(row.policy).published
    if name is None:
        return row
    (other,) = predict(case, [name], PUBLISHED)
    return structs.replace(row, over_bound_as_published=other.over_bound)


def predictions(case: Case, names: Sequence[str], pfs_clients: str) -> Iterator[Prediction]:
    """A row for each policy, from all nodes or a sample of them. UsageError as `require`."""
    require(case, pfs_clients)
    sampled = sampled_nodes(case)
    if sampled == case.nodes:
        return predict(case, names, pfs_clients)
    return scale.predict(case, names, pfs_clients, sampled)


def require(case: Case, pfs_clients: str) -> None:
    """UsageError for a job that the published mode cannot simulate."""
    if pfs_clients == PUBLISHED and sampled_nodes(case) < case.nodes:
        raise UsageError(
            f"--pfs-clients published simulates every node one after another, and this job has {case.accesses:.2g} "
            "accesses. Use --pfs-clients conserved, or fewer epochs."
        )


def sampled_nodes(case: Case) -> int:
    """How many nodes are simulated: all, or, in a large job, a sample."""
    return scale.sampled_nodes(case) if case.accesses > ALL_NODES and case.nodes > scale.SAMPLED else case.nodes


def heading(case: Case, pfs_clients: str) -> dict[str, Any]:
    """The part of a document that describes the command and the machine."""
    return {
        "schema": simulation.SCHEMA,
        "version": __version__,
        "command": ["dlio-bench", *sys.argv[1:]],
        "system": {
            "name": case.system.name,
            "tiers": {tier.name: tier.capacity for tier in case.system.tiers},
            "estimated": list(case.system.estimated),
        },
        "pfs_clients": pfs_clients,
    }


def about(case: Case) -> dict[str, Any]:
    """The job, without what depends on the number of nodes."""
    return {
        "title": case.title, "samples": len(case.sizes), "bytes": int(case.sizes.sum()), "batch": case.batch,
        "epochs": case.epochs, "seed": case.seed,
    } | ({"step_time": case.step_time} if case.step_time else {})  # fmt: skip


def extent(case: Case) -> dict[str, int]:
    """What depends on the number of nodes: steps of all epochs, and how many nodes are simulated."""
    return {"nodes": case.nodes, "steps": case.steps * case.epochs, "simulated_nodes": sampled_nodes(case)}
