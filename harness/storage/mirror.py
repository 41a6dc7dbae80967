"""Tables of a dataset in an object store, copied to a folder, where `open_dataset` finds them as those of any other.

A copy is named after the store, the place and the state (ETag) of its manifest: one that is there is right. The
manifest is uploaded last, so that objects without one are no dataset.
"""

import hashlib
import shutil
import tempfile
from pathlib import Path

from dlio_bench.datagen import objects
from dlio_bench.datagen.manifest import CHECKSUMS, EXTENTS, NAME, STORE, from_json
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError, remedy

FOLDER = "object-store"  # in the folder that keeps datasets


def mirrored(url: str, cache: Path) -> Path:
    """The folder in `cache` with the tables of the dataset at `url`, fetched if they are not there yet.

    UsageError where no dataset is there, DataError where it is not whole, EnvironmentFailure for a store that fails.
    """
    store = objects.open_store(url)
    state = store.etag(NAME)
    if state is None:
        raise _none(store)
    name = url.rsplit("/", 1)[-1]
    mark = hashlib.sha256("\n".join((store.endpoint, url, state)).encode()).hexdigest()[:12]
    place = cache.resolve() / FOLDER / f"{name}-{mark}"
    if (place / NAME).is_file():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f"{place.name}.part-", dir=place.parent))
        try:
            _fetch(store, part)
            if store.etag(NAME) != state:
                raise EnvironmentFailure(f"{url} changed while its tables were copied. Run again when it is whole.")
            part.chmod(0o755)  # ranks may be another user's processes than the one that made it
            if not place.exists():
                part.rename(place)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        if not (place / NAME).is_file():  # else another process was first
            raise EnvironmentFailure(
                f"The tables of {url} cannot be kept in {place.parent}: {error.strerror or error}. {remedy(error)}; or "
                "name another folder with --cache-dir or DLIO_BENCH_CACHE."
            ) from error
    return place


def _fetch(store: objects.Store, folder: Path) -> None:
    """The tables, and the files without samples."""
    content = store.get(NAME)
    auxiliary = [entry.name for entry in from_json(content, Path(NAME)).auxiliary]
    for name in (EXTENTS, CHECKSUMS, *auxiliary):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(name))
    (folder / STORE).write_text(f"{store.url}\n")
    (folder / NAME).write_bytes(content)


def _none(store: objects.Store) -> UsageError | DataError:
    """The error where there is no manifest."""
    if store.etag(EXTENTS) is None:
        return UsageError(
            f"{store.url} at {store.endpoint} holds no {NAME} and is no dataset. Give the prefix of one, make one "
            "there with dlio-bench generate --out, or index the files there with dlio-bench index."
        )
    return DataError(
        f"{store.url} at {store.endpoint} holds no {NAME}: its upload did not end. Repeat the generation or the index."
    )
