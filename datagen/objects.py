"""Objects in an S3 store: whole ones and ranges of them. Each request is counted and, where the store fails, repeated.

The one file that imports obstore. Credentials and endpoint come from the usual variables (AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL, AWS_ALLOW_HTTP, ...). They are in no message.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from dlio_bench.counters import Cost
from dlio_bench.datagen.store_failures import GoneError, LostPartError, TooShortError, told
from dlio_bench.errors import EnvironmentFailure, UsageError

SCHEME = "s3://"
EXTRA = "dlio-bench[s3]"
ATTEMPTS = 8  # of a request; AWS_MAX_ATTEMPTS, the variable of Amazon's own clients, says otherwise
PART_BYTES = 8 << 20  # of a whole object, asked for at a time
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds before a request is repeated; the wait doubles
AMAZON = "https://s3.amazonaws.com"  # for messages, where no endpoint is named

T = TypeVar("T")


def url_of(place: Path | str) -> str | None:
    """'s3://bucket/prefix' of what a user gave as the place of a dataset; None for a folder.

    A Path keeps one of the two slashes, so that 's3:/bucket' is such a place as well. UsageError for one with
    credentials, which results would repeat.
    """
    name = str(place)
    if not name.startswith("s3:/"):
        return None
    if "@" in name:
        raise UsageError(
            "A place in an object store is s3://bucket/prefix, without '@': credentials belong in the variables "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, as places stand in results."
        )
    return SCHEME + name.removeprefix("s3:").strip("/")


def endpoint() -> str:
    """The store that the environment names, without a user's name and password."""
    named = (
        os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
    )
    return re.sub(r"//[^/@]*@", "//", named) if named else AMAZON


