"""How fast one thread makes a workload's samples ready for training."""

import numpy as np

from dlio_bench.benchmarks import registry
from dlio_bench.counters import Cost
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import PHYSICAL
from dlio_bench.errors import UsageError
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.storage.extents import ExtentReader

MOST_FILE_BYTES = 100_000_000  # larger files are made of shrunken samples
SECONDS = 0.5
MOST_SAMPLES = 256


def require_decode(name: str) -> None:
    """UsageError for a workload that there is not, or that decodes nothing."""
    if registry.find(name).decode is None:
        raise UsageError(f"--workload {name}: it has no decoding stage. Leave it out.")


def decode_rate(name: str) -> float:
    """Stored bytes a second that one thread decodes of samples made for it. UsageError as of `require_decode`."""
    require_decode(name)
    workload = registry.find(name)
    decode = workload.decode
    assert decode is not None
    variant = workload.variants[workload.default_variant]
    layout = variant(False, PHYSICAL)
    if layout.file_bytes > MOST_FILE_BYTES:
        layout = variant(True, PHYSICAL)
    with temp_folder("dlio-bench-calibrate-") as folder:
        dataset = generate(layout, 1, folder / "data", 1, workers=1)
        return rate_of(SampleView(dataset, workload.view, decode(dataset)))


def rate_of(form: SampleView) -> float:
    """Stored bytes a second that one thread unpacks and decodes of a dataset's samples. DataError."""
    cost, stored, sample = Cost(), 0, 0
    reader = ExtentReader(form.dataset, form.fields, form.decode)
    try:
        while cost.decode_seconds < SECONDS and sample < MOST_SAMPLES:
            ids = np.array([sample % form.dataset.training_samples], np.int64)
            reader.read(ids, memoryview(np.empty(int(form.sizes(ids)[0]), np.uint8)), cost)
            stored, sample = stored + form.stored(ids), sample + 1
    finally:
        reader.close()
    return stored / max(cost.decode_seconds, 1e-9)
