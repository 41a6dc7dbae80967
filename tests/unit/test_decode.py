"""What applications make of their samples: against plain references, in every variant, and when bytes are damaged."""

import io
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dlio_bench.benchmarks.cdb.decode import FREQUENCIES, USED
from dlio_bench.benchmarks.imagenet import decode as imagenet
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import example
from dlio_bench.datagen.layout import FILLS, PHYSICAL, RANDOM
from dlio_bench.errors import DataError, UsageError
from tests.datasets import VARIANTS, layout, made, stored_fields


def make(tmp_path: Path, workload: str, variant: str, fill: str = RANDOM, files: int = 2) -> tuple[Dataset, Decode]:
    counts = {split.name: files for split in layout(workload, variant).splits[:2]}
    dataset = made(tmp_path / "data", workload, counts, variant, fill)
    decode = WORKLOADS[workload].decode
    assert decode is not None
    return dataset, decode(dataset)


def delivered(dataset: Dataset, decode: Decode, sample: int) -> memoryview:
    out = memoryview(bytearray(decode.sample_bytes))
    decode.apply(sample, stored_fields(dataset, decode.fields, sample), out)
    return out


@pytest.mark.parametrize(("workload", "variant"), VARIANTS)
def test_every_sample_of_every_variant_is_decoded_alike_twice(tmp_path: Path, workload: str, variant: str) -> None:
    dataset, decode = make(tmp_path, workload, variant)
    ids = {0, 1, dataset.training_samples, dataset.samples - 1} - {dataset.samples}
    found = {sample: bytes(delivered(dataset, decode, sample)) for sample in ids}
    assert {len(content) for content in found.values()} == {decode.sample_bytes}
    assert len(set(found.values())) == len(ids)
    assert all(bytes(delivered(dataset, decode, sample)) == content for sample, content in found.items())


@pytest.mark.parametrize("fill", FILLS)
def test_hepcnnb_is_transposed(tmp_path: Path, fill: str) -> None:
    dataset, decode = make(tmp_path, "hepcnnb", "224", fill)
    out = delivered(dataset, decode, 70)  # the seventh of the second file
    with h5py.File(dataset.path(1)) as file:
        image = np.transpose(file["data"][()], [0, 2, 3, 1])[6]
        rest = [file[name][6] for name in ("label", "weight", "normweight", "psr")]
    assert bytes(out) == image.tobytes() + b"".join(value.tobytes() for value in rest)


