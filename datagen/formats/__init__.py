"""The containers samples are stored in: read and write side by side, one module each."""

from dlio_bench.datagen.formats import hdf5, raw, tfrecord
from dlio_bench.datagen.formats.container import Container

CONTAINERS: dict[str, Container] = {
    "hdf5": Container(decode=None, locate=hdf5.locate),  # contiguous or one chunk, no filter
    # compressed, filtered or in many chunks: others' files, which HDF5 itself has to read
    "hdf5-filtered": Container(decode=None, locate=hdf5.locate_rows, library=hdf5.Filtered),
    "tfrecord": Container(decode=None, locate=tfrecord.locate, checksums=tfrecord.checksums),
    # one record a file: the extent is the whole file
    "tfrecord-gzip": Container(decode=tfrecord.decode_gzip, locate=raw.locate),
    "raw": Container(decode=None, locate=raw.locate),
}
