"""`dlio-bench simulate`: predicts a case or a grid of cases; prints a table or JSON, and writes a page."""

import json
import sys
from contextlib import nullcontext

import numpy as np
from msgspec.structs import replace

from dlio_bench.benchmarks.profile import ESTIMATE, Profile
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.layout import Layout
from dlio_bench.errors import UsageError, unknown
from dlio_bench.harness.cluster.system import MB, SHIPPED, System, load_system
from dlio_bench.harness.ground.folders import output_folder
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.plan.placement.rule import Sizes
from dlio_bench.harness.plan.policies import ALIASES, POLICIES, STREAM, find
from dlio_bench.harness.simulator import answers, predict
from dlio_bench.harness.simulator.cases import SCENARIOS, Case
from dlio_bench.harness.simulator.options import NODES, Axis, Options, require_axes
from dlio_bench.harness.simulator.predict import PUBLISHED
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.simulation.types import Simulation
from dlio_bench.reports.simulation.view import view
from dlio_bench.units import format_seconds

WORKLOAD_EPOCHS = 3  # the first fills the caches, two read from them
REPORT = "report.html"
_SCENARIOS = {name.lower(): row for name, row in SCENARIOS.items()}


def simulate(options: Options) -> int:
    """Predict and print; with --out, also write the results. UsageError."""
    varied = next((axis.values[0] for axis in options.vary if axis.name == NODES), None)
    case = make_case(options if varied is None or options.nodes is not None else replace(options, nodes=varied))
    _require_accesses(options)
    tiers = [tier.name for tier in case.system.tiers]
    require_axes(options.vary, tiers, case.system.name, options.nodes, options.tiers)
    names = policies(options.policy, options.pfs_clients)
    _tell_if_long(case, options.vary, names)
    with nullcontext() if options.out is None else output_folder(options.out, "simulate") as folder:
        document = _simulate_all(case, options, names)
        if folder is not None:
            simulation.save(document, folder / simulation.NAME)
            view(document).write(folder / REPORT)
    print(f"{json.dumps(to_json(document), indent=1)}\n" if options.json else view(document).text(), end="")
    if folder is not None and not options.json:
        print(f"\n  results  {folder / simulation.NAME}\n  report   {folder / REPORT}")
    return 0


def _require_accesses(options: Options) -> None:
    """UsageError for a --accesses that cannot be counted."""
    if options.accesses is None:
        return
    if not 0 <= options.accesses < float("inf"):
        raise UsageError(f"--accesses {options.accesses:g}: samples are read 1 + D times the mean, with D from 0 on.")
    if options.vary:
        raise UsageError("--accesses counts the reads of one case, and --vary asks for many. Use one of the two.")


def _tell_if_long(case: Case, vary: tuple[Axis, ...], names: tuple[str, ...]) -> None:
    seconds = answers.expected_seconds(case, vary, names)
    if seconds <= answers.LONG:
        return
    task, fewer = "This", "epochs"
    if vary:
        task, fewer = f"{len(list(answers.cells(vary)))} cells of {len(names)} policies", "values, epochs"
    expected = f"{task} will take about {format_seconds(seconds)}."
    print(f"dlio-bench: {expected} Fewer {fewer} or policies (--policy) take less.", file=sys.stderr)


def _simulate_all(case: Case, options: Options, names: tuple[str, ...]) -> Simulation:
    progress = Progress()
    try:
        if options.vary:
            return answers.answer_grid(case, options.vary, names, options.pfs_clients, progress.show)
        named = _SCENARIOS.get((options.scenario or "").lower())
        return answers.answer(
            case, names, options.pfs_clients, options.accesses, progress.show,
            as_published=named is not None and named.simulated,
        )  # fmt: skip
    finally:
        progress.clear()


def policies(text: str, pfs_clients: str) -> tuple[str, ...]:
    """The names, as in the answer, of the policies of `--policy`. UsageError for one that cannot be predicted."""
    if text == "all":
        return predict.names(pfs_clients)
    chosen = tuple(_policy_name(name.strip(), pfs_clients) for name in text.split(",") if name.strip())
    if not chosen or len(set(chosen)) != len(chosen):
        raise UsageError(f"--policy '{text}': name each policy once, or say all.")
    return chosen


def _policy_name(name: str, pfs_clients: str) -> str:
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
        if row.delivery == STREAM:
            raise UsageError(
                f"--policy {name}: a case of the simulator has no producers. Predict a run of it instead: "
                f"dlio-bench run WORKLOAD --reader {name} --predict."
            )
        raise UsageError(f"--policy {name}: the simulator does not model this reader. Use {', '.join(known)}.")
    raise unknown("--policy", name, known)


