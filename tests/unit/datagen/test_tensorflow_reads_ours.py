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
from dlio_bench.datagen.layout import RANDOM, FileSpec, Layout, WrittenFile

pytestmark = pytest.mark.slow

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's log is not what is tested
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its dependencies use what later versions of NumPy and Python deprecate
    tf = pytest.importorskip("tensorflow")


def write(layout: Layout, folder: Path) -> tuple[Path, FileSpec, WrittenFile]:
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
        "from dlio_bench.benchmarks.tensors import tensorflow; "
        "print(tensorflow().train.Example.FromString(m).features.feature['a'].bytes_list.value[0])"
    )
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "b'x'"
