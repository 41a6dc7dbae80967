"""Objects in an S3 store: whole ones and ranges of them. Each request is counted and, where the store fails, repeated.

The one file that imports obstore. Credentials and endpoint come from the usual variables (AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL, AWS_ALLOW_HTTP, ...). They are in no message.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dlio_bench.counters import Cost
from dlio_bench.datagen.store_failures import GoneError, LostPartError, TooShortError, store_error
from dlio_bench.errors import BenchError, EnvironmentFailure, UsageError, remedy

SCHEME = "s3://"
EXTRA = "dlio-bench[s3]"
ATTEMPTS = 8  # of a request; AWS_MAX_ATTEMPTS, the variable of Amazon's own clients, says otherwise
PART_BYTES = 8 << 20  # of a whole object, asked for at a time
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds before a request is repeated; the wait doubles
AMAZON = "https://s3.amazonaws.com"  # for messages, where no endpoint is named
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")  # the first that is set counts
PROBE = "dlio-bench-may-write"  # an object that is written and removed to learn whether that is allowed
MOST_PARTS, LEAST_PART = 10_000, 5 << 20  # of an upload; "Amazon S3 multipart upload limits"
# Seconds without a byte after which a request counts as failed, and those that a whole one may take. Without these,
# obstore ends a request after 30 s, however steadily its bytes flow. An upload is silent while its bytes are sent.
READ_LIMITS = {"read_timeout": "15s", "timeout": "30m"}
UPLOAD_LIMITS = {"read_timeout": "5m", "timeout": "30m"}

T = TypeVar("T")


def url_of(place: Path | str) -> str | None:
    """'s3://bucket/prefix' of what a user gave as the place of a dataset; None for a folder.

    A Path keeps one of the two slashes, so that 's3:/bucket' is such a place as well. UsageError for one with
    credentials, which results would repeat.
    """
    name = str(place)
    if not name.lower().startswith("s3:"):
        return None
    if "@" in name:
        raise UsageError(
            "A place in an object store is s3://bucket/prefix, without '@': credentials belong in the variables "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, as places stand in results."
        )
    if not name.startswith("s3:/"):
        raise UsageError(f"'{name}' is no place in an object store. Did you mean s3://bucket/prefix?")
    if ".." in name.split("/"):
        raise UsageError(f"'{name}' has '..' in it, and a store has no folders above another. Write the prefix out.")
    return SCHEME + name.removeprefix("s3:").strip("/")


def endpoint() -> str:
    """The store that the environment names, without a user's name and password, a query and a fragment."""
    variable = _endpoint_variable()
    if variable is None:
        return AMAZON
    scheme, slashes, rest = os.environ[variable].partition("://")
    if not slashes:
        scheme, rest = "", scheme
    return scheme + slashes + re.split("[?#]", rest.rpartition("@")[2])[0]


def _endpoint_variable() -> str | None:
    """The variable that names the store."""
    return next((name for name in ENDPOINTS if os.environ.get(name)), None)


def _require_endpoint() -> None:
    """EnvironmentFailure for an endpoint that is no http(s)://host: obstore would break down. It may hold secrets."""
    variable = _endpoint_variable()
    if variable is None:
        return
    value = os.environ[variable]
    try:
        parts = urlsplit(value)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of its port, or of brackets
        whole = False
    if not whole or not value.isascii() or re.search(r"[\s?#\x00-\x20]", value):
        raise EnvironmentFailure(
            f"{variable} is no endpoint of an object store. Write https://HOST or https://HOST:PORT, with http:// or "
            "https:// and without '?' and '#'."
        )


