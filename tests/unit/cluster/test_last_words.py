"""What launchers print before they fail becomes a sentence with a fix, or is quoted without noise."""

from dlio_bench.harness.cluster.outcome import CHARACTERS, known_cause, last_words

NOISE = "srun: cluster configuration lacks support for cpu binding\n"


def test_noise_is_quoted_only_where_there_is_nothing_else() -> None:
    assert last_words(f"{NOISE}srun: error: no such partition\n------\n \ufffd\n") == "srun: error: no such partition"
    assert last_words(NOISE) == NOISE.strip()
    assert last_words("----\n\n") == "(none)"


def test_last_words_are_whole_lines() -> None:
    words = last_words("".join(f"line {number} of many\n" for number in range(1000)))
    assert words.startswith("line ")
    assert words.endswith(" / line 999 of many")
    assert len(words) < 2 * CHARACTERS
    assert last_words("a" * 5000) == "a" * CHARACTERS


def test_known_causes_have_a_fix() -> None:
    few = "srun: error: Unable to create step for job 1: More processors requested than permitted\n"
    assert "--exclusive" in str(known_cause(NOISE + few))
    hosts = "At least one of the requested hosts is not included in the current\nallocation.\n\n"
    assert str(known_cause(f"{hosts}Missing requested host: n2")).startswith(
        "n2 of the host file is not in the allocation"
    )
    assert known_cause(NOISE) is None
