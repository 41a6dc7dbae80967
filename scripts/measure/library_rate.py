"""What TensorFlow and PyTorch get of a loader's rate, on an emulated file system and warm:

    .venv-test/bin/python scripts/measure/library_rate.py DATASET --batch N --adapter tf [--pfs bandwidth=1GB/s]
    .venv-peers/bin/python scripts/measure/library_rate.py DATASET --batch N --adapter torch [--pfs bandwidth=1GB/s]

Some epochs of the bare loader and as many of the adapter take turns; nobody looks at the samples. It prints JSON: the
rates of each trial in bytes a second, their medians, and the median of the ratios, adapter to bare. Without --pfs the
files are in the page cache.
"""

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dlio_bench
from dlio_bench.datagen.dataset import Dataset, open_dataset
from dlio_bench.datagen.manifest import CHECKSUMS, EXTENTS, NAME
from dlio_bench.harness.storage import cache
from dlio_bench.harness.storage.pfs.emulation import mount_temporarily
from dlio_bench.harness.storage.pfs.spec import parse_spec


def as_tf(loader: "dlio_bench.Loader") -> Any:
    """As a program iterates it."""
    return loader.as_tf()


def as_torch(loader: "dlio_bench.Loader") -> Any:
    """As a program iterates it."""
    from torch.utils.data import DataLoader

    return DataLoader(loader.as_torch(), batch_size=None)


ADAPTERS: dict[str, Callable[["dlio_bench.Loader"], Any]] = {"tf": as_tf, "torch": as_torch}


@contextmanager
def seen(dataset: Dataset, pfs: str | None) -> Iterator[Path]:
    """Where the loader reads the dataset: of an emulation links to its files, as no table there could be mapped."""
    if pfs is None:
        yield dataset.folder
        return
    with mount_temporarily(parse_spec(pfs), dataset.folder, 1) as emulation, TemporaryDirectory() as folder:
        for table in (NAME, EXTENTS, CHECKSUMS):
            shutil.copy(dataset.folder / table, folder)
        for entry in dataset.manifest.files:
            Path(folder, entry.name).symlink_to(emulation.mounts[0] / entry.name)
        yield Path(folder)


def read(folder: Path, options: argparse.Namespace, batches: Callable[["dlio_bench.Loader"], Any]) -> float:
    """Seconds from the first request for a batch to the last batch."""
    with dlio_bench.load(folder, batch=options.batch, reader=options.reader, epochs=options.epochs) as loader:
        iterated = batches(loader)
        began = time.perf_counter()
        for _ in range(options.epochs):
            for _ in iterated:
                pass
        return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--adapter", choices=ADAPTERS, required=True)
    parser.add_argument("--reader", default="double-buffer", help="one that keeps no samples reads all in each epoch")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pfs")
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    dataset = open_dataset(options.dataset)
    paths = [dataset.path(number) for number in range(len(dataset.training_files))]
    if cache.residency(paths).share < 1:
        cache.fill(paths)
    contenders = {"bare": lambda loader: loader, options.adapter: ADAPTERS[options.adapter]}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    with seen(dataset, options.pfs) as folder:
        with dlio_bench.load(folder, batch=options.batch) as loader:
            size = (
                options.epochs
                * len(loader)
                * sum(array.nbytes for name, array in next(iter(loader)).items() if name != "ids")
            )
        for trial in range(-1, options.trials):  # the first is a warm-up
            for name, batches in contenders.items():
                took = read(folder, options, batches)
                if trial >= 0:
                    seconds[name].append(took)
    rates = {name: [size / each for each in times] for name, times in seconds.items()}
    ratios = [theirs / bare for theirs, bare in zip(rates[options.adapter], rates["bare"], strict=True)]
    medians = {name: statistics.median(each) for name, each in rates.items()}
    print(json.dumps({"bytes": size, "rates": rates, "medians": medians, "ratio": statistics.median(ratios)}, indent=1))


if __name__ == "__main__":
    main()