class Store:
    """The objects below a bucket's prefix, by their names. Threads may share it."""

    def __init__(self, url: str) -> None:
        """UsageError for a URL without a bucket, EnvironmentFailure without obstore or with wrong variables."""
        _require_endpoint()
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
        self._store = self._open_bucket(bucket, prefix, 0, READ_LIMITS)
        self._uploads = self._open_bucket(bucket, prefix, self._attempts - 1, UPLOAD_LIMITS)

    def _open_bucket(self, bucket: str, prefix: str, retries: int, limits: dict[str, str]) -> Any:
        from datetime import timedelta

        from obstore.store import S3Store

        repeats = {"max_retries": retries, "retry_timeout": timedelta(minutes=10)}
        # `config` leaves what the variables say of the client, as AWS_ALLOW_HTTP; client_options would replace it
        config: dict[str, Any] = {
            name: limit for name, limit in limits.items() if f"AWS_{name.upper()}" not in os.environ
        }
        try:
            return S3Store(bucket, prefix=prefix or None, retry_config=repeats, config=config)
        except BaseException as error:
            if not isinstance(error, Exception) and not _is_panic(error):
                raise
            # from None: obstore's errors repeat what the variables hold
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

        content, at = self._retry(get, name, "read", cost), 0
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

        size = self._retry(lambda: obstore.head(self._store, name), name, "read")["size"]
        for at in range(0, size, PART_BYTES):
            part = bytearray(min(PART_BYTES, size - at))
            self.read(name, at, [memoryview(part)], Cost())
            yield bytes(part)

    def etag(self, name: str) -> str | None:
        """What the store calls this state of an object; None where there is no such object."""
        import obstore

        try:
            meta = self._retry(lambda: obstore.head(self._store, name), name, "looked at")
        except GoneError:
            return None
        return str(meta.get("e_tag") or f"{meta['size']} {meta['last_modified']}")

    def sizes(self) -> dict[str, int]:
        """Bytes of all objects by their names: one listing."""
        import obstore

        def list_sizes() -> dict[str, int]:
            sizes: dict[str, int] = {}
            for meta in (meta for batch in obstore.list(self._store) for meta in batch):
                if meta["path"] in sizes:  # the token for the next page leads to the same one, without end
                    raise EnvironmentFailure(
                        f"{self.url} cannot be listed at {self.endpoint}: the store gave {meta['path']} twice. Look at "
                        "the store's logs, or ask whoever runs it: its pages repeat."
                    )
                sizes[meta["path"]] = meta["size"]
            return sizes

        return self._retry(list_sizes, "", "listed")

    def put(self, name: str, file: Path) -> None:
        """Make an object of a file. It is there when it is whole. EnvironmentFailure, of the file as well."""
        import obstore

        try:
            size = file.stat().st_size
        except OSError as error:
            raise EnvironmentFailure(
                f"{file} cannot be read to be uploaded: {error.strerror or error}. {remedy(error)}."
            ) from error
        part = max(LEAST_PART, -(-size // MOST_PARTS))

        def upload() -> None:
            obstore.put(self._uploads, name, file, chunk_size=part)

        self._retry(upload, name, "written", attempts=1)

    def require_writable(self) -> None:
        """EnvironmentFailure where nobody may write: an object is written and removed."""
        import obstore

        self._retry(lambda: obstore.put(self._uploads, PROBE, b""), PROBE, "written", attempts=1)
        with suppress(EnvironmentFailure):  # who may not remove may write all the same
            self.delete([PROBE])

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; those that are not there need no removal. The first failure is raised after the last name."""
        import obstore

        failure: BenchError | None = None
        for name in names:
            attempts = self._attempts if failure is None else 1
            try:
                self._retry(lambda name=name: obstore.delete(self._store, name), name, "removed", attempts=attempts)  # type: ignore[misc]
            except GoneError:
                continue
            except BenchError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _retry(
        self, ask: Callable[[], T], name: str, verb: str, cost: Cost | None = None, attempts: int | None = None
    ) -> T:
        """What the store answers to `ask`, asked again after failures that may pass. Our own errors pass."""
        from obstore.exceptions import BaseError

        wait, most = FIRST_WAIT, attempts or self._attempts
        for attempt in range(1, most + 1):
            if cost is not None:
                cost.requests += 1
                cost.retries += attempt > 1
                _count(retries=attempt > 1)
            try:
                return ask()
            except BaseException as error:
                what = f"{self.url}/{name}" if name else self.url
                if _is_panic(error):
                    raise EnvironmentFailure(
                        f"{what} cannot be {verb} at {self.endpoint}: obstore broke down. Check the AWS_ variables."
                    ) from None
                if not isinstance(error, (BaseError, OSError, LostPartError, TooShortError)):
                    raise
                failure, passing = store_error(error, f"{what} cannot be {verb} at {self.endpoint}", attempt)
                if not passing or attempt == most:
                    raise failure from None
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError("every attempt returns or raises")


def _is_panic(error: BaseException) -> bool:
    """Whether obstore's code, which is Rust, broke down; that class has no module to import it from."""
    return type(error).__name__ == "PanicException"


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
