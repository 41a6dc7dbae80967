"""ImageNet's made pictures: sizes, decoding, classes that can be told apart, and both ways of storing them."""

import io
import re
import warnings
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dlio_bench.benchmarks.imagenet import layout as layouts
from dlio_bench.benchmarks.imagenet import pictures
from dlio_bench.benchmarks.imagenet.layout import CLASSES, image_bytes, label_of, synset
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import example, tfrecord
from dlio_bench.datagen.layout import FILLS, PHYSICAL, RANDOM, TRAIN, VALIDATION

pytestmark = pytest.mark.slow

SEED = 2
BOTH = {TRAIN: 2, VALIDATION: 1}


def decoded(content: bytes | memoryview) -> npt.NDArray[np.uint8]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow warns of what libjpeg finds odd
        image = Image.open(io.BytesIO(content))
        assert (image.format, image.mode) == ("JPEG", "RGB")
        return np.asarray(image)


def picture(sample: int, label: int, size: int, seed: int = SEED) -> tuple[bytes, int, int]:
    return pictures.make(random_bytes.source(seed, sample, 0), seed, sample, label, size)


@given(size=st.integers(100, 60_000), sample=st.integers(0, 2**32 - 1), label=st.integers(1, CLASSES))
@settings(max_examples=30, deadline=None)
def test_a_picture_of_any_size_decodes_to_the_declared_one(size: int, sample: int, label: int) -> None:
    content, width, height = picture(sample, label, size)
    pixels = decoded(content)
    assert pixels.shape == (height, width, 3)
    assert pixels.std() > 5
    assert abs(len(content) - max(size, 1_720)) < 0.1 * size + 250


@pytest.mark.parametrize("size", [8_291_099, 1_000_000, 114_660])
def test_large_pictures_are_of_the_asked_size_to_a_hundredth(size: int) -> None:
    content, width, height = picture(1, 2, size)
    assert len(content) == pytest.approx(size, rel=0.01)
    assert decoded(content).shape == (height, width, 3)
    assert 0.95 < width / height < 2.05


def test_every_strip_decodes_to_the_colour_and_the_contrast_of_its_palette() -> None:
    pool = pictures.pool(SEED)
    strip = pictures.STRIPS
    assert len(set(pool.pieces)) == len(pool.pieces) == pictures.PALETTES * strip
    for number in range(pictures.PALETTES):
        picked = range(number * strip, number * strip + strip)
        body = b"".join(pool.pieces[n] + bytes([0xFF, 0xD0 + n % 8]) for n in picked)
        pixels = decoded(pictures.jpeg_head(64, 8 * strip) + body[:-2] + pictures.END)
        ycc = np.asarray(Image.fromarray(pixels).convert("YCbCr")).astype(float)
        colour, _, _ = pictures.palette(number)
        np.testing.assert_allclose(ycc.mean(axis=(0, 1)) - 128, colour, atol=8)
        assert ycc[..., 0].std() > 10


def test_a_strip_is_independent_of_the_strips_before_it() -> None:
    pieces, single = pictures.pool(SEED).pieces, pictures.jpeg_head(64, 8)
    both = decoded(pictures.jpeg_head(64, 16) + pieces[7] + b"\xff\xd0" + pieces[4_000] + pictures.END)
    np.testing.assert_array_equal(both[8:], decoded(single + pieces[4_000] + pictures.END))
    assert both[:8].std() > 0


