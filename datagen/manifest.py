"""manifest.json and the tables beside it: what a dataset is, what made it, where its samples lie.

No time, no path: equal data has an equal digest.
"""

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from msgspec import Struct
from msgspec.structs import asdict, replace

from dlio_bench import documents
from dlio_bench.atomic_files import sync, write_whole
from dlio_bench.datagen.layout import TEST, TRAIN, VALIDATION, Counts, Extents, Field, Layout, WrittenFile, per_split
from dlio_bench.errors import DataError

AFFINE, TABLE = "affine", "table"
Integers = npt.NDArray[np.int64]


def encode_extents(written: Sequence[WrittenFile]) -> tuple[str, Extents]:
    """The extents of all files, in order -> (encoding, array).

    "affine": int64 [fields, 3] = offset of a file's first sample, step from sample to sample, length; the same in
    every file, stored and delivered bytes equal. "table": int64 [samples, fields, 3] = offset, stored, delivered.
    """
    affine = _affine_extents(written)
    return (AFFINE, affine) if affine is not None else (TABLE, np.concatenate([file.extents for file in written]))


def locate_samples(
    encoding: str, array: Extents, ids: Integers, rows: Integers, fields: Sequence[int]
) -> tuple[Integers, Integers, Integers]:
    """(offset, stored, delivered), each int64 [n, fields], of samples `ids`, which are number `rows` in their files."""
    if encoding == TABLE:
        rows_of_table = array[np.ix_(ids, np.asarray(fields, dtype=np.int64))]
        return rows_of_table[:, :, 0], rows_of_table[:, :, 1], rows_of_table[:, :, 2]
    first, step, length = (np.asarray(array[list(fields), column]) for column in range(3))
    stored = np.repeat(length[None], len(ids), axis=0)
    return first + rows[:, None] * step, stored, stored.copy()


def _affine_extents(written: Sequence[WrittenFile]) -> Extents | None:
    extents = max((file.extents for file in written), key=len)  # any file: the longest knows the step
    step = extents[1, :, 0] - extents[0, :, 0] if len(extents) > 1 else np.zeros(extents.shape[1], dtype=np.int64)
    affine: Extents = np.stack([extents[0, :, 0], step, extents[0, :, 1]], axis=1)
    for file in written:
        rows = np.arange(len(file.extents))[:, None]
        regular = (file.extents[:, :, 0] == affine[:, 0] + rows * affine[:, 1]).all() and (
            file.extents[:, :, 1:] == affine[:, 2, None]
        ).all()
        if not regular:
            return None
    return affine


NAME, EXTENTS, CHECKSUMS = "manifest.json", "extents.npy", "checksums.npy"
STORE = "object-store.url"  # beside the tables of a dataset whose files are objects in a store
PROGRESS = ".progress"  # the folder of an unfinished dataset's records
SCHEMA = "dlio-bench/dataset/1"
SPLITS = (TRAIN, VALIDATION, TEST)  # in the order in which they lie in a dataset: training ids are the lowest
_DTYPE = re.compile(r"[<>|][fiu][1248]")
_FIELD = re.compile(r"[^\[\]\0]+(\[[0-9]{1,9}\])?")  # the name of a HDF5 dataset, or of a part of it
_MOST = 1 << 62  # bytes or samples: sums of two stay whole numbers of 64 bits


class FileEntry(Struct, frozen=True):
    """One file of samples [first, first + samples); `name` is its path inside the dataset folder."""

    name: str
    first: int
    samples: int
    bytes: int
    split: str = TRAIN


class AuxiliaryEntry(Struct, frozen=True):
    """One file without samples."""

    name: str
    bytes: int
    crc32c: int


