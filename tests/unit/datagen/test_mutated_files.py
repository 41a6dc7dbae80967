"""Files that anybody may have edited: 800 mutations of each kind end in an answer or in one of our errors.

HDF5 files are mutated in this process: 16,000 mutations by other means crashed HDF5 2.0 never, and the seeds are fixed.
"""

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from dlio_bench.benchmarks.imagenet import images
from dlio_bench.datagen.dataset import changed_files, open_dataset
from dlio_bench.datagen.formats import example, hdf5, tfrecord
from dlio_bench.datagen.index import examine
from dlio_bench.datagen.layout import Field
from dlio_bench.datagen.manifest import NAME, field_bytes
from tests.datasets import made, verify_files
from tests.mutations import MANY, changed, cut, ends_well, mutations

pytestmark = pytest.mark.slow

PICTURES = [images.make(np.random.SFC64(1), 2000)[0].tobytes()]
for _kind in images.KINDS:
    _content = io.BytesIO()
    Image.new("P" if _kind == "GIF" else "RGB", (20, 30)).save(_content, _kind)
    PICTURES.append(_content.getvalue())


@pytest.fixture(scope="module", params=["cdb", "imagenet"])
def folder(request: pytest.FixtureRequest, memory: Path) -> Path:
    """A dataset with a row a field, and one with a row a sample."""
    return made(memory / request.param, request.param, 1).folder


@mutations(MANY // 2)  # on each of the two datasets
def test_manifests(folder: Path, chance: random.Random) -> None:
    path = folder / NAME
    whole = path.read_bytes()

    def use() -> None:
        dataset = open_dataset(folder)
        names = [field.name for field in dataset.manifest.fields]
        ids = np.arange(dataset.samples)
        dataset.locate(ids, names)
        dataset.checksums(ids, names)
        assert 0 < dataset.training_samples <= dataset.samples
        assert all(".." not in dataset.path(number).parts for number in range(len(dataset.manifest.files)))
        if not changed_files(dataset) and chance.random() < 0.1:
            verify_files(dataset)

    try:
        path.write_bytes(changed(json.loads(whole), chance, json.dumps))
        ends_well(use)
    finally:
        path.write_bytes(whole)


HDF5_FIELDS = (Field("data", "<f4", (2, 4)), Field("labels", "<i4", ()))
RECORD = (Field("record", "|u1", (-1,)),)


@pytest.fixture(scope="module")
def hdf5_files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Contiguous, compressed, and in chunks."""
    contents = []
    stored: tuple[dict[str, Any], ...] = ({}, {"compression": "gzip"}, {"chunks": (2, 2, 4)})
    for how in stored:
        path = tmp_path_factory.mktemp("hdf5") / "whole.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("data", data=np.arange(40, dtype="<f4").reshape(5, 2, 4), **how)
            file.create_dataset("labels", data=np.arange(5, dtype="<i4"))
        contents.append(path.read_bytes())
    return contents


@mutations()
def test_hdf5_files(hdf5_files: list[bytes], in_memory: Path, chance: random.Random) -> None:
    content = bytearray(chance.choice(hdf5_files))
    for _ in range(chance.choice((1, 2, 4, 8))):
        at = chance.randrange(len(content))
        if chance.random() < 0.5:
            content[at] = chance.randrange(256)
        else:
            number = chance.choice((0, 1, 1 << 31, 1 << 63, (1 << 64) - 1, len(content)))
            content[at : at + 8] = number.to_bytes(8, "little")
    path = in_memory / "mutated.h5"
    path.write_bytes(content)
    ends_well(lambda: hdf5.locate(path, HDF5_FIELDS))

    def through_library() -> None:
        places = hdf5.locate_rows(path, HDF5_FIELDS)
        opened = hdf5.Filtered(path)
        try:
            opened.fetch("data", int(places[-1, 0, 0]), memoryview(bytearray(field_bytes(HDF5_FIELDS[0]))))
        finally:
            opened.close()

    ends_well(through_library)


@mutations()
def test_tfrecord_files(in_memory: Path, chance: random.Random) -> None:
    compressed, path = chance.random() < 0.5, in_memory / "mutated"
    message = example.encode({"image/encoded": PICTURES[0], "image/class/label": np.array([7])})
    if compressed:
        tfrecord.write_gzip(path, message)
    else:
        tfrecord.write(path, [message, [b"short"]])
    content = path.read_bytes()
    if compressed and chance.random() < 0.5:
        content = gzip.compress(cut(gzip.decompress(content), chance), 1)
    elif chance.random() < 0.5:  # a length that its own checksum confirms
        length = chance.choice((0, 1, len(content), 1 << 31, 1 << 62, (1 << 64) - 1))
        content = tfrecord.head(length) + content[tfrecord.HEAD :]
        content = gzip.compress(content, 1) if compressed else content
    else:
        content = cut(content, chance)
    path.write_bytes(content)
    container = "tfrecord-gzip" if compressed else "tfrecord"
    found = examine(in_memory, container, RECORD, "mutated", images.record_fault if chance.random() < 0.5 else None)
    assert found.refusal or found.written is not None


@mutations()
def test_images(chance: random.Random) -> None:
    content = bytearray(PICTURES[chance.randrange(len(PICTURES))])
    changed = bytearray(cut(bytes(content), chance))
    for _ in range(chance.choice((0, 1, 4))):  # most of all in the header
        if changed:
            changed[chance.randrange(min(64, len(changed)))] = chance.randrange(256)
    reason = images.fault(bytes(changed))
    assert reason is None or reason
    if chance.random() < 0.5:
        ends_well(lambda: images.rgb(bytes(changed)))
