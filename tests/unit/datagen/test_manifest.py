"""The manifest, the extents in both encodings, and opening a dataset that is not what it says."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.dataset import Dataset, changed_files, open_dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import PHYSICAL, RANDOM, WrittenFile
from dlio_bench.datagen.manifest import (
    AFFINE,
    CHECKSUMS,
    EXTENTS,
    NAME,
    TABLE,
    encode_extents,
    file_sha256,
    from_json,
    locate_samples,
    sha256,
    spec_digest,
    to_json,
)
from dlio_bench.errors import DataError, UsageError

HEP = WORKLOADS["hepcnnb"].variants["224"](True, RANDOM)
IMAGENET = WORKLOADS["imagenet"].variants["tfrecord"](True, RANDOM)
V1 = WORKLOADS["cosmoflow"].variants["mlperf-v1"](True, RANDOM)


@pytest.fixture
def hep(tmp_path: Path) -> Dataset:
    """Three tiny HEPCNNB files."""
    return generate(HEP, 3, tmp_path / "hep", 1)


@pytest.fixture
def imagenet(tmp_path: Path) -> Dataset:
    """Two tiny shards."""
    return generate(IMAGENET, 2, tmp_path / "imagenet", 1)


def test_a_manifest_reads_back_as_it_was_written(hep: Dataset) -> None:
    path = hep.folder / NAME
    assert from_json(path.read_bytes(), path) == hep.manifest
    assert to_json(hep.manifest) == path.read_bytes()
    assert hep.digest == sha256(path.read_bytes())


def test_a_manifest_says_what_and_by_what(hep: Dataset) -> None:
    manifest = hep.manifest
    assert (manifest.workload, manifest.variant, manifest.container) == ("hepcnnb", "224", "hdf5")
    assert (manifest.tiny, manifest.fill, manifest.seed, manifest.samples) == (True, "random", 1, 192)
    assert manifest.spec == spec_digest(HEP, 3, 1)
    assert manifest.fields == HEP.fields
    assert manifest.fingerprint["numpy"] == np.__version__
    assert {"machine", "h5py", "isal", "crc32c"} <= set(manifest.fingerprint)


def test_the_digest_depends_on_the_data_alone(hep: Dataset, tmp_path: Path) -> None:
    again = generate(HEP, 3, tmp_path / "elsewhere" / "again", 1)
    assert again.digest == hep.digest
    assert generate(HEP, 3, tmp_path / "seed", 2).digest != hep.digest


def test_the_spec_digest_tells_all_datasets_apart() -> None:
    layouts = [make(tiny, RANDOM) for w in WORKLOADS.values() for make in w.variants.values() for tiny in (False, True)]
    digests = [spec_digest(layout, files, seed) for layout in layouts for files in (1, 2) for seed in (0, 1)]
    digests.append(spec_digest(replace(layouts[0], fill=PHYSICAL), 1, 0))
    assert len(set(digests)) == len(digests)
    assert spec_digest(HEP, 3, 1) == spec_digest(HEP, 3, 1)


def test_regular_layouts_are_a_row_a_field(hep: Dataset) -> None:
    assert hep.manifest.encoding == AFFINE
    assert (hep.folder / EXTENTS).stat().st_size == 128 + 9 * 3 * 8


def test_irregular_layouts_are_a_table(imagenet: Dataset, tmp_path: Path) -> None:
    assert imagenet.manifest.encoding == TABLE
    assert generate(V1, 2, tmp_path / "v1", 1).manifest.encoding == TABLE


@given(
    files=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    first=st.lists(st.integers(0, 1000), min_size=1, max_size=3),
    lengths=st.integers(0, 50),
)
@settings(max_examples=60, deadline=None)
def test_both_encodings_say_the_same(files: list[int], first: list[int], lengths: int) -> None:
    written = [regular(count, first, lengths) for count in files]
    encoding, affine = encode_extents(written)
    assert encoding == AFFINE
    table = np.concatenate([one.extents for one in written])
    ids = np.arange(sum(files))[::-1]
    rows = np.concatenate([np.arange(count) for count in files])[::-1]
    fields = list(range(len(first)))[::-1]
    for one, other in zip(
        locate_samples(AFFINE, affine, ids, rows, fields),
        locate_samples(TABLE, table, ids, rows, fields),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype == np.int64


@pytest.mark.parametrize(("file", "place", "value"), [(0, (1, 0, 0), 1), (1, (2, 0, 1), 9), (1, (0, 1, 2), 9)])
def test_one_irregular_sample_makes_a_table(file: int, place: tuple[int, int, int], value: int) -> None:
    written = [regular(3, [0, 100], 8), regular(3, [0, 100], 8)]
    written[file].extents[place] = value
    assert encode_extents(written)[0] == TABLE


def test_locate_finds_the_file_and_the_bytes(imagenet: Dataset) -> None:
    ids = np.array([0, 127, 64, 63])
    files, offsets, stored, delivered = imagenet.locate(ids, ["record"])
    assert files.tolist() == [0, 1, 1, 0]
    assert offsets.shape == stored.shape == delivered.shape == (4, 1)
    assert offsets[2, 0] == offsets[0, 0] == 12
    assert imagenet.path(1).name == "train-00001-of-01024"
    assert imagenet.checksums(ids, ["record"]).dtype == np.uint32


def test_locate_takes_fields_in_the_order_asked(hep: Dataset) -> None:
    ids = np.array([100, 3])
    _, both, _, lengths = hep.locate(ids, ["label", "data"])
    assert lengths.tolist() == [[4, 3072], [4, 3072]]
    np.testing.assert_array_equal(both[:, 1], hep.locate(ids, ["data"])[1][:, 0])
    np.testing.assert_array_equal(hep.checksums(ids, ["label", "data"])[:, ::-1], hep.checksums(ids, ["data", "label"]))


def test_locate_of_nothing_is_nothing(hep: Dataset) -> None:
    assert [part.shape for part in hep.locate(np.array([], dtype=np.int64), ["data", "label"])] == [(0,), *[(0, 2)] * 3]


@pytest.mark.parametrize("sample", [-1, 192])
def test_a_sample_that_does_not_exist_is_a_mistake_of_the_caller(hep: Dataset, sample: int) -> None:
    with pytest.raises(IndexError, match="192 samples"):
        hep.locate(np.array([sample]), ["data"])
    with pytest.raises(IndexError):
        hep.checksums(np.array([sample]), ["data"])


def test_an_unknown_field_is_named(hep: Dataset) -> None:
    with pytest.raises(UsageError, match=r"'nosuch'.*data, label"):
        hep.locate(np.array([0]), ["nosuch"])


def test_missing_and_resized_files_are_named(tmp_path: Path) -> None:
    dataset = generate(WORKLOADS["cdb"].variants["cori"](True, RANDOM), 3, tmp_path / "cdb", 1)
    assert changed_files(dataset) == []
    dataset.path(1).unlink()
    os.truncate(dataset.path(0), 244_747)
    os.truncate(dataset.path(2), 100)
    (dataset.folder / "stats.h5").unlink()
    grown, gone, short, auxiliary = changed_files(dataset)
    assert "244747 bytes instead of 244746" in grown
    assert dataset.path(1).name in gone
    assert "100 bytes instead of 244746" in short
    assert "stats.h5" in auxiliary


def test_a_folder_without_manifest_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"manifest\.json and is no dataset"):
        open_dataset(tmp_path)
    (tmp_path / "extents.npy").touch()  # somebody removed it, or the generation did not end
    with pytest.raises(DataError, match=r"manifest\.json"):
        open_dataset(tmp_path)
    with pytest.raises(UsageError, match="nowhere"):
        open_dataset(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b'{"a": 1}', b"\xff\xfe"])
def test_a_manifest_that_is_none_is_refused(hep: Dataset, content: bytes) -> None:
    (hep.folder / NAME).write_bytes(content)
    with pytest.raises(DataError, match=str(hep.folder)):
        open_dataset(hep.folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "dlio-bench/dataset/99"}, "dataset/99.*dataset/1"),
        *[({"files": value}, "hep") for value in (3, [{"name": "a"}])],
        *[({name: value}, "hep") for name, value in (("seed", "1"), ("tiny", "yes"), ("fields", None))],
        ({"encoding": "odd"}, "hep"),
        *[(name, name) for name in ("spec", "container", "extents_sha256", "fingerprint", "auxiliary")],  # left out
    ],
)
def test_a_damaged_manifest_is_refused(hep: Dataset, change: dict[str, Any] | str, says: str) -> None:
    raw = json.loads((hep.folder / NAME).read_bytes())
    if isinstance(change, str):
        del raw[change]
    else:
        raw |= change
    (hep.folder / NAME).write_text(json.dumps(raw))
    with pytest.raises(DataError, match=says):
        open_dataset(hep.folder)


def test_a_sample_of_absurd_size_is_refused(tmp_path: Path) -> None:
    folder = generate(IMAGENET, 1, tmp_path / "set", 1).folder
    table = np.load(folder / EXTENTS)
    table[0, 0] = (0, 2 << 30, 2 << 30)
    np.save(folder / EXTENTS, table)
    raw = json.loads((folder / NAME).read_bytes())
    raw["extents_sha256"] = file_sha256(folder / EXTENTS)
    raw["files"][0]["bytes"] = 3 << 30
    (folder / NAME).write_text(json.dumps(raw))
    with pytest.raises(DataError, match="at most 1073741824 are served"):
        open_dataset(folder)


@pytest.mark.parametrize("table", [EXTENTS, CHECKSUMS])
def test_altered_tables_are_refused(imagenet: Dataset, table: str) -> None:
    path = imagenet.folder / table
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=table):
        open_dataset(imagenet.folder)
    path.unlink()
    with pytest.raises(DataError, match=table):
        open_dataset(imagenet.folder)


def regular(count: int, first: list[int], length: int) -> WrittenFile:
    rows = np.arange(count)[:, None]
    offsets = np.array(first) + rows * (length + 4)
    lengths = np.full_like(offsets, length)
    return WrittenFile(np.stack([offsets, lengths, lengths], axis=2), np.zeros(offsets.shape, dtype=np.uint32))
