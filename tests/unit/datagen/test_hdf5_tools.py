"""The files open in HDF5's own tools: published names, order, shapes and types, and the values that were made."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import PHYSICAL, RANDOM
from tests.needs import needs

pytestmark = pytest.mark.slow

CDB = {"/climate/data": "{16, 768, 1152}", "/climate/labels": "{768, 1152}", "/climate/stats": "{16, 4}"}
HEP = {
    "/data": "{709, 3, 224, 224}",
    **dict.fromkeys(("/label", "/weight", "/normweight", "/psr", "/mg", "/mn", "/jz", "/eid"), "{709}"),
}
INTEGERS = {"/label", "/psr", "/jz", "/eid"}


def tool(*words: str | Path) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout


@needs("h5dump")
@pytest.mark.parametrize(
    ("name", "shapes", "chunked", "fill"), [("cdb", CDB, True, RANDOM), ("hepcnnb", HEP, False, PHYSICAL)]
)
def test_h5ls_and_h5dump_see_the_published_file(
    name: str, shapes: dict[str, str], chunked: bool, fill: str, tmp_path: Path
) -> None:
    workload = find(name)
    layout = workload.variants[workload.default_variant](False, fill)
    dataset = generate(layout, {"train": 1}, tmp_path / "set", seed=4)
    path = dataset.path(0)
    listed = {
        words[0]: line for line in tool("h5ls", "-r", path).splitlines() if (words := line.split())[1] == "Dataset"
    }
    assert {dataset_name: line.split("Dataset ")[1] for dataset_name, line in listed.items()} == shapes
    head = tool("h5dump", "-H", "-p", path)
    assert head.count("CHUNKED" if chunked else "CONTIGUOUS") == len(shapes)
    assert head.count("NONE") >= len(shapes)  # no filters
    assert head.count("H5T_IEEE_F32LE") == len(shapes) - len(INTEGERS & set(shapes))
    # one dataset's bytes, read by the tool, are the bytes whose CRC32C generation kept
    field = "labels" if chunked else "label"
    raw = tmp_path / "raw.bin"
    tool("h5dump", "-d", ("/climate/" if chunked else "/") + field, "-b", "LE", "-o", raw, path)
    content, ids = raw.read_bytes(), np.arange(dataset.manifest.files[0].samples)
    size = len(content) // len(ids)
    found = [crc32c(content[i * size : (i + 1) * size]) for i in ids.tolist()]
    assert found == dataset.checksums(ids, [field])[:, 0].tolist()
