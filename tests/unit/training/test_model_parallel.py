"""Ranks that hold parts of one model: which readers can bring all of them the same, and how a run is cut for them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.run.asked.jobs import jobs
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.plan.model_parallel import require_readable, stage_view
from dlio_bench.harness.plan.policies import find

READABLE = (
    "naive", "shuffled", "double-buffer", "staged-replicated", "clairvoyant", "cooperative", "lbann-preload",
    "deepio-ordered", "locality-aware",
)  # fmt: skip
REFUSED = (
    "staged", "staged-subset", "lbann-dynamic", "deepio-opportunistic", "parallel-staging", "tfdata", "upstream",
)  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_readers_that_give_nodes_parts_of_their_own_are_refused(name: str) -> None:
    for readable in READABLE:
        require_readable(find(readable))
    with pytest.raises(UsageError, match="--shard job: every rank reads the whole dataset"):
        require_readable(find(name))


@given(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8), st.sets(st.sampled_from("abcdefgh")),
       st.integers(1, 6))  # fmt: skip
def test_every_field_is_read_by_one_stage_in_the_order_of_the_view(
    view: list[str], labels: set[str], stages: int
) -> None:
    read = [stage_view(view, labels, stage, stages) for stage in range(stages)]
    assert sorted(name for fields in read for name in fields) == sorted(view)
    assert all(list(fields) == [name for name in view if name in fields] for fields in read)
    assert not any(read[1:-1])
    if stages > 1:
        assert set(read[-1]) == labels & set(view)


def test_labels_are_fields_of_the_view() -> None:
    labelled = {workload.name: workload.labels for workload in WORKLOADS.values() if workload.labels}
    assert set(labelled) == {"cdb", "hepcnnb"}
    for name, labels in labelled.items():
        assert set(labels) < set(WORKLOADS[name].view)
        assert all("label" in field or field in ("weight", "normweight", "psr") for field in labels)


def test_a_step_is_one_batch_however_many_ranks_read_it(tmp_path: Path) -> None:
    one = look_up(Options("hepcnnb", tiny=True, nodes=(1,)))
    all_alike = look_up(Options("hepcnnb", tiny=True, nodes=(2, 4), ranks_per_node=2, shard="job"))
    assert all_alike.files() == one.files()
    assert all_alike.trial_size(2048) == one.trial_size(2048)
    few, many = jobs(all_alike, all_alike.trial_size(2048), tmp_path, None)
    assert (few.copies, few.trainers, many.copies, many.trainers) == (4, 1, 8, 1)
    [apart] = jobs(one, one.trial_size(2048), tmp_path, None)
    assert (apart.copies, apart.trainers) == (1, 1)
