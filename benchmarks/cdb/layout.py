"""CDB's files: one climate image of 16 channels a file, three one-chunk HDF5 datasets in /climate, and stats.h5."""

import math
import threading
from datetime import date, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.benchmarks.cdb import physical
from dlio_bench.benchmarks.cdb.fields import Plane
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import hdf5
from dlio_bench.datagen.layout import PHYSICAL, TEST, TRAIN, VALIDATION, Field, FileSpec, Layout, Split, WrittenFile

# Mean, maximum, minimum and standard deviation of a channel, the same to the last bit on every machine.
#
# Sums of floats depend on the order of addition, and so on the processor. Values are therefore rounded to a fixed
# point, which is exact arithmetic, and added as integers: to 2^-40 for the mean, to 2^-20 for the squares (an unbiased
# rounding; over a million values it changes the standard deviation by less than float32 resolves).

_MEAN_BITS, _SQUARE_BITS = 40, 20  # 2^20 values below 2 then sum to less than 2^61 and 2^62


class ChannelStats(Struct, frozen=True):
    """Running sums over float32 values with |x| < 2, at most 2^20 of them at a time."""

    count: int = 0
    total: int = 0  # in units of 2^-40
    squares: int = 0  # in units of 2^-40
    largest: float = -math.inf
    smallest: float = math.inf

    def plus(self, values: npt.NDArray[np.float32]) -> "ChannelStats":
        """These sums with `values` added."""
        wide = values.astype(np.float64)
        coarse = np.rint(wide * 2.0**_SQUARE_BITS).astype(np.int64)
        fine = np.rint(np.multiply(wide, 2.0**_MEAN_BITS, out=wide), out=wide).astype(np.int64)
        return ChannelStats(
            count=self.count + values.size,
            total=self.total + int(fine.sum()),
            squares=self.squares + int(np.square(coarse, out=coarse).sum()),
            largest=max(self.largest, float(values.max())),
            smallest=min(self.smallest, float(values.min())),
        )

    def row(self) -> tuple[float, float, float, float]:
        """mean, max, min, standard deviation: the published column order."""
        mean = self.total / self.count / 2.0**_MEAN_BITS
        # count * squares - total^2 in integers: no cancellation
        spread = self.count * self.squares * 2 ** (2 * (_MEAN_BITS - _SQUARE_BITS)) - self.total**2
        return mean, self.largest, self.smallest, math.sqrt(max(spread, 0)) / self.count / 2.0**_MEAN_BITS


def known_distribution() -> npt.NDArray[np.float32]:
    """The same four figures of the random fill itself: float32 [4].

    Its values are +-m * 2^(e - 127), e uniform in 0..127 and m uniform in [1, 2), so that the mean is 0 and the mean
    square E[m^2] * sum(4^-k) / 128 = 7/3 * 4/3 / 128 = 7/288.
    """
    return np.array([0.0, 2 - 2**-23, -(2 - 2**-23), math.sqrt(7 / 288)], dtype="<f4")


FULL_SHAPE, TINY_SHAPE = (16, 768, 1152), (16, 48, 72)
FULL_BYTES, TINY_BYTES = 60_171_786, 244_746
GROUP, LIBVER = "climate", ("v108", "v108")  # this version bound gives the published size to the byte
# TMQ, U850, V850, UBOT, VBOT, QREFHT, PS, PSL, T200, T500, PRECT, TS, TREFHT, Z1000, Z200, ZBOT
CHANNELS = 16
SOURCE = (
    "NERSC/DL-Parallel-IO @290ed4a: slides Project_Progress_20180713 s13-s23 (HDFView); writer "
    "azrael417/ClimDeepLearn @e2b6ca1 semanticsegm/tiramisu-tf/reformat_files.py"
)

# Class frequencies 0.982 / 0.00071 / 0.017 of background, tropical cyclone and atmospheric river, as thresholds on
# 32-bit words. Source: mascarpone-tiramisu-tf-singlefile.py; the background takes what they leave of 1.
_CYCLONE = round(0.00071 * 2**32)
_CYCLONE_OR_RIVER = round((0.00071 + 0.017) * 2**32)

_FIRST_YEAR, _DAYS, _STEPS, _RUNS = 2106, 365, 8, 3  # CAM5 counts no leap days; 3-hourly; run numbers are ours
# DL-Parallel-IO tiramisu_helpers.py, load_data: the sorted names in the order of this seed's permutation, cut at
# int(0.8 n) and int(0.9 n) into training, test and validation. (Slides count 6 273 for validation, the code 6 274.)
_SPLIT_SEED, _ALL_FILES = 12345, 62_738
_SPLITS = (TRAIN, VALIDATION, TEST)
_IN_ORDER = (TRAIN, TEST, VALIDATION)  # of the permutation
_CHANNEL, _LABELS = 0, CHANNELS  # streams: one a channel, then the labels
_SLAB = 1 << 16  # values; drawn, measured and checked while they are in the processor's cache
_buffers = threading.local()