@pytest.mark.parametrize("fill", FILLS)
def test_cdb_is_normalised_by_mean_and_maximum(tmp_path: Path, fill: str) -> None:
    dataset, decode = make(tmp_path, "cdb", "cori", fill)
    out = delivered(dataset, decode, 1)
    with h5py.File(dataset.folder / "stats.h5") as file:
        mean, largest = file["climate/stats"][list(USED), :2].T
    with h5py.File(dataset.path(1)) as file:
        data, stored = file["climate/data"][list(USED)], file["climate/labels"][()]
    planes = np.frombuffer(out, np.float32).reshape(6, *stored.shape)
    np.testing.assert_allclose(
        planes[:4], (data - mean[:, None, None]) / (largest - mean)[:, None, None], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(planes[4].view(np.int32), stored.astype(np.int32))
    inverse = np.array([1 / share for share in FREQUENCIES])
    np.testing.assert_allclose(planes[5], (inverse / inverse.sum())[stored.astype(int)], rtol=1e-6)


def test_cdb_refuses_labels_that_are_none(tmp_path: Path) -> None:
    dataset, decode = make(tmp_path, "cdb", "cori")
    parts = stored_fields(dataset, decode.fields, 0)
    for wrong in (3.0, -1.0, float("nan")):
        np.frombuffer(parts[4], np.float32)[5] = wrong
        with pytest.raises(DataError, match="labels"):
            decode.apply(0, parts, memoryview(bytearray(decode.sample_bytes)))


def test_cdb_without_its_stats_is_told_so(tmp_path: Path) -> None:
    dataset, _ = make(tmp_path, "cdb", "cori")
    (dataset.folder / "stats.h5").unlink()
    workload = WORKLOADS["cdb"].decode
    assert workload is not None
    with pytest.raises(DataError, match=r"stats\.h5"):
        workload(dataset)


@pytest.mark.parametrize("variant", ["mlperf-v1", "mlperf-v0.7"])
def test_cosmoflow_is_the_logarithm_of_counts(tmp_path: Path, variant: str) -> None:
    dataset, decode = make(tmp_path, "cosmoflow", variant, PHYSICAL)
    whole = np.frombuffer(delivered(dataset, decode, 1), np.float32)
    features = example.decode(stored_fields(dataset, decode.fields, 1)[0])
    counts = np.frombuffer(features["x"][0], "<i2").astype(np.float64)
    np.testing.assert_allclose(whole[:-4], np.log(counts + 1), rtol=1e-6)
    np.testing.assert_array_equal(whole[-4:], features["y"])


def test_the_original_is_divided_by_its_mean_and_its_labels_become_z_scores(tmp_path: Path) -> None:
    dataset, decode = make(tmp_path, "cosmoflow", "original-64", PHYSICAL, files=1)
    whole = np.frombuffer(delivered(dataset, decode, 5), np.float32)
    features = example.decode(stored_fields(dataset, decode.fields, 5)[0])
    voxels = np.frombuffer(features["data_raw"][0], "<f8")
    np.testing.assert_allclose(whole[:-2], voxels / voxels.mean(), rtol=1e-6)
    stored = np.frombuffer(features["label_raw"][0], "<f8")
    expected = (stored - [0.2995679839999999, 0.8610806619999997]) / [0.02905168635566176, 0.04023372385668218]
    np.testing.assert_allclose(whole[-2:], expected, rtol=1e-5)


def test_sc18_is_divided_by_its_mean_and_its_labels_become_z_scores(tmp_path: Path) -> None:
    dataset, decode = make(tmp_path, "cosmoflow", "sc18", PHYSICAL, files=1)
    whole = np.frombuffer(delivered(dataset, decode, 5), np.float32)
    features = example.decode(stored_fields(dataset, decode.fields, 5)[0])
    assert whole[:-3].mean(dtype=np.float64) == pytest.approx(1)
    stored = np.frombuffer(features["label_raw"][0], "<f4").astype(np.float64)
    np.testing.assert_allclose(whole[-3:], (stored - [0.3, 0.8628, 0.95]) / [0.02853, 0.04887, 0.028], rtol=1e-3)


@pytest.mark.parametrize("variant", ["tfrecord", "raw"])
def test_imagenet_is_the_crop_of_the_picture(tmp_path: Path, variant: str) -> None:
    dataset, decode = make(tmp_path, "imagenet", variant)
    turns = set()
    for sample in range(2 if variant == "raw" else 12):
        record = stored_fields(dataset, decode.fields, sample)[0]
        content = record if variant == "raw" else example.decode(record)["image/encoded"][0]
        picture = Image.open(io.BytesIO(content)).convert("RGB")
        (left, top, width, height), turned = imagenet.crop(sample, *picture.size)
        turns.add(turned)
        box = (left, top, left + width, top + height)
        small = np.asarray(picture.resize((224, 224), Image.Resampling.BILINEAR, box=box), np.float32)
        expected = (small[:, ::-1] if turned else small) - np.float32([123.68, 116.78, 103.94])
        out = delivered(dataset, decode, sample)
        np.testing.assert_array_equal(np.frombuffer(out, np.float32)[:-1].reshape(224, 224, 3), expected)
        if variant == "tfrecord":
            assert np.frombuffer(out, np.int32)[-1] == example.decode(record)["image/class/label"][0]
    assert variant == "raw" or turns == {True, False}


@pytest.mark.parametrize(("width", "height"), [(500, 375), (331, 500), (96, 90), (700, 224), (1, 3)])
def test_a_validation_image_is_the_centre_of_one_resized_to_256(width: int, height: int) -> None:
    """tensorflow/models, imagenet_preprocessing.py: _aspect_preserving_resize, _central_crop."""
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG")
    image = Image.open(content).convert("RGB")
    shorter = min(width, height)
    whole = image.resize((width * 256 // shorter, height * 256 // shorter), Image.Resampling.BILINEAR)
    left, top = (whole.width - 224) // 2, (whole.height - 224) // 2
    expected = np.asarray(whole.crop((left, top, left + 224, top + 224))).astype(int)
    found, turned = imagenet.picture(3, memoryview(content.getvalue()), training=False)
    assert not turned
    assert np.abs(found - expected).max() <= 1  # the last bit, of coordinates


def test_labels_of_bare_images_follow_their_folders(tmp_path: Path) -> None:
    dataset, decode = make(tmp_path, "imagenet", "raw", files=5)
    folders = [Path(entry.name).parent.name for entry in dataset.manifest.files]
    labels = [int(np.frombuffer(delivered(dataset, decode, n), np.int32)[-1]) for n in range(len(folders))]
    assert labels == [sorted(set(folders)).index(folder) + 1 for folder in folders]


@given(st.integers(0, 2**40), st.integers(1, 5000), st.integers(1, 5000))
def test_a_crop_lies_within_its_picture(sample: int, width: int, height: int) -> None:
    (left, top, columns, rows), _ = imagenet.crop(sample, width, height)
    assert 0 <= left <= left + columns <= width
    assert 0 <= top <= top + rows <= height
    assert min(columns, rows) > 0


def test_crops_differ_from_sample_to_sample_and_turn_half_of_the_time() -> None:
    drawn = [imagenet.crop(sample, 500, 375) for sample in range(1000)]
    assert len(set(drawn)) > 990
    assert 430 < sum(turned for _, turned in drawn) < 570
    areas = np.array([columns * rows / (500 * 375) for (_, _, columns, rows), _ in drawn])
    assert areas.min() < 0.1
    assert areas.max() > 0.9


@pytest.mark.parametrize("variant", ["tfrecord", "raw"])
@pytest.mark.parametrize("harm", ["zeros", "cut"])
def test_a_damaged_picture_is_a_data_error(tmp_path: Path, variant: str, harm: str) -> None:
    dataset, decode = make(tmp_path, "imagenet", variant)
    record = stored_fields(dataset, decode.fields, 0)[0]
    content = bytes(record if variant == "raw" else example.decode(record)["image/encoded"][0])
    bad = bytes(len(content)) if harm == "zeros" else content[: len(content) // 2]
    if variant == "tfrecord":
        bad = b"".join(example.encode({"image/encoded": bad, "image/class/label": np.array([1])}))
    with pytest.raises(DataError, match="no JPEG, PNG"):
        decode.apply(0, [memoryview(bad)], memoryview(bytearray(decode.sample_bytes)))


@pytest.mark.parametrize("variant", ["mlperf-v1", "mlperf-v0.7", "sc18", "original-64"])
def test_a_damaged_cosmoflow_record_is_a_data_error(tmp_path: Path, variant: str) -> None:
    _, decode = make(tmp_path, "cosmoflow", variant, files=1)
    for bad in (
        b"".join(example.encode({"z": b"1"})),
        bytes(100),
        b"".join(example.encode({"x": b"12", "y": np.zeros(4, np.float32), "data_raw": b"1234", "label_raw": b"1234"})),
    ):
        with pytest.raises(DataError):
            decode.apply(0, [memoryview(bad)], memoryview(bytearray(decode.sample_bytes)))


def test_data_of_another_kind_are_refused(tmp_path: Path) -> None:
    dataset, _ = make(tmp_path, "cdb", "cori")
    decode = WORKLOADS["hepcnnb"].decode
    assert decode is not None
    with pytest.raises(UsageError, match="no field 'data'"):
        decode(dataset)
