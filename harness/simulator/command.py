"""`dlio-bench simulate`: the case that is asked for, its predictions, a table or JSON."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.system import SHIPPED, System, named
from dlio_bench.harness.plan.placement.keeps import Sizes
from dlio_bench.harness.plan.placement.rows import OURS, POLICIES
from dlio_bench.harness.simulator import scale
from dlio_bench.harness.simulator.cases import Case
from dlio_bench.harness.simulator.model import MB
from dlio_bench.harness.simulator.predict import PUBLISHED, Prediction, predict
from dlio_bench.harness.simulator.scenarios import SCENARIOS
from dlio_bench.harness.simulator.text import render

ALL_NODES = 20_000_000  # accesses up to which every node is simulated: about 200 bytes each
WORKLOAD_EPOCHS = 3  # the first fills the caches, two read from them
SCHEMA = "dlio-bench/simulation/1"


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    workload: str | None
    scenario: str | None
    nodes: int | None
    epochs: int | None
    seed: int
    system: Path | None
    tiers: Mapping[str, int]
    pfs_clients: str
    policy: str
    json: bool


def simulate(asked: Options) -> int:
    """Predict and print. UsageError."""
    case = make_case(asked)
    names = policies(asked.policy, asked.pfs_clients)
    document = answer(case, names, asked.pfs_clients)
    print(json.dumps(document, indent=1) if asked.json else render(document))
    return 0


def answer(case: Case, names: tuple[str, ...], pfs_clients: str) -> dict[str, Any]:
    """The predictions of a case as the JSON document."""
    sampled = scale.SAMPLED if case.accesses > ALL_NODES and case.nodes > scale.SAMPLED else None
    rows: list[Prediction]
    if sampled and pfs_clients == PUBLISHED:
        raise UsageError(
            f"--pfs-clients published simulates every node one after another, and this job has {case.accesses:.2g} "
            "accesses. Use --pfs-clients worst, or fewer epochs."
        )
    rows = list(scale.predict(case, names)) if sampled else predict(case, names, pfs_clients)
    return {
        "schema": SCHEMA,
        "kind": "simulation",
        "case": {
            "title": case.title, "samples": len(case.sizes), "bytes": int(case.sizes.sum()), "nodes": case.nodes,
            "batch": case.batch, "epochs": case.epochs, "steps": case.steps * case.epochs, "seed": case.seed,
            "simulated_nodes": sampled or case.nodes,
        },
        "system": {"name": case.system.name, "tiers": {tier.name: tier.capacity for tier in case.system.tiers},
            "estimated": list(case.system.estimated)},
        "pfs_clients": pfs_clients,
        "rows": [asdict(row) for row in rows],
    }  # fmt: skip


def policies(asked: str, pfs_clients: str) -> tuple[str, ...]:
    """The names in `--policy`. UsageError for one that there is not, or that the published simulator did not have."""
    known = tuple(name for name in POLICIES if pfs_clients != PUBLISHED or name not in OURS)
    if asked == "all":
        return known
    names = tuple(name.strip() for name in asked.split(",") if name.strip())
    for name in names:
        if name in known:
            continue
        if name in OURS:
            raise UsageError(f"--policy {name} is no row of the published simulator. Use it with --pfs-clients worst.")
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise UsageError(f"--policy '{name}' is no policy of the simulator.{hint} There are: {', '.join(known)}.")
    if not names or len(set(names)) != len(names):
        raise UsageError(f"--policy '{asked}': name each policy once, or say all.")
    return names


def make_case(asked: Options) -> Case:
    """The case of a scenario, or of a workload at its published size. UsageError."""
    for name in ("nodes", "epochs"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value} cannot be simulated. It is at least 1.")
    if not 0 <= asked.seed < 2**63:
        raise UsageError(f"--seed {asked.seed} is out of range. It is a whole number from 0 to 2^63 - 1.")
    if (asked.workload is None) == (asked.scenario is None):
        raise UsageError("Name what to simulate: a workload with --nodes and --system, or a --scenario; not both.")
    return _scenario_case(asked) if asked.scenario else _workload_case(asked)


def _scenario_case(asked: Options) -> Case:
    assert asked.scenario is not None
    names = {name.lower(): row for name, row in SCENARIOS.items()}
    scenario = names.get(asked.scenario.lower())
    if scenario is None:
        raise UsageError(f"There is no scenario '{asked.scenario}'. Scenarios: {', '.join(SCENARIOS)}.")
    return Case(
        title=f"{scenario.name}: {scenario.title}",
        sizes=scenario.sizes(asked.seed),
        nodes=asked.nodes or scenario.nodes,
        batch=scenario.batch,
        epochs=asked.epochs or scenario.epochs,
        seed=asked.seed,
        system=_system(asked, scenario.system),
    )


def _workload_case(asked: Options) -> Case:
    from dlio_bench.benchmarks.registry import find

    assert asked.workload is not None
    workload = find(asked.workload)
    if asked.nodes is None or asked.system is None:
        raise UsageError(f"simulate {asked.workload} needs --nodes N and --system FILE (or {', '.join(SHIPPED)}).")
    system = _system(asked, "")
    compute = None
    if system.compute is None:
        known = {step.device: step for step in workload.step_times}
        step = known.get(system.device or "")
        if step is None:
            raise UsageError(
                f"System {system.name} says no compute rate, and {workload.name} has no step time on device "
                f"{system.device}. Add compute = MB/s a node, or a device of {', '.join(known)}."
            )
        compute = system.ranks_per_node * _mean_bytes(asked.workload) / MB * step.batch / step.seconds
    return Case(
        title=f"{workload.title}, {workload.default_variant}",
        sizes=_workload_sizes(asked.workload, asked.seed),
        nodes=asked.nodes,
        batch=workload.batch * system.ranks_per_node,
        epochs=asked.epochs or WORKLOAD_EPOCHS,
        seed=asked.seed,
        system=system,
        compute=compute,
    )


def _system(asked: Options, default: str) -> System:
    name = str(asked.system) if asked.system else default
    system = named(name)
    return system.with_capacities(asked.tiers)


def _mean_bytes(name: str) -> float:
    from dlio_bench.benchmarks.registry import find
    from dlio_bench.datagen.layout import RANDOM

    workload = find(name)
    return workload.variants[workload.default_variant](False, RANDOM).sample_bytes


def _workload_sizes(name: str, seed: int) -> Sizes:
    """Bytes of every training sample: drawn from the published distribution for ImageNet, else the mean stored size."""
    from dlio_bench.benchmarks.imagenet.sizes import image_bytes
    from dlio_bench.benchmarks.registry import find
    from dlio_bench.datagen.layout import RANDOM

    workload = find(name)
    samples = workload.variants[workload.default_variant](False, RANDOM).splits[0].full_samples
    if name == "imagenet":
        words = np.random.Philox(key=np.array([seed, samples], dtype=np.uint64)).random_raw(samples)
        return np.fromiter(map(image_bytes, words.tolist()), np.int64, samples)
    return np.full(samples, round(_mean_bytes(name)), np.int64)
