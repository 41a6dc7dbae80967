"""A what-if grid: the same job at every combination of node counts and tier sizes."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from dlio_bench.errors import UsageError
from dlio_bench.harness.simulator.answers import about, extent, heading, predictions, require, sampled_nodes
from dlio_bench.harness.simulator.axes import NODES, Axis
from dlio_bench.harness.simulator.cases import Case
from dlio_bench.harness.simulator.predict import LOWER_BOUND, Prediction, policy_of
from dlio_bench.reports import simulation
from dlio_bench.reports.simulation_types import GRID, Simulation
from dlio_bench.units import format_seconds

# For the warning alone: seconds that a policy took an access of a simulated node on a 2-core virtual machine, and that
# the walk over all accesses of a sampled job took.
SECONDS_AN_ACCESS, SECONDS_A_SAMPLED_ACCESS = 4e-6, 0.04e-6
LONG = 600.0  # seconds: a grid that is expected to take longer says so first

At = dict[str, int]  # a cell: the value of every axis
Show = Callable[[str], None]
Key = tuple[str, int, int]


def answer(base: Case, axes: Sequence[Axis], names: Sequence[str], pfs_clients: str, show: Show) -> Simulation:
    """The predictions of every cell as the JSON document; `base` gives what no axis varies.

    Cells come in order, the last axis fastest; `show` is told of each as it begins. UsageError, before anything is
    simulated, when a cell is no case.
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
        found = _cell(at_cell(base, at), names, pfs_clients, known)
        rows += [{"at": at, **asdict(row)} for row in found]
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
    """The case of a cell. UsageError when there is none with so many nodes."""
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
    """The rows of a cell. What no caching tier can change is simulated once, and remembered in `known`."""
    keys = {name: key for name in names if (key := _without_tiers(case, name)) is not None}
    wanted = [name for name in names if name not in keys or keys[name] not in known]
    found = {row.policy: row for row in predictions(case, wanted, pfs_clients)} if wanted else {}
    known.update({key: found[name] for name, key in keys.items() if name in found})
    return [found[name] if name in found else known[keys[name]] for name in names]


def _without_tiers(case: Case, name: str) -> Key | None:
    """All that a policy depends on, of what a grid varies, if that is no caching tier; else None."""
    if name != LOWER_BOUND and policy_of(name).rule.keep is not None:
        return None
    return name, case.nodes, case.system.tiers[0].capacity
