"""The table of policies, and rows whose axes are replaced by hand."""

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.orders import ORDERS
from dlio_bench.harness.plan.policies import (
    ALIASES,
    DELIVERIES,
    OWN,
    PLACEMENTS,
    POLICIES,
    REDRAWN,
    SHUFFLING,
    find,
    resolve,
)

DRAWN = [name for name, row in POLICIES.items() if row.rule.draws_order]
RUNNABLE = [name for name in POLICIES if name not in DRAWN]


def test_the_policy_table_has_the_readers_of_the_design() -> None:
    assert find("prefetch") is POLICIES[ALIASES["prefetch"]]
    assert find("prefetch").delivery == "ahead"
    assert (find("naive").order, find("naive").placement, find("naive").delivery) == ("sequential", "none", "on demand")
    assert find("staged-subset").order == "subset-shuffle"
    assert not find("staged-subset").exactly_once
    assert find("tfdata").order == "buffered-shuffle"
    assert (find("torch").order, find("torch").delivery) == ("global-shuffle", "torch")
    assert {row.delivery for row in POLICIES.values()} == set(DELIVERIES)


def test_the_rows_that_draw_their_order_are_known() -> None:
    assert {"deepio-opportunistic", "parallel-staging"} <= set(DRAWN)
    assert {row.name for row in POLICIES.values() if row.simulated} >= {"shuffled", "double-buffer", "staged", *DRAWN}
    assert not any(find(name).simulated for name in ("naive", "staged-replicated", "tfdata", "upstream"))


def test_what_a_row_promises_is_what_its_axes_promise() -> None:
    for row in POLICIES.values():
        if row.name in DRAWN:
            assert (row.order, row.exactly_once) == (REDRAWN, False)
        elif row.delivery != OWN:
            assert row.order in ORDERS
            assert row.exactly_once == ORDERS[row.order].exactly_once
            assert row.order_known == (row.delivery not in SHUFFLING)


def test_nothing_replaced_is_the_row_itself() -> None:
    for name in (*RUNNABLE, *ALIASES):
        assert resolve(name) is find(name)
    assert resolve("naive", "sequential", "none", "on-demand") is find("naive")
    assert resolve("tfdata", order="buffered-shuffle(10000)") is find("tfdata")


@pytest.mark.parametrize(
    ("asked", "name", "once", "known"),
    [
        ({"name": "naive", "order": "global-shuffle"}, "naive+order=global-shuffle", True, True),
        ({"name": "prefetch", "order": "file-shuffle"}, "cooperative+order=file-shuffle", True, True),
        ({"name": "shuffled", "delivery": "ahead"}, "shuffled+delivery=ahead", True, True),
        ({"name": "naive", "delivery": "torch"}, "naive+delivery=torch", True, True),
        ({"name": "tfdata", "order": "buffered-shuffle(100)"}, "tfdata+order=buffered-shuffle(100)", True, False),
        ({"name": "staged", "delivery": "on demand"}, "staged+delivery=on-demand", True, True),
        ({"name": "staged-subset", "order": "subset-shuffle(250)"}, "staged-subset+order=subset-shuffle(250)", 0, 1),
        (
            {"name": "naive", "order": "node-shuffle", "placement": "stage-partition"},
            "naive+order=node-shuffle+placement=stage-partition",
            True,
            True,
        ),
        ({"name": "staged-replicated", "order": "node-shuffle"}, "staged-replicated+order=node-shuffle", True, True),
        ({"name": "parallel-staging", "delivery": "on demand"}, "parallel-staging+delivery=on-demand", False, True),
        ({"name": "upstream", "order": "file-shuffle"}, "upstream+order=file-shuffle", True, False),
    ],
)
def test_the_name_tells_what_was_replaced_and_finds_it_again(
    asked: dict[str, str], name: str, once: bool, known: bool
) -> None:
    policy = resolve(**asked)
    assert (policy.name, policy.exactly_once, policy.order_known) == (name, bool(once), bool(known))
    for axis in ("order", "placement", "delivery"):
        assert getattr(policy, axis) == asked.get(axis, getattr(find(asked["name"]), axis))
    assert find(name) == policy
    assert policy.source == find(asked["name"]).source


def test_upstream_takes_the_order_of_the_workload_and_keeps_its_name() -> None:
    assert resolve("upstream").order == OWN
    policy = resolve("upstream", own_order="buffered-shuffle(100)")
    axes = (policy.name, policy.order, policy.placement, policy.delivery)
    assert axes == ("upstream", "buffered-shuffle(100)", OWN, OWN)
    assert policy.exactly_once
    assert not policy.order_known
    other = resolve("upstream", order="file-shuffle", own_order="global-file-shuffle")
    assert (other.name, other.order) == ("upstream+order=file-shuffle", "file-shuffle")
    same = resolve("upstream", order="global-file-shuffle", own_order="global-file-shuffle")
    assert same.name == "upstream"
    assert resolve("naive", own_order="file-shuffle") is find("naive")


def test_every_mix_is_a_policy_or_a_refusal() -> None:
    mixes = [(n, o, p, d) for n in RUNNABLE for o in (None, *ORDERS) for p in PLACEMENTS for d in DELIVERIES]
    made = 0
    for name, order, placement, delivery in mixes:
        try:
            policy = resolve(name, order, placement, delivery)
        except UsageError as refusal:
            assert "Use" in str(refusal) or "Leave out" in str(refusal)  # noqa: PT017 - one of two good outcomes
        else:
            made += 1
            assert find(policy.name) == policy
    assert 100 < made < len(mixes)
