"""`dlio-bench index`: files that others made become a dataset that can be measured."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.index import Indexed, as_stored, candidates, differences, examine, index, of_many
from dlio_bench.datagen.layout import RANDOM, Layout
from dlio_bench.datagen.workers import ALONE, usual_workers, worker_pool
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.harness.commands.generation import uploads
from dlio_bench.harness.commands.generation.command import splits
from dlio_bench.harness.commands.generation.options import IndexOptions
from dlio_bench.harness.commands.generation.sorting import sort
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.signals import interruptible
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable

SHOWN = 20  # refused files in the text; the JSON has all


def index_data(options: IndexOptions) -> int:
    """The whole command: 0 when there is a manifest, 5 with the reasons when a file cannot be served."""
    url = objects.url_of(options.folder)
    if url is None:
        return _index(options, None)
    objects.open_store(url).require_writable()
    progress = Progress()
    with uploads.download(url, lambda size: progress.show(f"fetching {url}  {format_bytes(size)}")) as folder:
        return _index(replace(options, folder=folder), url)


def _index(options: IndexOptions, url: str | None) -> int:
    """The same for a folder: of objects' copies, if they are of the store `url`, which gets the tables then."""
    published = find_layout(registry.find(options.workload), options.variant, tiny=options.tiny, fill=RANDOM)
    layout = published
    folder = options.folder
    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}. Give the folder that holds the files.")
    names, others = candidates(folder, layout)
    chosen = sort(layout, names, options.split)
    if not chosen.names:
        more = "".join(f" {note}." for note in chosen.notes)
        raise UsageError(
            f"{folder} holds no file that could be of {layout.workload} {layout.variant} by its name. "
            f"{_suggest_layout(layout, others, _fitting(folder, layout))}{more}"
        )
    names = list(chosen.names)
    layout = as_stored(folder.absolute(), layout, names)
    examined = list(_examine_files(folder.absolute(), layout, names))
    refused = [file for file in examined if file.refusal]
    by_library = CONTAINERS[layout.container].by_library
    if refused and by_library:  # what plain reads cannot serve, the container's own library may
        filtered = replace(layout, container=by_library)
        as_filtered = list(_examine_files(folder.absolute(), filtered, names))
        still_refused = [file for file in as_filtered if file.refusal]
        # what it refuses, too, is refused for its reason: being compressed is none
        if not options.skip_bad or len(still_refused) < len(refused):
            layout, examined, refused = filtered, as_filtered, still_refused
    result: dict[str, Any] = {
        "folder": url or str(folder.absolute()),
        "workload": layout.workload,
        "variant": layout.variant,
        "container": layout.container,
        "refused": [{"file": file.name, "problem": file.refusal} for file in refused],
        "fits": _fitting(folder, layout, refused[0].name) if refused else [],
    }
    served = [file for file in examined if not file.refusal]
    refuse = bool(refused) and not (options.skip_bad and served)
    if not refuse:
        of_name = dict(zip(names, chosen.splits, strict=True))
        passed = [*others, *chosen.left_out, *(file.name for file in refused)]
        result |= _write(folder.absolute(), layout, published, served, [of_name[file.name] for file in served], passed)
        result["notes"] = list(chosen.notes)
        if url is not None:
            uploads.upload_tables(open_dataset(folder), url)
    told = json.dumps(result, indent=1) if options.json else "\n".join(map(printable, _lines(result)))
    print(told if url is None else told.replace(str(folder.absolute()), url))
    return DataError.status if refuse else 0


def _fitting(folder: Path, layout: Layout, name: str | None = None) -> list[str]:
    """Variants in another container that take a file (the first that may be theirs); if any, those of its lengths."""
    fitting: dict[str, bool] = {}
    for variant, make in registry.find(layout.workload).variants.items():
        other = make(layout.tiny, RANDOM)
        names = [one for one in candidates(folder, other)[0] if name in (None, one)]
        if other.container == layout.container or not names:
            continue
        found = examine(folder.absolute(), other.container, other.fields, names[0], other.fault)
        if found.written is not None:
            told = differences(other, other, [found], [other.splits[0].name])
            fitting[variant] = not any("bytes instead of" in line for line in told)
    return [variant for variant, alike in fitting.items() if alike or not any(fitting.values())]


