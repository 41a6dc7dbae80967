"""How much data, which batch, how many epochs: plain arithmetic with published numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.errors import UsageError
from dlio_bench.harness.run.sizing import MOST_BYTES, STEPS, cut, files_needed

CDB = {"file_bytes": 60_171_786, "samples_per_file": 1, "published_batch": 1}
HEP = {"file_bytes": 426_926_240, "samples_per_file": 709, "published_batch": 128}


def test_cdb_on_eight_ranks_takes_two_epochs_because_five_gigabytes_hold_83_samples() -> None:
    assert files_needed(**CDB, most_bytes=MOST_BYTES, ranks=8) == 64
    found = cut(64, ranks=8, published_batch=1)
    assert (found.batch, found.epochs) == (1, 2)
    assert "2 epochs" in found.notes[0]


def test_hepcnnb_on_eight_ranks_shrinks_its_batch_and_says_so() -> None:
    assert files_needed(**HEP, most_bytes=MOST_BYTES, ranks=8) == 6  # 8 ranks x 32 x 16 steps = 4096 of 4254 samples
    found = cut(6 * 709, ranks=8, published_batch=128)
    assert (found.batch, found.epochs) == (32, 1)
    assert "instead of the published 128" in found.notes[0]


def test_small_jobs_keep_the_published_batch_and_need_no_note() -> None:
    assert files_needed(**HEP, most_bytes=MOST_BYTES, ranks=1) == 3  # 128 x 16 = 2048 samples
    assert cut(3 * 709, ranks=1, published_batch=128) == cut(3 * 709, ranks=1, published_batch=128, batch=128, epochs=1)


@given(
    ranks=st.integers(1, 64),
    published=st.integers(1, 256),
    per_file=st.integers(1, 1000),
    file_bytes=st.integers(1000, 10**9),
)
def test_made_data_is_enough_for_sixteen_steps_and_never_too_much(
    ranks: int, published: int, per_file: int, file_bytes: int
) -> None:
    asked = {"file_bytes": file_bytes, "samples_per_file": per_file, "published_batch": published}
    try:
        files = files_needed(**asked, most_bytes=MOST_BYTES, ranks=ranks)
    except UsageError:
        assert MOST_BYTES // file_bytes * per_file < ranks
        return
    assert files * file_bytes <= MOST_BYTES
    found = cut(files * per_file, ranks=ranks, published_batch=published)
    assert files * per_file // (ranks * found.batch) * found.epochs >= STEPS
    assert found.batch <= published


def test_what_is_asked_for_by_hand_stays() -> None:
    found = cut(1000, ranks=4, published_batch=64, batch=100, epochs=3)
    assert (found.batch, found.epochs, found.notes) == (100, 3, ())


def test_more_ranks_than_samples_are_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match=r"--max-data 8GB") as refusal:
        files_needed(**CDB, most_bytes=MOST_BYTES, ranks=128)
    assert "128 ranks" in str(refusal.value)
    with pytest.raises(UsageError, match="the dataset has 5"):
        cut(5, ranks=8, published_batch=1)
