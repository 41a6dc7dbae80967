"""Physical CosmoFlow samples: counts, sizes, what the parameters do, and files put together from compressed pieces."""

import gzip
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.benchmarks.cosmoflow import physical
from dlio_bench.benchmarks.cosmoflow.generations import EARLY, Early
from dlio_bench.benchmarks.cosmoflow.layout import Numbers
from dlio_bench.benchmarks.layouts import layout_of
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import example, tfrecord
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import PHYSICAL, RANDOM, TEST, TRAIN, VALIDATION, FileSpec, Layout
from dlio_bench.errors import DataError

pytestmark = pytest.mark.slow

SEED = 5
VARIANTS = WORKLOADS["cosmoflow"].variants
V1, V07, SC18 = (VARIANTS[name](False, PHYSICAL) for name in ("mlperf-v1", "mlperf-v0.7", "sc18"))


@pytest.fixture(scope="module")
def packed(
    tmp_path_factory: pytest.TempPathFactory,
) -> list[tuple[int, npt.NDArray[np.int16], npt.NDArray[np.float32]]]:
    """60 files of MLPerf v1: stored bytes, counts (every eighth voxel along the first axis) and parameters."""
    folder = tmp_path_factory.mktemp("v1")
    found = []
    for spec in V1.spec_files(60):
        path = folder / "sample"
        written = V1.write(path, spec, SEED)
        out = bytearray(16_777_271)
        tfrecord.decode_gzip(memoryview(path.read_bytes()), memoryview(out))
        assert crc32c(out) == written.checksums[0, 0]
        size = path.stat().st_size
        assert written.extents.tolist() == [[[0, size, len(out)]]]
        features = example.decode(out)
        counts = np.frombuffer(features["x"][0], dtype="<i2").reshape(128, 128, 128, 4)
        found.append((size, counts[::8].copy(), np.array(features["y"])))
    return found


def test_any_gunzip_opens_a_packed_file(tmp_path: Path) -> None:
    V1.write(tmp_path / "sample", FileSpec("sample", 3, 1), SEED)
    content = gzip.decompress((tmp_path / "sample").read_bytes())  # it checks the CRC and the length
    assert len(content) == 16_777_287
    (record,) = tfrecord.records(tmp_path / "sample", compressed=True)  # both CRCs of the frame
    assert record == content[12:-4]


def test_packed_files_have_the_published_size(packed: list) -> None:
    sizes = np.array([size for size, _, _ in packed])
    assert sizes.mean() == pytest.approx(2_828_486, rel=0.015)
    assert sizes.std() == pytest.approx(71_311, rel=0.25)
    assert np.abs(sizes - 2_828_486).max() < 200_000


def test_counts_are_as_calibrated(packed: list) -> None:
    empty = np.mean([(counts == 0).mean(axis=(0, 1, 2)) for _, counts, _ in packed], axis=0)
    np.testing.assert_allclose(empty, [0.70, 0.64, 0.54, 0.46], atol=0.02)
    means = np.mean([counts.mean(axis=(0, 1, 2)) for _, counts, _ in packed], axis=0)
    np.testing.assert_allclose(means, 1, atol=0.02)
    assert min(counts.min() for _, counts, _ in packed) == 0
    labels = np.array([labels for _, _, labels in packed])
    assert labels.shape == (60, 4)
    assert -1 <= labels.min() < -0.9
    assert 0.9 < labels.max() < 1


def test_parameters_can_be_learned_from_the_field(packed: list) -> None:
    rows = []
    for _, counts, _ in packed:
        logs = np.log1p(counts.astype(np.float32))
        steps = np.abs(np.diff(logs, axis=2)).mean(axis=(0, 1, 2))
        rows.append([*logs.std(axis=(0, 1, 2)), *steps, 1])
    known, labels = np.array(rows), np.array([labels for _, _, labels in packed])
    fit = np.linalg.lstsq(known[:40], labels[:40], rcond=None)[0]
    left = labels[40:] - known[40:] @ fit
    explained = 1 - np.square(left).mean(axis=0) / labels[40:].var(axis=0)
    assert explained[1] > 0.9  # sigma_8: the strength
    assert explained[0] > 0.3  # Omega_m: the spectrum


