"""`dlio-bench verify`: compare every byte of a dataset with its manifest and name each bad file."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from dlio_bench.benchmarks.layouts import layout_of
from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import Dataset, open_dataset
from dlio_bench.datagen.layout import Layout
from dlio_bench.datagen.verify import Remake, auxiliary_damage, damage, files_to_remake, remakable
from dlio_bench.datagen.workers import ALONE, usual_workers, worker_pool
from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.commands.generation import uploads
from dlio_bench.harness.commands.generation.options import VerifyOptions
from dlio_bench.harness.ground.folders import cache_folder
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.storage.object_store import mirror_tables
from dlio_bench.signals import interruptible
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable

SHOWN = 20  # bad files in the text; the JSON has all


def verify(options: VerifyOptions) -> int:
    """The whole command: 0 when every byte is as written, 5 with the list of bad files when not."""
    if not 0 <= options.sample_fraction <= 1:
        raise UsageError(f"--sample-fraction {options.sample_fraction} is not a share. Write one from 0 to 1.")
    url = objects.url_of(options.folder)
    dataset = open_dataset(options.folder if url is None else mirror_tables(url, cache_folder()))
    layout = layout_of(dataset)
    can_remake = remakable(dataset, layout)
    numbers = set(files_to_remake(dataset, options.sample_fraction)) if can_remake else set()
    progress = Progress()
    bad = []
    sizes = [entry.bytes for entry in dataset.manifest.files]
    done, total = 0, sum(sizes)
    progress.amount("verifying", 0, total)
    for number, problem in enumerate(_damages(dataset, layout, numbers, options.workers)):
        done += sizes[number]
        progress.amount("verifying", done, total)
        if problem:
            bad.append({"file": dataset.manifest.files[number].name, "problem": problem})
    bad += [{"file": "", "problem": problem} for problem in _auxiliary_damage(dataset)]
    progress.clear()
    document = {
        "folder": dataset.home,
        "digest": dataset.digest,
        "files": len(sizes),
        "samples": dataset.samples,
        "stored_bytes": total,
        "remade_files": len(numbers),
        "remake_note": None if can_remake or not options.sample_fraction else _why_not(dataset),
        "bad": bad,
    }
    print(json.dumps(document, indent=1) if options.json else _render(document))
    return DataError.status if bad else 0


def _damages(dataset: Dataset, layout: Layout, remade: set[int], workers: int | None) -> Iterator[str | None]:
    """What is wrong with each file, in order."""
    manifest = dataset.manifest
    count = workers or usual_workers()
    with temp_folder("dlio-bench-verify-") as folder:
        remake = Remake(layout, folder) if remade else None
        check = partial(_damage, dataset.folder, layout.fault, remake, remade)
        numbers = range(len(manifest.files))
        if count == 1 or (workers is None and sum(entry.bytes for entry in manifest.files) <= ALONE):
            yield from map(check, numbers)
            return
        with worker_pool(count, f"verifying {dataset.home}", "Use fewer --workers") as pool:
            chunk = max(1, min(64, len(numbers) // (8 * count)))
            yield from interruptible(lambda: pool.map(check, numbers, chunksize=chunk))


_opened: dict[Path, Dataset] = {}  # of a worker: tables are mapped once


def _damage(
    folder: Path, fault: Callable[[bytes], str | None] | None, remake: Remake | None, remade: set[int], number: int
) -> str | None:
    if folder not in _opened:
        _opened[folder] = open_dataset(folder)
    dataset, again = _opened[folder], remake if number in remade else None
    if dataset.store is None:
        return damage(dataset, number, again, fault)
    with temp_folder("dlio-bench-objects-") as place:
        try:
            copy = uploads.local_copy(dataset, [dataset.manifest.files[number].name], place)
        except DataError as error:  # it is gone
            return str(error)
        problem = damage(copy, number, again, fault)
        return problem and problem.replace(str(place), dataset.home)


def _auxiliary_damage(dataset: Dataset) -> list[str]:
    if dataset.store is None:
        return auxiliary_damage(dataset)
    with temp_folder("dlio-bench-objects-") as place:
        try:
            copy = uploads.local_copy(dataset, [entry.name for entry in dataset.manifest.auxiliary], place)
        except DataError as error:
            return [str(error)]
        return [problem.replace(str(place), dataset.home) for problem in auxiliary_damage(copy)]


def _why_not(dataset: Dataset) -> str:
    if dataset.manifest.generator is None:
        return "no sample was made anew: the dataset was indexed, not generated"
    return (
        "no sample was made anew: the dataset was made by other versions or on another processor, whose floating-point "
        "results may differ in the last digit"
    )


def _render(document: dict[str, Any]) -> str:
    """As text."""
    bad = document["bad"]
    size = format_bytes(document["stored_bytes"])
    lines = [f"{document['folder']}: {document['files']} files, {document['samples']} samples, {size}"]
    if document["remade_files"]:
        lines.append(f"  {document['remade_files']} files were made anew and compared")
    if document["remake_note"]:
        lines.append(f"  {document['remake_note']}")
    lines += [f"  BAD  {entry['problem']}" for entry in bad[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"  and {len(bad) - SHOWN} more bad files (--json lists all)")
    lines.append(f"  {len(bad)} bad files" if bad else "  every byte is as it was written")
    return "\n".join(map(printable, lines))