# DeepCAM: 121 266 training and 15 158 validation samples, as its checker demands, are int(0.8 n) and int(0.1 n) of this
# n alone. Its files sum to 9.1 TB, where 8.8 TB are published.
_DEEPCAM_FILES = 151_583
DEEPCAM_BYTES, DEEPCAM_TINY_BYTES = 60_168_646, 241_606
DEEPCAM_SOURCE = (
    "mlcommons/hpc @2c627d4, deepcam/src/deepCam/data/cam_hdf5_dataset.py and src/utils (split_data.py, "
    "summarize_data.py); the counts of samples: the checker of MLPerf HPC's logs"
)


def layout(tiny: bool, fill: str, variant: str = "cori") -> Layout:
    """Variant "cori": the 62 738 files data-YYYY-MM-DD-TT-R.h5 of the Cori runs; "summit" is the same files."""
    shape = TINY_SHAPE if tiny else FULL_SHAPE
    plane = shape[1:]
    counts = dict(zip(_SPLITS, split_counts(_ALL_FILES), strict=True))
    return Layout(
        workload="cdb",
        variant=variant,
        container="hdf5",
        fields=(
            *(Field(f"data[{channel}]", "<f4", plane) for channel in range(CHANNELS)),
            Field("labels", "<f4", plane),  # 0, 1, 2 as floats
            Field("stats", "<f4", (CHANNELS, 4)),  # mean, max, min, standard deviation of each channel of this sample
        ),
        splits=tuple(
            Split(
                name=name,
                full_files=files,
                full_samples=files,
                samples_per_file=1,
                file_bytes=TINY_BYTES if tiny else FULL_BYTES,
                payload_bytes=4 * (CHANNELS + 1) * plane[0] * plane[1],
                spec_files=partial(spec_files, split=name),
            )
            for name, files in counts.items()
        ),
        source=SOURCE,
        tiny=tiny,
        fill=fill,
        write=partial(write, shape=shape, fill=fill),
        auxiliary={"stats.h5": partial(write_stats, shape=shape, fill=fill)},
        joint_files=joint_files,
        split_counts=split_counts,
    )


def deepcam(tiny: bool, fill: str) -> Layout:
    """Variant "deepcam": an image a file, its channels last; `labels_0` for labels; folders for the splits."""
    shape = TINY_SHAPE if tiny else FULL_SHAPE
    plane = shape[1:]
    counts = dict(zip(_SPLITS, deepcam_split_counts(_DEEPCAM_FILES), strict=True))
    cori = layout(tiny, fill, "deepcam")
    return replace(
        cori,
        fields=(Field("data", "<f4", (*plane, CHANNELS)), Field("labels_0", "<f4", plane)),
        splits=tuple(
            replace(
                split,
                full_files=counts[split.name],
                full_samples=counts[split.name],
                file_bytes=DEEPCAM_TINY_BYTES if tiny else DEEPCAM_BYTES,
                spec_files=partial(spec_files, split=split.name, folder=f"{split.name}/"),
            )
            for split in cori.splits
        ),
        source=DEEPCAM_SOURCE,
        write=partial(write_deepcam, shape=shape, fill=fill),
        auxiliary={"stats.h5": partial(write_deepcam_stats, shape=shape, fill=fill)},
        joint_files=partial(joint_files, order=_SPLITS, folders=True),
        split_counts=deepcam_split_counts,
    )


def deepcam_split_counts(files: int) -> tuple[int, int, int]:
    """Files for training, validation and testing of so many, as split_data.py cuts them."""
    training, validation = int(0.8 * files), int(0.1 * files)
    return training, validation, files - training - validation


def split_counts(files: int) -> tuple[int, int, int]:
    """Files for training, validation and testing of so many, as load_data cuts them."""
    training, tested = int(0.8 * files), int(0.9 * files)
    return training, files - tested, tested - training


def spec_files(files: int, *, split: str = TRAIN, folder: str = "") -> tuple[FileSpec, ...]:
    """data-2106-01-01-00-1.h5, ...: sorted by name, three runs of each 3-hour step, a calendar without leap days."""
    return tuple(FileSpec(f"{folder}{_name(number)}", number, 1, split) for number in range(files))


def joint_files(
    counts: tuple[int, ...], order: tuple[str, ...] = _IN_ORDER, *, folders: bool = False
) -> tuple[FileSpec, ...]:
    """So many files for training, validation and testing, drawn as published; sorted in a split.

    order: of the splits, in the permutation that they are drawn by. folders: one a split, else one flat folder.
    """
    wanted = dict(zip(_SPLITS, counts, strict=True))
    drawn = np.random.RandomState(_SPLIT_SEED).permutation(sum(counts))
    parts = dict(zip(order, np.split(drawn, np.cumsum([wanted[name] for name in order])[:-1]), strict=True))
    files = [(int(number), name) for name in wanted for number in np.sort(parts[name])]
    return tuple(
        FileSpec(f"{f'{name}/' if folders else ''}{_name(number)}", first, 1, name)
        for first, (number, name) in enumerate(files)
    )


