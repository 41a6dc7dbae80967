"""What HEPCNNB makes of an event: its image with the channels last."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import numpy as np

from dlio_bench.benchmarks.hepcnnb.layout import SCALARS
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.datagen.dataset import Dataset

FIELDS = ("data", "label", "weight", "normweight", "psr")
WHAT = (
    "image transposed from NCHW to NHWC float32, then label, weight, normweight, psr "
    "(NERSC/DL-Parallel-IO @290ed4a, hep_cnn/networks/binary_classifier_tf.py load_next_file)"
)


def decode(dataset: Dataset) -> Decode:
    """Delivers float32 [rows, columns, 3] and the four scalars in their published types."""
    dataset.field_index(FIELDS)  # UsageError for data of another kind
    fields = {field.name: field for field in dataset.manifest.fields}
    channels, rows, columns = fields["data"].shape
    sizes = [4 * prod(fields[name].shape) for name in FIELDS]
    ends = list(accumulate(sizes))
    # others' files may hold other integers
    cast = {name: fields[name].dtype for name in FIELDS[1:] if fields[name].dtype != SCALARS[name]}

    def apply(sample: int, parts: Sequence[memoryview], out: memoryview) -> None:
        del sample
        image = np.frombuffer(parts[0], dtype="<f4").reshape(channels, rows, columns)
        np.copyto(np.frombuffer(out[: ends[0]], dtype="<f4").reshape(rows, columns, channels), image.transpose(1, 2, 0))
        for name, part, start, end in zip(FIELDS[1:], parts[1:], ends, ends[1:], strict=False):
            published = np.frombuffer(part, cast[name]).astype(SCALARS[name]).data.cast("B") if name in cast else part
            out[start:end] = published

    return Decode(FIELDS, ends[-1], apply, WHAT)
