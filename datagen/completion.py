"""Complete a dataset: write its tables, then its manifest, without which it is none."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from crc32c import crc32c
from msgspec.structs import replace

from dlio_bench.atomic_files import sync, write_whole
from dlio_bench.datagen import extents
from dlio_bench.datagen.layout import Layout, Written
from dlio_bench.datagen.manifest import (
    CHECKSUMS,
    EXTENTS,
    GENERATOR,
    NAME,
    SCHEMA,
    AuxiliaryEntry,
    FileEntry,
    Manifest,
    fingerprint,
    sha256,
    to_json,
)


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
        generator=GENERATOR,
        source=layout.source,
        fields=layout.fields,
        files=tuple(files),
        auxiliary=tuple(_auxiliary(folder, name) for name in layout.auxiliary),
        encoding="",
        extents_sha256="",
        checksums_sha256="",
        fingerprint=fingerprint(),
    )


def complete(folder: Path, manifest: Manifest, written: Sequence[Written]) -> None:
    """Write extents.npy and checksums.npy of `written`, one a file, and manifest.json last. OSError."""
    encoding, table = extents.encode(written)
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
