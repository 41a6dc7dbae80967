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
    for place in ("s3://key:hidden@bucket/prefix", "S3:key:hidden@bucket"):
        with pytest.raises(UsageError, match="credentials belong in the variables") as refused:
            objects.url_of(place)
        assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("http://user:p@ss@host", "http://host"),
        ("https://u:p@q@h:9000/path", "https://h:9000/path"),
        ("http://host/?token=abc", "http://host/"),
        ("https://host#abc", "https://host"),
        ("user:pass@host:9000", "host:9000"),
        ("http://user:pa/ss@host", "http://host"),
        ("http://user:p://ss@host", "http://host"),
    ],
)
def test_no_secret_of_an_endpoint_is_shown(named: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", named)
    assert objects.endpoint() == shown


@pytest.mark.parametrize(
    "named",
    ["hidden:9000", "http://", "ftp://hidden", "http://hidden:x", "http://hidden/?a", "http://hid den", "http://["],
)
def test_an_endpoint_that_is_none_is_refused_by_its_variable(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", named)
    with pytest.raises(EnvironmentFailure, match=r"^AWS_ENDPOINT_URL_S3 is no endpoint") as refused:
        objects.Store("s3://bucket/prefix")
    assert "hid" not in str(refused.value)


def test_without_obstore_a_store_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentFailure, match=r"pip install 'dlio-bench\[s3\]'"):
        objects.Store("s3://bucket/prefix")
    assert "obstore" not in sys.modules


def test_a_command_that_reads_folders_alone_says_so() -> None:
    with pytest.raises(UsageError, match="s3://bucket/prefix is in an object store, and this command reads"):
        open_dataset(Path("s3://bucket/prefix"))
