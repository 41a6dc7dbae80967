"""`run --from`: the options of a run from its results, on the same data."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import fields, replace

from dlio_bench.datagen import objects
from dlio_bench.datagen.manifest import NAME, file_sha256
from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.commands.run.asked.jobs import BY_NODES, options_from_document
from dlio_bench.harness.commands.run.asked.options import COLD, Options
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.ground.folders import cache_folder
from dlio_bench.harness.storage.object_store import mirror_tables
from dlio_bench.reports.document.collection import load_all
from dlio_bench.reports.document.marks import ALTERED, FIRST_EPOCH_COLD, INTERRUPTED
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.view.formatting import join_words

MAY_DIFFER = (
    "out", "json", "dry_run", "data", "cache_dir", "local_tier", "storage", "launcher", "limits", "junit", "markdown",
    "require", "verbose",
)  # fmt: skip


def load_repeat(origin: Path, given: Mapping[str, Any]) -> tuple[Options, list[Result]]:
    """The options that repeat the run of the results in `origin`, and these results.

    given: what the user gave beside --from, by field of Options. UsageError if that would change the run, if the
    results are of several runs or too old, or if their dataset is not here; DataError for a damaged result.
    """
    results = [result for result, _ in load_all([origin])]
    if any(ALTERED in result.marks for result in results):
        raise DataError(
            f"'{origin}' was altered after it was written, so that nobody knows what was run. Use the original files."
        )
    merged = _merge_runs(origin, results, [_options(origin, result) for result in results])
    refused = [name for name, value in given.items() if name not in MAY_DIFFER and value != getattr(merged, name)]
    if refused:
        allowed = ", ".join(f"--{name.replace('_', '-')}" for name in MAY_DIFFER)
        raise UsageError(
            f"--from repeats the run as it was, and {_flag(refused[0])} would change it. Leave it out, or start a run "
            f"of your own: {shlex.join(results[0].command)}. --from may have {allowed}."
        )
    if merged.tiers and not any(row.rule.keeps_samples for row in look_up(merged).readers.values()):
        merged = replace(merged, tiers=None)  # those of other readers of that run
    data = _data(results[0], given)
    return replace(
        merged, **{name: given[name] for name in MAY_DIFFER if name in given} | {"data": data, "cache_dir": None}
    ), results


def incomplete(origin: Path, results: Sequence[Result]) -> str | None:
    """That the earlier run was interrupted, what it measured, and how to measure the rest; None for a whole run."""
    if not any(INTERRUPTED in result.marks for result in results):
        return None
    there = join_words([str(count) for count in sorted({result.plan.nodes for result in results})])
    return (
        f"'{origin}' is of a run that was interrupted: it has results of {there} node{'s' * (there != '1')} alone, and "
        f"only these are repeated. For all that was asked for, run its command again: {shlex.join(results[0].command)}."
    )


def _flag(name: str) -> str:
    names = {"workload": "WORKLOAD", "readers": "--reader", "orders": "--order", "placements": "--placement",
             "deliveries": "--delivery", "verify": "--no-verify"}  # fmt: skip
    return names.get(name, f"--{name.replace('_', '-')}")


def _options(origin: Path, result: Result) -> Options:
    if result.options is None:
        raise UsageError(
            f"'{origin}' lacks `options`, which --from needs: dlio-bench {result.version} did not keep every option of "
            f"a run. Repeat its command instead: {shlex.join(result.command)} (its plan has the seed, "
            f"{result.plan.seed}, for --seed)."
        )
    try:
        options = options_from_document(result.options)
    except ValueError as error:
        raise DataError(
            f"The options in '{origin}' are not those of a run ({error}). Use the original file, or the version that "
            f"wrote it, {result.version}."
        ) from error
    first = options.cache == COLD and result.plan.cache == FIRST_EPOCH_COLD  # another reader of the run asked for that
    return replace(options, cache=FIRST_EPOCH_COLD) if first else options


def _merge_runs(origin: Path, results: Sequence[Result], kept: Sequence[Options]) -> Options:
    """One run of all results: its readers and node counts, with the sizes that each node count has of its own."""
    first, readers, nodes = kept[0], _unique(each.readers[0] for each in kept), _unique(each.nodes[0] for each in kept)
    for each in kept[1:]:
        for field in fields(Options):
            name, values = field.name, [getattr(options, field.name) for options in (first, each)]
            if name not in ("readers", "nodes", *BY_NODES) and values[0] != values[1]:
                raise UsageError(
                    f"'{origin}' has results of several runs: {name} is {values[0]} in one and {values[1]} in another. "
                    "Name the folder of one run, or one result.json."
                )
    there = [(each.readers[0], each.nodes[0]) for each in kept]
    if sorted(there) != sorted((reader, count) for reader in readers for count in nodes):
        raise UsageError(
            f"'{origin}' has no whole run: {len(results)} results of readers {', '.join(readers)} at "
            f"{', '.join(map(str, nodes))} nodes. Name one result.json."
        )
    if len(nodes) == 1:
        return replace(first, readers=readers)
    sizes = {each.nodes[0]: {name: getattr(each, name) for name in BY_NODES} for each in kept}
    return replace(first, readers=readers, nodes=nodes, by_nodes=sizes)


def _data(result: Result, given: Mapping[str, Any]) -> Path:
    """The folder of the result's dataset, by its digest: that of --data, else its own, else one of that name in the
    cache. UsageError.
    """
    dataset, stored = result.dataset, Path(result.dataset.folder)
    cached = cache_folder(given.get("cache_dir")) / "datasets" / stored.name
    places = [given["data"]] if given.get("data") else [stored, cached]
    states = []
    for place in dict.fromkeys(places):
        if url := objects.url_of(place):
            place = mirror_tables(url, cache_folder(given.get("cache_dir")))  # noqa: PLW2901 - the same dataset, as a folder
        manifest = place / NAME
        actual = file_sha256(manifest) if manifest.is_file() else None
        if actual == dataset.digest:
            return place
        states.append(f"{place} has {'no dataset' if actual is None else f'another one, {actual}'}")
    made = f"{result.workload.name} {dataset.variant}, {dataset.fill} fill, seed {dataset.seed}"
    raise UsageError(
        f"The dataset of the run ({made}, digest {dataset.digest}) is not here: {'; '.join(states)}. Name its folder "
        f"with --data DIR. If it is gone, the run cannot be repeated on the same data; start a new one: "
        f"{shlex.join(result.command)}."
    )


def _unique(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))
