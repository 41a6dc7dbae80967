"""The published layouts, one file of each at full size, and the samples as pure functions of seed and id."""

import io
import math
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import h5py
import numpy as np
import pytest
from crc32c import crc32c
from msgspec.structs import replace
from PIL import Image

from dlio_bench.benchmarks.cdb.layout import ChannelStats, known_distribution
from dlio_bench.benchmarks.imagenet import layout
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import CONTAINERS, example, tfrecord
from dlio_bench.datagen.layout import RANDOM, FileSpec, Layout, WrittenFile
from tests.datasets import LAYOUTS

pytestmark = pytest.mark.slow

SEED = 5
HEP_NAMES = ("label", "weight", "normweight", "psr", "mg", "mn", "jz", "eid")
# Sample 0 of the tiny layouts under seed 5: the CRC32C of its fields' CRC32Cs. No machine may give others.
GOLDEN = {
    "hepcnnb-224": 0x1B512669, "cdb-cori": 0xF483EB92, "cdb-summit": 0xF483EB92,
    "cdb-deepcam": 0x47A4EC35, "imagenet-tfrecord": 0x6E512A3D, "imagenet-raw": 0xE654B47F,
    "cosmoflow-mlperf-v1": 0xD9600059, "cosmoflow-mlperf-v0.7": 0xD9600059, "cosmoflow-sc18": 0x3E110311,
    "cosmoflow-original-64": 0x558119B8, "wsi-til": 0x44550AA8,
}  # fmt: skip


class Made:
    """One written file."""

    def __init__(self, layout: Layout, spec: FileSpec, folder: Path) -> None:
        self.path, self.spec = folder / Path(spec.name).name, spec
        self.written: WrittenFile = layout.write(self.path, spec, SEED)
        self.size = self.path.stat().st_size

    def stored(self, row: int, column: int) -> bytes:
        offset, length, _ = self.written.extents[row, column].tolist()
        with self.path.open("rb") as file:
            return os.pread(file.fileno(), length, offset)


@pytest.fixture(scope="module")
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """The first file at full size, removed afterwards: some are half a gigabyte."""
    layout = WORKLOADS[request.param[0]].variants[request.param[1]](False, RANDOM)
    made = Made(layout, layout.spec_files(1)[0], tmp_path_factory.mktemp("full"))
    yield made
    made.path.unlink()


def of(workload: str, variant: str) -> pytest.MarkDecorator:
    """A test of the first file of a variant."""
    return pytest.mark.parametrize("full", [(workload, variant)], indirect=True, ids=[variant], scope="module")


@of("hepcnnb", "224")
def test_hep_values_are_in_their_ranges(full: Made) -> None:
    with h5py.File(full.path) as file:
        values = {name: file[name][()] for name in HEP_NAMES}
        image = file["data"][7]
    signal = values["label"] == 1
    assert 250 < signal.sum() < 460
    assert set(values["label"]) == set(values["psr"]) == {0, 1}
    assert set(values["jz"][signal]) == {0}
    assert set(values["jz"][~signal]) == set(range(3, 12))
    assert set(values["mg"][signal]) == {1400.0}
    assert set(values["mn"][~signal]) == {0.0}
    assert values["normweight"].min() > 0
    assert values["normweight"].max() <= 1
    np.testing.assert_array_equal(values["weight"], values["normweight"] * 8)
    assert values["eid"].min() >= 0
    assert np.isfinite(image).all()
    assert np.abs(image).max() < 2


@of("cdb", "cori")
def test_climate_labels_have_the_published_frequencies(full: Made) -> None:
    labels = np.frombuffer(full.stored(0, 16), dtype="<f4")
    values, counts = np.unique(labels, return_counts=True)
    assert values.tolist() == [0, 1, 2]
    sigmas = np.sqrt(counts)  # Poisson
    assert (np.abs(counts - labels.size * np.array([0.98229, 0.00071, 0.017])) < 4 * sigmas).all()


@of("cdb", "cori")
def test_climate_stats_are_those_of_the_sample(full: Made) -> None:
    stats = np.frombuffer(full.stored(0, 17), dtype="<f4").reshape(16, 4)
    for channel in (0, 9):
        values = np.frombuffer(full.stored(0, channel), dtype="<f4").astype(np.float64)
        expected = [values.mean(), values.max(), values.min(), values.std()]
        np.testing.assert_allclose(stats[channel], expected, rtol=2e-7, atol=1e-9)
    np.testing.assert_allclose(stats[:, 3], known_distribution()[3], rtol=0.01)


