"""How much data, which batch, how many epochs: plain arithmetic with published numbers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.commands.run.asked.sizing import (
    Minimum,
    files_needed,
    most_files,
    split_passes,
    trial_size,
)
from dlio_bench.harness.ground.defaults import MOST_BYTES, STEPS, TIMED_STEPS

CDB = {"file_bytes": 60_171_786, "samples_per_file": 1}


def sizes(workload: str, **asked: Any) -> tuple[int, int, int, int]:
    """(training files to be made, batch, epochs, steps of a trial) of a run."""
    request = look_up(Options(workload, **asked))
    files = request.files()["train"]
    found = request.trial_size(files * request.layout.samples_per_file)
    return files, found.batch, found.epochs, found.trial_steps


def test_a_trial_has_five_seconds_of_emulated_compute_and_64_steps() -> None:
    # 9.36 ms a step: 535 steps of two ranks, in one epoch, as 3 GB hold them
    assert sizes("cosmoflow", nodes=(2,)) == (1070, 1, 1, 535)
    assert sizes("cosmoflow", nodes=(2,), min_seconds=10.0)[-1] >= 10 / 9.36e-3
    # 0.2 s a step: 64 of them; what 5 GB hold of them comes several times
    assert sizes("cdb", nodes=(8,)) == (80, 1, 7, 70)
    # the published batch is halved until 16 steps fit, no further
    assert sizes("hepcnnb", nodes=(8,)) == (11, 32, 3, 90)


def test_data_are_as_many_as_may_be_where_nobody_knows_how_fast_they_are_read() -> None:
    files, _, epochs, _ = sizes("cosmoflow", max_data=1_450_000_000, epochs=3, compute="none")
    file_bytes = look_up(Options("cosmoflow")).layout.file_bytes
    assert 1_450_000_000 - file_bytes < files * file_bytes <= 1_450_000_000
    assert epochs == 3


def test_more_is_made_than_buffers_and_tiers_hold_where_that_fits() -> None:
    request = look_up(Options("imagenet"))
    files = request.files()["train"]
    a_file = request.view_bytes * request.layout.samples_per_file
    more, too_much = 2 * files * a_file, 2 * MOST_BYTES
    assert request.files((int(more), 0))["train"] * a_file > more
    assert request.files((too_much, int(more)))["train"] * a_file > more
    assert request.files((too_much, too_much))["train"] == files


def test_a_smoke_test_stays_short() -> None:
    assert (
        sizes("cosmoflow", nodes=(2,), tiny=True) == sizes("cosmoflow", nodes=(2,), min_seconds=0.0) == (32, 1, 1, 16)
    )
    assert sizes("cdb", nodes=(2,), tiny=True, compute="none") == (32, 1, 1, 16)
    for epochs in (1, 2, 40):  # one dataset, so that --resume with further epochs finds it again
        assert sizes("cdb", nodes=(2,), tiny=True, epochs=epochs) == (32, 1, epochs, 16 * epochs)


def test_what_a_first_look_says_makes_trials_of_the_fastest_reader_long_enough() -> None:
    minimum = Minimum(5.0)
    assert minimum.epochs([(8.0, 6.0)]) == 1
    for looks in ([(1.0, 0.5)], [(20.0, 9.0), (1.0, 0.5)]):
        epochs = minimum.epochs(looks)
        assert 1.0 + (epochs - 1) * 0.5 >= 5.0
        assert epochs < 20


def test_a_minimum_is_of_time_and_of_steps() -> None:
    assert Minimum(5.0).is_met(64, [5.1, 6.0])
    assert not Minimum(5.0).is_met(63, [5.1, 6.0])
    assert not Minimum(5.0).is_met(64, [4.9, 6.0])
    assert Minimum(0.0).is_met(16, [0.01])
    assert not Minimum(0.0).is_met(15, [9.0])


@given(
    ranks=st.integers(1, 64),
    published=st.integers(1, 256),
    per_file=st.integers(1, 1000),
    file_bytes=st.integers(1000, 10**9),
    needed=st.sampled_from([STEPS, TIMED_STEPS, 5000]),
)
def test_made_data_are_enough_for_the_steps_and_never_too_much(
    ranks: int, published: int, per_file: int, file_bytes: int, needed: int
) -> None:
    try:
        most = most_files(file_bytes=file_bytes, samples_per_file=per_file, most_bytes=MOST_BYTES, ranks=ranks)
    except UsageError:
        assert MOST_BYTES // file_bytes * per_file < ranks
        return
    chosen = trial_size(most * per_file, ranks=ranks, published_batch=published, needed=lambda _: needed)
    files = files_needed(most, chosen, samples_per_file=per_file, ranks=ranks, needed=needed)
    assert files * file_bytes <= MOST_BYTES
    found = trial_size(files * per_file, ranks=ranks, published_batch=published, needed=lambda _: needed)
    assert found.trial_steps == files * per_file // (ranks * found.batch) * found.epochs >= needed
    assert found.batch <= published
    if found.epochs > 1:  # what comes again comes after all that may be made
        assert files * per_file // (ranks * found.batch) == most * per_file // (ranks * found.batch)


def test_what_is_asked_for_by_hand_stays() -> None:
    found = trial_size(1000, ranks=4, published_batch=64, batch=100, epochs=3, needed=lambda _: 1000)
    assert (found.batch, found.epochs, found.notes) == (100, 3, ())
    assert sizes("cdb", steps=4)[-1] == 4
    assert sizes("cdb", steps=4)[0] == 16


def test_more_ranks_than_samples_are_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match=r"--max-data 8GB") as refusal:
        most_files(**CDB, most_bytes=MOST_BYTES, ranks=128)
    assert "128 ranks" in str(refusal.value)
    with pytest.raises(UsageError, match="the dataset has 5"):
        trial_size(5, ranks=8, published_batch=1)


def test_the_study_of_cdb_has_epochs_of_three_steps_however_long_a_pass_is() -> None:
    """DL-Parallel-IO, mascarpone-tiramisu-tf-singlefile.py: num_steps_per_epoch = 3, three epochs, 50 190 files."""
    whole = trial_size(50_190, ranks=64, published_batch=1, epochs=3)
    found = split_passes(whole, 50_190, ranks=64, steps=3, epochs=3, needed=STEPS)
    assert (found.batch, found.epochs, found.steps, found.parted) == (1, 3, 3, True)
    assert "3 of the 784 steps" in found.notes[-1]
    assert split_passes(whole, 50_190, ranks=64, steps=3, needed=STEPS).epochs == 6  # where nobody says
    with pytest.raises(UsageError, match="--steps-per-epoch 785"):
        split_passes(whole, 50_190, ranks=64, steps=785, needed=STEPS)
    # data that are made have a pass as long as the trial, if they may
    assert sizes("cdb", nodes=(2,), epochs=3, steps_per_epoch=10)[0] == 60
    assert sizes("cdb", nodes=(2,), epochs=3, steps_per_epoch=4, max_data=1_000_000_000)[0] == 16
