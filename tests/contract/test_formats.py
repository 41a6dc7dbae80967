"""What every container must do: extents hold the checksummed bytes, and the format's own reader gives the same."""

import os
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from crc32c import crc32c

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.formats import CONTAINERS, hdf5, tfrecord
from dlio_bench.datagen.layout import RANDOM, FileSpec, Layout, WrittenFile
from dlio_bench.errors import DataError

SEED = 3


class FormatContract:
    """Inherited by one class a container; `made` is a tiny file of it."""

    layout: ClassVar[Layout]

    @abstractmethod
    def slow(self, path: Path, row: int, field: str) -> bytes:
        """The delivered bytes of a field by the format's own reader, without extents."""

    @pytest.fixture
    def spec(self) -> FileSpec:
        """The file to be: the second of its dataset, so that ids and rows differ."""
        return self.layout.spec_files(2)[1]

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """Where it is."""
        return tmp_path / "file"

    @pytest.fixture
    def made(self, path: Path, spec: FileSpec) -> WrittenFile:
        """What its writer says."""
        return self.layout.write(path, spec, SEED)

    def test_writer_says_one_extent_and_checksum_a_sample_and_field(self, made: WrittenFile, spec: FileSpec) -> None:
        shape = (spec.samples, len(self.layout.fields))
        assert (made.extents.shape, made.extents.dtype) == ((*shape, 3), np.int64)
        assert (made.checksums.shape, made.checksums.dtype) == (shape, np.uint32)

    def test_extents_deliver_the_checksummed_bytes(self, made: WrittenFile, path: Path, spec: FileSpec) -> None:
        for row in range(spec.samples):
            for column in range(len(self.layout.fields)):
                assert crc32c(self.fast(path, made, row, column)) == made.checksums[row, column]

    def test_the_formats_own_reader_delivers_the_same(self, made: WrittenFile, path: Path, spec: FileSpec) -> None:
        for row in {0, spec.samples - 1}:
            for column, field in enumerate(self.layout.fields):
                assert self.slow(path, row, field.name) == self.fast(path, made, row, column)

    def test_fields_have_their_shape(self, made: WrittenFile) -> None:
        for column, field in enumerate(self.layout.fields):
            if -1 not in field.shape:
                expected = np.dtype(field.dtype).itemsize * int(np.prod(field.shape, dtype=np.int64))
                assert set(made.extents[:, column, 2].tolist()) == {expected}

    def test_extents_lie_apart_and_inside_the_file(self, made: WrittenFile, path: Path) -> None:
        extents = made.extents.reshape(-1, 3)
        extents = extents[np.argsort(extents[:, 0])]
        ends = extents[:, 0] + extents[:, 1]
        assert extents[0, 0] >= 0
        assert (ends[:-1] <= extents[1:, 0]).all()
        assert ends[-1] <= path.stat().st_size

    def test_plain_containers_deliver_what_they_store(self, made: WrittenFile) -> None:
        equal = bool((made.extents[..., 1] == made.extents[..., 2]).all())
        assert equal == (CONTAINERS[self.layout.container].decode is None)

    def test_a_wrong_byte_in_an_extent_shows(self, made: WrittenFile, path: Path) -> None:
        offset, length, _ = made.extents[0, 0].tolist()
        content = bytearray(path.read_bytes())
        content[offset + length // 2] ^= 1
        path.write_bytes(content)
        try:
            assert crc32c(self.fast(path, made, 0, 0)) != made.checksums[0, 0]
        except DataError:
            assert CONTAINERS[self.layout.container].decode is not None

    def test_writing_twice_gives_the_same_file(self, made: WrittenFile, path: Path, spec: FileSpec) -> None:
        again = self.layout.write(path.with_name("again"), spec, SEED)
        assert path.with_name("again").read_bytes() == path.read_bytes()
        np.testing.assert_array_equal(again.extents, made.extents)

    def test_a_full_folder_is_an_os_error(self, spec: FileSpec) -> None:
        with pytest.raises(OSError, match=r".") as raised:
            self.layout.write(Path("/dev/null/file"), spec, SEED)
        assert raised.value.errno

    def fast(self, path: Path, made: WrittenFile, row: int, column: int) -> bytes:
        """The delivered bytes by a plain read of the extent."""
        offset, stored, delivered = made.extents[row, column].tolist()
        with path.open("rb") as file:
            content = os.pread(file.fileno(), stored, offset)
        decode = CONTAINERS[self.layout.container].decode
        if decode is None:
            return content
        out = bytearray(delivered)
        decode(memoryview(content), memoryview(out))
        return bytes(out)


class TestHdf5Contiguous(FormatContract):
    """HEPCNNB."""

    layout = WORKLOADS["hepcnnb"].variants["224"](True, RANDOM)

    def slow(self, path: Path, row: int, field: str) -> bytes:
        return hdf5.read_field(path, field, row)


class TestHdf5OneChunk(FormatContract):
    """CDB."""

    layout = WORKLOADS["cdb"].variants["cori"](True, RANDOM)

    def slow(self, path: Path, row: int, field: str) -> bytes:
        name, _, channel = field.rstrip("]").partition("[")
        return hdf5.read_field(path, f"climate/{name}", int(channel) if channel else None)


class TestTfrecord(FormatContract):
    """ImageNet: records of different lengths."""

    layout = WORKLOADS["imagenet"].variants["tfrecord"](True, RANDOM)

    def slow(self, path: Path, row: int, field: str) -> bytes:
        return list(tfrecord.records(path))[row]


class TestTfrecordSc18(TestTfrecord):
    """CosmoFlow: records of equal length."""

    layout = WORKLOADS["cosmoflow"].variants["sc18"](True, RANDOM)


class TestTfrecordGzip(FormatContract):
    """CosmoFlow as MLPerf stores it."""

    layout = WORKLOADS["cosmoflow"].variants["mlperf-v1"](True, RANDOM)

    def slow(self, path: Path, row: int, field: str) -> bytes:
        return list(tfrecord.records(path, compressed=True))[row]
