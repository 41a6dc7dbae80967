"""What a user is advised to do."""

from typing import Any

import pytest

from dlio_bench.reports.run import facts
from dlio_bench.reports.run.advice import advice
from tests.results import Complete

Drafted = tuple[dict[str, Any], dict[str, Any]]


@pytest.mark.parametrize(
    ("served", "says"),
    [
        ({}, "a cache served part of them"),
        ({"bytes_ram": 5, "bytes_remote": 7}, "the reader's own tiers and other ranks served part of them"),
        ({"bytes_local": 5}, "the reader's own tiers served part of them"),
    ],
)
def test_advice_says_who_made_later_epochs_fast(made: Complete, served: dict[str, int], says: str) -> None:
    def faster(draft: dict[str, Any]) -> None:
        for one in draft["trials"]:
            one["epochs"][1] |= served | {"seconds": 0.1 * one["epochs"][0]["seconds"]}

    (said,) = [line for line in advice(made(change=faster)[0]) if "later epochs" in line]
    assert says in said


@pytest.mark.parametrize(
    ("plan", "hosts", "says"),
    [
        ({"ranks_per_node": 4, "nodes": 1}, ["node01"] * 4, "use fewer ranks per node"),
        ({}, ["node01"] * 4, "use fewer virtual nodes on a machine"),
        ({}, [f"node0{rank}" for rank in range(4)], "give it more cores, or fewer --threads"),
    ],
)
def test_late_compute_is_not_advised_what_is_so_already(
    made: Complete, plan: dict[str, int], hosts: list[str], says: str
) -> None:
    def late(draft: dict[str, Any]) -> None:
        draft["plan"] |= plan
        draft["environment"]["rank_hosts"] = hosts
        for trial in draft["trials"]:
            trial["compute_actual_seconds"] = 1.2 * trial["compute_asked_seconds"]

    (said,) = [line for line in advice(made(change=late)[0]) if line.startswith("compute ran")]
    assert said.endswith(f"; {says}")


@pytest.mark.parametrize(
    ("processors", "threads", "is_told"), [(1, 2, True), (1, 0, False), (2, 2, False), (None, 2, False)]
)
def test_ranks_whose_threads_share_one_core_with_the_trainer_are_advised_to_bind_wider(
    made: Complete, processors: int | None, threads: int, is_told: bool
) -> None:
    def bind(draft: dict[str, Any]) -> None:
        draft["environment"] |= {"cores_per_rank": 1.0, "bound_processors": processors}
        draft["policy"]["options"]["threads"] = threads

    def unbound(draft: dict[str, Any]) -> None:
        bind(draft)
        draft["environment"]["launcher"]["argv"] += ["--bind-to", "none"]

    result = made(change=bind)[0]
    assert any("bound to one core" in line and "--bind-to none" in line for line in advice(result)) == is_told
    assert not any("--bind-to none" in line for line in advice(made(change=unbound)[0]))
    assert facts.plans([result])["Job"].common["cores per rank"] == "1.0"
