"""The JSON documents of `simulate`: the job, the machine, and a row for each policy.

One is of a case, the other of a what-if grid: the same job at every combination of node counts and tier sizes.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import structs
from msgspec.structs import asdict

from dlio_bench import __version__
from dlio_bench.errors import UsageError
from dlio_bench.harness.simulator import scale
from dlio_bench.harness.simulator.cases import NODE, Case
from dlio_bench.harness.simulator.options import NODES, Axis
from dlio_bench.harness.simulator.predict import LOWER_BOUND, PUBLISHED, policy_of, predict
from dlio_bench.harness.simulator.scale import sampled_nodes
from dlio_bench.reports.simulation import access_frequency
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.simulation.types import GRID, Row, Simulation
from dlio_bench.units import format_seconds

# For the warning, measured on a 2-core virtual machine: seconds of a policy for each access of a simulated node, and of
# the walk over a sampled job for each access of all nodes.
SECONDS_AN_ACCESS, SECONDS_A_SAMPLED_ACCESS = 4e-6, 0.04e-6
LONG = 600.0  # seconds: the user is told before a simulation that is expected to take longer

At = dict[str, int]  # a cell: the value of every axis
Show = Callable[[str], None]
Key = tuple[str, int, int]


def answer(
    case: Case,
    names: Sequence[str],
    pfs_clients: str,
    delta: float | None,
    show: Show,
    *,
    as_published: bool = False,
) -> Simulation:
    """The document with the predictions of a case; with `delta`, also how often a node reads a sample. UsageError.

    `show` gets a line as each policy begins. as_published: beside each row, what the published way to count gives.
    """
    started, rows = time.monotonic(), list[Row]()
    show(f"policy 1 of {len(names)}  {names[0]}")
    for row in _predictions(case, names, pfs_clients):
        rows.append(_add_published(case, row) if as_published and pfs_clients != PUBLISHED else row)
        if left := names[len(rows) :]:
            eta = (time.monotonic() - started) / len(rows) * len(left)
            show(f"policy {len(rows) + 1} of {len(names)}  {left[0]}  eta {format_seconds(eta)}")
    document = simulation.complete(
        _heading(case, pfs_clients)
        | {
            "kind": simulation.SINGLE,
            "case": _job_document(case) | _extent(case),
            "rows": [asdict(row) for row in rows],
        }
    )
    if delta is None:
        return document
    counted = case.access_histogram().tolist()
    frequency = access_frequency.complete(counted, node=NODE, reads=case.per_epoch, delta=delta)
    return structs.replace(document, accesses=frequency)


def answer_grid(base: Case, axes: Sequence[Axis], names: Sequence[str], pfs_clients: str, show: Show) -> Simulation:
    """The JSON document with the predictions of every cell. `base` gives what no axis varies.

    Cells come in order, the last axis fastest; `show` gets a line as each begins. UsageError for an impossible cell,
    before anything is simulated.
    """
    places = list(cells(axes))
    facts = []
    for at in places:
        case = at_cell(base, at)
        _require(case, pfs_clients)
        facts.append({"at": at, **_extent(case)})
    rows: list[dict[str, Any]] = []
    known: dict[Key, Row] = {}
    started = time.monotonic()
    for number, at in enumerate(places):
        spent = time.monotonic() - started
        left = f"  eta {format_seconds(spent / number * (len(places) - number))}" if number else ""
        show(f"cell {number + 1} of {len(places)}  {simulation.place_text(at)}{left}")
        cell_rows = _cell(at_cell(base, at), names, pfs_clients, known)
        rows += [asdict(row) | {"at": at} for row in cell_rows]
    varied = {axis.name for axis in axes}
    described = _heading(base, pfs_clients)
    described["system"]["tiers"] = {k: v for k, v in described["system"]["tiers"].items() if k not in varied}
    return simulation.complete(
        described
        | {
            "kind": GRID,
            "case": _job_document(base) | ({} if NODES in varied else {"nodes": base.nodes}),
            "axes": [{"name": axis.name, "values": list(axis.values)} for axis in axes],
            "cells": facts,
            "rows": rows,
        }
    )


def cells(axes: Sequence[Axis]) -> Iterator[At]:
    """Every combination, the last axis fastest."""
    for values in itertools.product(*(axis.values for axis in axes)):
        yield {axis.name: value for axis, value in zip(axes, values, strict=True)}


def at_cell(base: Case, at: At) -> Case:
    """The case of a cell. UsageError when it has too many nodes."""
    sizes = {name: value for name, value in at.items() if name != NODES}
    try:
        return structs.replace(base, nodes=at.get(NODES, base.nodes), system=base.system.with_capacities(sizes))
    except UsageError as error:
        raise UsageError(f"Cell {simulation.place_text(at)}: {error}") from None


def expected_seconds(base: Case, axes: Sequence[Axis], names: Sequence[str]) -> float:
    """About how long the grid will take, from the numbers of accesses."""
    total, once = 0.0, set()
    for at in cells(axes):
        case = at_cell(base, at)
        keys = [_without_tiers(case, name) for name in names if name != LOWER_BOUND]
        policies = sum(key is None or key not in once for key in keys)
        once.update(keys)
        simulated = sampled_nodes(case)
        total += case.accesses * simulated / case.nodes * SECONDS_AN_ACCESS * policies
        if simulated < case.nodes:
            total += case.accesses * SECONDS_A_SAMPLED_ACCESS
    return total


def _cell(case: Case, names: Sequence[str], pfs_clients: str, known: dict[Key, Row]) -> list[Row]:
    """The rows of a cell. A policy that no caching tier changes is simulated once; `known` has its row from then on."""
    keys = {name: key for name in names if (key := _without_tiers(case, name)) is not None}
    missing = [name for name in names if name not in keys or keys[name] not in known]
    simulated = {row.policy: row for row in _predictions(case, missing, pfs_clients)} if missing else {}
    known.update({key: simulated[name] for name, key in keys.items() if name in simulated})
    return [simulated[name] if name in simulated else known[keys[name]] for name in names]


def _without_tiers(case: Case, name: str) -> Key | None:
    """What a policy depends on, of all that a grid varies; None if it depends on caching tiers."""
    if name != LOWER_BOUND and policy_of(name).rule.keep is not None:
        return None
    return name, case.nodes, case.system.tiers[0].capacity


def _add_published(case: Case, row: Row) -> Row:
    """The row with its distance to the bound in the published simulator, where that has the policy."""
    name = None if row.policy == LOWER_BOUND else policy_of(row.policy).published
    if name is None:
        return row
    (other,) = predict(case, [name], PUBLISHED)
    return structs.replace(row, over_bound_as_published=other.over_bound)


def _predictions(case: Case, names: Sequence[str], pfs_clients: str) -> Iterator[Row]:
    """A row for each policy, from all nodes or a sample of them. UsageError as `_require`."""
    _require(case, pfs_clients)
    sampled = sampled_nodes(case)
    if sampled == case.nodes:
        return predict(case, names, pfs_clients)
    return scale.predict(case, names, pfs_clients, sampled)


def _require(case: Case, pfs_clients: str) -> None:
    """UsageError for a job that the published mode cannot simulate."""
    if pfs_clients == PUBLISHED and sampled_nodes(case) < case.nodes:
        raise UsageError(
            f"--pfs-clients published simulates every node one after another, and this job has {case.accesses:.2g} "
            "accesses. Use --pfs-clients conserved, or fewer epochs."
        )


def _heading(case: Case, pfs_clients: str) -> dict[str, Any]:
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


def _job_document(case: Case) -> dict[str, Any]:
    """The job, without what depends on the number of nodes."""
    return {
        "title": case.title, "samples": len(case.sizes), "bytes": int(case.sizes.sum()), "batch": case.batch,
        "epochs": case.epochs, "seed": case.seed,
    } | ({"step_time": case.step_time} if case.step_time else {})  # fmt: skip


def _extent(case: Case) -> dict[str, int]:
    """What depends on the number of nodes: steps of all epochs, and how many nodes are simulated."""
    return {"nodes": case.nodes, "steps": case.steps * case.epochs, "simulated_nodes": sampled_nodes(case)}
