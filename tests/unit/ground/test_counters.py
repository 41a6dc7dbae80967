"""Counters: one table, whose sums know what nobody counted."""

from dlio_bench.counters import COUNTERS, Cost, EpochCost, PassCost, total
from dlio_bench.reports.document.trials import Epoch, Pass, Trial
from dlio_bench.reports.numbers.metrics import METRICS


def epoch(device: int | None) -> EpochCost:
    return EpochCost(bytes_requested=3, bytes_useful=5, bytes_device=device, read_seconds=0.5)


def test_what_one_part_does_not_know_their_sum_does_not_know() -> None:
    known = total(EpochCost, [epoch(1), epoch(2)])
    assert (known.bytes_requested, known.bytes_useful, known.bytes_device, known.read_seconds) == (6, 10, 3, 1.0)
    assert known.bytes_client_cache is None
    assert total(EpochCost, [epoch(1), epoch(None)]).bytes_device is None
    assert total(PassCost, [epoch(1), epoch(None)]) == PassCost(bytes_requested=6, bytes_useful=10, read_seconds=1.0)


def test_every_counter_of_a_thread_is_added() -> None:
    once = Cost(**dict.fromkeys(Cost.__struct_fields__, 1))
    twice = Cost(**dict.fromkeys(Cost.__struct_fields__, 1))
    twice.add(once)
    assert twice == Cost(**dict.fromkeys(Cost.__struct_fields__, 2))


def test_a_counter_has_one_name_from_the_loop_to_the_metrics() -> None:
    assert set(Cost.__struct_fields__) < set(PassCost.__struct_fields__) < set(COUNTERS)
    for part in (Trial, Epoch):
        assert set(COUNTERS) < set(part.__struct_fields__)
    assert set(PassCost.__struct_fields__) < set(Pass.__struct_fields__)
    assert {name: METRICS[name] for name in COUNTERS} == COUNTERS
    assert all(counter.title and counter.meaning and counter.source for counter in COUNTERS.values())
