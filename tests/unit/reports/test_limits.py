"""Limits from a TOML file: what they mean, and how wrong ones are refused."""

from pathlib import Path

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.policies import ALIASES, POLICIES
from dlio_bench.reports.judging import limits
from dlio_bench.reports.judging.limits import Limits, Settings

WORKLOADS = ("cdb", "cosmoflow")
EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "limits.toml"
READERS = (*POLICIES, *ALIASES)


def load(tmp_path: Path, text: str) -> Limits:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    return limits.load(path, WORKLOADS, READERS)


def table(metric: str) -> str:
    return f'[cdb.prefetch."8x4"]\n{metric}'


def test_a_limit_is_a_number_of_its_metrics_unit_and_of_the_unfavourable_end(tmp_path: Path) -> None:
    for text, bound, statistic in (
        ('delivered_bandwidth = { at_least = "10.8 GB/s" }', 10.8e9, "ci_low"),
        ('delivered_bandwidth = { at_least = "10.8 GB/s", statistic = "median" }', 10.8e9, "median"),
        ('stall_share = { at_most = "10 %" }', 0.1, "ci_high"),
        ('stall_share = { at_most = "10%", statistic = "ci_low" }', 0.1, "ci_low"),
        ('spread = { at_most = "5 %" }', 0.05, "median"),
        ('elapsed_seconds = { at_most = "2 min" }', 120, "ci_high"),
        ('bytes_device = { at_most = "2 GiB" }', 2**31, "ci_high"),
        ("samples_per_second = { at_least = 208 }", 208, "ci_low"),
        ('samples_per_second = { at_least = "208 samples/s" }', 208, "ci_low"),
        ("over_bound = { at_most = 1.2 }", 1.2, "ci_high"),
        ("samples_per_second = { at_least = 1e12 }", 1e12, "ci_low"),
        ('samples_per_second = { at_least = "1e12" }', 1e12, "ci_low"),
        ('bytes_device = { at_most = "1.5e3 GB" }', 1.5e12, "ci_high"),
        ('ceiling_share = { at_least = "101 %" }', 1.01, "ci_low"),
        ("remote_misses = { at_most = 0 }", 0, "ci_high"),
    ):
        [limit] = load(tmp_path, table(text)).limits
        assert (limit.bound, limit.statistic, limit.table) == (pytest.approx(bound), statistic, "cdb.prefetch.8x4")
    both = load(tmp_path, table('au = { at_least = "70 %", at_most = "101 %" }')).limits
    assert [(limit.side, limit.statistic) for limit in both] == [("at_least", "ci_low"), ("at_most", "ci_high")]


def test_the_example_of_the_documentation_is_read() -> None:
    found = limits.load(EXAMPLE, WORKLOADS, READERS)
    assert {limit.workload for limit in found.limits} == {"cdb", "cosmoflow"}
    assert {limit.statistic for limit in found.limits} == {"median", "ci_low", "ci_high"}


def test_settings_are_those_of_the_file_or_the_defaults(tmp_path: Path) -> None:
    easy = table("over_bound = { at_most = 9 }")
    assert load(tmp_path, easy).settings == Settings(trials=5)
    text = 'trials = 7\nmin_seconds = 30\nmin_steps = 64\ncache = "cold"\ndataset_to_memory = 5\n'
    text += 'node_bandwidth = "25 GB/s"\nallow_marks = ["EMULATED COMPUTE"]\nversion = 3\n'
    found = load(tmp_path, text + easy)
    assert found.settings == Settings(
        trials=7, min_seconds=30.0, min_steps=64, cache="cold", dataset_to_memory=5.0, node_bandwidth=25e9,
        allow_marks=["EMULATED COMPUTE"],
    )  # fmt: skip
    assert (found.name, found.version, len(found.sha256)) == ("limits.toml", "3", 64)
    assert load(tmp_path, "trials = 1e1\nmin_steps = 1e12\n" + easy).settings == Settings(trials=10, min_steps=10**12)
    assert load(tmp_path, "\ufeff" + text + easy).settings == found.settings


