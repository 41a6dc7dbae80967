"""Which files a rank has for its own, and who copies what: it fits together over the job."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.harness.plan.draws import stage_partition, stage_subset
from dlio_bench.harness.plan.placement import files
from dlio_bench.harness.plan.placement.files import Share
from dlio_bench.harness.plan.policies import PLACEMENTS

FILES = 40
SHARES = {name: rule.files.share for name, rule in PLACEMENTS.items() if rule.files}


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[np.ndarray], int]:
    """(wants of every rank, ranks per node): any files, nothing at all included."""
    nodes, ranks_per_node = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    wanted = st.sets(st.integers(0, FILES - 1), max_size=12).map(lambda found: np.array(sorted(found), dtype=np.int64))
    return [draw(wanted) for _ in range(nodes * ranks_per_node)], ranks_per_node


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
    sent = [(file, rank, to) for rank, share in enumerate(found) for file, to in share.sends]
    received = [(file, source, rank) for rank, share in enumerate(found) for file, source in share.receives]
    assert sorted(sent) == sorted(received)
    for rank, share in enumerate(found):
        assert {file for file, _ in share.sends} <= set(share.reads.tolist())
        # a ring; both sides take a pair's files in ascending order, as pieces carry no name
        ring = [((to - rank) % len(found), file) for file, to in share.sends]
        assert ring == sorted(ring)
        assert [file for file, _ in share.receives] == sorted(file for file, _ in share.receives)
        assert all(source // job[1] != rank // job[1] for _, source in share.receives)


@given(jobs())
def test_a_subset_file_is_read_once_in_the_job_and_reads_are_balanced(job: tuple[list[np.ndarray], int]) -> None:
    wants, per_node = job
    reads = [share.reads for share in shares("stage-subset", wants, per_node)]
    assert sorted(np.concatenate(reads).tolist()) == np.unique(np.concatenate(wants)).tolist()
    assert max(map(len, reads)) - min(map(len, reads)) <= 1


def test_ranks_of_a_node_read_in_turn_what_it_wants_or_everything() -> None:
    wants = [np.array(wanted) for wanted in ([0, 3], [3, 6], [1, 4, 7], [7])]
    reads = [share.reads.tolist() for share in shares("stage-partition", wants, 2)]
    assert reads == [[0, 6], [3], [1, 7], [4]]
    reads = [files.replicate([], 5, 2, rank).reads.tolist() for rank in range(4)]
    assert reads == [[0, 2, 4], [1, 3], [0, 2, 4], [1, 3]]


def test_a_partition_deals_files_in_turn_and_leaves_the_remainder_out() -> None:
    assert [stage_partition(11, 3, node).tolist() for node in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_subsets_are_drawn_without_replacement_evenly_and_independently() -> None:
    count_of_files, ranks, count, seeds_tried = 60, 8, 15, 100
    drawn = [
        [stage_subset(count_of_files, ranks, rank, count, seed) for rank in range(ranks)] for seed in range(seeds_tried)
    ]
    hits = np.bincount(np.concatenate([one for job in drawn for one in job]), minlength=count_of_files)
    # every file 200 times, binomial with deviation 12; five of them
    assert 140 < hits.min() <= hits.max() < 260
    shared = [len(np.intersect1d(a, b)) for job in drawn for i, a in enumerate(job) for b in job[:i]]
    assert abs(np.mean(shared) - count * count / count_of_files) < 0.2  # 15 / 4 of two independent draws
    union = np.mean([len(np.unique(np.concatenate(job))) for job in drawn])
    assert abs(union - count_of_files * (1 - 0.75**ranks)) < 0.5  # some files are on no node
    assert len({tuple(one) for job in drawn for one in job}) == ranks * seeds_tried
