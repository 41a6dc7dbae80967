"""The reads of a plan fill every byte of its batches once, from where it is stored."""

from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.harness.storage.chunks import (
    ALONE,
    CHUNK_OPENS,
    MOST_PIECES,
    PlannedSamples,
    chunk_of,
    join_ids,
    reads,
)

FIELDS = 3


def made(sizes: list[int], places: list[int], batches: list[int], per_file: int) -> PlannedSamples:
    """Samples of `places` (may repeat) in files of `per_file`; field f of all samples of a file lies in one piece."""
    ids = np.array(places, dtype=np.int64)
    files, rows = ids // per_file, ids % per_file
    lengths = np.array(sizes, dtype=np.int64)
    columns = (lengths.cumsum() - lengths) * per_file
    stored = np.repeat(lengths[None], len(ids), axis=0)
    whole = stored.sum(axis=1)
    of = np.array(sorted(batches), dtype=np.int64)
    starts = whole.cumsum() - whole
    starts -= starts[np.searchsorted(of, of)] if len(of) else 0
    return PlannedSamples(ids, files, files, columns + rows[:, None] * lengths, stored, stored, of, starts)


@st.composite
def plans(draw: st.DrawFn) -> tuple[PlannedSamples, int]:
    count = draw(st.integers(0, 12))
    sizes = draw(st.lists(st.integers(0, 9), min_size=FIELDS, max_size=FIELDS))
    places = draw(st.lists(st.integers(0, 11), min_size=count, max_size=count))
    batches = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    return made(sizes, places, batches, draw(st.integers(1, 6))), draw(st.integers(1, 40))


@given(plans())
def test_every_byte_is_filled_once_from_its_place(plan: tuple[PlannedSamples, int]) -> None:
    samples, chunk_bytes = plan
    found, batch_of = reads(samples, chunk_bytes)
    filled: dict[tuple[int, int], tuple[int, int]] = {}
    for chunk, batch in enumerate(batch_of.tolist()):
        (call, piece), (last, end) = found.chunks[chunk : chunk + 2].tolist()
        pieces = iter(found.pieces[piece:end].tolist())
        for key, file, offset, size, count in found.calls[call:last].tolist():
            assert key == file
            at = offset
            for start, stop in [next(pieces) for _ in range(count)]:
                assert 0 < stop - start <= chunk_bytes
                for byte in range(start, stop):
                    assert (batch, byte) not in filled
                    filled[batch, byte] = (file, at)
                    at += 1
            assert at == offset + size
        assert next(pieces, None) is None
    expected = {}
    for row in range(len(samples.ids)):
        byte = int(samples.starts[row])
        for offset, length in zip(samples.offsets[row].tolist(), samples.stored[row].tolist(), strict=True):
            for at in range(offset, offset + length):
                expected[int(samples.batches[row]), byte] = (int(samples.files[row]), at)
                byte += 1
    assert filled == expected
    assert (np.diff(batch_of) >= 0).all()


def test_neighbours_in_the_file_are_one_call_and_neighbours_in_both_one_piece() -> None:
    columns, _ = reads(made([8, 1, 2], [0, 1, 2], [0] * 3, 4), 1000)  # one call a field, a piece a sample
    assert columns.calls.tolist() == [[0, 0, 0, 24, 3], [0, 0, 32, 3, 3], [0, 0, 36, 6, 3]]
    records, _ = reads(made([0, 11, 0], [0, 1, 2, 3], [0] * 4, 4), 1000)
    assert records.calls.tolist() == [[0, 0, 0, 44, 1]]


def test_no_call_has_more_pieces_than_the_kernel_takes() -> None:
    samples = made([1, 1, 0], list(range(3 * MOST_PIECES)), [0] * 3 * MOST_PIECES, 3 * MOST_PIECES)
    found, _ = reads(samples, 1 << 40)
    assert found.calls[:, 4].max() <= MOST_PIECES
    assert found.calls[:, 3].sum() == 6 * MOST_PIECES


def test_chunks_are_parts_of_one_batch() -> None:
    bounds, batches = chunk_of(np.array([0, 0, 0, 1, 1]), np.array([0, 5, 10, 0, 5]), 10)
    assert bounds.tolist() == [0, 2, 3, 5]
    assert batches.tolist() == [0, 0, 1]


def test_an_empty_plan_has_no_ids() -> None:
    assert [len(part) for part in join_ids([])] == [0, 0]


@given(plans())
def test_files_that_one_chunk_reads_are_marked_and_read_at_a_stretch(plan: tuple[PlannedSamples, int]) -> None:
    samples, chunk_bytes = plan
    alone = replace(samples, keys=np.arange(len(samples.ids)))
    found, batch_of = reads(alone, chunk_bytes, of_one=True)
    chunks: dict[int, list[int]] = {}  # by key
    for chunk in range(len(batch_of)):
        keys = found.calls[found.chunks[chunk, 0] : found.chunks[chunk + 1, 0], 0].tolist()
        stretches = [key for key, _ in groupby(keys)]
        assert len(stretches) == len(set(stretches)) <= CHUNK_OPENS
        for key in stretches:
            chunks.setdefault(key, []).append(chunk)
    assert all((key < 0) == (len(of_key) == 1) for key, of_key in chunks.items())
    plain, of_plain = reads(alone, chunk_bytes)
    assert sorted(key % ALONE for key in chunks) == sorted(set(plain.calls[:, 0].tolist()))
    assert batch_of.tolist() == sorted(batch_of.tolist())
    assert set(batch_of.tolist()) == set(of_plain.tolist())
