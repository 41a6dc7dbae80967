"""A what-if grid: the same job at every combination of node counts and tier sizes."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import asdict, replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.simulator.answers import about, extent, heading, predictions, require, sampled_nodes
from dlio_bench.harness.simulator.axes import NODES, Axis
from dlio_bench.harness.simulator.cases import Case
from dlio_bench.harness.simulator.predict import LOWER_BOUND, Prediction, policy_of
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.simulation.types import GRID, Simulation
from dlio_bench.units import format_seconds

# For the warning, measured on a 2-core virtual machine: seconds of a policy for each access of a simulated node, and of
# the walk over a sampled job for each access of all nodes.
SECONDS_AN_ACCESS, SECONDS_A_SAMPLED_ACCESS = 4e-6, 0.04e-6
LONG = 600.0  # seconds: the user is told before a simulation that is expected to take longer

At = dict[str, int]  # a cell: the value of every axis
Show = Callable[[str], None]
Key = tuple[str, int, int]


def answer(base: Case, axes: Sequence[Axis], names: Sequence[str], pfs_clients: str, show: Show) -> Simulation:
    """The JSON document with the predictions of every cell. `base` gives what no axis varies.

    Cells come in order, the last axis fastest; `show` gets a line as each begins. UsageError for an impossible cell,
    before anything is simulated.
    """
    places = list(cells(axes))
    facts = []
    for at in places:
        case = at_cell(base, at)
        require(case, pfs_clients)
        facts.append({"at": at, **extent(case)})
    rows: list[dict[str, Any]] = []
    known: dict[Key, Prediction] = {}
    started = time.monotonic()
    for number, at in enumerate(places):
        spent = time.monotonic() - started
        left = f"  eta {format_seconds(spent / number * (len(places) - number))}" if number else ""
        show(f"cell {number + 1} of {len(places)}  {simulation.place_text(at)}{left}")
        cell_rows = _cell(at_cell(base, at), names, pfs_clients, known)
        rows += [{"at": at, **asdict(row)} for row in cell_rows]
    varied = {axis.name for axis in axes}
    described = heading(base, pfs_clients)
    described["system"]["tiers"] = {k: v for k, v in described["system"]["tiers"].items() if k not in varied}
    return simulation.complete(
        described
        | {
            "kind": GRID,
            "case": about(base) | ({} if NODES in varied else {"nodes": base.nodes}),
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
        return replace(base, nodes=at.get(NODES, base.nodes), system=base.system.with_capacities(sizes))
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


def _cell(case: Case, names: Sequence[str], pfs_clients: str, known: dict[Key, Prediction]) -> list[Prediction]:
    """The rows of a cell. A policy that no caching tier changes is simulated once; `known` has its row from then on."""
    keys = {name: key for name in names if (key := _without_tiers(case, name)) is not None}
    missing = [name for name in names if name not in keys or keys[name] not in known]
    simulated = {row.policy: row for row in predictions(case, missing, pfs_clients)} if missing else {}
    known.update({key: simulated[name] for name, key in keys.items() if name in simulated})
    return [simulated[name] if name in simulated else known[keys[name]] for name in names]


def _without_tiers(case: Case, name: str) -> Key | None:
    """What a policy depends on, of all that a grid varies; None if it depends on caching tiers."""
    if name != LOWER_BOUND and policy_of(name).rule.keep is not None:
        return None
    return name, case.nodes, case.system.tiers[0].capacity
