"""What is told when a pipeline of somebody else's library cannot read a file of a dataset."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from dlio_bench.datagen.dataset import DAMAGED, Dataset
from dlio_bench.datagen.formats import CONTAINERS, tfrecord
from dlio_bench.errors import BenchError, DataError, EnvironmentFailure, remedy

ANEW = DAMAGED


def read_failure(path: Path, error: Exception) -> BenchError:
    """DataError for a file that is absent or not what it should be, EnvironmentFailure where the system failed."""
    if isinstance(error, BenchError):
        return type(error)(f"{path}: {error} {ANEW if isinstance(error, DataError) else ''}".rstrip())
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path} is missing from its dataset. {ANEW}")
    # HDF5 puts the error number of a failed read into its text, and not always elsewhere
    number = re.search(r"errno = (\d+)", str(error))
    code = getattr(error, "errno", None) or (int(number[1]) if number else None)
    if code is not None:
        failed = OSError(code, os.strerror(code))
        return EnvironmentFailure(f"{path} cannot be read: {failed.strerror}. {remedy(failed)}.")
    return DataError(f"{path} cannot be read: {error}. {ANEW}")


def named(dataset: Dataset, files: Iterable[int], message: str) -> BenchError:
    """The failure of the first of these files that is absent, of another size, or holds a damaged record.

    For libraries whose errors do not name the file. EnvironmentFailure with the library's `message` where no file
    is at fault. Reads the files.
    """
    for file in files:
        path, expected = dataset.path(file), dataset.manifest.files[file].bytes
        try:
            size = path.stat().st_size
            if size != expected:
                return DataError(f"{path} has {size} bytes instead of {expected}. {ANEW}")
            compression = CONTAINERS[dataset.manifest.container].tfrecords
            if compression is not None:
                for _ in tfrecord.records(path, compressed=bool(compression)):
                    pass
        except (OSError, DataError) as error:
            return error if isinstance(error, DataError) else read_failure(path, error)
    return EnvironmentFailure(
        f"TensorFlow could not deliver the samples of {dataset.folder}, whose files can be read: {message} "
        "Look at the file system; then run again."
    )
