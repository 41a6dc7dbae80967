"""CosmoFlow's files, in the three generations that were published: TFRecords of 128^3 voxels."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from dlio_bench.benchmarks.cosmoflow import physical
from dlio_bench.benchmarks.cosmoflow.physical import PARAMETERS, SC18_PARAMETERS, parameters
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import example, tfrecord
from dlio_bench.datagen.formats.tfrecord import Piece
from dlio_bench.datagen.layout import PHYSICAL, TRAIN, VALIDATION, Field, FileSpec, Layout, Split, Written

FULL_SIDE, TINY_SIDE = 128, 16  # voxels
REDSHIFTS = 4  # MLPerf: 0, 0.5, 1.5, 3
SC18_SAMPLES = 64
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
    side = _side(tiny)
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
    side = _side(tiny)
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

    Training files only: how the others were named and how many there were is not in the sources at hand.
    """
    message = sc18_bytes(_side(tiny))
    return Layout(
        workload="cosmoflow",
        variant="sc18",
        container="tfrecord",
        fields=(_record(message),),
        splits=(
            Split(
                name=TRAIN,
                full_files=2_607,  # 1.4 TB / 536.9 MB
                full_samples=2_607 * SC18_SAMPLES,
                samples_per_file=SC18_SAMPLES,
                file_bytes=SC18_SAMPLES * (message + _FRAME),
                payload_bytes=4 * (_side(tiny) ** 3 + SC18_PARAMETERS),
                spec_files=sc18_files,
            ),
        ),
        source="NERSC/cosmoflow-sims @0470136 io_Cosmo-3param.py; Mathuriya et al., arXiv 1808.04728",
        tiny=tiny,
        fill=fill,
        write=partial(physical.write_sc18 if fill == PHYSICAL else write_sc18, side=_side(tiny)),
        auxiliary={},
    )


def mlperf_bytes(side: int) -> int:
    """Bytes of one Example message: 16 777 271 at 128^3."""
    voxels = memoryview(bytes(side**3 * REDSHIFTS * 2))
    return sum(map(len, example.encode({"x": voxels, "y": np.zeros(PARAMETERS, dtype=np.float32)})))


def sc18_bytes(side: int) -> int:
    """Bytes of one Example message: 8 388 674 at 128^3."""
    return sum(map(len, example.encode({"data_raw": bytes(side**3 * 4), "label_raw": bytes(SC18_PARAMETERS * 4)})))


def mlperf_files(files: int, *, split: str = TRAIN, simulation: int = 0) -> tuple[FileSpec, ...]:
    """The pattern train/<subdir>_<basename>_%03i.tfrecord; subdir and base name, and so their numbers, are ours.

    `simulation` is the number of the split's first one: no simulation is in two splits.
    """
    names = (divmod(number, _SUBVOLUMES) for number in range(files))
    return tuple(
        FileSpec(f"{split}/univ_ics_a{simulation + run:08d}_{piece:03d}.tfrecord", number, 1, split)
        for number, (run, piece) in enumerate(names)
    )


def sc18_files(files: int) -> tuple[FileSpec, ...]:
    """<i>.tfrecord."""
    return tuple(FileSpec(f"{n}.tfrecord", n * SC18_SAMPLES, SC18_SAMPLES) for n in range(files))


def write_mlperf(path: Path, spec: FileSpec, seed: int, *, side: int, gzip: bool) -> Written:
    """One file, which holds one sample. OSError."""
    message = mlperf_example(seed, spec.first, side)
    return tfrecord.write_gzip(path, message) if gzip else tfrecord.write(path, [message])


def write_sc18(path: Path, spec: FileSpec, seed: int, *, side: int) -> Written:
    """One file of many records. OSError."""
    samples = range(spec.first, spec.first + spec.samples)
    return tfrecord.write(path, (sc18_example(seed, sample, side) for sample in samples))


def mlperf_example(seed: int, sample: int, side: int) -> Sequence[Piece]:
    """Example of counts and parameters in [-1, 1), in pieces."""
    labels = random_bytes.source(seed, sample, _LABELS)
    threshold = _THRESHOLD + int(random_bytes.integers(labels, 2)[0]) % _THRESHOLDS
    count = bytes(0 if b < threshold else max(1, _LARGEST_COUNT // (256 - b)) for b in range(256))
    drawn = random_bytes.octets(random_bytes.source(seed, sample, _VOXELS), side**3 * REDSHIFTS).tobytes()
    voxels = np.frombuffer(drawn.translate(count), dtype=np.uint8).astype("<i2")
    return example.encode({"x": voxels.data.cast("B"), "y": parameters(labels, PARAMETERS)})


def sc18_example(seed: int, sample: int, side: int) -> Sequence[Piece]:
    """Example of incompressible voxels and parameters in [-1, 1), in pieces."""
    voxels = random_bytes.floats(random_bytes.source(seed, sample, _VOXELS), side**3)
    labels = parameters(random_bytes.source(seed, sample, _LABELS), SC18_PARAMETERS)
    return example.encode({"data_raw": voxels.data.cast("B"), "label_raw": labels.tobytes()})


def _mlperf_splits(training: int, file_bytes: int, side: int) -> tuple[Split, ...]:
    """Folders train/ and validation/."""
    names: dict[str, tuple[int, Callable[[int], tuple[FileSpec, ...]]]] = {
        TRAIN: (training, mlperf_files),
        VALIDATION: (
            _VALIDATION_FILES,
            partial(mlperf_files, split=VALIDATION, simulation=training // _SUBVOLUMES),
        ),
    }
    return tuple(
        Split(
            name=name,
            full_files=files,
            full_samples=files,
            samples_per_file=1,
            file_bytes=file_bytes,
            payload_bytes=2 * REDSHIFTS * side**3 + 4 * PARAMETERS,
            spec_files=specs,
        )
        for name, (files, specs) in names.items()
    )


def _side(tiny: bool) -> int:
    return TINY_SIDE if tiny else FULL_SIDE


def _record(message: int) -> Field:
    return Field("record", "|u1", (message,))