@pytest.mark.parametrize("layout", [V07, SC18], ids=["v0.7", "sc18"])
def test_uncompressed_records_hold_counts_that_are_nowhere_else(layout: Layout, tmp_path: Path) -> None:
    seen: set[bytes] = set()
    means = []
    for number in range(6):
        layout.write(tmp_path / "a", FileSpec("a", number, 1), SEED)
        (record,) = tfrecord.records(tmp_path / "a")
        raw = next(iter(example.decode(record).values()))[0]
        counts = np.frombuffer(raw, dtype="<i2" if layout is V07 else "<f4").reshape(128, -1)
        seen |= {plane.tobytes() for plane in counts}
        means.append(counts.mean())
        assert (counts == np.rint(counts)).all()
        assert counts.min() == 0
    assert len(seen) > 0.99 * 6 * 128  # planes of one pool, but turned
    np.testing.assert_allclose(means, 1 if layout is V07 else 8, rtol=0.08)


@pytest.mark.parametrize("generation", EARLY.values(), ids=EARLY)
def test_no_plane_of_counts_comes_again_not_even_turned(generation: Early, tmp_path: Path) -> None:
    tiny = VARIANTS[generation.variant](True, PHYSICAL)
    planes, largest = [], []
    for spec in tiny.spec_files(8):
        tiny.write(tmp_path / "a", spec, SEED)
        raw = b"".join(example.decode(record)["data_raw"][0] for record in tfrecord.records(tmp_path / "a"))
        counts = np.sort(np.frombuffer(raw, dtype=generation.dtype).reshape(64 * 16, 16 * 16))
        assert (counts == np.rint(counts)).all()
        assert counts.min() == 0
        planes += [plane.tobytes() for plane in counts]
        largest.append(counts.max())
    assert len(set(planes)) > 0.99 * len(planes)  # a tiny plane may be nearly empty
    assert len(set(largest)) > 4


@pytest.mark.parametrize("name", VARIANTS)
def test_samples_are_pure_and_no_two_are_alike(name: str, tmp_path: Path) -> None:
    tiny = VARIANTS[name](True, PHYSICAL)
    files, records = set(), []
    for seed in (0, 1):
        for spec in tiny.files({split.name: 3 for split in tiny.splits}):
            records += tiny.write(tmp_path / "a", spec, seed).checksums[:, 0].tolist()
            files.add((tmp_path / "a").read_bytes())
    assert len(set(records)) == len(records)
    assert len(files) == 6 * len(tiny.splits)
    alone = tiny.write(tmp_path / "a", FileSpec("a", tiny.samples_per_file, 1), 0)  # after others, in a file of its own
    assert alone.checksums[0, 0] == records[tiny.samples_per_file]


@pytest.mark.parametrize("generation", EARLY.values(), ids=EARLY)
def test_labels_of_before_mlperf_have_z_scores(generation: Early, tmp_path: Path) -> None:
    tiny = VARIANTS[generation.variant](True, PHYSICAL)
    labels = []
    for spec in tiny.spec_files(6):
        tiny.write(tmp_path / "a", spec, SEED)
        records = [example.decode(record) for record in tfrecord.records(tmp_path / "a")]
        labels += [
            generation.scores(np.frombuffer(record["label_raw"][0], dtype=generation.dtype)) for record in records
        ]
    assert np.shape(labels) == (6 * 64, generation.targets)
    np.testing.assert_allclose(np.mean(labels, axis=0), 0, atol=0.2)
    np.testing.assert_allclose(np.std(labels, axis=0), 1, atol=0.1)


@pytest.mark.parametrize("generation", EARLY.values(), ids=EARLY)
def test_early_labels_are_the_parameters_themselves(generation: Early, tmp_path: Path) -> None:
    tiny = VARIANTS[generation.variant](True, PHYSICAL)
    tiny.write(tmp_path / "a", tiny.spec_files(1)[0], SEED)
    labels = [
        np.frombuffer(example.decode(record)["label_raw"][0], generation.dtype)
        for record in tfrecord.records(tmp_path / "a")
    ]
    np.testing.assert_allclose(np.mean(labels, axis=0), generation.means, rtol=0.1)
    reach = np.sqrt(3) * np.array(generation.deviations)  # of uniform ones
    assert (np.abs(np.array(labels) - generation.means) <= reach * 1.000001).all()


def as_before_generator_3(folder: Path) -> Dataset:
    """A dataset of sc18 as generator 2 made it: its labels are z-scores."""
    layout = replace(VARIANTS["sc18"](True, RANDOM), generator=2)
    return generate(layout, 1, folder, SEED)


def test_an_sc18_dataset_of_z_scores_is_refused(tmp_path: Path) -> None:
    dataset = as_before_generator_3(tmp_path / "data")
    with pytest.raises(DataError, match=r"An earlier version made .* its labels are z-scores"):
        layout_of(dataset)
    assert layout_of(generate(VARIANTS["sc18"](True, RANDOM), 1, tmp_path / "now", SEED)).generator == 3


