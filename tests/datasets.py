"""Tiny datasets of every workload, and what tests ask of a dataset."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dlio_bench.batches import ALIGNMENT, Batch, Block
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset, changed_files, open_dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import RANDOM, Layout
from dlio_bench.datagen.manifest import CHECKSUMS, EXTENTS, NAME
from dlio_bench.datagen.verify import auxiliary_damage, damage
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.storage.extents import ExtentReader

VARIANTS = [(name, variant) for name, workload in WORKLOADS.items() for variant in workload.variants]


def layout(workload: str, variant: str | None = None, fill: str = RANDOM) -> Layout:
    """The tiny layout of a variant, by default the workload's own."""
    return WORKLOADS[workload].variants[variant or WORKLOADS[workload].default_variant](True, fill)


LAYOUTS = [pytest.param(layout(*case), id="-".join(case)) for case in VARIANTS]


def few(workload: str, variant: str) -> int:
    """Few but enough files: more than a batch, and one in the middle."""
    return 13 if layout(workload, variant).samples_per_file == 1 else 3


def made(
    folder: Path, workload: str, files: int | Mapping[str, int], variant: str | None = None, fill: str = RANDOM
) -> Dataset:
    """A tiny dataset of so many training files, or of so many of each split."""
    return generate(layout(workload, variant, fill), files, folder, seed=3, workers=1)


def made_by_first(comm: Comm, folder: Path, workload: str, files: int, variant: str | None = None) -> Dataset:
    """A tiny dataset that rank 0 makes in its `folder` and all ranks share."""
    folder = Path(comm.allgather(str(folder))[0])
    if comm.rank == 0:
        made(folder, workload, files, variant)
    comm.barrier()
    return open_dataset(folder)


def bare(dataset: Dataset) -> Path:
    """The dataset's folder without all that makes its files a dataset."""
    for name in (NAME, EXTENTS, CHECKSUMS, ".lock"):
        (dataset.folder / name).unlink()
    return dataset.folder


def view_of(dataset: Dataset) -> SampleView:
    """The view that the dataset's workload has of a sample."""
    return SampleView(dataset, WORKLOADS[dataset.manifest.workload].of(dataset.manifest.variant).view)


def stored_fields(dataset: Dataset, fields: Iterable[str], sample: int) -> list[memoryview]:
    """The bytes of these fields as the files hold them."""
    names = tuple(fields)
    sizes = dataset.locate(np.array([sample]), names)[3][0].tolist()
    content = memoryview(bytearray(sum(sizes)))
    extents = ExtentReader(dataset, names)
    extents.read(np.array([sample]), content, Cost())
    extents.close()
    ends = np.cumsum(sizes).tolist()
    return [content[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def batch_of(samples: npt.NDArray[np.uint8], *, ids: list[int] | None = None, shift: int = 0) -> Batch:
    """Samples [n, bytes] as a reader delivers them: one block in memory that starts `shift` bytes off alignment."""
    raw = np.empty(samples.size + 2 * ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT + shift
    content = raw[start : start + samples.size]
    content.reshape(samples.shape)[:] = samples
    chosen = np.arange(len(samples)) if ids is None else np.array(ids)
    return Batch(chosen, (Block(content, np.arange(len(samples) + 1) * samples.shape[1]),))


def verify_files(dataset: Dataset) -> list[str]:
    """One line for each damaged file, naming it and its first damaged field; empty when every byte is as written."""
    problems = changed_files(dataset)
    if problems:
        return problems
    damages = (damage(dataset, number) for number in range(len(dataset.manifest.files)))
    return [problem for problem in damages if problem] + auxiliary_damage(dataset)
