"""Tiny datasets in the bucket of the tests."""

from pathlib import Path

from dlio_bench.datagen.dataset import Dataset, open_dataset
from dlio_bench.harness.commands.generation import uploads
from dlio_bench.harness.storage.object_store import mirror_tables
from tests.s3.store import BUCKET


def url(prefix: str) -> str:
    """Where a dataset of the tests is."""
    return f"s3://{BUCKET}/{prefix}"


def uploaded(dataset: Dataset, prefix: str, cache: Path) -> Dataset:
    """The dataset of a folder, as one in the store; `cache` gets its tables alone."""
    uploads.upload(dataset, url(prefix), lambda _: None)
    return open_dataset(mirror_tables(url(prefix), cache))
