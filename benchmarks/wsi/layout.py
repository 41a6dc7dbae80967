"""The slides' files: one HDF5 file a slide, with its tiles of 1000 x 1000 pixels at 20x and where they lie in it.

The published pipeline has one PNG file a tile, or one ADIOS2 step a tile, named as that file. That a slide is one file
of raw pixels is ours: no slide library reads it, and bytes lie where a plain read finds them.
"""

import os
from functools import partial
from pathlib import Path

import numpy as np
from crc32c import crc32c

from dlio_bench.atomic_files import write_at
from dlio_bench.benchmarks.wsi import slides
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import hdf5
from dlio_bench.datagen.layout import PHYSICAL, TRAIN, Field, FileSpec, Layout, Split, WrittenFile

COLOURS = 3
TINY_TILE = 100  # pixels of a side; a tiny slide is one tile
TILES, PLACES = "tiles", "places"
MEAN_TILES = 163  # of the twelve slides: 1 953 / 12
HEADER = 2048  # bytes of a file before its tiles
PLACE_BYTES = 4 * 4
SOURCE = (
    "til_classification @c98db4c, u24_lymphocyte/patch_extraction/save_svs_to_tiles.py; tiles of twelve slides: "
    "anagainaru/medical_DNN @49b98c0, quip_classification/code/README.md"
)


def layout(tiny: bool, fill: str) -> Layout:
    """Variant "til": slide-0000.h5 and on. The first twelve have as many tiles as the published ones."""
    side = TINY_TILE if tiny else slides.TILE
    tiles = 1 if tiny else MEAN_TILES
    payload = side * side * COLOURS
    return Layout(
        workload="wsi",
        variant="til",
        container="hdf5",
        fields=(Field(TILES, "|u1", (side, side, COLOURS)), Field(PLACES, "<i4", (4,))),
        splits=(
            Split(
                name=TRAIN,
                full_files=slides.SLIDES,
                full_samples=int(slides.firsts(tiny)[-1]),
                samples_per_file=tiles,
                file_bytes=HEADER + tiles * (payload + PLACE_BYTES),
                payload_bytes=payload,
                spec_files=partial(spec_files, tiny=tiny),
            ),
        ),
        source=SOURCE,
        tiny=tiny,
        fill=fill,
        write=partial(write, side=side, fill=fill),
        auxiliary={},
    )


def spec_files(files: int, *, tiny: bool) -> tuple[FileSpec, ...]:
    """The first `files` slides."""
    starts = slides.firsts(tiny, max(1, -(-files // slides.SLIDES)))[: files + 1].tolist()
    return tuple(FileSpec(f"slide-{n:04d}.h5", starts[n], starts[n + 1] - starts[n]) for n in range(files))


def write(path: Path, spec: FileSpec, seed: int, *, side: int, fill: str) -> WrittenFile:
    """One slide, tile by tile. OSError."""
    shape = (side, side, COLOURS)
    offsets = hdf5.allocate(path, [(TILES, "|u1", (spec.samples, *shape)), (PLACES, "<i4", (spec.samples, 4))])
    size = side * side * COLOURS
    samples = range(spec.first, spec.first + spec.samples)
    places = np.array([slides.tile_place(n, tiny=side == TINY_TILE, size=side) for n in samples], dtype="<i4")
    checksums = np.empty((spec.samples, 2), dtype=np.uint32)
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for row, sample in enumerate(samples):
            source = random_bytes.source(seed, sample, 0)
            content = slides.tile(source, side) if fill == PHYSICAL else random_bytes.octets(source, size)
            write_at(handle, content, offsets[TILES] + row * size)
            checksums[row] = crc32c(content.data), crc32c(places[row].data)
        write_at(handle, places, offsets[PLACES])
    finally:
        os.close(handle)
    extents = np.empty((spec.samples, 2, 3), dtype=np.int64)
    lengths = np.array([size, PLACE_BYTES])
    extents[:, :, 1:] = lengths[:, None]
    extents[:, :, 0] = np.array([offsets[TILES], offsets[PLACES]]) + np.arange(spec.samples)[:, None] * lengths
    return WrittenFile(extents, checksums)
