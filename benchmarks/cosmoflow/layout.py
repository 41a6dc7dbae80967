"""CosmoFlow's files, in the generations that were published: TFRecords of 128^3 voxels, at first of 64^3."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from dlio_bench.benchmarks.cosmoflow import physical
from dlio_bench.benchmarks.cosmoflow.generations import ORIGINAL, SAMPLES, SC18, Early
from dlio_bench.benchmarks.cosmoflow.physical import PARAMETERS, parameters
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import example, tfrecord
from dlio_bench.datagen.formats.tfrecord import Piece
from dlio_bench.datagen.layout import PHYSICAL, TEST, TRAIN, VALIDATION, Field, FileSpec, Layout, Split, WrittenFile
from dlio_bench.errors import DataError

FULL_SIDE, TINY_SIDE = 128, 16  # voxels
REDSHIFTS = 4  # MLPerf: 0, 0.5, 1.5, 3
ORIGINAL_FILES = {TRAIN: 400, VALIDATION: 50, TEST: 49}  # a simulation each, of 64 samples
# 2 659 files are named for training, of which 2 658 exist (NERSC/CosmoFlow, branch AugTests, slurm-14141136.out).
SC18_FILES = {TRAIN: 2_658, VALIDATION: 150, TEST: 50}
_FOLDERS = {TRAIN: "train/", VALIDATION: "val/", TEST: "test/"}
_SCORED = "its labels are z-scores, and the published files hold parameters, of which the reader makes z-scores."
_V1_FILES, _V07_FILES, _VALIDATION_FILES = 524_288, 262_144, 65_536
_FRAME = tfrecord.HEAD + tfrecord.TAIL
_VOXELS, _LABELS = 0, 1  # streams
_SUBVOLUMES = 64  # 128^3 pieces of a 512^3 simulation

# Particle counts of the random fill. A random byte b becomes 0 below a threshold, and max(1, 60 // (256 - b)) above it:
# mean near 1, a long tail, and a threshold that varies a little from sample to sample, chosen so that the GZIP file
# has the published size, 2 828 486 B +- 71 311 (DLIO, configs/workload/cosmoflow_v100.yaml).
_LARGEST_COUNT = 60
_THRESHOLD, _THRESHOLDS = 204, 9
_TINY_GZIP_BYTES, _TINY_PACKED_BYTES = 5_640, 6_400
V1_GZIP_BYTES = 2_828_486


def mlperf_v1(tiny: bool, fill: str) -> Layout:
    """Variant "mlperf-v1": one GZIP TFRecord a sample; `x` int16 [128, 128, 128, 4] as bytes, `y` float [4]."""
    side = _cube_side(tiny)
    small = _TINY_PACKED_BYTES if fill == PHYSICAL else _TINY_GZIP_BYTES
    return Layout(
        workload="cosmoflow",
        variant="mlperf-v1",
        container="tfrecord-gzip",
        fields=(_record(mlperf_bytes(side)),),
        splits=_mlperf_splits(_V1_FILES, small if tiny else V1_GZIP_BYTES, side),
        source="sparticlesteve/cosmoflow-benchmark @559eafb; sizes: argonne-lcf/dlio_benchmark cosmoflow_v100.yaml",
        tiny=tiny,
        fill=fill,
        write=partial(physical.write_packed, side=side)
        if fill == PHYSICAL
        else partial(write_mlperf, side=side, gzip=True),
        auxiliary={},
    )


def mlperf_v07(tiny: bool, fill: str) -> Layout:
    """Variant "mlperf-v0.7": the same message, not compressed.

    Under the random fill also the same samples. Under the physical one they are turned as well, plane by plane, so
    that storage which looks for repeated blocks finds few: compressed planes cannot be turned.
    """
    side = _cube_side(tiny)
    message = mlperf_bytes(side)
    return Layout(
        workload="cosmoflow",
        variant="mlperf-v0.7",
        container="tfrecord",
        fields=(_record(message),),
        splits=_mlperf_splits(_V07_FILES, message + _FRAME, side),
        source="sparticlesteve/cosmoflow-benchmark @559eafb, README",
        tiny=tiny,
        fill=fill,
        write=partial(physical.write_mlperf, side=side)
        if fill == PHYSICAL
        else partial(write_mlperf, side=side, gzip=False),
        auxiliary={},
    )


def sc18(tiny: bool, fill: str) -> Layout:
    """Variant "sc18": 64 samples a file; `data_raw` float32 [128, 128, 128], `label_raw` float32 [3], both as bytes.

    The labels are the parameters themselves.
    """
    made = _early_layout(
        SC18,
        SC18_FILES,
        source="NERSC/cosmoflow-sims @0470136 io_Cosmo-3param.py; NERSC/CosmoFlow, branch AugTests @6e50963, "
        "hyper_parameters_Cosmo.py and slurm-14141136.out; Mathuriya et al., arXiv 1808.04728",
        tiny=tiny,
        fill=fill,
    )
    return replace(made, superseded=_SCORED, fault=sc18_fault)


def sc18_fault(content: bytes) -> str | None:
    """Why a record cannot be of sc18: its labels are z-scores, half of which are below 0; parameters never are."""
    try:
        labels = example.decode(content).get("label_raw")
    except DataError:
        return None
    if isinstance(labels, list) and len(labels) == 1 and len(labels[0]) == 4 * SC18.targets:
        values = np.frombuffer(labels[0], SC18.dtype)
        return f"its label {values} is of z-scores: parameters are above 0." if (values <= 0).any() else None
    return None


def original(tiny: bool, fill: str) -> Layout:
    """Variant "original-64": 64 samples a file; `data_raw` float64 [64, 64, 64], `label_raw` float64 [2], as bytes.

    499 simulations, each cut into 64 cubes; a file of the training split has cubes of any of its 400 simulations.
    """
    return _early_layout(
        ORIGINAL,
        ORIGINAL_FILES,
        source="NERSC/CosmoFlow @28937fa, README-original (62 GB), io_Cosmo.py, hyper_parameters_Cosmo.py",
        tiny=tiny,
        fill=fill,
    )


def mlperf_bytes(side: int) -> int:
    """Bytes of one Example message: 16 777 271 at 128^3."""
    voxels = memoryview(bytes(side**3 * REDSHIFTS * 2))
    return sum(map(len, example.encode({"x": voxels, "y": np.zeros(PARAMETERS, dtype=np.float32)})))


def early_bytes(generation: Early, side: int) -> int:
    """Bytes of one Example message: 8 388 674 at SC18's 128^3."""
    voxels, labels = (bytes(count * generation.itemsize) for count in (side**3, generation.targets))
    return sum(map(len, example.encode({"data_raw": voxels, "label_raw": labels})))


