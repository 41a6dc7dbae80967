"""`dlio-bench index`: files that others made become a dataset that can be measured."""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dlio_bench.benchmarks import registry
from dlio_bench.datagen.index import Indexed, candidates, differences, examine, index
from dlio_bench.datagen.layout import RANDOM, TEST, TRAIN, VALIDATION, Layout
from dlio_bench.datagen.writers import ALONE, MOST_WORKERS
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.harness.generation.amount import Amount, counts
from dlio_bench.harness.generation.command import splits
from dlio_bench.harness.generation.job import find_layout
from dlio_bench.harness.run.progress import Progress
from dlio_bench.units import format_bytes

SHOWN = 20  # refused files in the text; the JSON has all


@dataclass(frozen=True)
class Options:
    """What was asked of `dlio-bench index`."""

    folder: Path
    workload: str
    variant: str | None
    tiny: bool
    json: bool


def index_data(options: Options) -> int:
    """The whole command: 0 when there is a manifest, 5 with the reasons when a file cannot be served."""
    layout = find_layout(registry.find(options.workload), options.variant, tiny=options.tiny, fill=RANDOM)
    folder = options.folder
    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}. Give the folder that holds the files.")
    names, others = candidates(folder, layout)
    if not names:
        raise UsageError(f"{folder} holds no file that could be of {layout.workload} {layout.variant} by its name.")
    found = list(_examined(folder.absolute(), layout, names))
    refused = [one for one in found if one.refusal]
    if refused and layout.container == "hdf5":  # what plain reads cannot serve, HDF5 itself may
        filtered = replace(layout, container="hdf5-filtered")
        again = list(_examined(folder.absolute(), filtered, names))
        if not any(one.refusal for one in again):
            layout, found, refused = filtered, again, []
    result: dict[str, Any] = {
        "folder": str(folder.absolute()),
        "workload": layout.workload,
        "variant": layout.variant,
        "container": layout.container,
        "refused": [{"file": one.name, "problem": one.refusal} for one in refused],
    }
    if not refused:
        result |= _write(folder.absolute(), layout, found, others)
    print(json.dumps(result, indent=1) if options.json else _render(result))
    return DataError.status if refused else 0


def split_names(layout: Layout, names: Sequence[str]) -> list[str]:
    """The split of each file: by the published draw where the layout has one, else by a word in its path."""
    if layout.joint_files is not None:
        try:
            files = counts(layout, Amount(files=len(names)))
        except UsageError:  # fewer files than splits, or more than published: no draw
            return [TRAIN] * len(names)
        drawn = [spec.split for spec in sorted(layout.files(files), key=lambda spec: spec.name)]
        place = {name: number for number, name in enumerate(sorted(names))}
        return [drawn[place[name]] for name in names]
    known = {split.name for split in layout.splits}
    words = [split for split in (VALIDATION, TEST) if split in known]
    return [next((word for word in words if word[:3] in name.lower()), TRAIN) for name in names]


def _write(folder: Path, layout: Layout, found: Sequence[Indexed], others: Sequence[str]) -> dict[str, Any]:
    try:
        dataset = index(folder, layout, found, partial(split_names, layout))
    except OSError as error:
        raise EnvironmentFailure(
            f"The manifest cannot be written to {folder}: {error.strerror or error}. Make the folder writable, or "
            "index a folder of links to the files."
        ) from error
    different = differences(layout, found, split_names(layout, [one.name for one in found]))
    absent = [name for name in layout.auxiliary if not (folder / name).is_file()]
    return {
        "digest": dataset.digest,
        "splits": [asdict(size) for size in splits(dataset, layout)],
        "stored_bytes": sum(entry.bytes for entry in dataset.manifest.files),
        "differences": different + [f"{name} is not there" for name in absent],
        "passed_over": [name for name in others if name not in layout.auxiliary],
    }


def _examined(folder: Path, layout: Layout, names: Sequence[str]) -> Iterator[Indexed]:
    """Every file read, in order, by local processes where there is much to read."""
    progress = Progress()
    sizes = [(folder / name).stat().st_size for name in names]
    read = partial(examine, folder, layout.container, layout.fields)
    count = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    done = 0
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:  # starts processes as they are asked for only
        found = map(read, names) if sum(sizes) <= ALONE else pool.map(read, names)
        for one, size in zip(found, sizes, strict=True):
            done += size
            progress.amount("reading", done, sum(sizes))
            yield one
    progress.done()


def _render(found: dict[str, Any]) -> str:
    lines = [f"{found['workload']} {found['variant']} in {found['folder']}"]
    refused = found["refused"]
    if refused:
        lines += [f"  REFUSED  {one['problem']}" for one in refused[:SHOWN]]
        lines += [f"  and {len(refused) - SHOWN} more (--json lists all)"] * (len(refused) > SHOWN)
        return "\n".join([*lines, f"  {len(refused)} files cannot be served: nothing was written"])
    lines += [
        f"  {size['name']:<12}{size['files']:>7} files {size['samples']:>9} samples  "
        f"{format_bytes(size['stored_bytes']):>8} stored"
        for size in found["splits"]
    ]
    if found["container"] == "hdf5-filtered":
        lines.append("  compressed or filtered, or in many chunks: read through HDF5, slower than plain reads")
    lines += [f"  differs: {line}" for line in found["differences"]]
    if found["passed_over"]:
        lines.append(f"  {len(found['passed_over'])} other files were passed over, as {found['passed_over'][0]}")
    return "\n".join(lines)
