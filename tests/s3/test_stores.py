"""A store's requests: limits of time, removals, and errors that are not the store's."""

import itertools
import secrets
import socket
from pathlib import Path

import pytest

from dlio_bench.datagen import objects
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.storage.object_store import FOLDER, mirror_tables
from tests.datasets import made
from tests.s3.datasets import uploaded, url
from tests.s3.store import Proxy


@pytest.fixture
def place(store: Proxy) -> objects.Store:
    return objects.Store(url(f"store-{secrets.token_hex(4)}"))


def test_a_store_that_stays_silent_ends_the_request(store: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setattr(objects, "READ_LIMITS", {"read_timeout": "100ms", "timeout": "1h"})
        with pytest.raises(EnvironmentFailure, match="no answer in time"):
            objects.Store("s3://bucket/prefix").etag("name")


def test_a_file_that_is_gone_is_no_missing_object(place: objects.Store, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=f"{tmp_path}/gone cannot be read to be uploaded"):
        place.put("name", tmp_path / "gone")


def test_a_large_file_has_parts_that_a_store_takes(
    place: objects.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(range(256)) * (48 << 10))  # 12 MiB
    monkeypatch.setattr(objects, "MOST_PARTS", 2)
    place.put("large", file)
    assert place.get("large") == file.read_bytes()
    assert (place.etag("large") or "").endswith('-2"')


def test_one_removal_that_fails_leaves_no_other_object(
    place: objects.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore.exceptions

    (tmp_path / "file").write_bytes(b"x")
    for name in "abc":
        place.put(name, tmp_path / "file")
    remove = obstore.delete

    def but_a(store: object, name: str) -> None:
        if name == "a":
            raise obstore.exceptions.PermissionDeniedError("status code: 403 Forbidden")
        remove(store, name)  # type: ignore[arg-type]

    monkeypatch.setattr(obstore, "delete", but_a)
    with pytest.raises(EnvironmentFailure, match=r"a cannot be removed .* 403"):
        place.delete("abc")
    assert set(place.sizes()) == {"a"}


def test_tables_of_a_dataset_that_changes_meanwhile_are_not_kept(
    place: objects.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"changed-{secrets.token_hex(4)}"
    uploaded(made(tmp_path / "local", "cdb", 2), prefix, tmp_path / "first")
    states = iter("ab")
    monkeypatch.setattr(objects.Store, "etag", lambda *_: next(states))
    with pytest.raises(EnvironmentFailure, match="changed while its tables were copied"):
        mirror_tables(url(prefix), tmp_path / "cache")
    assert not any((tmp_path / "cache" / FOLDER).iterdir())


class PanicException(BaseException):
    """As the one of obstore."""


@pytest.mark.parametrize(
    ("error", "raised"), [(TypeError, TypeError), (MemoryError, MemoryError), (PanicException, EnvironmentFailure)]
)
def test_an_error_that_is_not_the_stores_is_not_asked_for_again(
    place: objects.Store, error: type[BaseException], raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    asked = []

    def head(*_: object) -> None:
        asked.append(1)
        raise error("ours")

    monkeypatch.setattr(obstore, "head", head)
    with pytest.raises(raised):
        place.etag("name")
    assert len(asked) == 1


def test_a_listing_that_repeats_its_token_ends(place: objects.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    page = [{"path": "name", "size": 1}]
    monkeypatch.setattr("obstore.list", lambda _: itertools.repeat(page))
    with pytest.raises(EnvironmentFailure, match=r"cannot be listed at .*gave name twice"):
        place.sizes()
