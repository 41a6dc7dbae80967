"""Direct reads: which blocks a read takes, where it puts them, and file systems that refuse."""

import mmap
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.storage import direct
from dlio_bench.harness.storage.direct import Alignment, Bounce, Piece, aligned_memory

BLOCKS = (Alignment(512, 512), Alignment(4, 512), Alignment(4096, 512), Alignment(4096, 4096))


def memory_of(size: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(aligned_memory(size), np.uint8)


@st.composite
def wanted(draw: st.DrawFn) -> tuple[int, list[Piece], int]:
    """The size of a file, pieces of it in order of their offsets, and the bytes of the memory that they fill."""
    size = draw(st.integers(1, 40_000))
    offsets = sorted(draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8)))
    lengths = [draw(st.integers(0, size - offset)) for offset in offsets]
    if draw(st.booleans()):  # neighbours, as the samples of a file are
        lengths = [
            min(length, after - offset)
            for length, offset, after in zip(lengths, offsets, [*offsets[1:], size], strict=True)
        ]
    gap = draw(st.sampled_from([0, 1, 512]))
    starts = (np.cumsum([0, *lengths]) + gap).tolist()
    pieces = [Piece(1, 0, *piece) for piece in zip(offsets, lengths, starts[:-1], strict=True)]
    return size, pieces, starts[-1]


@given(wanted(), st.sampled_from(BLOCKS), st.sampled_from([1, 3, 1000]))
def test_whole_blocks_into_aligned_memory_bring_every_byte_once(
    asked: tuple[int, list[Piece], int], alignment: Alignment, blocks: int
) -> None:
    size, pieces, length = asked
    content = np.random.default_rng(1).bytes(size)
    out, bounce, most = memory_of(length), Bounce(), blocks * alignment.block
    spans = direct.spans(pieces, alignment, most)
    for span in spans:
        layout = direct.layout(span, alignment, out, direct.address_of(out), bounce)
        at = span.start
        for part in layout.parts:
            assert direct.address_of(part) % alignment.memory == 0
            assert len(part) % alignment.block == at % alignment.block == 0
            brought = content[at : at + len(part)]  # less, at the end of the file
            part[: len(brought)] = np.frombuffer(brought, np.uint8)
            at += len(part)
        assert at == span.end <= span.start + most
        assert span.start + span.needed <= size
        layout.scatter(span, out)
    for piece in pieces:
        assert bytes(out[piece.at : piece.at + piece.length]) == content[piece.offset : piece.offset + piece.length]
    overlap = any(before.offset + before.length > after.offset for before, after in pairwise(pieces))
    if not overlap:
        read = sorted((span.start, span.end) for span in spans)
        assert all(before[1] <= after[0] for before, after in pairwise(read))


def test_a_long_piece_goes_straight_to_where_it_is_wanted_but_for_its_ends() -> None:
    alignment, out = Alignment(512, 512), memory_of(100_000)
    [span] = direct.spans([Piece(0, 0, 2048 + 512, 90_100, 1024)], alignment)
    layout = direct.layout(span, alignment, out, direct.address_of(out), Bounce())
    straight, tail = layout.parts
    assert direct.address_of(straight) == direct.address_of(out) + 1024
    assert len(straight) == 90_100 // 512 * 512
    assert len(tail) == 512


def test_short_pieces_that_lie_near_each_other_share_a_read_and_long_ones_do_not() -> None:
    labels = [Piece(0, 0, offset, 4, 0) for offset in (100, 3000, 9000, 9000 + 2 * direct.NEAR)]
    assert [(span.start, len(span.pieces)) for span in direct.spans(labels, BLOCKS[0])] == [(0, 3), (41472, 1)]
    apart = [Piece(0, 0, 0, 100_000, 0), Piece(0, 0, 101_000, 4, 0), Piece(1, 1, 101_000, 4, 0)]
    assert [len(span.pieces) for span in direct.spans(apart, BLOCKS[0])] == [1, 1, 1]


def test_what_is_left_of_memory_behind_a_short_read() -> None:
    parts = [memory_of(512), memory_of(1024)]
    assert [len(part) for part in direct.remaining(parts, 0)] == [512, 1024]
    assert [len(part) for part in direct.remaining(parts, 512)] == [1024]
    assert [len(part) for part in direct.remaining(parts, 1024)] == [512]


@pytest.mark.parametrize("name", ["folder", "file"])
def test_a_file_system_in_memory_is_refused_by_name(name: str) -> None:
    place = Path("/dev/shm")
    with pytest.raises(EnvironmentFailure, match=r"--io direct: /dev/shm.* lies on tmpfs .*--io buffered"):
        direct.require_folder(place / "not yet there") if name == "folder" else direct.require(place)


def test_memory_begins_on_a_page() -> None:
    assert direct.address_of(memory_of(1)) % mmap.PAGESIZE == 0
    assert len(aligned_memory(0)) == 0
