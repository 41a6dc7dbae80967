"""What launchers print before they fail becomes a sentence with a fix, or is quoted without noise."""

from dlio_bench.harness.cluster.last_words import CHARACTERS, cause, quoted

NOISE = "srun: cluster configuration lacks support for cpu binding\n"


def test_noise_is_quoted_only_where_there_is_nothing_else() -> None:
    assert quoted(f"{NOISE}srun: error: no such partition\n------\n \ufffd\n") == "srun: error: no such partition"
    assert quoted(NOISE) == NOISE.strip()
    assert quoted("----\n\n") == "(none)"


def test_last_words_are_whole_lines() -> None:
    words = quoted("".join(f"line {number} of many\n" for number in range(1000)))
    assert words.startswith("line ")
    assert words.endswith(" / line 999 of many")
    assert len(words) < 2 * CHARACTERS
    assert quoted("a" * 5000) == "a" * CHARACTERS


def test_known_causes_have_a_fix() -> None:
    few = "srun: error: Unable to create step for job 1: More processors requested than permitted\n"
    assert "--exclusive" in str(cause(NOISE + few))
    hosts = "At least one of the requested hosts is not included in the current\nallocation.\n\n"
    assert str(cause(f"{hosts}Missing requested host: n2")).startswith("n2 of the host file is not in the allocation")
    assert cause(NOISE) is None
