"""Who copies what, from what the ranks want: it fits together over the job, and is what the plan of staging says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.harness.plan.staging import stage_plan, stage_subset
from dlio_bench.harness.readers.shares import SHARES, Share

FILES = 40


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[np.ndarray], int]:
    """(wants of every rank, ranks per node): any files, nothing at all included."""
    nodes, ranks_per_node = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    files = st.sets(st.integers(0, FILES - 1), max_size=12).map(lambda found: np.array(sorted(found), dtype=np.int64))
    return [draw(files) for _ in range(nodes * ranks_per_node)], ranks_per_node


def shares(placement: str, wants: list[np.ndarray], ranks_per_node: int) -> list[Share]:
    return [SHARES[placement](wants, FILES, ranks_per_node, rank) for rank in range(len(wants))]


@given(jobs(), st.sampled_from(sorted(SHARES)))
def test_every_kept_file_comes_to_its_node_exactly_once(job: tuple[list[np.ndarray], int], placement: str) -> None:
    wants, per_node = job
    found = shares(placement, wants, per_node)
    for rank, share in enumerate(found):
        node = found[rank // per_node * per_node :][:per_node]
        assert all(np.array_equal(share.kept, other.kept) for other in node)
        assert np.isin(wants[rank], share.kept).all()
        here = [file for other in node for file in (*other.reads.tolist(), *(file for file, _ in other.receives))]
        assert len(here) == len(set(here))
        passing = {file for other in node for file, _ in other.sends}
        assert set(share.kept.tolist()) <= set(here) <= set(share.kept.tolist()) | passing


@given(jobs())
def test_what_is_sent_is_received_and_is_read_by_its_sender(job: tuple[list[np.ndarray], int]) -> None:
    found = shares("stage-subset", *job)
    sent = [(file, rank, to) for rank, share in enumerate(found) for file, all_to in share.sends for to in all_to]
    received = [(file, source, rank) for rank, share in enumerate(found) for file, source in share.receives]
    assert sorted(sent) == sorted(received)
    for rank, share in enumerate(found):
        assert {file for file, _ in share.sends} <= set(share.reads.tolist())
        # both sides take a pair's files in ascending order: pieces carry no name
        assert [file for file, _ in share.sends] == sorted(file for file, _ in share.sends)
        assert [file for file, _ in share.receives] == sorted(file for file, _ in share.receives)
        assert all(source // job[1] != rank // job[1] for _, source in share.receives)


@given(jobs())
def test_a_subset_file_is_read_once_in_the_job_and_reads_are_balanced(job: tuple[list[np.ndarray], int]) -> None:
    wants, per_node = job
    reads = [share.reads for share in shares("stage-subset", wants, per_node)]
    assert sorted(np.concatenate(reads).tolist()) == np.unique(np.concatenate(wants)).tolist()
    assert max(map(len, reads)) - min(map(len, reads)) <= 1


@given(st.integers(1, 4), st.integers(1, 3), st.sampled_from(sorted(SHARES)), st.integers(0, 99))
def test_shares_of_a_whole_plan_are_those_of_the_plan_of_staging(
    nodes: int, per_node: int, placement: str, seed: int
) -> None:
    plan, ranks = stage_plan(placement, FILES, nodes, per_node, seed), nodes * per_node
    if placement == "stage-subset":
        wants = [stage_subset(FILES, ranks, rank, None, seed) for rank in range(ranks)]
    else:
        wants = [plan.nodes[rank // per_node] for rank in range(ranks)]
    found = shares(placement, wants, per_node)
    for rank, share in enumerate(found):
        assert share.kept.tolist() == plan.nodes[rank // per_node].tolist()
        assert share.reads.tolist() == plan.reads[rank].tolist()
    sent = [(file, rank, to) for rank, share in enumerate(found) for file, all_to in share.sends for to in all_to]
    assert sorted(sent) == plan.sends