def test_channel_stats_do_not_depend_on_the_order_of_addition() -> None:
    values = random_bytes.floats(random_bytes.source(1, 2, 3), 10_000)
    assert ChannelStats().plus(values).row() == ChannelStats().plus(values[:77]).plus(values[:76:-1].copy()).row()


def test_the_stats_file_is_of_the_whole_data_set(tmp_path: Path) -> None:
    layout = WORKLOADS["cdb"].variants["cori"](False, RANDOM)
    layout.auxiliary["stats.h5"](tmp_path / "stats.h5", SEED)
    with h5py.File(tmp_path / "stats.h5") as file:
        stats = file["climate/stats"]
        assert (stats.shape, stats.dtype) == ((16, 4), np.dtype("<f4"))
        np.testing.assert_allclose(stats[3], [0, 2, -2, math.sqrt(7 / 288)], rtol=1e-6)


def test_climate_names_are_like_the_published_ones() -> None:
    specs = WORKLOADS["cdb"].variants["cori"](False, RANDOM).spec_files(62_738)
    names = [spec.name for spec in specs]
    assert names == sorted(set(names))
    assert names[:4] == [f"data-2106-01-01-0{step}-{run}.h5" for step, run in ((0, 1), (0, 2), (0, 3), (1, 1))]
    assert "data-2106-01-21-05-1.h5" in names  # one that HDFView shows
    assert not any("-02-29-" in name for name in names)


def test_a_compressed_cosmoflow_file_holds_counts_and_parameters(tmp_path: Path) -> None:
    layout = WORKLOADS["cosmoflow"].variants["mlperf-v1"](False, RANDOM)
    specs = layout.spec_files(65)
    assert [specs[n].name.split("/")[0] for n in (0, 64)] == ["train", "train"]
    made = Made(layout, specs[0], tmp_path)
    assert made.written.extents.tolist() == [[[0, made.size, 16_777_271]]]
    (message,) = tfrecord.records(made.path, compressed=True)
    features = example.decode(message)
    assert list(features) == ["x", "y"]
    counts = np.frombuffer(features["x"][0], dtype="<i2").reshape(128, 128, 128, 4)
    assert counts.min() == 0
    assert 0.8 < counts.mean() < 1.2
    assert len(features["y"]) == 4
    assert np.abs(features["y"]).max() <= 1


def test_compressed_cosmoflow_files_have_the_published_size(tmp_path: Path) -> None:
    layout = WORKLOADS["cosmoflow"].variants["mlperf-v1"](False, RANDOM)
    found = np.array([Made(layout, spec, tmp_path).size for spec in layout.spec_files(12)])
    assert abs(found.mean() - 2_828_486) < 200_000
    assert abs(found - 2_828_486).max() < 200_000
    assert 30_000 < found.std() < 120_000


def test_an_uncompressed_cosmoflow_file_has_the_published_size(tmp_path: Path) -> None:
    layout = WORKLOADS["cosmoflow"].variants["mlperf-v0.7"](False, RANDOM)
    made = Made(layout, layout.spec_files(1)[0], tmp_path)
    assert made.size == layout.file_bytes == 16_777_287
    assert made.written.extents.tolist() == [[[12, 16_777_271, 16_777_271]]]
    assert layout.fields[0].shape == (16_777_271,)


@of("cosmoflow", "sc18")
def test_an_sc18_file_has_64_records_and_the_published_size(full: Made) -> None:
    assert full.size == 536_876_160
    extents = tfrecord.index(full.path)
    assert extents[:, 1].tolist() == [8_388_674] * 64
    features = example.decode(full.stored(63, 0))
    assert [(name, len(value[0])) for name, value in features.items()] == [("data_raw", 8_388_608), ("label_raw", 12)]
    assert crc32c(full.stored(63, 0)) == full.written.checksums[63, 0]


@of("imagenet", "tfrecord")
def test_a_shard_has_the_published_features(full: Made) -> None:
    assert full.path.name == "train-00000-of-01024"
    records = list(tfrecord.records(full.path))
    assert len(records) == full.spec.samples == 1251
    boxes = 0
    for record in records[:60]:
        features = example.decode(record)
        assert list(features) == [
            *("image/height", "image/width", "image/colorspace", "image/channels"),
            *("image/class/label", "image/class/synset", "image/class/text"),
            *(f"image/object/bbox/{name}" for name in ("xmin", "xmax", "ymin", "ymax", "label")),
            *("image/format", "image/filename", "image/encoded"),
        ]
        image = Image.open(io.BytesIO(features["image/encoded"][0]))
        assert image.size == (features["image/width"][0], features["image/height"][0])
        assert np.asarray(image).shape[2] == features["image/channels"][0] == 3
        assert 1 <= features["image/class/label"][0] <= 1000
        assert len(features["image/class/synset"][0]) == 9
        corners = [features[f"image/object/bbox/{name}"] for name in ("xmin", "xmax", "ymin", "ymax")]
        assert all(0 <= low < high <= 1 for low, high in zip(*corners[:2], strict=True))
        assert all(0 <= low < high <= 1 for low, high in zip(*corners[2:], strict=True))
        boxes += len(features["image/object/bbox/label"])
    assert 0 < boxes < 60


