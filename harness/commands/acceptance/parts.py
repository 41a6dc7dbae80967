"""The parts of a campaign in their order: datasets, what the storage can give, runs; each a command of dlio-bench."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from dlio_bench.harness.commands.acceptance.datasets import Source
from dlio_bench.harness.commands.acceptance.plan import Checkpoints, Plan, Run
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_bytes

Kind = Literal["data", "storage", "run", "checkpoint"]
RESULTS, STORAGE = "results", "storage"  # folders of what is handed over


class Part(Struct, frozen=True):
    """One command of the campaign.

    words: without the program, and without --out: that is `work/NAME` in the campaign's folder until the part is done.
    product: where its outcome stays: a path in that folder, or a dataset's own. source: None of checkpoints alone.
    """

    kind: Kind
    name: str
    title: str
    words: tuple[str, ...]
    product: Path
    source: Source | None
    run: Run | None = None
    checkpoints: Checkpoints | None = None
    scale: tuple[int, int] = (1, 1)  # nodes, ranks a node


def parts(plan: Plan, base: Path, sources: Mapping[int, Source]) -> list[Part]:
    """Every part, in the order in which they run: all data, all ceilings, then each table's runs, fewest nodes first,
    then checkpoints alike.

    base: the plan's folder, which paths in it start from.
    """
    different = {source.name: source for source in sources.values()}.values()
    data = [_data(plan, source) for source in different if not source.is_given]
    ceilings = [_ceiling(plan, source) for source in different] if plan.storage is not None else []
    return [*data, *ceilings, *_runs(plan, base.absolute(), sources), *_checkpoints(plan, base.absolute())]


def _data(plan: Plan, source: Source) -> Part:
    layout, wanted = source.layout, plan.dataset
    words = ["generate", layout.workload, "--out", str(source.folder), "--files", str(sum(source.files.values()))]
    words += ["--variant", layout.variant, "--fill", wanted.fill, *(["--tiny"] if layout.tiny else [])]
    if wanted.nodes is not None or wanted.ranks_per_node is not None:
        words += ["--nodes", str(wanted.nodes or 1), "--ranks-per-node", str(wanted.ranks_per_node or 1)]
        words += _option("launcher", plan.launcher)
    words += _option("timeout", plan.timeout)
    files = plural(sum(source.files.values()), "file")
    title = f"dataset of {layout.workload} {layout.variant}, {files}, {format_bytes(source.whole_bytes)}"
    return Part("data", source.name, title, tuple(words), source.folder, source)


def _ceiling(plan: Plan, source: Source) -> Part:
    wanted = plan.storage
    assert wanted is not None
    words = ["storage", "--data", str(source.folder), "--trials", str(wanted.trials)]
    words += ["--ranks", _comma_list(wanted.ranks), "--threads", _comma_list(wanted.threads)]
    words += [*_option("size", wanted.size), *_option("io", wanted.io)]
    words += [*_option("launcher", plan.launcher), *_option("timeout", plan.timeout)]
    title = f"what the storage gives to any reader of {source.name}"
    return Part("storage", source.name, title, tuple(words), Path(STORAGE) / f"{source.name}.json", source)


def _runs(plan: Plan, base: Path, sources: Mapping[int, Source]) -> Iterator[Part]:
    for number, run in enumerate(plan.run):
        source = sources[number]
        for nodes, ranks in plan.scales(run):
            name = f"{run.workload}-{nodes}x{ranks}"
            words = ["run", run.workload, "--reader", ",".join(run.readers), "--data", str(source.folder)]
            words += ["--nodes", str(nodes), "--ranks-per-node", str(ranks)]
            words += ["--trials", str(plan.trials), "--warmup-trials", str(plan.warmup_trials)]
            words += ["--min-seconds", f"{plan.min_seconds:g}", "--cache", plan.cache]
            words += _option("memory_per_node", plan.memory_per_node)
            words += ["--tiny"] if run.tiny else []
            for option, value in run.given.items():
                words += _option(option, _from_base(option, value, base))
            if plan.storage is not None and run.emulate_pfs is None:  # which nobody measured
                words += ["--storage", f"{STORAGE}/{source.name}.json"]
            words += [*_option("launcher", plan.launcher), *_option("timeout", plan.timeout)]
            title = f"{run.workload} on {plural(nodes, 'node')} x {plural(ranks, 'rank')}: {', '.join(run.readers)}"
            yield Part("run", name, title, tuple(words), Path(RESULTS) / name, source, run, scale=(nodes, ranks))


def _checkpoints(plan: Plan, base: Path) -> Iterator[Part]:
    for table in plan.checkpoint:
        for nodes, ranks in plan.scales(table):
            name = f"{table.model}-{table.layout}-{nodes}x{ranks}"
            words = ["checkpoint", table.model, "--folder", str(base / table.folder), "--layout", table.layout]
            words += ["--nodes", str(nodes), "--ranks-per-node", str(ranks), "--trials", str(plan.trials)]
            for option in ("fraction", "shards", "checkpoints"):
                words += _option(option, getattr(table, option))
            words += [*_option("launcher", plan.launcher), *_option("timeout", plan.timeout)]
            scale = f"{plural(nodes, 'node')} x {plural(ranks, 'rank')}"
            title = f"checkpoints of {table.model} ({table.layout}) on {scale}"
            product = Path(RESULTS) / name
            yield Part("checkpoint", name, title, tuple(words), product, None, None, table, (nodes, ranks))


def _from_base(option: str, value: str | int, base: Path) -> str | int:
    """The value of an option; a path in it starts from the plan's folder."""
    if option == "local_tier":
        return str(base / str(value))
    device, at, profile = str(value).partition("@")
    return f"{device}@{base / profile}" if option == "compute" and at else value


def _option(name: str, value: str | int | None) -> list[str]:
    return [] if value is None else [f"--{name.replace('_', '-')}", str(value)]


def _comma_list(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, sorted(set(numbers))))
