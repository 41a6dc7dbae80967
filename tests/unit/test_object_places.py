"""Places of datasets in object stores, where obstore is not installed."""

import sys
from pathlib import Path

import pytest

from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.errors import EnvironmentFailure, UsageError


def test_a_place_in_a_store_survives_being_a_path() -> None:
    assert objects.url_of(Path("s3://bucket/some/prefix/")) == "s3://bucket/some/prefix"
    assert objects.url_of("s3://bucket") == "s3://bucket"
    assert objects.url_of(Path("/data/s3:/bucket")) is None
    assert objects.url_of(Path("s3")) is None
    with pytest.raises(UsageError, match="credentials belong in the variables") as refused:
        objects.url_of("s3://key:hidden@bucket/prefix")
    assert "hidden" not in str(refused.value)


def test_without_obstore_a_store_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentFailure, match=r"pip install 'dlio-bench\[s3\]'"):
        objects.Store("s3://bucket/prefix")
    assert "obstore" not in sys.modules


def test_a_command_that_reads_folders_alone_says_so() -> None:
    with pytest.raises(UsageError, match="s3://bucket/prefix is in an object store, and this command reads"):
        open_dataset(Path("s3://bucket/prefix"))