def make_case(options: Options) -> Case:
    """The case of a scenario, or of a workload at its published size. UsageError."""
    if (options.workload is None) == (options.scenario is None):
        raise UsageError("Name what to simulate: a workload with --nodes and --system, or a --scenario; not both.")
    return _scenario_case(options) if options.scenario else _workload_case(options)


def _scenario_case(options: Options) -> Case:
    assert options.scenario is not None
    if options.compute is not None:
        raise UsageError("--compute is for workloads: a scenario has its own compute rate. Leave it out.")
    if options.variant is not None:
        raise UsageError("--variant is for workloads: a scenario has its own samples. Leave it out.")
    scenario = _SCENARIOS.get(options.scenario.lower())
    if scenario is None:
        raise unknown("scenario", options.scenario, list(SCENARIOS))
    return Case(
        title=f"{scenario.name}: {scenario.title}",
        sizes=scenario.sizes(options.seed),
        nodes=options.nodes or scenario.nodes,
        batch=scenario.batch,
        epochs=options.epochs or scenario.epochs,
        seed=options.seed,
        system=_system(options, scenario.system),
    )


def _workload_case(options: Options) -> Case:
    from dlio_bench.benchmarks.layouts import find_layout
    from dlio_bench.benchmarks.registry import find
    from dlio_bench.datagen.layout import RANDOM

    assert options.workload is not None
    workload = find(options.workload).of(options.variant)
    layout = find_layout(workload, options.variant, tiny=False, fill=RANDOM)
    if options.nodes is None or options.system is None:
        raise UsageError(f"simulate {options.workload} needs --nodes N and --system FILE (or {', '.join(SHIPPED)}).")
    system = _system(options, "")
    step = _step_time(options, workload, layout.variant, system)
    batch = workload.batch * system.ranks_per_node
    sizes = _workload_sizes(workload, layout, options.seed)
    if step is not None:
        seconds = step.seconds(workload.batch)
    else:  # the system's rate, for a batch of mean size
        assert system.compute is not None
        seconds = batch * layout.sample_bytes / MB / system.compute
    return Case(
        title=f"{workload.title}, {layout.variant}",
        sizes=sizes,
        nodes=options.nodes,
        batch=batch,
        epochs=options.epochs or WORKLOAD_EPOCHS,
        seed=options.seed,
        system=system,
        step_seconds=seconds,
        step_time="" if step is None else _step_time_source(step, workload.batch),
    )


def _step_time(options: Options, workload: Workload, variant: str, system: System) -> Profile | None:
    """The step time of --compute, else of the system's device; None if the system has a rate. UsageError."""
    from dlio_bench.harness.training.compute import of_variant, step_time

    if options.compute is not None:
        mode = options.compute.partition(":")[0]
        step = step_time(workload, options.compute, variant) if mode not in ("none", "train", "infer") else None
        if step is None or not step.seconds(workload.batch) > 0:
            raise UsageError(
                f"--compute {options.compute}: simulate needs a step that takes time. Use emulate:DEVICE, emulate:50ms "
                "or emulate:@FILE."
            )
        return step
    if system.compute is not None:
        return None
    found = (workload.profiles.get(system.device or ""), _stand_in(workload, system))
    known = [each for each in found if each is not None]
    step = next((each for each in known if variant in each.variants), known[0] if known else None)
    if step is None:
        raise UsageError(
            f"System {system.name} has no compute rate, and {workload.name} has no step time on device "
            f"{system.device}. Add compute = MB/s a node, or a device of {', '.join(workload.profiles)}; or give a "
            "step time with --compute."
        )
    return of_variant(step, workload, variant)


def _stand_in(workload: Workload, system: System) -> Profile | None:
    """The step time on the device that stands in for the system's: an estimate."""
    step = workload.profiles.get(system.stand_in or "")
    if step is None:
        return None
    source = f"none is known on {system.device}; on {step.device}: {step.source}"
    return replace(step, device=f"{step.device}, in place of {system.device}", kind=ESTIMATE, source=source)


def _step_time_source(step: Profile, batch: int) -> str:
    """The step time and its source, in words."""
    on = f" on {step.device}" if step.device else ""
    return f"{step.describe_source(batch)}{on} ({step.kind}; {step.source})"


def _system(options: Options, default: str) -> System:
    return load_system(options.system or default).with_capacities(options.tiers)


def _workload_sizes(workload: Workload, layout: Layout, seed: int) -> Sizes:
    """Bytes of every training sample, drawn from the published distribution if there is one."""
    samples = layout.splits[0].full_samples
    if workload.sample_bytes is None:
        return np.full(samples, round(layout.sample_bytes), np.int64)
    words = np.random.Philox(key=np.array([seed, samples], dtype=np.uint64)).random_raw(samples)
    return np.fromiter(map(workload.sample_bytes, words.tolist()), np.int64, samples)
