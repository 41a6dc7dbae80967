"""What a person's own function makes of a stored sample, as readers execute it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from dlio_bench.benchmarks.model import choose
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.library.arrays import VARYING, Column

MEND = 'Mend the file or the Decoder, or leave such samples out with on_error="skip".'


@dataclass(frozen=True)
class Decoder:
    """A function of one sample that the reader's threads call, for `load(..., decode=Decoder(...))`.

    reads: the stored fields that it needs. gives: name -> (dtype, shape) of each array that it makes. apply(id, stored,
    made): fills the arrays `made`, by name, from the bytes of each field, a memoryview each in the order of `reads`. An
    exception in it is a DataError of the loop, which names file and sample; or, with on_error="skip", the sample is
    left out.
    """

    reads: tuple[str, ...]
    gives: Mapping[str, tuple[str, tuple[int, ...]]]
    apply: Callable[[int, Sequence[memoryview], Mapping[str, Any]], None]


def decode_and_columns(
    dataset: Dataset, fields: Sequence[str], decode: "bool | Decoder", skipped: dict[int, str] | None
) -> tuple[Decode | None, list[Column]]:
    """How samples are decoded (None: not at all), and the arrays that a delivered sample consists of. UsageError.

    skipped: where samples that cannot be decoded are noted (see `sample_name`); None: they are an error.
    """
    how, columns = _decode_and_columns(dataset, fields, decode)
    return how if how is None or skipped is None else _skipping(how, dataset, skipped), columns


def sample_name(dataset: Dataset, sample: int) -> str:
    """A sample for people: its file, and its number."""
    return f"{dataset.name(int(dataset.locate(np.array([sample]), ())[0][0]))}, sample {sample}"


def _decode_and_columns(
    dataset: Dataset, fields: Sequence[str], decode: "bool | Decoder"
) -> tuple[Decode | None, list[Column]]:
    if isinstance(decode, Decoder):
        columns = [Column(name, np.dtype(dtype), shape) for name, (dtype, shape) in decode.gives.items()]
        dataset.field_index(decode.reads)  # UsageError for one that is not there
        return _wrap_decoder(decode, columns), columns
    if not decode:
        stored = {field.name: field for field in dataset.manifest.fields}
        dataset.field_index(fields)
        return None, [Column(name, np.dtype(stored[name].dtype), stored[name].shape) for name in fields]
    workload = WORKLOADS.get(dataset.manifest.workload)
    if workload is None or workload.decode is None:
        raise UsageError(
            f"decode=True: the dataset in {dataset.folder} is of no workload that says how its samples are decoded. "
            "Give a dlio_bench.Decoder, or leave decode out."
        )
    parts = choose(workload.models, dataset.manifest.variant).sample(dataset).parts
    return workload.decode(dataset), [Column(part.name, np.dtype(part.dtype), part.shape) for part in parts]


def _wrap_decoder(decoder: Decoder, columns: Sequence[Column]) -> Decode:
    if any(column.shape == VARYING for column in columns):
        raise UsageError("A Decoder gives arrays of fixed shapes: pad what varies.")

    def apply(sample: int, stored: Sequence[memoryview], out: memoryview) -> None:
        made: dict[str, Any] = {}
        start = 0
        for column in columns:
            made[column.name] = np.ndarray(column.shape, column.dtype, out, start)
            start += column.bytes
        try:
            decoder.apply(sample, stored, made)
        except (DataError, MemoryError):
            raise
        except Exception as error:
            raise DataError(f"the Decoder raised {type(error).__name__}: {error}.") from error

    size = sum(column.bytes for column in columns)
    return Decode(tuple(decoder.reads), size, apply, "a function of the program", remedy=MEND)


def _skipping(decode: Decode, dataset: Dataset, skipped: dict[int, str]) -> Decode:
    """The same, but a sample that fails is noted."""

    def apply(sample: int, stored: Sequence[memoryview], out: memoryview) -> None:
        try:
            decode.apply(sample, stored, out)
        except DataError as error:
            skipped.setdefault(sample, f"{sample_name(dataset, sample)}: {error}")

    return replace(decode, apply=apply)
