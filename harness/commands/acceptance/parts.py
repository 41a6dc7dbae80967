"""The parts of a campaign in their order: datasets, what the storage can give, runs; each a command of dlio-bench."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from dlio_bench.harness.commands.acceptance.datasets import RunDataset
from dlio_bench.harness.commands.acceptance.plan import CampaignPlan, Checkpoints, Run
from dlio_bench.harness.ground.subcommands import as_words
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_bytes

Kind = Literal["data", "storage", "run", "checkpoint"]
RESULTS, STORAGE = "results", "storage"  # folders of what is handed over


class CampaignPart(Struct, frozen=True):
    """One command of the campaign.

    words: without the program, and without --out: that is `work/NAME` in the campaign's folder until the part is done.
    product: where its outcome stays: a path in that folder, or a dataset's own. source: None of checkpoints alone.
    """

    kind: Kind
    name: str
    title: str
    words: tuple[str, ...]
    product: Path
    source: RunDataset | None
    run: Run | None = None
    checkpoints: Checkpoints | None = None
    scale: tuple[int, int] = (1, 1)  # nodes, ranks a node


def parts(plan: CampaignPlan, base: Path, sources: Mapping[int, RunDataset]) -> list[CampaignPart]:
    """Every part, in the order in which they run: all data, all ceilings, then each table's runs, fewest nodes first,
    then checkpoints alike.

    base: the plan's folder, which paths in it start from.
    """
    different = {source.name: source for source in sources.values()}.values()
    data = [_data(plan, source) for source in different if not source.is_given]
    ceilings = [_ceiling(plan, source) for source in different] if plan.storage is not None else []
    return [*data, *ceilings, *_runs(plan, base.absolute(), sources), *_checkpoints(plan, base.absolute())]


def _data(plan: CampaignPlan, source: RunDataset) -> CampaignPart:
    layout, wanted = source.layout, plan.dataset
    files = sum(source.files.values())
    given = {"out": source.folder, "files": files, "variant": layout.variant, "fill": wanted.fill, "tiny": layout.tiny}
    if wanted.nodes is not None or wanted.ranks_per_node is not None:
        given |= {"nodes": wanted.nodes or 1, "ranks_per_node": wanted.ranks_per_node or 1, "launcher": plan.launcher}
    words = ("generate", layout.workload, *as_words(given | {"timeout": plan.timeout}))
    size = f"{plural(files, 'file')}, {format_bytes(source.whole_bytes)}"
    title = f"dataset of {layout.workload} {layout.variant}, {size}"
    return CampaignPart("data", source.name, title, words, source.folder, source)


def _ceiling(plan: CampaignPlan, source: RunDataset) -> CampaignPart:
    wanted = plan.storage
    assert wanted is not None
    counts = {"ranks": sorted(set(wanted.ranks)), "threads": sorted(set(wanted.threads))}
    given = {"data": source.folder, "trials": wanted.trials, **counts, "size": wanted.size, "io": wanted.io}
    words = ("storage", *as_words(given | _start_options(plan)))
    title = f"what the storage gives to any reader of {source.name}"
    return CampaignPart("storage", source.name, title, words, Path(STORAGE) / f"{source.name}.json", source)


def _runs(plan: CampaignPlan, base: Path, sources: Mapping[int, RunDataset]) -> Iterator[CampaignPart]:
    for number, run in enumerate(plan.run):
        source = sources[number]
        for nodes, ranks in plan.scales(run):
            name = f"{run.workload}-{nodes}x{ranks}"
            given = {
                "reader": run.readers, "data": source.folder, "nodes": nodes, "ranks_per_node": ranks,
                "trials": plan.trials, "warmup_trials": plan.warmup_trials, "min_seconds": f"{plan.min_seconds:g}",
                "cache": plan.cache, "memory_per_node": plan.memory_per_node, "tiny": run.tiny,
            }  # fmt: skip
            given |= {option: _from_base(option, value, base) for option, value in run.given_options.items()}
            if plan.storage is not None and run.emulate_pfs is None:  # which nobody measured
                given["storage"] = f"{STORAGE}/{source.name}.json"
            words = ("run", run.workload, *as_words(given | _start_options(plan)))
            title = f"{run.workload} on {plural(nodes, 'node')} x {plural(ranks, 'rank')}: {', '.join(run.readers)}"
            yield CampaignPart("run", name, title, words, Path(RESULTS) / name, source, run, scale=(nodes, ranks))


def _checkpoints(plan: CampaignPlan, base: Path) -> Iterator[CampaignPart]:
    for table in plan.checkpoint:
        for nodes, ranks in plan.scales(table):
            name = f"{table.model}-{table.layout}-{nodes}x{ranks}"
            given = {
                "folder": base / table.folder, "layout": table.layout, "nodes": nodes, "ranks_per_node": ranks,
                "trials": plan.trials, "fraction": table.fraction, "shards": table.shards,
                "checkpoints": table.checkpoints,
            }  # fmt: skip
            words = ("checkpoint", table.model, *as_words(given | _start_options(plan)))
            scale = f"{plural(nodes, 'node')} x {plural(ranks, 'rank')}"
            title = f"checkpoints of {table.model} ({table.layout}) on {scale}"
            yield CampaignPart(
                "checkpoint", name, title, words, Path(RESULTS) / name, None, None, table, (nodes, ranks)
            )


def _from_base(option: str, value: str | int, base: Path) -> str | int:
    """The value of an option; a path in it starts from the plan's folder."""
    if option == "local_tier":
        return str(base / str(value))
    device, at, profile = str(value).partition("@")
    return f"{device}@{base / profile}" if option == "compute" and at else value


def _start_options(plan: CampaignPlan) -> dict[str, Any]:
    """How all ranks of the plan are started."""
    return {"launcher": plan.launcher, "timeout": plan.timeout}