class Store:
    """The objects below a bucket's prefix, by their names. Threads may share it."""

    def __init__(self, url: str) -> None:
        """UsageError for a URL without a bucket, EnvironmentFailure without obstore or with wrong variables."""
        self.url, self.endpoint = url, endpoint()
        bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
        if len(bucket) < 3:
            raise UsageError(f"'{url}' names no bucket, whose name has 3 letters or more. Give s3://bucket/prefix.")
        if find_spec("obstore") is None:
            raise EnvironmentFailure(
                f"{url} is in an object store, which obstore reads, and obstore is not installed. Install it with: "
                f"pip install '{EXTRA}'."
            )
        # around each request for so many bytes of a range: what plays a slow store
        self.pace: Callable[[int], AbstractContextManager[None]] | None = None
        self._attempts = _attempts()
        # Requests of ours are repeated here, where they are counted; an upload in parts repeats its parts by itself.
        self._store = self._opened(bucket, prefix, 0)
        self._uploads = self._opened(bucket, prefix, self._attempts - 1)

    def _opened(self, bucket: str, prefix: str, retries: int) -> Any:
        from datetime import timedelta

        from obstore.store import S3Store

        limit = {"max_retries": retries, "retry_timeout": timedelta(minutes=10)}
        try:
            return S3Store(bucket, prefix=prefix or None, retry_config=limit)
        except Exception as error:  # noqa: BLE001 - obstore's errors share no class, and repeat what the variables hold
            raise EnvironmentFailure(
                f"{self.url}: obstore refuses the variables that describe the store ({type(error).__name__}). Check "
                "AWS_ENDPOINT_URL, AWS_REGION, AWS_ALLOW_HTTP and the other AWS_ variables."
            ) from None

    def read(self, name: str, offset: int, into: Sequence[memoryview], cost: Cost) -> int:
        """Fill memory with neighbouring bytes of an object, by one request; returns how many.

        DataError for an object that is gone or too short, EnvironmentFailure for a store that fails.
        """
        import obstore

        length = sum(map(len, into))
        if not length:
            return 0

        def get() -> memoryview:
            with nullcontext() if self.pace is None else self.pace(length):
                content = memoryview(obstore.get_range(self._store, name, start=offset, length=length))
            _count(delivered=len(content))
            if len(content) != length:
                size = obstore.head(self._store, name)["size"]
                raise TooShortError(size) if size < offset + length else LostPartError(len(content), length)
            return content

        content, at = self._repeated(get, name, "read", cost), 0
        for part in into:
            part[:] = content[at : at + len(part)]
            at += len(part)
        return length

    def get(self, name: str) -> bytes:
        """A whole object. Errors as those of `read`."""
        return b"".join(self._parts(name))

    def fetch(self, name: str, file: Path) -> None:
        """Make a file of a whole object. Errors as those of `read`; OSError of the file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as out:
            for part in self._parts(name):
                out.write(part)

    def _parts(self, name: str) -> Iterator[bytes]:
        """An object, part by part: each request has its own time, and is repeated alone."""
        import obstore

        size = self._repeated(lambda: obstore.head(self._store, name), name, "read")["size"]
        for at in range(0, size, PART_BYTES):
            part = bytearray(min(PART_BYTES, size - at))
            self.read(name, at, [memoryview(part)], Cost())
            yield bytes(part)

    def etag(self, name: str) -> str | None:
        """What the store calls this state of an object; None where there is no such object."""
        import obstore

        try:
            meta = self._repeated(lambda: obstore.head(self._store, name), name, "looked at")
        except GoneError:
            return None
        return str(meta.get("e_tag") or f"{meta['size']} {meta['last_modified']}")

    def sizes(self) -> dict[str, int]:
        """Bytes of all objects by their names: one listing."""
        import obstore

        def listed() -> dict[str, int]:
            return {meta["path"]: meta["size"] for batch in obstore.list(self._store) for meta in batch}

        return self._repeated(listed, "", "listed")

    def put(self, name: str, file: Path) -> None:
        """Make an object of a file. It is there when it is whole. EnvironmentFailure."""
        import obstore

        self._repeated(lambda: obstore.put(self._uploads, name, file), name, "written", attempts=1)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; those that are not there need no removal."""
        import obstore

        for name in names:
            try:
                self._repeated(lambda name=name: obstore.delete(self._store, name), name, "removed")  # type: ignore[misc]
            except GoneError:
                continue

    def _repeated(
        self, ask: Callable[[], T], name: str, verb: str, cost: Cost | None = None, attempts: int | None = None
    ) -> T:
        """What the store answers to `ask`, asked again after failures that may pass."""
        wait, most = FIRST_WAIT, attempts or self._attempts
        for attempt in range(1, most + 1):
            if cost is not None:
                cost.requests += 1
                cost.retries += attempt > 1
                _count(retries=attempt > 1)
            try:
                return ask()
            except Exception as error:  # noqa: BLE001 - obstore's errors share no class
                what = f"{self.url}/{name}" if name else self.url
                failure, passing = told(error, f"{what} cannot be {verb} at {self.endpoint}", attempt)
                if not passing or attempt == most:
                    raise failure from None
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError("every attempt returns or raises")


def _attempts() -> int:
    """Attempts for a request. EnvironmentFailure for a variable that is no number."""
    value = os.environ.get("AWS_MAX_ATTEMPTS", "")
    if not value:
        return ATTEMPTS
    if not value.isdigit() or int(value) < 1:
        raise EnvironmentFailure(f"AWS_MAX_ATTEMPTS={value} is no number of attempts. Write 1 or more, or unset it.")
    return int(value)


@cache
def open_store(url: str) -> Store:
    """The store of a URL, opened once by this process: threads share its connections."""
    return Store(url)


_counts, _counting = {"delivered": 0, "retries": 0}, threading.Lock()  # of this process, as the kernel's own are


def _count(**more: int) -> None:
    with _counting:
        for name, count in more.items():
            _counts[name] += count


def delivered_bytes() -> int:
    """Bytes of ranges that object stores have delivered to this process so far."""
    return _counts["delivered"]


def repeated_requests() -> int:
    """Requests for ranges that this process has made again after a failure so far."""
    return _counts["retries"]
