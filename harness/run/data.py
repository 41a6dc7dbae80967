"""The dataset of a run: the one that was given, or a small one of the true layout, made once and kept in a cache folder."""

import os
from collections.abc import Callable
from pathlib import Path

from dlio_bench.datagen.dataset import Dataset, missing_or_resized, open_dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import Layout
from dlio_bench.datagen.manifest import spec_digest
from dlio_bench.errors import DataError, UsageError

SEED = 1  # of the bytes; the order has a seed of its own
Progress = Callable[[int, int], None]


def cache_folder(asked: Path | None) -> Path:
    """Where datasets are kept: --cache-dir, else $DLIO_BENCH_CACHE, else the user's cache folder (XDG)."""
    if asked is not None:
        return asked
    if named := os.environ.get("DLIO_BENCH_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlio-bench"


def made_folder(layout: Layout, files: int, cache: Path) -> Path:
    """The folder of a dataset that this tool makes: its name holds the digest of what it is made from."""
    digest = spec_digest(layout, files, SEED).removeprefix("sha256:")[:12]
    tiny = "-tiny" if layout.tiny else ""
    return cache / "datasets" / f"{layout.workload}-{layout.variant}{tiny}-{digest}"


def given(folder: Path, layout: Layout) -> Dataset:
    """Open --data DIR and see that it belongs to the workload. DataError, UsageError."""
    dataset = open_dataset(folder)
    manifest = dataset.manifest
    if (manifest.workload, manifest.variant, manifest.tiny) != (layout.workload, layout.variant, layout.tiny):
        found = f"{manifest.workload} ({manifest.variant}{', tiny' if manifest.tiny else ''})"
        asked = f"{layout.workload} ({layout.variant}{', tiny' if layout.tiny else ''})"
        raise UsageError(
            f"--data {folder} holds {found}, but the run is of {asked}. Give the folder of a dataset that fits."
        )
    _refuse_damaged(dataset)
    return dataset


def made(layout: Layout, files: int, cache: Path, progress: Progress) -> Dataset:
    """The cached dataset of this layout and size, made when it is not there, mended when files are missing."""
    folder = made_folder(layout, files, cache)
    if (folder / "manifest.json").exists():
        dataset = open_dataset(folder)
        if not missing_or_resized(dataset):
            return dataset
    return generate(layout, files, folder, SEED, progress=progress)


def _refuse_damaged(dataset: Dataset) -> None:
    bad = missing_or_resized(dataset)
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""  # noqa: PLR2004 - three names are enough to look at
        raise DataError(
            f"The dataset in {dataset.folder} is not whole: {'; '.join(bad[:3])}{more}. Restore the files or generate it anew."
        )