def _suggest_layout(layout: Layout, others: Sequence[str], fitting: Sequence[str]) -> str:
    """What to do with a folder that has no file of the layout."""
    if fitting:
        return f"It holds files of --variant {' or '.join(fitting)}."
    for name in others:
        if told := of_many(name):
            return f"{name} is {told}."
        if name.endswith(".gz"):
            return f"{name} is compressed by GZIP: gunzip unpacks it."
    return (
        f"Give the folder of such files ({', '.join(filter(None, CONTAINERS[layout.container].endings))}). A program "
        "takes files of any kind with dlio_bench.load, each as one sample."
    )


def _write(
    folder: Path,
    layout: Layout,
    published: Layout,
    served: Sequence[Indexed],
    of_split: Sequence[str],
    others: Sequence[str],
) -> dict[str, Any]:
    try:
        dataset = index(folder, layout, served, of_split)
    except OSError as error:
        raise EnvironmentFailure(
            f"The manifest cannot be written to {folder}: {error.strerror or error}. Make the folder writable, or "
            "index a folder of links to the files."
        ) from error
    different = differences(layout, published, served, of_split)
    absent = [name for name in layout.auxiliary if not (folder / name).is_file()]
    return {
        "digest": dataset.digest,
        "splits": [asdict(size) for size in splits(dataset, layout)],
        "stored_bytes": sum(entry.bytes for entry in dataset.manifest.files),
        "differences": different + [f"{name} is not there" for name in absent],
        "passed_over": [name for name in others if name not in layout.auxiliary],
    }


def _examine_files(folder: Path, layout: Layout, names: Sequence[str]) -> Iterator[Indexed]:
    """Read every file, in order; by local processes if there is much to read."""
    progress = Progress()
    sizes = [(folder / name).stat().st_size for name in names]
    read = partial(examine, folder, layout.container, layout.fields, fault=layout.fault)
    done = 0
    with worker_pool(usual_workers(), f"reading {folder}", "Allow fewer cores with taskset") as pool:
        examined = map(read, names) if sum(sizes) <= ALONE else interruptible(lambda: pool.map(read, names))
        for file, size in zip(examined, sizes, strict=True):
            done += size
            progress.amount("reading", done, sum(sizes))
            yield file
    progress.clear()


def _lines(document: dict[str, Any]) -> list[str]:
    lines = [f"{document['workload']} {document['variant']} in {document['folder']}"]
    refused = document["refused"]
    lines += [f"  REFUSED  {file['problem']}" for file in refused[:SHOWN]]
    lines += [f"  and {len(refused) - SHOWN} more (--json lists all)"] * (len(refused) > SHOWN)
    if document["fits"]:
        lines.append(f"  --variant {' or '.join(document['fits'])} takes such files")
    if "digest" not in document:
        return [
            *lines,
            f"  {len(refused)} files cannot be served: nothing was written. --skip-bad leaves them out of the "
            "dataset; the files stay as they are.",
        ]
    lines += [
        f"  {size['name']:<12}{size['files']:>7} files {size['samples']:>9} samples  "
        f"{format_bytes(size['stored_bytes']):>8} stored"
        for size in document["splits"]
    ]
    if CONTAINERS[document["container"]].library is not None:
        lines.append("  compressed or filtered, or in many chunks: read through HDF5, slower than plain reads")
    lines += [f"  {note}" for note in document["notes"]]
    lines += [f"  differs: {line}" for line in document["differences"]]
    if document["passed_over"]:
        lines.append(f"  {len(document['passed_over'])} other files were left out, as {document['passed_over'][0]}")
    return lines
