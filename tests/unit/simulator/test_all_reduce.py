"""All-reduces on the alpha-beta model: figures by hand, what must hold of any, and what a user sees."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.system import shipped_system
from dlio_bench.harness.simulator.all_reduce import all_reduce_sums, by_node, ring, tree

SUMMIT = shipped_system("summit")
SMALL = replace(SUMMIT, ranks_per_node=2, latency=1.0, network=8.0, interfaces=2, within=16.0)  # MB/s


def test_times_by_hand() -> None:
    assert ring(4, 8, 1.0, 2.0) == 6 * (1 + 1)  # each of 3 + 3 messages is a quarter of 8 bytes, at 2 bytes/s
    assert tree(4, 8, 1.0, 2.0) == 4 * (1 + 4)  # 2 levels up and 2 down, all of it each time
    assert tree(5, 8, 1.0, 2.0) == 6 * (1 + 4)
    assert ring(1, 8, 1.0, 2.0) == tree(1, 8, 1.0, 2.0) == 0
    # 16 MB in 4 nodes of 2 ranks: 2 messages of 8 MB at 16 MB/s within, 16 MB back, and between the nodes one leader by
    # one of two interfaces: 6 messages of 4 MB at 4 MB/s, a second more each; two leaders: of 2 MB each
    assert by_node(4, 1, 16e6, SMALL) == 1 + 1 + 6 * (1 + 1)
    assert by_node(4, 2, 16e6, SMALL) == 1 + 1 + 6 * (1 + 0.5)
    # 27,360 V100, 4,560 nodes: 9,118 messages of 1.5 us; 175 MB at 25 GB/s twice, at 50 GB/s twice 5/6 and once
    within, between = 175e6 / 50e9 * (2 * 5 / 6 + 1), 2 * 4559 / 4560 * 175e6 / 25e9
    assert by_node(4560, 4, 175e6, SUMMIT) == pytest.approx(within + between + 9118 * 1.5e-6)


ranks = st.integers(1, 30_000)
sizes = st.floats(1, 1e12)
alphas = st.floats(0, 1.0)
rates = st.floats(1.0, 1e12)


@given(ranks, sizes, alphas, rates)
def test_time_grows_with_ranks_and_bytes_and_has_a_least(count: int, nbytes: float, alpha: float, rate: float) -> None:
    for way in (ring, tree):
        assert way(count, nbytes, alpha, rate) <= way(count + 1, nbytes, alpha, rate) * (1 + 1e-9)
        assert way(count, nbytes, alpha, rate) <= way(count, 2 * nbytes, alpha, rate)
    if count > 1:
        # each rank must send all but its own part, and get it back
        assert ring(count, nbytes, 0.0, rate) == pytest.approx(2 * (count - 1) / count * nbytes / rate)
        assert ring(count, nbytes, 0.0, rate) <= tree(count, nbytes, 0.0, rate) * (1 + 1e-9)  # the least of bytes
        assert ring(count, 0.0, 1.0, rate) >= tree(count, 0.0, 1.0, rate) or count < 8  # and the most of messages


@given(st.integers(2, 5000), sizes, st.integers(1, 8), st.integers(1, 8))
def test_leaders_help_as_far_as_there_are_interfaces(nodes: int, nbytes: float, interfaces: int, leaders: int) -> None:
    system = replace(SUMMIT, interfaces=interfaces)
    few, more = by_node(nodes, leaders, nbytes, system), by_node(nodes, leaders + 1, nbytes, system)
    assert more <= few * (1 + 1e-9)
    if leaders >= interfaces:
        assert more == pytest.approx(few)


def test_a_lag_hides_what_is_shorter_than_a_step() -> None:
    sums = all_reduce_sums(8, 16_000_000, SMALL, 12.0)
    assert [(way.way, way.leaders, way.seconds) for way in sums.ways] == [
        ("ring", 0, 14 * (1 + 0.5)), ("tree", 0, 6 * (1 + 4)), ("by node", 1, 14), ("by node", 2, 11),
    ]  # fmt: skip
    assert [way.kept for way in sums.ways] == [12 / 33, 12 / 42, 12 / 26, 12 / 23]
    assert [way.kept_lagged for way in sums.ways] == [12 / 21, 12 / 30, 12 / 14, 1]
    assert sums.estimated == ["latency", "within"]
    assert all(way.kept is way.kept_lagged is None for way in all_reduce_sums(8, 16_000_000, SMALL, None).ways)


WORDS = ["simulate", "--control-tree", "27360", "--all-reduce", "175MB", "--system", "summit"]


def test_a_user_sees_what_a_step_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--compute", "emulate:400ms", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["trees"]
    ways = {(way["way"], way["leaders"]): way for way in document["sums"]["ways"]}
    assert len(ways) == 8
    assert ways["by node", 4]["seconds"] == pytest.approx(0.03701, rel=1e-3)
    assert main(WORDS) == 0
    told = capsys.readouterr().out
    assert "Estimated: latency and within." in " ".join(told.split())
    assert told.splitlines()[-3].split() == ["by", "node", "4", "37", "ms", "-", "-"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--all-reduce", "1MB", "--system", "summit"], "Add --control-tree RANKS"),
        (["--control-tree", "12", "--all-reduce", "1MB"], "Add --system"),
        (["--control-tree", "6", "--all-reduce", "1MB", "--system", "summit"], "do not fill two or more nodes"),
        (["--control-tree", "13", "--all-reduce", "1MB", "--system", "summit"], "which have 6 each"),
        (["--control-tree", "12", "--all-reduce", "0", "--system", "summit"], "too small"),
        (["--control-tree", "12", "--all-reduce", "1MB", "--system", "summit", "--nodes", "2"], "without --nodes"),
        ([*WORDS[1:], "--compute", "emulate:v100"], "v100"),
        (["--control-tree", "12", "--system", "summit"], "without --system"),
    ],
)
def test_what_cannot_be_modelled_is_refused(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *words]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())
