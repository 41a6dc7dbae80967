"""TFRecord framing: bytes as TensorFlow writes them, offsets, and every kind of damage noticed."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlio_bench.datagen.formats import tfrecord
from dlio_bench.errors import DataError

# What tf.io.TFRecordWriter writes for the records b"abc" and b"".
TENSORFLOW = bytes.fromhex("0300000000000000b099490e6162636e57f121000000000000000029039807d8ea82a2")
PAYLOADS = [b"abc", b"", bytes(range(256)) * 40]


def test_the_file_is_the_one_tensorflow_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    written = tfrecord.write(path, [[b"abc"], [b""]])
    assert path.read_bytes() == TENSORFLOW
    assert written.extents.tolist() == [[[12, 3, 3]], [[31, 0, 0]]]


@given(payloads=st.lists(st.lists(st.binary(max_size=50), max_size=3), max_size=5))
@settings(max_examples=30, deadline=None)
def test_records_and_index_give_back_what_was_written(
    payloads: list[list[bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("records") / "a"
    written = tfrecord.write(path, payloads)
    assert list(tfrecord.records(path)) == [b"".join(pieces) for pieces in payloads]
    assert tfrecord.index(path).tolist() == written.extents[:, 0, :2].tolist()


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_any_flipped_bit_is_noticed(place: int, bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("flipped") / "a"
    tfrecord.write(path, [[payload] for payload in PAYLOADS])
    damaged = bytearray(path.read_bytes())
    damaged[place % len(damaged)] ^= 1 << bit
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=str(path)):
        list(tfrecord.records(path))


@pytest.mark.parametrize("kept", [5, 12, 14, 17, 20])
def test_a_file_that_ends_inside_a_record_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(TENSORFLOW[:kept])
    with pytest.raises(DataError):
        tfrecord.index(path)
    with pytest.raises(DataError):
        list(tfrecord.records(path))


def test_a_gzip_file_holds_the_framed_record(tmp_path: Path) -> None:
    path = tmp_path / "a"
    written = tfrecord.write_gzip(path, [b"ab", b"c"])
    assert gzip.decompress(path.read_bytes()) == TENSORFLOW[:19]
    assert list(tfrecord.records(path, compressed=True)) == [b"abc"]
    assert written.extents.tolist() == [[[0, path.stat().st_size, 3]]]


def test_a_gzip_file_is_the_same_whenever_it_is_written(tmp_path: Path) -> None:
    tfrecord.write_gzip(tmp_path / "a", [b"abc" * 1000])
    assert (tmp_path / "a").read_bytes()[4:8] == b"\0\0\0\0"  # gzip's time stamp


@pytest.mark.parametrize("payload", [*PAYLOADS, bytes(1_000_003)], ids=len)  # of more than one slab
def test_decode_fills_the_buffer_with_the_payload(tmp_path: Path, payload: bytes) -> None:
    path = tmp_path / "a"
    tfrecord.write_gzip(path, [payload])
    out = bytearray(b"x" * len(payload))
    tfrecord.decode_gzip(memoryview(path.read_bytes()), memoryview(out))
    assert out == payload


@pytest.mark.parametrize("length", [0, 2, 4, 5000])
def test_decode_refuses_a_record_of_another_length(tmp_path: Path, length: int) -> None:
    tfrecord.write_gzip(tmp_path / "a", [b"abc"])
    with pytest.raises(DataError):
        tfrecord.decode_gzip(memoryview((tmp_path / "a").read_bytes()), memoryview(bytearray(length)))


@given(place=st.integers(10, 10_000), bit=st.integers(0, 7))  # a flip in gzip's own head (time, system) changes no data
@settings(max_examples=60, deadline=None)
def test_decode_notices_any_flipped_bit(place: int, bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("gzip") / "a"
    tfrecord.write_gzip(path, [PAYLOADS[2]])
    damaged = bytearray(path.read_bytes())
    damaged[10 + place % (len(damaged) - 10)] ^= 1 << bit
    with pytest.raises(DataError):
        tfrecord.decode_gzip(memoryview(damaged), memoryview(bytearray(len(PAYLOADS[2]))))


@pytest.mark.parametrize("kept", [0, 4, 20, -1])
def test_decode_refuses_a_stream_cut_short(tmp_path: Path, kept: int) -> None:
    tfrecord.write_gzip(tmp_path / "a", [PAYLOADS[2]])
    with pytest.raises(DataError):
        tfrecord.decode_gzip(memoryview((tmp_path / "a").read_bytes()[:kept]), memoryview(bytearray(len(PAYLOADS[2]))))


def test_decode_refuses_a_second_record(tmp_path: Path) -> None:
    framed = gzip.compress(TENSORFLOW)
    with pytest.raises(DataError, match="does not end"):
        tfrecord.decode_gzip(memoryview(framed), memoryview(bytearray(3)))