def write(path: Path, spec: FileSpec, seed: int, *, shape: tuple[int, int, int], fill: str) -> WrittenFile:
    """One file, which holds one sample. OSError."""
    data = _buffer(shape)
    labels, stats, checksums = (physical.make if fill == PHYSICAL else make_random)(seed, spec.first, data)
    offsets = hdf5.write_chunks(path, GROUP, {"data": data, "labels": labels, "stats": stats}, LIBVER)
    plane = labels.nbytes
    starts = [offsets["data"] + channel * plane for channel in range(CHANNELS)] + [offsets["labels"], offsets["stats"]]
    lengths = [plane] * (CHANNELS + 1) + [stats.nbytes]
    return WrittenFile(
        extents=np.array([starts, lengths, lengths], dtype=np.int64).T[None],
        checksums=np.array([[*checksums, crc32c(labels.data), crc32c(stats.data)]], dtype=np.uint32),
    )


def write_deepcam(path: Path, spec: FileSpec, seed: int, *, shape: tuple[int, int, int], fill: str) -> WrittenFile:
    """One file, which holds one sample. OSError."""
    data = _buffer(shape)
    labels, *_ = (physical.make if fill == PHYSICAL else make_random)(seed, spec.first, data)
    stored = {"data": np.ascontiguousarray(np.moveaxis(data, 0, -1)), "labels_0": labels}
    offsets = hdf5.write_chunks(path, GROUP, stored, LIBVER)
    extents = [[offsets[name], values.nbytes, values.nbytes] for name, values in stored.items()]
    checksums = [crc32c(values.data) for values in stored.values()]
    return WrittenFile(np.array([extents], dtype=np.int64), np.array([checksums], dtype=np.uint32))


def make_random(seed: int, sample: int, data: Plane) -> tuple[Plane, Plane, list[int]]:
    """Fill `data`, [16, rows, columns]; labels [rows, columns], stats [16, 4], and each channel's CRC32C."""
    rows, checksums = [], []
    for channel in range(CHANNELS):
        values = data[channel].reshape(-1)
        source = random_bytes.source(seed, sample, _CHANNEL + channel)
        measured, crc = ChannelStats(), 0
        for start in range(0, values.size, _SLAB):
            slab = random_bytes.floats(source, min(_SLAB, values.size - start))
            values[start : start + slab.size] = slab
            measured = measured.plus(slab)
            crc = crc32c(slab.data, crc)
        rows.append(measured.row())
        checksums.append(crc)
    labels = _labels(random_bytes.source(seed, sample, _LABELS), data[0].size).reshape(data.shape[1:])
    return labels, np.array(rows, dtype="<f4"), checksums


def write_stats(path: Path, seed: int, *, shape: tuple[int, int, int], fill: str) -> None:
    """stats.h5: mean, max, min, standard deviation of each channel over the whole data set, float32 [16, 4]. OSError.

    Under the random fill these are the values of the distribution that all channels are drawn from, known exactly.
    Under the physical one means and deviations are those of its first samples, and the bounds hold for all of them.
    """
    hdf5.write_chunks(path, GROUP, {"stats": _known_stats(seed, shape, fill)}, LIBVER)


def write_deepcam_stats(path: Path, seed: int, *, shape: tuple[int, int, int], fill: str) -> None:
    """stats.h5 as DeepCAM has it: the same, by other names, and the number of samples that they were taken from."""
    mean, largest, smallest, deviation = _known_stats(seed, shape, fill).T
    squares = np.square(mean) + np.square(deviation)
    count = np.array([_DEEPCAM_FILES], dtype="<i8")
    known = {"count": count, "mean": mean, "sqmean": squares, "minval": smallest, "maxval": largest}
    hdf5.write_chunks(path, GROUP, known, LIBVER)


def _known_stats(seed: int, shape: tuple[int, int, int], fill: str) -> Plane:
    """Mean, maximum, minimum and standard deviation of each channel, [16, 4]."""
    return np.tile(known_distribution(), (CHANNELS, 1)) if fill != PHYSICAL else physical.dataset_stats(seed, shape)


def _labels(source: np.random.SFC64, pixels: int) -> npt.NDArray[np.float32]:
    drawn = random_bytes.integers(source, pixels)
    river = (drawn < _CYCLONE_OR_RIVER).view(np.uint8)
    return (2 * river - (drawn < _CYCLONE).view(np.uint8)).astype("<f4")  # 1 where both hold


def _name(number: int) -> str:
    step, run = divmod(number, _RUNS)
    day, hours = divmod(step, _STEPS)
    year, day = divmod(day, _DAYS)
    when = date(2001, 1, 1) + timedelta(days=day)  # any year without a leap day
    return f"data-{_FIRST_YEAR + year}-{when:%m-%d}-{hours:02d}-{run + 1}.h5"


def _buffer(shape: tuple[int, int, int]) -> npt.NDArray[np.float32]:
    """One array a thread, used again for each file: fresh memory is slower to touch than the disk to write."""
    if getattr(_buffers, "shape", None) != shape:
        _buffers.shape, _buffers.data = shape, np.empty(shape, dtype="<f4")
    data: npt.NDArray[np.float32] = _buffers.data
    return data