def test_records_with_z_scores_are_not_indexed_as_sc18() -> None:
    def record(*labels: float) -> bytes:
        parts = example.encode({"data_raw": b"1234", "label_raw": np.array(labels, "<f4").tobytes()})
        return b"".join(map(bytes, parts))

    fault = VARIANTS["sc18"](True, RANDOM).fault
    assert fault is not None
    assert "z-scores" in str(fault(record(0.4, -1.2, 0.9)))
    assert fault(record(0.31, 0.85, 0.96)) is None
    assert fault(b"no message of this kind") is None


def test_splits_are_the_published_ones_in_two_folders() -> None:
    for layout, training in ((V1, 524_288), (V07, 262_144)):
        assert {split.name: split.full_files for split in layout.splits} == {TRAIN: training, VALIDATION: 65_536}
    original = VARIANTS["original-64"](False, PHYSICAL)
    assert {split.name: split.full_samples // 64 for split in original.splits} == {TRAIN: 400, VALIDATION: 50, TEST: 49}
    sc18 = {split.name: split.full_samples for split in SC18.splits}
    assert sc18 == {TRAIN: 170_112, VALIDATION: 150 * 64, TEST: 50 * 64}
    assert [split.spec_files(1)[0].name for split in SC18.splits] == [
        "train/0.tfrecord", "val/2658.tfrecord", "test/2808.tfrecord"
    ]  # fmt: skip
    weight = sum(split.full_files * split.file_bytes for split in original.splits)
    assert 62 < weight / 2**30 < 62.5  # "62 GB"
    named = original.files({TRAIN: 2, VALIDATION: 1, TEST: 1})
    assert [file.name for file in named] == [
        "train/0.tfrecord", "train/1.tfrecord", "val/400.tfrecord", "test/450.tfrecord"
    ]  # fmt: skip
    assert [file.first for file in named] == [0, 64, 128, 192]
    files = V1.files({TRAIN: 70, VALIDATION: 3})
    assert [file.name.split("/")[0] for file in files] == ["train"] * 70 + ["validation"] * 3
    assert [file.first for file in files] == list(range(73))
    assert len({file.name.split("/")[1] for file in files}) == 73


def test_no_simulation_is_in_two_splits_however_large_these_are() -> None:
    train, validation = Numbers(0, 8, 11), Numbers(8, 3, 11)
    assert [train.of(position) for position in range(10)] == [0, 1, 2, 3, 4, 5, 6, 7, 11, 12]
    assert [validation.of(position) for position in range(7)] == [8, 9, 10, 19, 20, 21, 30]


@given(st.lists(st.binary(min_size=1, max_size=3000), max_size=8), st.randoms(use_true_random=False))
def test_pieces_can_be_joined_in_any_order(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], order) -> None:
    path = tmp_path_factory.mktemp("pieces") / "file"
    packed = [physical.pack_piece(memoryview(part)) for part in parts]
    order.shuffle(packed)
    physical.write_pieces(path, b"before", packed, b"after")
    payload = b"before" + b"".join(piece.raw for piece in packed) + b"after"
    whole = tfrecord.head(len(payload)) + payload + tfrecord.tail(crc32c(payload))
    assert zlib.decompress(path.read_bytes(), 31) == whole


@pytest.mark.parametrize("roll", [(0, 0), (3, 0), (0, 5), (7, 2)])
@pytest.mark.parametrize("flip", [(False, False), (True, False), (False, True), (True, True)])
def test_planes_are_rolled_and_flipped(roll: tuple[int, int], flip: tuple[bool, bool]) -> None:
    planes = np.arange(4 * 2 * 24 * 8 * 8).astype("<i2").reshape(4, 2, 24, 8, 8, 1)
    out = np.empty((1, 8, 8, 1), dtype="<i2")
    physical.assemble(planes, (physical.PlaneRun(2, 1, (9,), roll, flip),), out)
    expected = np.flip(planes[2, 1, 9], [axis for axis in (0, 1) if flip[axis]])
    np.testing.assert_array_equal(out[0], np.roll(expected, roll, (0, 1)))


@given(st.floats(-1, 1), st.floats(-1, 1), st.integers(0, 1000))
def test_runs_are_of_the_cells_nearest_to_the_parameters(strength: float, tilt: float, number: int) -> None:
    found = physical.runs(np.random.SFC64(number), 128, strength, tilt)
    assert sum(len(run.planes) for run in found) == 128
    assert np.mean([run.level for run in found]) == pytest.approx((strength + 1) * 1.5, abs=1 / physical.RUNS)
    assert np.mean([run.tilt for run in found]) == pytest.approx((tilt + 1) / 2, abs=1 / physical.RUNS)
    assert len({run.level for run in found}) <= 2
