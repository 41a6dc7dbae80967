"""`dlio-bench generate`: make a dataset of the requested size, and tell how fast that was."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.datagen import dedup, objects
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.generate import Made, local, make
from dlio_bench.datagen.layout import Layout
from dlio_bench.datagen.manifest import PROGRESS, spec_digest
from dlio_bench.datagen.workers import ALONE, usual_workers, worker_pool
from dlio_bench.datagen.writers import FilesToWrite, Writer
from dlio_bench.errors import UsageError, require_at_least
from dlio_bench.harness.cluster import allocation
from dlio_bench.harness.cluster.start import Ranks
from dlio_bench.harness.commands.generation import uploads
from dlio_bench.harness.commands.generation.amount import SplitSize, counts
from dlio_bench.harness.commands.generation.options import GenerateOptions
from dlio_bench.harness.commands.generation.rank import Job, by_ranks
from dlio_bench.harness.ground.folders import cache_folder, work_folder
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.ground.starting import allocated_scale
from dlio_bench.signals import interruptible
from dlio_bench.units import format_bytes, format_percent, format_seconds


def generate(options: GenerateOptions) -> int:
    """The whole command: 0 when the dataset is there. Raises BenchError."""
    workload, order = registry.find(options.workload), options.sorted_by or ""
    layout = find_layout(workload, options.variant, tiny=options.tiny, fill=options.fill, sorted_by=order)
    files = counts(layout, options.amount)
    if url := objects.url_of(options.out):
        spec = spec_digest(layout, files, options.seed)
        if uploads.require_room(url, spec):
            print(json.dumps({"folder": url, "written_bytes": 0}) if options.json else f"{url} is complete already")
            return 0
        options = replace(options, out=uploads.work_folder(url, spec, cache_folder()), raw=False)
    writer, launcher = _writer(options, layout, files)
    progress = Progress()
    made = make(
        layout,
        files,
        options.out,
        options.seed,
        writer=writer,
        progress=progress.bytes_written,
        raw=options.json and options.raw,
    )
    progress.show("looking for duplicate chunks")
    document = _facts(made, layout, launcher)
    if url:
        document |= _upload_dataset(made.dataset, url, progress)
    progress.clear()
    print(json.dumps(document, indent=1) if options.json else _render(document))
    return 0


def _upload_dataset(dataset: Dataset, url: str, progress: Progress) -> dict[str, Any]:
    """Upload the dataset, and remove it here: what is told of that."""
    total, done = sum(entry.bytes for entry in dataset.manifest.files), 0

    def show_uploaded(size: int) -> None:
        nonlocal done
        done += size
        progress.amount("uploading", done, total)

    seconds = uploads.upload(dataset, url, show_uploaded)
    shutil.rmtree(dataset.folder)
    return {"folder": url, "upload_seconds": seconds}


def _writer(options: GenerateOptions, layout: Layout, files: dict[str, int]) -> tuple[Writer, str | None]:
    """Who writes, and the name of the launcher where it is ranks."""
    asked = {options.nodes, options.ranks_per_node, options.launcher} != {None}
    if not asked and (options.workers is not None or (allocation.nodes() or 1) == 1):
        return partial(local, options.workers), None
    if options.workers is not None:
        raise UsageError(
            "--workers are processes of this machine, --nodes, --ranks-per-node and --launcher mean ranks. Give either."
        )
    nodes, per_node = _scale(options)
    meeting = work_folder(options.out.absolute() / PROGRESS)  # on the file system that ranks share
    require_at_least(1, nodes=nodes, ranks_per_node=per_node)
    ranks = Ranks("commands.generation.rank", nodes, per_node, options.launcher, allocation.are_virtual(nodes))

    def job(work: FilesToWrite) -> Job:
        return Job(
            workload=layout.workload,
            variant=layout.variant,
            tiny=layout.tiny,
            fill=layout.fill,
            sorted_by=layout.sorted_by,
            seed=options.seed,
            counts=files,
            folder=str(work.folder),
            todo=work.todo,
            bytes=work.bytes,
            file_bytes=work.file_bytes,
            raw=work.raw,
            ranks=nodes * per_node,
            spec=spec_digest(layout, files, options.seed),
        )

    return partial(by_ranks, ranks, meeting, job), ranks.start().launcher


def _scale(options: GenerateOptions) -> tuple[int, int]:
    """Nodes, and ranks on each. An allocation of nodes without tasks gets as many ranks as a node has workers."""
    nodes, per_node = options.nodes is not None, options.ranks_per_node is not None
    scale = allocated_scale(nodes=nodes, ranks_per_node=per_node, workers=usual_workers())
    return (
        scale.nodes if options.nodes is None else options.nodes,
        scale.ranks_per_node if options.ranks_per_node is None else options.ranks_per_node,
    )


def splits(dataset: Dataset, layout: Layout) -> list[SplitSize]:
    """What a dataset holds of each split; stored bytes as they are, payload by the layout's mean."""
    sizes = []
    for split in layout.splits:
        entries = [entry for entry in dataset.manifest.files if entry.split == split.name]
        samples = sum(entry.samples for entry in entries)
        stored = sum(entry.bytes for entry in entries)
        sizes.append(SplitSize(split.name, len(entries), samples, stored, round(samples * split.payload_bytes)))
    return sizes


