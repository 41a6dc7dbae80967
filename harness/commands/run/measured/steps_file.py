"""The npz of a reader's steps: rank 0 writes those of all ranks as they come, and never holds them all."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

from dlio_bench.atomic_files import naming, part_of, publish, sync
from dlio_bench.harness.cluster.comm import Comm

Array = npt.NDArray[Any]
_write_header: Callable[[IO[bytes], Mapping[str, Any]], None] = np.lib.format.write_array_header_1_0
ALIKE = ("epoch", "validation_epoch")  # on every rank, in every trial


def write(path: Path, trials: Sequence[Mapping[str, Array]], comm: Comm) -> None:
    """Write the arrays of all ranks, [trial, rank, ...], as np.savez does; those in ALIKE once, as they are.

    trials: the arrays of this rank by name, for each trial; of the same shapes on every rank. The file is whole or
    absent. All ranks call it together. OSError on rank 0.
    """
    with archive_of(path) if comm.rank == 0 else nullcontext() as archive:
        for name, first in trials[0].items():
            if name in ALIKE:
                if archive is not None:
                    add(archive, name, first.dtype, first.shape, [first])
                continue
            blocks = (block for arrays in trials for block in comm.blocks(np.asarray(arrays[name], order="C")))
            if archive is not None:
                add(archive, name, first.dtype, (len(trials), comm.size, *first.shape), blocks)
            else:
                list(blocks)  # empty here


@contextmanager
def archive_of(path: Path) -> Iterator[ZipFile]:
    """A new archive, whole or absent. OSError."""
    with naming(path):
        with part_of(path).open("wb") as file, ZipFile(file, "w") as archive:
            yield archive
        publish(part_of(path), path)
        sync(path.parent)


def add(archive: ZipFile, name: str, kind: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]) -> None:
    """One array, whose parts come one after the other (numpy.lib.format; the zip entry as np.savez makes it)."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        _write_header(member, {"descr": kind.str, "fortran_order": False, "shape": shape})
        for block in blocks:
            member.write(block.data)
