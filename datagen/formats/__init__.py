"""The containers samples are stored in: read and write side by side, one module each."""

from dlio_bench.datagen.formats import tfrecord
from dlio_bench.datagen.formats.container import Container

CONTAINERS: dict[str, Container] = {
    "hdf5": Container(decode=None),  # contiguous or one chunk, no filter
    "tfrecord": Container(decode=None),
    "tfrecord-gzip": Container(decode=tfrecord.decode_gzip),  # one record a file: the extent is the whole file
}