def _facts(made: Made, layout: Layout, launcher: str | None) -> dict[str, Any]:
    manifest, timing = made.dataset.manifest, made.timing
    paths = [made.dataset.path(number) for number in range(len(manifest.files))]
    split_sizes = splits(made.dataset, layout)
    rate = made.written_bytes / timing.seconds if timing else None
    raw = timing.raw if timing and timing.raw.bytes else None
    duplicates = _duplicates(paths, sum(size.stored_bytes for size in split_sizes))
    return {
        "folder": str(made.dataset.folder),
        "digest": made.dataset.digest,
        "workload": manifest.workload,
        "variant": manifest.variant,
        "fill": manifest.fill,
        "seed": manifest.seed,
        "sorted_by": manifest.sorted_by or None,
        "tiny": manifest.tiny,
        "splits": [asdict(size) for size in split_sizes],
        "stored_bytes": sum(size.stored_bytes for size in split_sizes),
        "payload_bytes": sum(size.payload_bytes for size in split_sizes),
        "allocated_bytes": sum(path.stat().st_blocks * 512 for path in paths),
        "written_bytes": made.written_bytes,
        "processes": timing.processes if timing else 0,
        "launcher": launcher,
        "seconds": timing.seconds if timing else None,
        "stored_bytes_per_second": rate,
        "raw_bytes": raw.bytes if raw else None,
        "raw_seconds": raw.seconds if raw else None,
        "raw_bytes_per_second": raw.rate if raw else None,
        "ratio": rate / raw.rate if rate and raw and raw.rate else None,
        "chunked_bytes": duplicates.bytes,
        "duplicate_share": duplicates.share,
    }


def _duplicates(paths: list[Path], size: int) -> dedup.Duplicates:
    """Looked for by several processes where there is much to look at."""
    if size <= ALONE:
        return dedup.duplicates(paths)
    with worker_pool(usual_workers(), "looking for duplicate chunks", "The dataset is whole: run again") as pool:
        return dedup.duplicates(paths, each=lambda *work: interruptible(lambda: pool.map(*work)))


def _render(document: dict[str, Any]) -> str:
    """At most 80 columns."""
    kind = f"{document['workload']} {document['variant']}{' (tiny)' if document['tiny'] else ''}"
    order = f", sorted by {document['sorted_by']}" if document["sorted_by"] else ""
    lines = [f"{kind}, {document['fill']} fill, seed {document['seed']}{order}"]
    lines += [
        f"  {size['name']:<12}{size['files']:>7} files {size['samples']:>9} samples  "
        f"{format_bytes(size['stored_bytes']):>8} stored  {format_bytes(size['payload_bytes']):>8} payload"
        for size in document["splits"]
    ]
    if document["seconds"] is None:
        lines.append("  it was already complete")
    else:
        rate = f"{format_bytes(document['stored_bytes_per_second'])}/s by {document['processes']} processes"
        lines.append(
            f"  written {format_bytes(document['written_bytes'])} in {format_seconds(document['seconds'])}: {rate}"
        )
    if document["allocated_bytes"] < document["stored_bytes"]:
        lines.append(
            f"  only {format_bytes(document['allocated_bytes'])} are allocated: the file system compresses or leaves "
            "holes"
        )
    chunked = format_bytes(document["chunked_bytes"])
    lines.append(f"  duplicate chunks {format_percent(document['duplicate_share'], 2)} of {chunked} looked at")
    if "upload_seconds" in document:
        lines.append(f"  uploaded in {format_seconds(document['upload_seconds'])}, the manifest last")
    lines.append(f"  folder  {document['folder']}")
    return "\n".join(lines)