def test_amplitudes_fall_with_frequency_as_in_photographs() -> None:
    pixels = np.asarray(Image.fromarray(decoded(picture(3, 1, 400_000)[0])).convert("L")).astype(float)
    blocks = pixels[: len(pixels) // 8 * 8, : pixels.shape[1] // 8 * 8].reshape(len(pixels) // 8, 8, -1, 8)
    rows = np.abs(np.fft.rfft(blocks, axis=3)).mean(axis=(0, 1, 2))
    assert (np.diff(rows[1:4]) < 0).all()
    assert rows[1] > 2 * rows[3]


@pytest.mark.parametrize("size", [8_300, 74_000, 500_000])  # the first is the 1st percentile
def test_pictures_are_scan_data_that_cannot_be_compressed(size: int) -> None:
    content, _, _ = picture(5, 678, size)
    scan = len(content) - content.index(b"\xff\xda")
    assert scan / len(content) > 0.9
    assert b"\xff\xfe" not in content[: len(content) - scan]  # no comments
    assert len(zlib.compress(content, 6)) > 0.9 * size


def test_sizes_over_many_pictures_are_as_published() -> None:
    found = []
    for sample in range(20_000):
        source = random_bytes.source(SEED, sample, 0)
        size = max(image_bytes(int(random_bytes.words(source, 8)[0])), layouts.LEAST_BYTES)
        planned = pictures.plan(source, SEED, sample, label_of(sample), size)
        found.append(pictures.HEAD + int(pictures.pool(SEED).lengths[planned.strips].sum()))
        if sample % 500 == 0:
            assert len(layouts.picture(SEED, sample, 1, PHYSICAL).content) == found[-1]
    assert np.mean(found) == pytest.approx(114_660, rel=0.02)
    assert np.std(found) == pytest.approx(136_076, rel=0.05)


def test_records_written_have_the_planned_sizes(tmp_path: Path) -> None:
    made = layouts.layout(False, PHYSICAL)
    spec = made.spec_files(1)[0]
    written = made.write(tmp_path / "a", spec, SEED)
    planned = [len(layouts.picture(SEED, sample, 1, PHYSICAL).content) for sample in range(0, spec.samples, 5)]
    rest = written.extents[::5, 0, 1] - planned
    assert rest.min() > 400
    assert rest.max() < 600
    assert np.mean(rest) + 16 == pytest.approx(layouts.MEAN_REST, abs=8)
    (tmp_path / "a").unlink()


def test_labels_are_balanced_and_shuffled() -> None:
    labels = [label_of(sample) for sample in range(10_000)]
    assert Counter(labels) == dict.fromkeys(range(1, 1001), 10)
    assert labels[:1000] != labels[1000:2000]
    assert abs(np.corrcoef(labels[:-1], labels[1:])[0, 1]) < 0.2


def test_classes_can_be_learned_from_pixels() -> None:
    classes = [7, 130, 222, 341, 458, 500, 613, 777, 801, 999]
    features, truth = [], []
    samples = np.random.default_rng(0).permutation(10_000).tolist()  # the class is told by nothing but the label
    for number in range(400):
        content, _, _ = picture(samples[number], classes[number % 10], 15_000 + number * 50)
        pixels = decoded(content).astype(np.float64)
        parts = np.array_split(pixels, 3)
        texture = [np.abs(np.diff(part, axis=1)).mean() for part in parts]
        features.append([*np.concatenate([part.mean(axis=(0, 1)) for part in parts]), *texture, 100.0])
        truth.append(number % 10)
    values, classes_of = np.array(features) / 100, np.array(truth)
    weights, *_ = np.linalg.lstsq(values[:300], np.eye(10)[classes_of[:300]], rcond=None)
    assert (np.argmax(values[300:] @ weights, axis=1) == classes_of[300:]).mean() > 0.8


def test_no_two_pictures_are_equal_however_small() -> None:
    made = [picture(sample, label_of(sample), 1) for sample in range(1_200)]
    spelt = [picture(2**32 - 1 - sample, 5, 1) for sample in range(800)]
    assert len({content for content, _, _ in made + spelt}) == 2_000
    assert picture(0, 5, 1, seed=0)[0] != picture(0, 5, 1, seed=1)[0]
    back = pow(pictures.SCRAMBLE, -1, pictures.STRIPS**4)
    for sample in (0, 1, 1024, 2**30, 2**32 - 1):
        digits = pictures.plan(random_bytes.source(1, 7, 0), 1, sample, 5, 1).strips[:4] % pictures.STRIPS
        spelt = sum(digit * pictures.STRIPS**place for place, digit in enumerate(digits.tolist()))
        assert spelt * back % pictures.STRIPS**4 == sample  # the first strips alone tell the sample


def test_pictures_are_the_same_on_every_machine() -> None:
    contents = b"".join(picture(sample, 1 + 37 * sample, 9_000)[0] for sample in range(20))
    assert crc32c(contents) == 0x7722B555


@pytest.mark.parametrize("fill", FILLS)
def test_both_variants_hold_the_same_images_by_class(fill: str, tmp_path: Path) -> None:
    shards, raw = layouts.layout(True, fill), layouts.raw_layout(True, fill)
    records = []
    for spec in shards.files(BOTH):
        written = shards.write(tmp_path / "shard", spec, SEED)
        assert len(written.extents) == spec.samples
        records += list(tfrecord.records(tmp_path / "shard"))
    specs = raw.files({TRAIN: 128, VALIDATION: 20})
    assert [spec.first for spec in specs] == list(range(len(records)))
    assert len({spec.name for spec in specs}) == len(specs)
    for spec, record in zip(specs, records, strict=True):
        features = example.decode(record)
        written = raw.write(tmp_path / "image", spec, SEED)
        content = (tmp_path / "image").read_bytes()
        assert content == features["image/encoded"][0]
        assert written.extents.tolist() == [[[0, len(content), len(content)]]]
        assert written.checksums.tolist() == [[crc32c(content)]]
        folder = bytes(features["image/class/synset"][0]).decode()
        if spec.split == TRAIN:
            assert re.fullmatch(rf"{folder}/{folder}_\d+\.JPEG", spec.name)
            assert Path(spec.name).name == bytes(features["image/filename"][0]).decode()
        else:
            assert re.fullmatch(rf"validation/{folder}/ILSVRC2012_val_\d{{8}}\.JPEG", spec.name)
        assert folder == synset(int(features["image/class/label"][0]))
        assert decoded(content).shape[:2] == (features["image/height"][0], features["image/width"][0])


def test_splits_have_the_published_counts() -> None:
    for made in (layouts.layout(False, PHYSICAL), layouts.raw_layout(False, RANDOM)):
        assert [split.full_samples for split in made.splits] == [1_281_167, 50_000]
        assert made.splits[0].full_files * made.splits[0].file_bytes == pytest.approx(146.9e9, rel=0.006)
    validation = layouts.layout(False, PHYSICAL).split(VALIDATION)
    specs = validation.spec_files(128)
    assert (specs[0].name, specs[127].name) == ("validation-00000-of-00128", "validation-00127-of-00128")
    assert {spec.samples for spec in specs} == {390, 391}
    assert sum(spec.samples for spec in specs) == 50_000


@pytest.mark.parametrize("fill", FILLS)
def test_tiny_shards_have_the_stated_mean_size(fill: str, tmp_path: Path) -> None:
    made = layouts.layout(True, fill)
    for split in made.splits:
        sizes = []
        for spec in split.spec_files(40):
            made.write(tmp_path / "a", spec, SEED)
            sizes.append((tmp_path / "a").stat().st_size)
        assert np.mean(sizes) == pytest.approx(split.file_bytes, rel=0.1)


def test_shards_beyond_the_published_ones_repeat_their_sizes() -> None:
    published, twice = (layouts.layout(False, PHYSICAL).split(VALIDATION).spec_files(files) for files in (128, 130))
    assert [spec.samples for spec in twice] == [spec.samples for spec in (*published, *published[:2])]
    assert twice[128].first == 50_000
    assert twice[128].name == "validation-00128-of-00256"


@pytest.mark.parametrize("fill", [PHYSICAL, RANDOM])
def test_even_the_smallest_pictures_are_mostly_scan_data(fill: str) -> None:
    seen = 0
    for sample in range(4000):
        source = random_bytes.source(SEED, sample, 0)
        if image_bytes(int(random_bytes.words(source, 8)[0])) < layouts.LEAST_BYTES:
            content = bytes(layouts.picture(SEED, sample, 1, fill).content)
            assert len(content) - content.index(b"\xff\xda") > 0.9 * len(content)
            seen += 1
    assert seen > 20