def test_shards_have_the_published_names_and_counts() -> None:
    specs = WORKLOADS["imagenet"].variants["tfrecord"](False, RANDOM).spec_files(1024)
    published = []  # as build_imagenet_data.py cuts them: 8 threads, then 128 shards each
    threads = np.linspace(0, 1_281_167, 9).astype(int)
    for start, stop in pairwise(threads):
        published += np.diff(np.linspace(start, stop, 129).astype(int)).tolist()
    assert [spec.samples for spec in specs] == published
    assert sum(published) == 1_281_167
    assert specs[1023].name == "train-01023-of-01024"
    beyond = WORKLOADS["imagenet"].variants["tfrecord"](False, RANDOM).spec_files(1025)[1024]
    assert (beyond.name, beyond.first, beyond.samples) == ("train-01024-of-02048", 1_281_167, published[0])


def test_image_sizes_have_the_published_mean_and_deviation() -> None:
    drawn = np.array(
        [layout.image_bytes(int(word)) for word in random_bytes.words(random_bytes.source(1, 2, 3), 60_000)]
    )
    assert abs(drawn.mean() / 114_660 - 1) < 0.02
    assert abs(drawn.std() / 136_076 - 1) < 0.05
    logs = np.log(drawn)
    np.testing.assert_allclose([logs.mean(), logs.std()], [11.210, 0.9375], rtol=0.01)


@pytest.mark.parametrize("level", [0, 1, 5, 19])
@pytest.mark.parametrize("step", [0, 3, 7])
@pytest.mark.parametrize("upper", [True, False])
def test_sizes_at_the_knots_are_the_quantiles_of_the_lognormal(level: int, step: int, upper: bool) -> None:
    word = upper << 63 | 1 << 62 - level | step << 59 - level
    share = 2.0 ** -(level + 1) * (1 - step / 16)
    quantile = NormalDist().inv_cdf(1 - share if upper else share)
    assert layout.image_bytes(word) == pytest.approx(math.exp(11.210 + 0.9375 * quantile), abs=1)


def test_every_word_gives_a_size() -> None:
    found = [layout.image_bytes(word) for word in (0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1)]
    assert min(found) >= 512
    assert max(found) <= 8_291_099


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiny_files_have_the_stated_size(layout: Layout, tmp_path: Path) -> None:
    files = 400 if layout.container == "raw" else 4  # of one image each, whose sizes differ widely
    found = [Made(layout, spec, tmp_path).size for spec in layout.spec_files(files)]
    exact = layout.fields[0].shape != (-1,) and CONTAINERS[layout.container].decode is None
    assert np.mean(found) == pytest.approx(layout.file_bytes, rel=0 if exact else 0.15)
    assert layout.tiny


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sample_is_the_same_alone_and_in_any_file(layout: Layout, tmp_path: Path) -> None:
    spec = layout.spec_files(2)[1]
    whole = Made(layout, spec, tmp_path)
    alone = Made(layout, replace(spec, name="alone", first=spec.first + spec.samples - 1, samples=1), tmp_path)
    assert alone.written.checksums[0].tolist() == whole.written.checksums[-1].tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_two_samples_and_no_two_seeds_are_alike(layout: Layout, tmp_path: Path) -> None:
    crcs: list[int] = []
    for seed in (0, 1):
        for spec in layout.spec_files(3):
            crcs += layout.write(tmp_path / "a", spec, seed).checksums[:, 0].tolist()
    assert len(set(crcs)) == len(crcs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_are_the_same_on_every_machine(layout: Layout, tmp_path: Path) -> None:
    crcs = Made(layout, layout.spec_files(1)[0], tmp_path).written.checksums[0]
    assert crc32c(crcs.astype("<u4").tobytes()) == GOLDEN[f"{layout.workload}-{layout.variant}"]


def test_random_floats_are_finite_and_below_two() -> None:
    values = random_bytes.floats(random_bytes.source(0, 0, 0), 1_000_001)
    assert values.size == 1_000_001
    assert np.isfinite(values).all()
    assert np.abs(values).max() < 2
    bits = values.view("<u4")
    assert np.bitwise_or.reduce(bits) == 0xBFFFFFFF  # every bit but the 30th is used
