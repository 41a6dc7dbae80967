"""The containers samples are stored in: read and write side by side."""

from dlio_bench.datagen.formats import hdf5, tfrecord
from dlio_bench.datagen.formats.container import DALI, H5PY, TF_DATA, Container, whole_file

_HDF5, _TFRECORD = (".h5", ".hdf5"), (".tfrecord", ".tfrecords")

CONTAINERS: dict[str, Container] = {
    # contiguous or one chunk, no filter
    "hdf5": Container(hdf5.locate, _HDF5, by_library="hdf5-filtered", read_with=H5PY, types_of=hdf5.types_of),
    # compressed, filtered or in many chunks: others' files, which HDF5 itself has to read
    "hdf5-filtered": Container(hdf5.locate_rows, _HDF5, library=hdf5.Filtered),
    "tfrecord": Container(
        tfrecord.locate, (*_TFRECORD, ""), checksums=tfrecord.checksums, read_with=TF_DATA, tfrecords=""
    ),
    # one record a file: the extent is the whole file
    "tfrecord-gzip": Container(
        whole_file, (*_TFRECORD, ".gz"), tfrecord.decode_gzip, tfrecord.measure_gzip, tfrecords="GZIP"
    ),
    "raw": Container(whole_file, (".jpeg", ".jpg"), read_with=DALI),
}
