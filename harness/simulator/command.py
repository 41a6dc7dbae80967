"""`dlio-bench simulate`: the case that is asked for, or a grid of them; its predictions, a table, JSON or a page."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dlio_bench.benchmarks.profile import ESTIMATE, Profile
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.system import SHIPPED, System, named
from dlio_bench.harness.ground.folders import output_folder
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.plan.placement.contents import Sizes
from dlio_bench.harness.plan.policies import ALIASES, POLICIES, find
from dlio_bench.harness.simulator import axes, grid, predict
from dlio_bench.harness.simulator.answers import answer
from dlio_bench.harness.simulator.axes import NODES, Axis
from dlio_bench.harness.simulator.cases import Case
from dlio_bench.harness.simulator.model import MB
from dlio_bench.harness.simulator.predict import PUBLISHED
from dlio_bench.harness.simulator.scenarios import SCENARIOS
from dlio_bench.refusals import unknown
from dlio_bench.reports import simulation, simulation_text
from dlio_bench.reports.simulation_types import Simulation
from dlio_bench.reports.typed import to_json
from dlio_bench.units import format_seconds

WORKLOAD_EPOCHS = 3  # the first fills the caches, two read from them
REPORT = "report.html"


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
    vary: tuple[Axis, ...] = ()
    out: Path | None = None
    compute: str | None = None


def simulate(asked: Options) -> int:
    """Predict, print, and write where that is asked for. UsageError."""
    varied = next((axis.values[0] for axis in asked.vary if axis.name == NODES), None)
    case = make_case(asked if varied is None or asked.nodes is not None else replace(asked, nodes=varied))
    tiers = [tier.name for tier in case.system.tiers]
    axes.require(asked.vary, tiers, case.system.name, asked.nodes, asked.tiers)
    names = policies(asked.policy, asked.pfs_clients)
    _tell_if_long(case, asked.vary, names)
    with _out(asked.out) as folder:
        document = (
            _grid(case, asked.vary, names, asked.pfs_clients) if asked.vary else answer(case, names, asked.pfs_clients)
        )
        if folder is not None:
            _write(document, folder)
    print(json.dumps(to_json(document), indent=1) if asked.json else simulation_text.render(document))
    if folder is not None and not asked.json:
        print(f"\n  results  {folder / simulation.NAME}\n  report   {folder / REPORT}")
    return 0


@contextmanager
def _out(asked: Path | None) -> Iterator[Path | None]:
    """The folder of --out, empty, or None where none was asked for. UsageError."""
    if asked is None:
        yield None
        return
    with output_folder(asked, "simulate") as folder:
        yield folder


def _write(document: Simulation, folder: Path) -> None:
    from dlio_bench.reports import simulation_html  # plotly takes a second

    simulation.save(document, folder / simulation.NAME)
    simulation_html.write(document, folder / REPORT)


def _tell_if_long(case: Case, asked: tuple[Axis, ...], names: tuple[str, ...]) -> None:
    seconds = grid.expected_seconds(case, asked, names)
    if seconds <= grid.LONG:
        return
    what, fewer = "This", "epochs"
    if asked:
        what, fewer = f"{len(list(grid.cells(asked)))} cells of {len(names)} policies", "values, epochs"
    expected = f"{what} will take about {format_seconds(seconds)}."
    print(f"dlio-bench: {expected} Fewer {fewer} or policies (--policy) take less.", file=sys.stderr)


def _grid(case: Case, asked: tuple[Axis, ...], names: tuple[str, ...], pfs_clients: str) -> Simulation:
    progress = Progress()
    try:
        return grid.answer(case, asked, names, pfs_clients, progress.show)
    finally:
        progress.done()


def policies(asked: str, pfs_clients: str) -> tuple[str, ...]:
    """What `--policy` names, by the names of the answer. UsageError for a policy that cannot be predicted."""
    if asked == "all":
        return predict.names(pfs_clients)
    found = tuple(_named(name.strip(), pfs_clients) for name in asked.split(",") if name.strip())
    if not found or len(set(found)) != len(found):
        raise UsageError(f"--policy '{asked}': name each policy once, or say all.")
    return found


def _named(name: str, pfs_clients: str) -> str:
    known = predict.names(pfs_clients)
    if name in known:
        return name
    if row := next((row for row in POLICIES.values() if row.published == name != row.name), None):
        raise UsageError(
            f"--policy {name} is the published simulator's name of '{row.name}'. Use --policy {row.name}, or "
            f"--pfs-clients {PUBLISHED}."
        )
    if name in POLICIES or name in ALIASES:
        row = find(name)
        answer = row.published if pfs_clients == PUBLISHED else row.name
        if answer in known:
            return answer
        if row.simulated:
            raise UsageError(f"--policy {name} is not in the published simulator. Use it with --pfs-clients conserved.")
        raise UsageError(f"--policy {name}: the simulator does not model this reader. Use {', '.join(known)}.")
    raise unknown("--policy", name, known)


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
    if asked.compute is not None:
        raise UsageError("--compute is of a workload, and a scenario has a compute rate of its own. Leave it out.")
    names = {name.lower(): row for name, row in SCENARIOS.items()}
    scenario = names.get(asked.scenario.lower())
    if scenario is None:
        raise unknown("scenario", asked.scenario, list(SCENARIOS))
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
    step = _step_time(asked, workload, system)
    batch = workload.batch * system.ranks_per_node
    if step is not None:
        seconds = step.seconds(workload.batch)
    else:  # the system's rate, at which a batch of mean size is consumed
        assert system.compute is not None
        seconds = batch * _mean_bytes(asked.workload) / MB / system.compute
    return Case(
        title=f"{workload.title}, {workload.default_variant}",
        sizes=_workload_sizes(asked.workload, asked.seed),
        nodes=asked.nodes,
        batch=batch,
        epochs=asked.epochs or WORKLOAD_EPOCHS,
        seed=asked.seed,
        system=system,
        step_seconds=seconds,
        step_time="" if step is None else _said(step, workload.batch),
    )


def _step_time(asked: Options, workload: Workload, system: System) -> Profile | None:
    """That of --compute, else that of the system's device; None where the system says a rate. UsageError."""
    from dlio_bench.harness.training.compute import step_time

    if asked.compute is not None:
        mode = asked.compute.partition(":")[0]
        step = step_time(workload, asked.compute) if mode not in ("none", "train", "infer") else None
        if step is None or not step.seconds(workload.batch) > 0:
            raise UsageError(
                f"--compute {asked.compute}: simulate needs a step that takes time. Use emulate:DEVICE, emulate:50ms "
                "or emulate:@FILE."
            )
        return step
    if system.compute is not None:
        return None
    step = workload.profiles.get(system.device or "") or _stand_in(workload, system)
    if step is None:
        raise UsageError(
            f"System {system.name} says no compute rate, and {workload.name} has no step time on device "
            f"{system.device}. Add compute = MB/s a node, or a device of {', '.join(workload.profiles)}; or give a "
            "step time with --compute."
        )
    return step


def _stand_in(workload: Workload, system: System) -> Profile | None:
    """The step time on the device that stands in for the system's: an estimate."""
    step = workload.profiles.get(system.stand_in or "")
    if step is None:
        return None
    source = f"none is known on {system.device}; on {step.device}: {step.source}"
    return replace(step, device=f"{step.device}, in place of {system.device}", kind=ESTIMATE, source=source)


def _said(step: Profile, batch: int) -> str:
    """Where the step time comes from, for the output."""
    on = f" on {step.device}" if step.device else ""
    return f"{step.told(batch)}{on} ({step.kind}; {step.source})"


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
    """Bytes of every training sample: drawn from the published distribution, else the mean stored size."""
    from dlio_bench.benchmarks.registry import find
    from dlio_bench.datagen.layout import RANDOM

    workload = find(name)
    samples = workload.variants[workload.default_variant](False, RANDOM).splits[0].full_samples
    if workload.sample_bytes is not None:
        words = np.random.Philox(key=np.array([seed, samples], dtype=np.uint64)).random_raw(samples)
        return np.fromiter(map(workload.sample_bytes, words.tolist()), np.int64, samples)
    return np.full(samples, round(_mean_bytes(name)), np.int64)
