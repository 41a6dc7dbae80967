"""The study's published tables: each figure follows from others of them, so that a slip in a literal shows."""

import pytest

from dlio_bench.reports.traces import bandwidth, study, study_tables
from dlio_bench.reports.traces.bandwidth import times_ideal_bandwidth

HEP = [total for table in study.tables("hepcnnb") for total in table.totals]
CDB = [total for table in study.tables("cdb") for total in table.totals]


@pytest.mark.parametrize("total", HEP, ids=lambda total: str(total.nodes))
def test_the_published_formula_gives_the_published_bandwidth_of_hepcnnb(total: study.Total) -> None:
    rate = bandwidth.hep_bandwidth(total.calls, total.seconds["read"])
    assert rate is not None
    assert rate / 1e9 == pytest.approx(total.gigabytes, rel=0.003)


@pytest.mark.parametrize("total", CDB, ids=lambda total: str(total.nodes))
def test_the_published_formula_gives_the_published_bandwidth_of_cdb(total: study.Total) -> None:
    rate = bandwidth.cdb_bandwidth(total.calls, total.seconds["read"])
    assert rate is not None
    assert rate / 1e9 == pytest.approx(total.gigabytes, abs=0.001)


@pytest.mark.parametrize("total", [*HEP, *CDB], ids=lambda total: str(total.nodes))
def test_published_shares_are_those_of_their_seconds(total: study.Total) -> None:
    whole = sum(total.seconds.values())
    for part, share in total.shares.items():
        assert 100 * total.seconds[part] / whole == pytest.approx(share, abs=0.25)


def test_what_was_published_in_whole_seconds_is_shown_so() -> None:
    [table] = study_tables.variants("cdb")
    assert dict(table.published)["no I/O, and training"] == ["968.00", "4475", "4472", "4480"]


@pytest.mark.parametrize("row", study.EPOCHS, ids=lambda row: f"{row.nodes} {row.name}")
def test_published_epochs_add_up_to_the_published_total(row: study.Epochs) -> None:
    [table] = [table for table in study.tables("hepcnnb") if table.name == row.name]
    [total] = [total for total in table.totals if total.nodes == row.nodes]
    seconds = dict(total.seconds)
    seconds["training"] += seconds.pop("checkpoint", 0)  # which the study took off the total alone
    for part, epochs in row.parts.items():
        assert len(epochs) == 5
        assert sum(spent for spent, _ in epochs) == pytest.approx(seconds[part], abs=0.03)
    for number in range(5):
        assert sum(epochs[number][1] for epochs in row.parts.values()) == pytest.approx(100, abs=0.05)


def test_ideal_multiples_are_those_that_the_study_printed() -> None:
    """In brackets behind the bandwidths of slides Project_Progress_20180727."""
    printed = {
        study.LOCAL: [1, 1.09, 1.11, 1.15, 1.23], study.GLOBAL: [1, 1.01, 0.92, 0.89, 2.71],
        study.JULY_27: [1, 0.57, 0.97, 1.09],
    }  # fmt: skip
    for table in study.TABLES:
        if table.name in printed:
            times = times_ideal_bandwidth(
                [total.gigabytes for total in table.totals], [total.nodes for total in table.totals]
            )
            assert times == pytest.approx(printed[table.name], abs=0.0051)


def test_corrected_bandwidths_charge_what_the_calls_read() -> None:
    """LOCAL: of 9 F + 1 calls a rank, 5 F read training files; GLOBAL: 5 F of 10 F + 1. F = 1: one of two."""
    for total in HEP:
        files = 1024 // total.nodes
        training = 1024 * (5 if files > 1 else 1)
        read = training * bandwidth.HEP_TRAIN_BYTES + (total.calls - training) * bandwidth.HEP_VALID_BYTES
        assert total.corrected == pytest.approx(read / total.seconds["read"] / 1e9, rel=0.01)