class Manifest(Struct, frozen=True, omit_defaults=True):
    """The content of manifest.json. `spec` is the digest of what was asked for, `fingerprint` of what made it."""

    schema: str
    spec: str
    workload: str
    variant: str
    container: str
    tiny: bool
    fill: str
    seed: int
    generator: int | None  # None: indexed, not made by us
    source: str
    fields: tuple[Field, ...]
    files: tuple[FileEntry, ...]
    auxiliary: tuple[AuxiliaryEntry, ...]
    encoding: str  # of extents.npy: datagen/extents.py
    extents_sha256: str
    checksums_sha256: str
    fingerprint: Mapping[str, str]
    sorted_by: str = ""

    @property
    def samples(self) -> int:
        """Samples in all files."""
        return sum(file.samples for file in self.files)


def spec_digest(layout: Layout, counts: Counts, seed: int) -> str:
    """Digest of what a dataset will be, known before it is made: "sha256:..."."""
    description = {
        "schema": SCHEMA,
        "generator": layout.generator,
        "workload": layout.workload,
        "variant": layout.variant,
        "container": layout.container,
        "tiny": layout.tiny,
        "fields": [asdict(field) for field in layout.fields],
        "splits": [[split.name, split.samples_per_file] for split in layout.splits],
        "files": per_split(layout, counts),
        "seed": seed,
        "fill": layout.fill,
    }
    description |= {"sorted_by": layout.sorted_by} if layout.sorted_by else {}
    return sha256(json.dumps(description, sort_keys=True).encode())


def to_json(manifest: Manifest) -> bytes:
    """The bytes of manifest.json; their SHA-256 is the dataset's digest."""
    return (json.dumps(msgspec.to_builtins(manifest), indent=1, sort_keys=True) + "\n").encode()


