"""manifest.json: what a dataset is, and what made it. No time, no path: equal data has an equal digest."""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from dlio_bench.datagen.layout import TRAIN, Counts, Field, Layout, per_split
from dlio_bench.errors import DataError

NAME, EXTENTS, CHECKSUMS = "manifest.json", "extents.npy", "checksums.npy"
PROGRESS = ".progress"  # the folder of an unfinished dataset's records
SCHEMA = "dlio-bench/dataset/1"
GENERATOR = 1  # raised whenever the same seed would give other bytes


@dataclass(frozen=True)
class FileEntry:
    """One file of samples [first, first + samples); `name` is its path inside the dataset folder."""

    name: str
    first: int
    samples: int
    bytes: int
    split: str = TRAIN


@dataclass(frozen=True)
class AuxiliaryEntry:
    """One file without samples."""

    name: str
    bytes: int
    crc32c: int


@dataclass(frozen=True)
class Manifest:
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

    @property
    def samples(self) -> int:
        """Samples in all files."""
        return sum(file.samples for file in self.files)


def spec_digest(layout: Layout, counts: Counts, seed: int) -> str:
    """Digest of what a dataset will be, known before it is made: "sha256:..."."""
    asked = {
        "schema": SCHEMA,
        "generator": GENERATOR,
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
    return sha256(json.dumps(asked, sort_keys=True).encode())


def to_json(manifest: Manifest) -> bytes:
    """The bytes of manifest.json; their SHA-256 is the dataset's digest."""
    return (json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n").encode()


def from_json(content: bytes, path: Path) -> Manifest:
    """Read manifest.json. DataError when it is no JSON, of another schema, or incomplete; `path` is for the message."""
    try:
        raw = json.loads(content)
        schema = raw["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a dataset's manifest ({error}). {_ANEW}") from error
    if schema != SCHEMA:
        raise DataError(
            f"{path} has the schema '{schema}', and this version reads '{SCHEMA}'. Generate the dataset anew, or read "
            "it with the version that made it."
        )
    try:
        return _manifest(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: {type(error).__name__} {error}. {_ANEW}") from error


def fingerprint() -> dict[str, str]:
    """Versions and instructions that could change stored bytes; absent where they cannot be read."""
    found = {"numpy": np.__version__, "machine": platform.machine()}
    for package in ("h5py", "isal", "crc32c"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    show: Any = np.show_config  # its stub in NumPy 2.0 knows no mode
    simd = (show(mode="dicts") or {}).get("SIMD Extensions", {})
    return found | {name: " ".join(simd[name]) for name in ("baseline", "found") if simd.get(name)}


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
    nested = {
        "fields": tuple(Field(one["name"], one["dtype"], tuple(one["shape"])) for one in raw["fields"]),
        "files": tuple(FileEntry(**one) for one in raw["files"]),
        "auxiliary": tuple(AuxiliaryEntry(**one) for one in raw["auxiliary"]),
    }
    for name, value in raw.items():
        if name not in nested and not isinstance(value, kinds.get(name, str)):
            raise TypeError(f"'{name}' is {value!r}")
    for entry in (*nested["files"], *nested["auxiliary"]):
        if not all(isinstance(value, str if name in ("name", "split") else int) for name, value in vars(entry).items()):
            raise TypeError(f"{entry}")
    return Manifest(**(raw | nested))


_ANEW = "Generate the dataset anew, or restore the file."
