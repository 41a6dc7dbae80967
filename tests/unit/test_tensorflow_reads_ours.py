"""TensorFlow's own readers read our files, and TensorFlow still imports after our codec. Skipped without TensorFlow."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.formats import example, tfrecord
from dlio_bench.datagen.layout import FILLS, RANDOM, FileSpec, Layout, Written

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's log is not what is tested
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its dependencies use what later versions of NumPy and Python deprecate
    tf = pytest.importorskip("tensorflow")

VOXELS = 16**3


def write(layout: Layout, folder: Path) -> tuple[Path, FileSpec, Written]:
    spec = layout.spec_files(1)[0]
    path = folder / "file"
    return path, spec, layout.write(path, spec, 1)


@pytest.mark.parametrize(
    ("workload", "variant", "compression"),
    [
        ("imagenet", "tfrecord", ""),
        ("cosmoflow", "sc18", ""),
        ("cosmoflow", "mlperf-v0.7", ""),
        ("cosmoflow", "mlperf-v1", "GZIP"),
    ],
)
def test_tfrecorddataset_gives_the_same_records(workload: str, variant: str, compression: str, tmp_path: Path) -> None:
    path, spec, written = write(WORKLOADS[workload].variants[variant](True, RANDOM), tmp_path)
    found = [record.numpy() for record in tf.data.TFRecordDataset(str(path), compression_type=compression)]
    assert found == list(tfrecord.records(path, compressed=bool(compression)))
    assert [crc32c(record) for record in found] == written.checksums[:, 0].tolist()
    assert len(found) == spec.samples


@pytest.mark.parametrize(("variant", "compression"), [("mlperf-v0.7", ""), ("mlperf-v1", "GZIP")])
def test_the_cosmoflow_pipeline_parses_the_sample(variant: str, compression: str, tmp_path: Path) -> None:
    path, _, _ = write(WORKLOADS["cosmoflow"].variants[variant](True, RANDOM), tmp_path)
    (record,) = tf.data.TFRecordDataset(str(path), compression_type=compression)
    features = {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([4], tf.float32)}
    parsed = tf.io.parse_single_example(record, features)
    voxels = tf.reshape(tf.io.decode_raw(parsed["x"], tf.int16), (16, 16, 16, 4)).numpy()
    ours = example.decode(record.numpy())
    np.testing.assert_array_equal(voxels.ravel(), np.frombuffer(ours["x"][0], dtype="<i2"))
    np.testing.assert_array_equal(parsed["y"].numpy(), ours["y"])


def test_the_sc18_pipeline_parses_all_samples(tmp_path: Path) -> None:
    path, spec, _ = write(WORKLOADS["cosmoflow"].variants["sc18"](True, RANDOM), tmp_path)
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in ("data_raw", "label_raw")}
    parsed = [tf.io.parse_single_example(record, features) for record in tf.data.TFRecordDataset(str(path))]
    assert len(parsed) == spec.samples
    for one in parsed:
        assert tf.io.decode_raw(one["data_raw"], tf.float32).shape == (VOXELS,)
        assert tf.io.decode_raw(one["label_raw"], tf.float32).shape == (3,)


@pytest.mark.parametrize("fill", FILLS)
def test_the_imagenet_pipeline_decodes_all_images(fill: str, tmp_path: Path) -> None:
    path, _, _ = write(WORKLOADS["imagenet"].variants["tfrecord"](True, fill), tmp_path)
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "image/class/text": tf.io.FixedLenFeature([], tf.string),
        "image/height": tf.io.FixedLenFeature([], tf.int64),
        "image/width": tf.io.FixedLenFeature([], tf.int64),
        "image/object/bbox/xmin": tf.io.VarLenFeature(tf.float32),
        "image/object/bbox/label": tf.io.VarLenFeature(tf.int64),
    }
    for record in tf.data.TFRecordDataset(str(path)):
        parsed = tf.io.parse_single_example(record, features)
        image = tf.io.decode_jpeg(parsed["image/encoded"], channels=3)
        assert image.shape == (parsed["image/height"], parsed["image/width"], 3)
        assert 1 <= parsed["image/class/label"] <= 1000
        boxes = parsed["image/object/bbox/xmin"].values
        assert len(boxes) == len(parsed["image/object/bbox/label"].values) <= 1


def test_tensorflow_and_our_codec_agree_on_messages() -> None:
    given = {"a": [b"x", b""], "b": np.array([1.5, -2], dtype=np.float32), "c": np.array([-1, 2**40])}
    theirs = tf.train.Example.FromString(b"".join(example.encode(given)))
    assert list(theirs.features.feature["a"].bytes_list.value) == given["a"]
    assert list(theirs.features.feature["b"].float_list.value) == given["b"].tolist()
    assert list(theirs.features.feature["c"].int64_list.value) == given["c"].tolist()
    ours = example.decode(theirs.SerializeToString())
    assert {name: [bytes(v) if isinstance(v, memoryview) else v for v in ours[name]] for name in ours} == {
        name: list(value) for name, value in given.items()
    }


def test_tensorflow_imports_after_our_codec() -> None:
    code = (
        "from dlio_bench.datagen.formats import example; m = b''.join(example.encode({'a': b'x'})); example.decode(m); "
        "import tensorflow as tf; print(tf.train.Example.FromString(m).features.feature['a'].bytes_list.value[0])"
    )
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "b'x'"
