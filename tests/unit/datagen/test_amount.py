"""How much data: from a number, a size or a share to files of every split; what a cold run needs; published totals."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.layout import RANDOM, TEST, TRAIN, VALIDATION, Layout, Split
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.generation.amount import Amount, counts, sizes, stored_bytes
from dlio_bench.harness.commands.generation.options import PlanDataOptions
from dlio_bench.harness.commands.generation.plan import plan_facts, render

HEP = WORKLOADS["hepcnnb"].variants["224"](False, RANDOM)
LAYOUTS = [
    pytest.param(make(False, RANDOM), id=f"{name}-{variant}")
    for name, workload in WORKLOADS.items()
    for variant, make in workload.variants.items()
]


SHORT = ("hepcnnb-224", "cdb-cori", "cosmoflow-sc18", "cosmoflow-original-64", "imagenet-tfrecord", "wsi-til")


def layout_of(*files: int) -> Layout:
    """A layout whose splits have so many files of 10 bytes."""
    names = (TRAIN, VALIDATION, TEST)
    splits = (Split(name, n, 2 * n, 2, 10, 4.0, HEP.spec_files) for name, n in zip(names, files, strict=False))
    return replace(HEP, splits=tuple(splits))


@given(files=st.lists(st.integers(1, 10_000), min_size=1, max_size=3), data=st.data())
def test_files_are_dealt_in_proportion_and_every_split_gets_one(files: list[int], data: st.DataObject) -> None:
    layout = layout_of(*files)
    asked = data.draw(st.integers(len(files), sum(files)))
    found = list(counts(layout, Amount(files=asked)).values())
    assert sum(found) == asked
    assert min(found) >= 1
    assert all(n <= full for n, full in zip(found, files, strict=True))
    for n, full in zip(found, files, strict=True):
        assert abs(n - asked * full / sum(files)) < len(files) or n == 1


@given(files=st.lists(st.integers(1, 10_000), min_size=1, max_size=3), data=st.data())
def test_bytes_are_a_limit_that_is_used(files: list[int], data: st.DataObject) -> None:
    layout = layout_of(*files)
    limit = data.draw(st.integers(10 * len(files), 12 * sum(files)))
    found = counts(layout, Amount(bytes=limit))
    assert stored_bytes(layout, found) <= limit
    assert stored_bytes(layout, found) + 10 > limit or found == counts(layout, Amount())


def test_a_share_is_of_every_split_and_all_is_all() -> None:
    assert counts(layout_of(1000, 300, 10), Amount(fraction=0.01)) == {TRAIN: 10, VALIDATION: 3, TEST: 1}
    assert counts(layout_of(1000, 300), Amount()) == {TRAIN: 1000, VALIDATION: 300}


@pytest.mark.parametrize("files", [2, 3, 9, 13, 128, 1000, 62_738])
def test_cdb_is_cut_where_its_code_cuts_it(files: int) -> None:
    """DL-Parallel-IO, tiramisu_helpers.py load_data: files[:int(0.8 n)], [int(0.8 n):int(0.9 n)], [int(0.9 n):]."""
    layout = WORKLOADS["cdb"].variants["cori"](False, RANDOM)
    names = list(range(files))
    parts = {TRAIN: names[: int(0.8 * files)], VALIDATION: names[int(0.9 * files) :]}
    found = counts(layout, Amount(files=files))
    assert {name: found[name] for name in parts} == {name: len(part) for name, part in parts.items()}
    assert sum(found.values()) == files
    if files == 62_738:
        assert found == counts(layout, Amount()) == {TRAIN: 50_190, VALIDATION: 6_274, TEST: 6_274}
    with pytest.raises(UsageError, match="none of them would be for training"):
        counts(layout, Amount(files=1))


def test_bytes_of_too_many_files_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 20000000"):
        counts(HEP, Amount(bytes=10**19))


@pytest.mark.parametrize(
    ("workload", "variant", "splits", "published"),
    [
        ("hepcnnb", "224", (TRAIN, VALIDATION), 495.1e9),
        ("cdb", "cori", (TRAIN, VALIDATION, TEST), 3.775e12),
        ("cosmoflow", "mlperf-v1", (TRAIN,), 1.48e12),
        ("imagenet", "tfrecord", (TRAIN,), 146.9e9),
    ],
)
def test_full_sizes_are_the_published_ones(
    workload: str, variant: str, splits: tuple[str, ...], published: float
) -> None:
    layout = WORKLOADS[workload].variants[variant](False, RANDOM)
    found = plan_facts(layout, PlanDataOptions(workload=workload, variant=variant, rate=2_000_000_000, full=True))
    stored = sum(size["stored_bytes"] for size in found["splits"] if size["name"] in splits)
    assert stored == pytest.approx(published, rel=0.005)
    payload = sum(size["payload_bytes"] for size in found["splits"])
    assert found["payload_bytes"] == payload != found["stored_bytes"]
    assert found["seconds"] == found["stored_bytes"] / 2e9
    assert max(len(line) for line in render(found).splitlines()) <= 80


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_names_of_a_split_are_as_many_as_its_size_says(layout: Layout) -> None:
    files = counts(layout, Amount(files=min(40, sum(split.full_files for split in layout.splits))))
    specs = layout.files(files)
    assert [spec.split for spec in specs] == [name for name, n in files.items() for _ in range(n)]
    assert len({spec.name for spec in specs}) == len(specs)
    first = 0
    for spec in specs:
        assert spec.first == first
        first += spec.samples
    expected = sum(size.samples for size in sizes(layout, files))
    # a shard has a record more or less than the typical one, and slides have 49 to 480 tiles
    near = {"rel": 0.1} if layout.workload == "wsi" else {"abs": len(specs)}
    assert first == pytest.approx(expected, **near)


def test_a_cold_run_needs_five_times_the_memory_in_training_data() -> None:
    found = plan_facts(
        HEP, PlanDataOptions(workload="hepcnnb", nodes=4, memory_per_node=2_000_000_000, full=False, json=True)
    )
    assert found["needed_bytes"] == 40_000_000_000
    train = found["splits"][0]
    assert train["stored_bytes"] - 426_926_240 < found["needed_bytes"] <= train["stored_bytes"]
    assert found["large_enough"]
    assert found["seconds"] is None
    assert not found["full"]


def test_a_published_dataset_that_is_too_small_is_repeated() -> None:
    """What `plan-data` says can be made, with the command that it names."""
    found = plan_facts(
        HEP, PlanDataOptions(workload="hepcnnb", nodes=1000, memory_per_node=2**37, full=False, json=True)
    )
    assert not found["full"]
    assert found["large_enough"]
    assert "1.57e+03 x the published size" in render(found)
    assert f"generate hepcnnb --fill random --files {found['files']} --out DIR" in render(found)
    assert counts(HEP, Amount(files=found["files"])) == {size["name"]: size["files"] for size in found["splits"]}
    full = plan_facts(HEP, PlanDataOptions(workload="hepcnnb", nodes=1000, memory_per_node=2**37, full=True, json=True))
    assert full["large_enough"] is False
    assert "smaller than that" in render(full)
    assert "--full --out DIR" in render(full)


# the names of the others take seconds to make
@pytest.mark.parametrize("layout", [case for case in LAYOUTS if case.id in SHORT])
def test_beyond_the_published_size_no_name_comes_twice(layout: Layout) -> None:
    twice = {split.name: 2 * split.full_files + 1 for split in layout.splits}
    specs = layout.files(twice)
    assert len({spec.name for spec in specs}) == len(specs) == sum(twice.values())
    assert [spec.first for spec in specs] == [0, *itertools.accumulate(spec.samples for spec in specs[:-1])]


def test_a_plan_needs_the_memory_of_a_node() -> None:
    with pytest.raises(UsageError, match="--memory-per-node"):
        plan_facts(HEP, PlanDataOptions(workload="hepcnnb"))
