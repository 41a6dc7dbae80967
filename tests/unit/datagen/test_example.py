"""The tf.train.Example codec: bytes as TensorFlow serialises them, and no crash on any input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlio_bench.datagen.formats import example
from dlio_bench.errors import DataError

# Serialised by TensorFlow 2.18.
KNOWN = {
    "0a180a160a016912111a0f0a0d01feffffffffffffffff01ac02": {"i": np.array([1, -2, 300])},
    "0a130a110a0166120c120a0a080000003f000080bf": {"f": np.array([0.5, -1.0], dtype=np.float32)},
    "0a0f0a0d0a016212080a060a0278790a00": {"b": [b"xy", b""]},
    "0a090a070a016512021200": {"e": np.array([], dtype=np.float32)},
}
features = st.dictionaries(
    st.text(max_size=8),
    st.one_of(
        st.lists(st.binary(max_size=40), max_size=3),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(lambda v: np.array(v, dtype=np.int64)),
        st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(lambda v: np.array(v, dtype=np.float32)),
    ),
    max_size=5,
)


@pytest.mark.parametrize("serialised", KNOWN)
def test_encode_gives_tensorflows_bytes(serialised: str) -> None:
    assert b"".join(example.encode(KNOWN[serialised])).hex() == serialised


@pytest.mark.parametrize("serialised", KNOWN)
def test_decode_reads_tensorflows_bytes(serialised: str) -> None:
    assert_equal(example.decode(bytes.fromhex(serialised)), KNOWN[serialised])


@given(features)
@settings(max_examples=80, deadline=None)
def test_decode_inverts_encode(given_features: dict[str, object]) -> None:
    assert_equal(example.decode(b"".join(example.encode(given_features))), given_features)  # type: ignore[arg-type]  # drawn


def test_large_values_are_neither_copied_in_nor_out() -> None:
    voxels = np.arange(100_000, dtype=np.uint8)
    pieces = example.encode({"x": voxels.data, "y": b"small"})
    assert any(piece is voxels.data or getattr(piece, "obj", None) is voxels for piece in pieces)
    message = bytearray(b"".join(pieces))
    x, y = example.decode(message)["x"], example.decode(message)["y"]
    assert isinstance(x, list)
    assert isinstance(y, list)
    message[message.index(b"small")] = ord("S")
    assert bytes(y[0]) == b"Small"  # a view of the message
    assert x[0] == voxels.data


def test_unpacked_lists_are_read_too() -> None:
    """Repeated numbers may also come one by one: proto2 writers do that."""
    floats = b"\x0d" + np.float32(1.5).tobytes() + b"\x0d" + np.float32(-2).tobytes()
    integers = b"\x08\x05\x08\xac\x02"
    message = b"".join(wrap(b"f", 2, floats) + wrap(b"i", 3, integers))
    message = b"\x0a" + bytes([len(message)]) + message
    assert_equal(example.decode(message), {"f": np.array([1.5, -2], dtype=np.float32), "i": np.array([5, 300])})


def test_unknown_fields_are_passed_over() -> None:
    known = bytes.fromhex("0a130a110a0166120c120a0a080000003f000080bf")
    unknown = b"\x50\x07" + b"\x59" + bytes(8) + b"\x65" + bytes(4) + b"\x6a\x02hi"
    assert list(example.decode(unknown + known + unknown)) == ["f"]


@pytest.mark.parametrize("serialised", KNOWN)
def test_a_message_cut_short_is_refused(serialised: str) -> None:
    whole = bytes.fromhex(serialised)
    for length in range(1, len(whole)):
        with pytest.raises(DataError, match=r"not a tf\.train\.Example"):
            example.decode(whole[:length])


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_other_bytes_give_features_or_a_data_error(content: bytes) -> None:
    try:
        assert isinstance(example.decode(content), dict)
    except DataError as error:
        assert "tf.train.Example" in str(error)  # noqa: PT017 - both outcomes are right; only another error is not


def test_an_array_of_another_type_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="float64"):
        example.encode({"x": np.zeros(3)})  # type: ignore[dict-item]  # the mistake


def wrap(name: bytes, kind: int, numbers: bytes) -> list[bytes]:
    feature = bytes([kind << 3 | 2, len(numbers)]) + numbers
    entry = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
    return [b"\x0a", bytes([len(entry)]), entry]


def assert_equal(found: dict[str, example.Decoded], expected: dict[str, object]) -> None:
    assert list(found) == list(expected)
    for name, value in found.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, np.asarray(expected[name]))
            assert value.dtype == np.asarray(expected[name]).dtype
        else:
            assert [bytes(one) for one in value] == expected[name]
