"""CosmoFlow's files, in the three generations that were published: TFRecords of 128^3 voxels."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import example, tfrecord
from dlio_bench.datagen.formats.tfrecord import Piece
from dlio_bench.datagen.layout import TRAIN, Field, FileSpec, Layout, Split, Written

FULL_SIDE, TINY_SIDE = 128, 16  # voxels
REDSHIFTS, PARAMETERS = 4, 4  # MLPerf: 0, 0.5, 1.5, 3; Omega_m, sigma_8, n_s, H_0
SC18_SAMPLES, SC18_PARAMETERS = 64, 3
_FRAME = tfrecord.HEAD + tfrecord.TAIL
_VOXELS, _LABELS = 0, 1  # streams
_SUBVOLUMES = 64  # 128^3 pieces of a 512^3 simulation

# Particle counts of the random fill. A random byte b becomes 0 below a threshold, and max(1, 60 // (256 - b)) above it:
# mean near 1, a long tail, and a threshold that varies a little from sample to sample, chosen so that the GZIP file
# has the published size, 2 828 486 B +- 71 311 (DLIO, configs/workload/cosmoflow_v100.yaml).
_LARGEST_COUNT = 60
_THRESHOLD, _THRESHOLDS = 204, 9
_TINY_GZIP_BYTES = 5_640
V1_GZIP_BYTES = 2_828_486


def mlperf_v1(tiny: bool, fill: str) -> Layout:
    """Variant "mlperf-v1": one GZIP TFRecord a sample; `x` int16 [128, 128, 128, 4] as bytes, `y` float [4]."""
    return Layout(
        workload="cosmoflow",
        variant="mlperf-v1",
        container="tfrecord-gzip",
        fields=(_record(mlperf_bytes(_side(tiny))),),
        splits=(
            Split(
                name=TRAIN,
                full_files=524_288,
                full_samples=524_288,
                samples_per_file=1,
                file_bytes=_TINY_GZIP_BYTES if tiny else V1_GZIP_BYTES,
                payload_bytes=2 * REDSHIFTS * _side(tiny) ** 3 + 4 * PARAMETERS,
                spec_files=mlperf_files,
            ),
        ),
        source="sparticlesteve/cosmoflow-benchmark @559eafb; sizes: argonne-lcf/dlio_benchmark cosmoflow_v100.yaml",
        tiny=tiny,
        fill=fill,
        write=partial(write_mlperf, side=_side(tiny), gzip=True),
        auxiliary={},
    )


def mlperf_v07(tiny: bool, fill: str) -> Layout:
    """Variant "mlperf-v0.7": the same message, not compressed."""
    message = mlperf_bytes(_side(tiny))
    return Layout(
        workload="cosmoflow",
        variant="mlperf-v0.7",
        container="tfrecord",
        fields=(_record(message),),
        splits=(
            Split(
                name=TRAIN,
                full_files=262_144,
                full_samples=262_144,
                samples_per_file=1,
                file_bytes=message + _FRAME,
                payload_bytes=2 * REDSHIFTS * _side(tiny) ** 3 + 4 * PARAMETERS,
                spec_files=mlperf_files,
            ),
        ),
        source="sparticlesteve/cosmoflow-benchmark @559eafb, README",
        tiny=tiny,
        fill=fill,
        write=partial(write_mlperf, side=_side(tiny), gzip=False),
        auxiliary={},
    )


def sc18(tiny: bool, fill: str) -> Layout:
    """Variant "sc18": 64 samples a file; `data_raw` float32 [128, 128, 128], `label_raw` float32 [3], both as bytes."""
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
        write=partial(write_sc18, side=_side(tiny)),
        auxiliary={},
    )


def mlperf_bytes(side: int) -> int:
    """Bytes of one Example message: 16 777 271 at 128^3."""
    voxels = memoryview(bytes(side**3 * REDSHIFTS * 2))
    return sum(map(len, example.encode({"x": voxels, "y": np.zeros(PARAMETERS, dtype=np.float32)})))


def sc18_bytes(side: int) -> int:
    """Bytes of one Example message: 8 388 674 at 128^3."""
    return sum(map(len, example.encode({"data_raw": bytes(side**3 * 4), "label_raw": bytes(SC18_PARAMETERS * 4)})))


def mlperf_files(files: int) -> tuple[FileSpec, ...]:
    """The pattern train/<subdir>_<basename>_%03i.tfrecord; subdir and base name are ours."""
    names = (divmod(number, _SUBVOLUMES) for number in range(files))
    return tuple(
        FileSpec(f"train/univ_ics_a{simulation:08d}_{piece:03d}.tfrecord", number, 1)
        for number, (simulation, piece) in enumerate(names)
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
    return example.encode({"x": voxels.data.cast("B"), "y": _parameters(labels, PARAMETERS)})


def sc18_example(seed: int, sample: int, side: int) -> Sequence[Piece]:
    """Example of incompressible voxels and parameters in [-1, 1), in pieces."""
    voxels = random_bytes.floats(random_bytes.source(seed, sample, _VOXELS), side**3)
    labels = _parameters(random_bytes.source(seed, sample, _LABELS), SC18_PARAMETERS)
    return example.encode({"data_raw": voxels.data.cast("B"), "label_raw": labels.tobytes()})


def _parameters(source: np.random.SFC64, count: int) -> npt.NDArray[np.float32]:
    """Multiples of 2^-23 in [-1, 1): exact in float32."""
    drawn = (random_bytes.integers(source, count) >> 8).astype(np.int32) - 2**23
    return (drawn / 2**23).astype("<f4")


def _side(tiny: bool) -> int:
    return TINY_SIDE if tiny else FULL_SIDE


def _record(message: int) -> Field:
    return Field("record", "|u1", (message,))