def from_json(content: bytes, path: Path) -> Manifest:
    """Read manifest.json. DataError when it is no JSON, of another schema, or incomplete; `path` is for the message."""
    try:
        raw = documents.load_json(content)
        schema = raw["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a dataset's manifest ({error}). {ANEW}") from error
    if schema != SCHEMA:
        raise DataError(
            f"{path} has the schema '{schema}', and this version reads '{SCHEMA}'. Read it with the version that made "
            "it, or make the dataset again with this one."
        )
    try:
        return _manifest(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: {type(error).__name__} {error}. {ANEW}") from error


def description_digest(manifest: Manifest) -> str:
    """Digest of what an indexed dataset's manifest says, but for the tables, which have digests of their own."""
    description = msgspec.to_builtins(manifest) | dict.fromkeys(
        ("spec", "encoding", "extents_sha256", "checksums_sha256"), ""
    )
    return sha256(json.dumps(description, sort_keys=True).encode())


def field_bytes(field: Field) -> int:
    """Bytes of one sample's field, where its shape is fixed."""
    return math.prod(field.shape) * np.dtype(field.dtype).itemsize


def fingerprint() -> dict[str, str]:
    """Versions and instructions that could change stored bytes; absent where they cannot be read."""
    versions = {"numpy": np.__version__, "machine": platform.machine()}
    for package in ("h5py", "isal", "crc32c"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    show: Any = np.show_config  # its stub in NumPy 2.0 knows no mode
    simd = (show(mode="dicts") or {}).get("SIMD Extensions", {})
    return versions | {name: " ".join(simd[name]) for name in ("baseline", "found") if simd.get(name)}


def sha256(content: bytes) -> str:
    """ "sha256:" and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def file_sha256(path: Path) -> str:
    """The same of a file. OSError."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _manifest(raw: dict[str, Any]) -> Manifest:
    kinds: dict[str, type | tuple[type, ...]] = {
        "tiny": bool,
        "seed": int,
        "generator": (int, type(None)),
        "fingerprint": dict,
    }
    fields = tuple(_field(entry) for entry in raw["fields"])
    files = tuple(FileEntry(**entry) for entry in raw["files"])
    auxiliary = tuple(AuxiliaryEntry(**entry) for entry in raw["auxiliary"])
    for name, value in raw.items():
        if name not in ("fields", "files", "auxiliary") and not isinstance(value, kinds.get(name, str)):
            raise TypeError(f"'{name}' is {value!r}")
    if not files or not fields:
        raise ValueError("it names no files or no fields")
    _require_names([*(entry.name for entry in files), *(entry.name for entry in auxiliary)])
    _require_names([field.name for field in fields])
    for entry in auxiliary:
        if not all(type(value) is int and 0 <= value < _MOST for value in (entry.bytes, entry.crc32c)):
            raise ValueError(f"{entry}")
    _require_order(files)
    return Manifest(**(raw | {"fields": fields, "files": files, "auxiliary": auxiliary}))


def _field(entry: Mapping[str, Any]) -> Field:
    field = Field(entry["name"], entry["dtype"], tuple(entry["shape"]))
    lengths = field.shape == (-1,) or all(type(length) is int and 0 < length < _MOST for length in field.shape)
    named = _FIELD.fullmatch(field.name) and _DTYPE.fullmatch(field.dtype)
    if not named or not lengths or field_bytes(field) >= _MOST:
        raise ValueError(f"the field {entry}")
    return field


def _require_names(names: Sequence[str]) -> None:
    """All different, and each a path that stays in its folder."""
    for name in names:
        if type(name) is not str:
            raise TypeError(f"the name {name!r}")
        outside = name.startswith(("/", "../")) or name in (".", "..") or b"\0" in os.fsencode(name)
        if outside or os.path.normpath(name) != name:
            raise ValueError(f"the name {name!r} is not that of a file in the folder")
    if len(set(names)) < len(names):
        raise ValueError("two files or fields have the same name")


def _require_order(files: Sequence[FileEntry]) -> None:
    """Samples numbered through, and one split behind the other, training first: its samples have the lowest ids."""
    first = place = 0
    for entry in files:
        counts = (entry.first, entry.samples, entry.bytes)
        if not all(type(count) is int and 0 <= count < _MOST for count in counts) or not entry.samples:
            raise ValueError(f"{entry}")
        if entry.first != first:
            raise ValueError(f"the samples of '{entry.name}' begin with number {entry.first} instead of {first}")
        if entry.split not in SPLITS or (found := SPLITS.index(entry.split)) < place:
            raise ValueError(f"the split of '{entry.name}', '{entry.split}', is not in the order {', '.join(SPLITS)}")
        first, place = first + entry.samples, found
    if first >= _MOST:
        raise ValueError(f"{first} samples")


ANEW = "Restore the file, or make it again: `dlio-bench index` does for files of others, `generate` in a new folder."


def manifest_of(layout: Layout, files: Sequence[FileEntry], folder: Path, *, seed: int, spec: str) -> Manifest:
    """The manifest of a dataset of `layout` whose files are all there; `complete` fills in the tables. OSError."""
    return Manifest(
        schema=SCHEMA,
        spec=spec,
        workload=layout.workload,
        variant=layout.variant,
        container=layout.container,
        tiny=layout.tiny,
        fill=layout.fill,
        seed=seed,
        generator=layout.generator,
        source=layout.source,
        fields=layout.fields,
        files=tuple(files),
        auxiliary=tuple(_auxiliary(folder, name) for name in layout.auxiliary),
        encoding="",
        extents_sha256="",
        checksums_sha256="",
        fingerprint=fingerprint(),
        sorted_by=layout.sorted_by,
    )


def complete(folder: Path, manifest: Manifest, written: Sequence[WrittenFile]) -> None:
    """Write extents.npy and checksums.npy of `written`, one a file, and manifest.json last. OSError."""
    encoding, table = encode_extents(written)
    arrays = {EXTENTS: table, CHECKSUMS: np.concatenate([file.checksums for file in written])}
    digests = {}
    for name, array in arrays.items():
        content = BytesIO()
        np.save(content, array)
        digests[name] = sha256(content.getvalue())
        write_whole(folder / name, content.getvalue())
    for parent in {(folder / file.name).parent for file in manifest.files}:
        sync(parent)
    whole = replace(manifest, encoding=encoding, extents_sha256=digests[EXTENTS], checksums_sha256=digests[CHECKSUMS])
    write_whole(folder / NAME, to_json(whole))


def _auxiliary(folder: Path, name: str) -> AuxiliaryEntry:
    content = (folder / name).read_bytes()
    return AuxiliaryEntry(name, len(content), crc32c(content))
