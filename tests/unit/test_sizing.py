"""How much data, which batch, how many epochs: plain arithmetic with published numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.errors import UsageError
from dlio_bench.harness.run.sizing import MOST_BYTES, STEPS, cut, files_needed, parted

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


def test_the_study_of_cdb_has_epochs_of_three_steps_however_long_a_pass_is() -> None:
    """DL-Parallel-IO, mascarpone-tiramisu-tf-singlefile.py: num_steps_per_epoch = 3, three epochs, 50 190 files."""
    whole = cut(50_190, ranks=64, published_batch=1, epochs=3)
    found = parted(whole, 50_190, ranks=64, steps=3, epochs=3)
    assert (found.batch, found.epochs, found.steps, found.parted) == (1, 3, 3, True)
    assert "3 of the 784 steps" in found.notes[-1]
    assert parted(whole, 50_190, ranks=64, steps=3).epochs == 6  # STEPS steps, where nobody says
    with pytest.raises(UsageError, match="--steps-per-epoch 785"):
        parted(whole, 50_190, ranks=64, steps=785)
    # data that are made have a pass as long as the trial, if they may
    made = {"most_bytes": MOST_BYTES, "ranks": 2, "epochs": 3}
    assert files_needed(**CDB, **made, pass_steps=30) == 60
    assert files_needed(**CDB, **made, pass_steps=900) == MOST_BYTES // CDB["file_bytes"]
