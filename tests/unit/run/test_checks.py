"""Each check fails for its own reason, and for no other."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.measured.documents import Verified
from dlio_bench.harness.commands.run.told.checks import Count, checks
from dlio_bench.harness.plan.policies import find
from dlio_bench.reports.document.trials import Cache, Cached, Epoch, Inference, Trial
from dlio_bench.reports.document.types import Check
from tests.jobs import JOB

COUNT = Count(16, 32, JOB, 33)
ROW = find("prefetch")
Harm = Callable[[list[Trial], Verified], Verified | None]  # what was verified, where it harms that


def trials() -> list[Trial]:
    host = Cached(resident_share=0.0, attestable=True, memory_backed=False, bytes=100)
    cost: dict[str, Any] = {"bytes_useful": 50, "bytes_planned": 50, "bytes_requested": 50, "bytes_device": None}
    return [
        Trial(
            **cost, trial=number, warmup=number == 0, seed=number, elapsed_seconds=2.0, steps=16, samples=32,
            clock_drift_seconds=1e-4, compute_asked_seconds=3.2, compute_actual_seconds=3.21, compute_late_seconds=0.01,
            cpu_seconds=None, host_cpu_busy_share=None, host_iowait_share=None, cores=None, reader_threads=None,
            epochs=[Epoch(**cost, epoch=0, seconds=2.0)], cache=Cache("cold", {"a": host}),
        )
        for number in range(2)
    ]  # fmt: skip


def verified() -> Verified:
    return Verified(
        fields=33, damaged_fields=0, damaged=[], deliveries=64, altered_deliveries=0, epochs=2, epochs_once=2,
        passes=0, passes_once=0, epochs_alike=2,
    )  # fmt: skip


def update(part: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(part, name, value)


def set_host(found: list[Trial], trial: int = 1, **values: Any) -> None:
    hosts = found[trial].cache.hosts
    hosts["a"] = structs.replace(hosts["a"], **values)


def failed(harm: Harm | None = None, job: Job = JOB) -> list[str]:
    found = trials()
    own = None if harm is None else harm(found, verified())
    return [check.name for check in checks(job, COUNT, ROW, found, None, own or verified()) if not check.ok]


def test_a_clean_run_passes_every_check() -> None:
    names = {check.name for check in checks(JOB, COUNT, ROW, trials(), None, verified())}
    assert failed() == []
    assert names == {
        "same everywhere", "bytes as planned", "steady clock", "exactly once", "content", "delivered bytes",
        "cold cache", "emulated compute",
    }  # fmt: skip


def test_content_says_that_a_sample_was_read_on_one_node_alone() -> None:
    def expected(job: Job) -> str:
        made = checks(job, COUNT, ROW, trials(), None, verified())
        return next(check.expected for check in made if check.name == "content")

    several = replace(JOB, nodes=2)
    assert expected(several).endswith("delivered fields as generated, each on one of 2 nodes")
    for job in (replace(JOB, nodes=1), replace(several, options=Options("cdb", check_crc=True))):
        assert expected(job).endswith("delivered fields as generated")


def test_a_cold_cache_is_not_asked_of_a_smoke_test() -> None:
    """Others may read the same small files at the same time."""

    def warm(found: list[Trial], own: Verified) -> Verified:
        set_host(found, resident_share=0.9)
        return own

    assert failed(warm) == ["cold cache"]
    assert failed(warm, replace(JOB, options=Options("cdb", tiny=True))) == []


def test_emulated_compute_is_not_judged_for_the_reason_that_is_true() -> None:
    def judged(job: Job) -> str:
        return next(
            check.found
            for check in checks(job, COUNT, ROW, trials(), None, verified())
            if check.name == "emulated compute"
        )

    slow = replace(JOB, step_seconds=0.2)
    assert "not judged" not in judged(slow)
    assert "not judged: --tiny trials are too short" in judged(replace(slow, options=Options("cdb", tiny=True)))
    assert "not judged: steps of 10 µs are too short" in judged(
        replace(JOB, options=Options("cdb", tiny=True), step_seconds=1e-5)
    )


HARMS: dict[str, list[Harm]] = {
    "bytes as planned": [lambda t, _: update(t[0].epochs[0], bytes_requested=49)],
    "steady clock": [lambda t, _: update(t[1], clock_drift_seconds=-0.03)],
    "exactly once": [lambda _, o: replace(o, epochs_once=1)],
    "content": [lambda _, o: replace(o, damaged_fields=1, damaged=["x.h5"])],
    "delivered bytes": [lambda _, o: replace(o, altered_deliveries=1)],
    "cold cache": [
        lambda t, _: set_host(t, resident_share=0.02),
        lambda t, _: set_host(t, memory_backed=True, attestable=False, note="tmpfs"),
    ],
    "emulated compute": [lambda t, _: update(t[1], compute_late_seconds=0.11)],
}


@pytest.mark.parametrize(("name", "harm"), [(name, harm) for name, harms in HARMS.items() for harm in harms])
def test_each_harm_fails_its_own_check(name: str, harm: Harm) -> None:
    assert failed(harm) == [name]


def bytes_check(**epochs: int) -> Check:
    found = trials()
    update(found[0].epochs[0], bytes_requested=20, bytes_spared=30)
    update(found[1].epochs[0], **epochs)
    [check] = [one for one in checks(JOB, COUNT, ROW, found, None, verified()) if one.name == "bytes as planned"]
    return check


def test_bytes_from_tiers_and_bytes_read_twice_are_named_as_what_they_are() -> None:
    """Of 50 planned bytes in each of two trials."""
    check = bytes_check(bytes_requested=40, bytes_spared=15, bytes_kept=5)
    assert check.ok
    assert check.found == (
        "60 bytes, and 45 that tiers and other ranks delivered instead; 5 of those read went to a tier first"
    )
    twice = bytes_check(bytes_requested=57, bytes_spared=3, bytes_kept=10)
    assert twice.ok
    assert "at least 7 bytes were read twice: first into a tier" in twice.found
    assert "-" not in twice.found
    assert not bytes_check(bytes_requested=57, bytes_spared=3, bytes_kept=9).ok


def test_a_policy_that_draws_samples_twice_is_not_held_to_once() -> None:
    own = replace(verified(), epochs_once=0)
    found = checks(JOB, COUNT, replace(ROW, exactly_once=False), trials(), None, own)
    assert all(check.ok for check in found)
    assert "exactly once" not in {check.name for check in found}


def test_samples_that_fill_the_last_step_are_named() -> None:
    [once] = [
        c for c in checks(JOB, Count(17, 33, JOB, 33), ROW, trials(), None, verified()) if c.name == "exactly once"
    ]
    assert once.found == "each of 33 planned samples once in 2 epochs, 1 of them again to fill the last step"


def test_the_cache_of_a_warm_up_trial_is_not_judged() -> None:
    assert failed(lambda t, _: set_host(t, 0, resident_share=1.0)) == []


def test_a_cache_that_cannot_be_attested_is_never_called_cold() -> None:
    found = trials()
    set_host(found, attestable=False, resident_share=1.0, note="not ours")
    [cold] = [check for check in checks(JOB, COUNT, ROW, found, None, verified()) if check.name == "cold cache"]
    assert cold.ok
    assert "not attestable (not ours)" in cold.found


def test_one_late_trial_of_three_is_no_late_result() -> None:
    def three(found: list[Trial], late: list[float]) -> None:
        found += [deepcopy(found[1]), deepcopy(found[1])]
        for trial, seconds in zip(found[1:], late, strict=True):
            trial.compute_late_seconds = seconds

    assert failed(lambda t, _: three(t, [0.01, 0.3, 0.01])) == []
    assert failed(lambda t, _: three(t, [0.3, 0.3, 0.01])) == ["emulated compute"]


def test_warm_asks_for_residency_and_as_is_asks_nothing() -> None:
    assert failed(job=replace(JOB, cache="warm")) == ["warm cache"]
    assert failed(lambda t, _: set_host(t, resident_share=0.97), replace(JOB, cache="warm")) == []
    assert failed(job=replace(JOB, cache="as-is")) == []


def test_steps_shorter_than_a_schedulers_slice_are_not_judged() -> None:
    late: Harm = lambda t, _: update(t[1], compute_late_seconds=1.0)  # noqa: E731 - a harm like the others
    assert failed(late, replace(JOB, step_seconds=0.001)) == []
    assert failed(late, replace(JOB, step_seconds=0.0)) == []
    assert failed(late, replace(JOB, options=Options("cdb", tiny=True))) == []


def test_an_inference_is_held_against_the_dataset() -> None:
    job = replace(JOB, infer={"model": "m", "resume": None, "step": 0}, last="keep", step_seconds=0.0, cache="as-is")
    count = Count(17, 33, job, 33)
    assert (count.samples, count.dropped) == (33, 0)
    found = trials()
    for trial in found:
        trial.inference = Inference(33, {})
    results = {check.name: check for check in checks(job, count, ROW, found, None, verified())}
    assert results["whole dataset"].ok
    assert all(check.ok for check in results.values())
    found[1].inference = Inference(32, {})
    results = {check.name: check for check in checks(job, count, ROW, found, None, None)}
    assert not results["whole dataset"].ok
    assert "32 samples" in results["whole dataset"].found


def test_ranks_of_one_model_must_have_read_alike() -> None:
    job = replace(JOB, options=Options("cdb", shard="job"))
    count = Count(32, 32, job, 33)
    assert count.samples == 32
    own = verified()
    results = {check.name: check for check in checks(job, count, ROW, trials(), None, own)}
    assert all(check.ok for check in results.values())
    assert "once on each of 2 ranks" in results["exactly once"].found
    own = replace(own, epochs_alike=1)
    assert [check.name for check in checks(job, count, ROW, trials(), None, own) if not check.ok] == ["one order"]