WRONG = (
    ("trials = 3", r"trials is '3'\. Write a whole number of at least 5"),
    ('trials = "7"', r"trials is '7'"),
    ("trails = 7", r"no key 'trails'\. Did you mean 'trials'"),
    ("min_seconds = nan", "min_seconds is 'nan'"),
    ("min_steps = true", "min_steps is 'True'"),
    ("min_steps = -4", r"min_steps is '-4'\. Write a whole number from 1 on"),
    ('cache = "cool"', "cache is 'cool'. Write cold, cold-epochs, first-epoch-cold, warm or as-is"),
    ('node_bandwidth = "25 GB"', "node_bandwidth is '25 GB'"),
    (
        'allow_marks = ["VIRTUAL NODE"]',
        r"no mark in allow_marks: 'VIRTUAL NODE'\. Did you mean 'VIRTUAL NODES'\? Use SHORT",
    ),
    ('allow_marks = ["TINY"]', "shrunken samples can accept no system"),
    ("version = 1.5", r"version is '1\.5'\. Write a text in quotes or a whole number, such as version = \"2026-1\""),
    ("[version]\nmajor = 1", r"version is 'the table \[version\]'\. Write version = "),
    ("[trials]\ncount = 5", r"trials is 'the table \[trials\]'"),
    ('version = "\\u001b[2J"', r"version is '\\x1b\[2J'"),
    ('[cdb.prefetch]\nau = { at_least = "9 %" }', r"a scale in \[cdb\.prefetch\] is 'au'\. Write nodes x ranks"),
    ('[cdb.prefetch."8 x 4"]\nau = { at_least = "9 %" }', "is '8 x 4'"),
    ('[cbd.prefetch."8x4"]\nau = { at_least = "9 %" }', r"no workload 'cbd'\. Did you mean 'cdb'"),
    ('[cdb.prefetsch."8x4"]\nau = { at_least = "9 %" }', r"no reader in \[cdb\]: 'prefetsch'\. Did you mean 'pre"),
    (table('delivered_bandwith = { at_least = "9 GB/s" }'), "Did you mean 'delivered_bandwidth'"),
    (table('delivered_bandwidth = { at_least = "10.8 GB" }'), r'"8x4"\] delivered_bandwidth\.at_least is \'10\.8'),
    (table("delivered_bandwidth = { at_least = 10.8 }"), "bytes a second with their unit, such as"),
    (table('stall_share = { at_most = "10" }'), r"stall_share\.at_most is '10'\. Write a percentage"),
    (table("stall_share = { at_most = 0.1 }"), "Write a percentage"),
    (table('elapsed_seconds = { at_most = "-1 s" }'), "Write a time with its unit"),
    (table('over_bound = { at_most = "inf" }'), "Write a number, such as 1.2"),
    (table('au = { min = "90 %" }'), "Write { at_least = ... } or { at_most = ... }"),
    (table('au = { at_least = "90 %", statistics = "median" }'), "Did you mean 'statistic'"),
    (table('au = { at_least = "90 %", statistic = "mean" }'), "Use median, ci_low or ci_high"),
    (table('au = { at_least = "180 %" }'), r"au\.at_least is '180 %'\. Write at most 100 %"),
    ("min_steps = 1.5", r"min_steps is '1\.5'"),
    ("min_steps = inf", r"min_steps is 'inf'"),
    (table('spread = { at_most = "5 %", statistic = "ci_high" }'), "the spread has no interval"),
    ("version = 1", "has no limit"),
    ("[cdb]", "Below it comes a reader"),
    ("[cdb", "is not TOML"),
)


def test_what_is_wrong_is_named_with_file_key_value_and_fix(tmp_path: Path) -> None:
    for text, says in WRONG:
        with pytest.raises(UsageError, match=says) as refusal:
            load(tmp_path, text)
        assert str(refusal.value).startswith(f"'{tmp_path}/limits.toml'")
        assert str(refusal.value).isprintable()


def test_a_row_that_was_mixed_by_hand_has_a_name_too(tmp_path: Path) -> None:
    [limit] = load(tmp_path, '[cdb."naive+order=global-shuffle"."*"]\nover_bound = { at_most = 2 }').limits
    assert limit.covers("cdb", ["naive+order=global-shuffle"], "3x1")
    assert not limit.covers("cdb", ["naive"], "3x1")


def test_a_file_that_is_not_there_is_the_users_mistake(tmp_path: Path) -> None:
    for name in ("absent.toml", "a\0b"):
        with pytest.raises(UsageError, match="`dlio-bench help limits`"):
            limits.load(tmp_path / name)