class Numbers(NamedTuple):
    """The published numbers of a split's simulations, or files: `own` from `first` on, of those of all splits."""

    first: int
    own: int
    all: int

    def of(self, position: int) -> int:
        """The number at a position; behind all published ones they go on alike, so that no two splits share one."""
        before, position = divmod(position, self.own)
        return before * self.all + self.first + position


def mlperf_files(files: int, *, split: str, numbers: Numbers) -> tuple[FileSpec, ...]:
    """The pattern train/<subdir>_<basename>_%03i.tfrecord; subdir and base name, and so their numbers, are ours.

    `numbers` are those of the split's simulations.
    """
    names = (divmod(number, _SUBVOLUMES) for number in range(files))
    return tuple(
        FileSpec(f"{split}/univ_ics_a{numbers.of(run):08d}_{piece:03d}.tfrecord", number, 1, split)
        for number, (run, piece) in enumerate(names)
    )


def early_files(files: int, *, folder: str, numbers: Numbers) -> tuple[FileSpec, ...]:
    """<i>.tfrecord, where i is one of `numbers`."""
    return tuple(FileSpec(f"{folder}{numbers.of(n)}.tfrecord", n * SAMPLES, SAMPLES) for n in range(files))


def write_mlperf(path: Path, spec: FileSpec, seed: int, *, side: int, gzip: bool) -> WrittenFile:
    """One file, which holds one sample. OSError."""
    message = mlperf_example(seed, spec.first, side)
    return tfrecord.write_gzip(path, message) if gzip else tfrecord.write(path, [message])


def write_early(path: Path, spec: FileSpec, seed: int, *, generation: Early, side: int) -> WrittenFile:
    """One file of many records. OSError."""
    samples = range(spec.first, spec.first + spec.samples)
    return tfrecord.write(path, (early_example(generation, seed, sample, side) for sample in samples))


def mlperf_example(seed: int, sample: int, side: int) -> Sequence[Piece]:
    """Example of counts and parameters in [-1, 1), in pieces."""
    labels = random_bytes.source(seed, sample, _LABELS)
    threshold = _THRESHOLD + int(random_bytes.integers(labels, 2)[0]) % _THRESHOLDS
    count = bytes(0 if b < threshold else max(1, _LARGEST_COUNT // (256 - b)) for b in range(256))
    drawn = random_bytes.octets(random_bytes.source(seed, sample, _VOXELS), side**3 * REDSHIFTS).tobytes()
    voxels = np.frombuffer(drawn.translate(count), dtype=np.uint8).astype("<i2")
    return example.encode({"x": voxels.data.cast("B"), "y": parameters(labels, PARAMETERS)})


def early_example(generation: Early, seed: int, sample: int, side: int) -> Sequence[Piece]:
    """Example of incompressible voxels and parameters within a deviation of their means, in pieces.

    A voxel of eight bytes is two float32 words in a row, the upper of which makes it finite and below 2 in size.
    """
    words = side**3 * generation.itemsize // 4
    voxels = random_bytes.floats(random_bytes.source(seed, sample, _VOXELS), words).view(generation.dtype)
    labels = generation.encode_scores(parameters(random_bytes.source(seed, sample, _LABELS), generation.targets))
    return example.encode({"data_raw": voxels.data.cast("B"), "label_raw": labels.tobytes()})


def _early_layout(
    generation: Early,
    splits: Mapping[str, int],
    *,
    source: str,
    tiny: bool,
    fill: str,
) -> Layout:
    """The layout of a generation before MLPerf, given the number of files of each split."""
    side = TINY_SIDE if tiny else generation.side
    message = early_bytes(generation, side)
    return Layout(
        workload="cosmoflow",
        variant=generation.variant,
        container="tfrecord",
        fields=(_record(message),),
        splits=tuple(
            Split(
                name=name,
                full_files=files,
                full_samples=files * SAMPLES,
                samples_per_file=SAMPLES,
                file_bytes=SAMPLES * (message + _FRAME),
                payload_bytes=generation.itemsize * (side**3 + generation.targets),
                spec_files=partial(early_files, folder=_FOLDERS[name], numbers=numbers),
            )
            for (name, files), numbers in zip(splits.items(), _numbers([*splits.values()]), strict=True)
        ),
        source=source,
        tiny=tiny,
        fill=fill,
        write=partial(physical.write_early if fill == PHYSICAL else write_early, generation=generation, side=side),
        auxiliary={},
        generator=3,  # before it the random fill had no parameters, and sc18 had z-scores
    )


def _mlperf_splits(training: int, file_bytes: int, side: int) -> tuple[Split, ...]:
    """Folders train/ and validation/."""
    published = {TRAIN: training, VALIDATION: _VALIDATION_FILES}
    simulations = _numbers([files // _SUBVOLUMES for files in published.values()])
    return tuple(
        Split(
            name=name,
            full_files=files,
            full_samples=files,
            samples_per_file=1,
            file_bytes=file_bytes,
            payload_bytes=2 * REDSHIFTS * side**3 + 4 * PARAMETERS,
            spec_files=partial(mlperf_files, split=name, numbers=numbers),
        )
        for (name, files), numbers in zip(published.items(), simulations, strict=True)
    )


def _numbers(counts: Sequence[int]) -> list[Numbers]:
    """Of so many simulations, or files, of each split, one split behind the other."""
    return [Numbers(sum(counts[:split]), count, sum(counts)) for split, count in enumerate(counts)]


def _cube_side(tiny: bool) -> int:
    return TINY_SIDE if tiny else FULL_SIDE


def _record(message: int) -> Field:
    return Field("record", "|u1", (message,))
