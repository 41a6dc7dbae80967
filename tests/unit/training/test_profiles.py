"""Compute profiles: their files, the step times between and beyond their rows, and which of them a run takes."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.benchmarks.profile import (
    DERIVED,
    ESTIMATE,
    MEASURED,
    PUBLISHED,
    Profile,
    ProfileRow,
    load,
    parse,
    to_tables,
)
from dlio_bench.benchmarks.profile import profile_of_time as given_time
from dlio_bench.benchmarks.registry import WORKLOADS, find
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.calibration.compute.command import powers
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.ground.user_files import to_toml
from dlio_bench.harness.training.compute import step_time

CDB = Profile(
    workload="cdb", variants=("cori",), model="tiramisu", device="a device", kind=MEASURED, source="measured by hand",
    rows=(ProfileRow(2, 0.2, (0.19, 0.21), 5, 0.05), ProfileRow(4, 0.3, (0.3, 0.3), 5, 0.08),
          ProfileRow(8, 0.7, (0.6, 0.7), 5, 0.2)),
    shape=(768, 1152, 4), dtype="float32", by={"tensorflow": "2.18.1", "threads": "2"},
)  # fmt: skip
TEXT = """
[profile]
schema = "dlio-bench/compute-profile/1"
workload = "cdb"
variants = ["cori"]
model = "tiramisu"
device = "mine"
kind = "measured"
source = "me"
shape = [8, 8]
[rows.2]
seconds = 0.2
spread = [0.1, 0.3]
steps = 5
[by]
host = "here"
"""


def written(profile: Profile, path: Path) -> Path:
    path.write_text(to_toml(to_tables(profile)))
    return path


times = st.floats(1e-6, 1e3, allow_nan=False)
rows = st.builds(
    lambda batch, times, steps, forward: ProfileRow(batch, times[1], (times[0], times[2]), steps, forward),
    st.integers(1, 4096),
    st.tuples(times, times, times).map(sorted),
    st.none() | st.integers(1, 99),
    st.none() | times,
)
texts = st.text(min_size=1).filter(str.strip)
profiles = st.builds(
    Profile,
    workload=texts,
    variants=st.lists(texts, min_size=1, max_size=3).map(tuple),
    model=st.none() | texts,
    device=texts,
    kind=st.sampled_from([MEASURED, PUBLISHED, DERIVED, ESTIMATE]),
    source=texts,
    rows=st.lists(rows, min_size=1, max_size=6, unique_by=lambda row: row.batch).map(
        lambda found: tuple(sorted(found, key=lambda row: row.batch))
    ),
    tiny=st.booleans(),
    shape=st.lists(st.integers(1, 9999), max_size=4).map(tuple),
    dtype=st.none() | st.just("float32"),
    by=st.dictionaries(texts, texts, max_size=3),
)


@given(profiles)
def test_a_profile_is_read_as_it_was_written(profile: Profile) -> None:
    text = to_toml(to_tables(profile))
    assert parse(tomllib.loads(text), "it") == replace(profile, name="it")


@given(profiles, st.integers(1, 5000))
def test_step_times_lie_between_those_of_their_neighbours(profile: Profile, batch: int) -> None:
    known = {row.batch: row.seconds for row in profile.rows}
    if batch in known:
        assert profile.seconds(batch) == known[batch]
        assert profile.describe_source(batch) == f"{known[batch]:g} s for a batch of {batch}"
    elif min(known) < batch < max(known):
        low, high = max(size for size in known if size < batch), min(size for size in known if size > batch)
        found = profile.seconds(batch)
        assert min(known[low], known[high]) * (1 - 1e-9) <= found <= max(known[low], known[high]) * (1 + 1e-9)
        # on the line through both
        assert found == pytest.approx((known[low] * (high - batch) + known[high] * (batch - low)) / (high - low))
        assert profile.describe_source(batch).startswith("linear between")
    elif profile.kind == MEASURED:
        with pytest.raises(
            UsageError, match=rf"(?s)no step time for a batch of {batch}: .* --batch ([0-9]+,)*{batch}[ ,]"
        ):
            profile.seconds(batch)
    else:
        near = min(known) if batch < min(known) else max(known)
        assert profile.seconds(batch) == pytest.approx(known[near] * batch / near)
        assert profile.describe_source(batch) == f"in proportion to {known[near]:g} s for a batch of {near}"


def test_forward_passes_go_by_the_same_rule() -> None:
    assert CDB.forward_seconds(4) == 0.08
    assert CDB.forward_seconds(3) == pytest.approx(0.065)
    assert replace(CDB, rows=(*CDB.rows, ProfileRow(16, 1.0))).forward_seconds(4) is None
    with pytest.raises(UsageError, match="measured for 2, 4 and 8"):
        CDB.forward_seconds(1)


def test_a_given_time_is_that_of_any_batch() -> None:
    assert {given_time(0.05, "me").seconds(batch) for batch in (1, 7, 512)} == {0.05}
    assert given_time(0.05, "me").describe_source(7) == "0.05 s for a batch of 7"
    assert given_time(0.05, "me").facts() is None


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[profile]", "[profil]", "section 'profil'"),
        ("profile/1", "profile/2", 'this version reads "dlio-bench/compute-profile/1"'),
        ('kind = "measured"', 'kind = "guessed"', "one of measured, published, derived, estimated"),
        ('kind = "measured"', "kind = [1]", r"kind = \[1\]"),
        ('device = "mine"', "", "device = None"),
        ('device = "mine"', 'device = " "', "write a text in quotes"),
        ('variants = ["cori"]', 'variants = "cori"', "write a list of texts"),
        ("shape = [8, 8]", "shape = [8, 0]", "whole numbers from 1"),
        ("shape = [8, 8]", "tiny = 1", "tiny = 1"),
        ("shape = [8, 8]", "colour = 1", "key 'colour'"),
        ("[rows.2]", "[rows.two]", "rows.two"),
        ("[rows.2]", "[rows.0]", "rows.0"),
        ("seconds = 0.2", "seconds = -0.2", "rows.2.seconds = -0.2"),
        ("seconds = 0.2", "seconds = nan", "rows.2.seconds = nan"),
        ("seconds = 0.2", "", "rows.2.seconds = None"),
        ("spread = [0.1, 0.3]", "spread = [0.3, 0.4]", "between which half of the steps lie"),
        ("steps = 5", "steps = true", "rows.2.steps = True"),
        ("steps = 5", "step = 5", "rows.2.step "),
        ("seconds = 0.2", "seconds 0.2", "is not TOML"),
        ("\n[by]\n", "\n[rows.1]\n", "rows.1.host"),
        ('host = "here"', "", r"\[by\]"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_file(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    assert load(path).rows == (ProfileRow(2, 0.2, (0.1, 0.3), 5),)
    assert TEXT.count(old) == 1
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(UsageError, match=says) as told:
        load(path)
    assert "mine.toml" in str(told.value)


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_was_published_for_other_data_is_an_estimate_for_these(name: str) -> None:
    workload = find(name)
    for device, profile in workload.profiles.items():
        for variant in workload.variants:
            found = step_time(workload, f"emulate:{device}", variant)
            assert found is not None
            if variant in profile.variants:
                assert found == profile
            else:
                assert found.kind == ESTIMATE
                assert f"taken for {variant}" in found.source
    assert {kind for profile in workload.profiles.values() for kind in (profile.kind,)} <= {
        PUBLISHED, DERIVED, ESTIMATE,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"workload": "imagenet"}, "is of imagenet cori, and this is cdb cori"),
        ({"variants": ("a", "b")}, "is of cdb a and b, and this is cdb cori"),
        ({"model": "resnet50"}, "no model 'resnet50'.*tiramisu, deeplab"),
        ({"tiny": True}, "Measure one without --tiny, or run with --tiny"),
    ],
)
def test_a_profile_of_something_else_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = written(replace(CDB, **change), tmp_path / "other.toml")
    with pytest.raises(UsageError, match=says):
        look_up(Options("cdb", compute=f"emulate:@{path}"))


def test_a_run_takes_the_times_of_its_batch(tmp_path: Path) -> None:
    path = written(CDB, tmp_path / "mine.toml")
    request = look_up(Options("cdb", compute=f"emulate:@{path}"))
    assert request.step_seconds(4) == 0.3
    assert request.step_seconds(6) == pytest.approx(0.5)
    assert request.validation_seconds(4) == pytest.approx(0.08 / 4)  # measured, and not a share of the step
    with pytest.raises(UsageError, match="no step time for a batch of 1"):
        request.step_seconds(1)
    # a smoke test scales them as it does published ones
    tiny = look_up(Options("cdb", compute=f"emulate:@{path}", tiny=True))
    published = [look_up(Options("cdb", compute="emulate:v100", tiny=tiny)).step_seconds(1) for tiny in (True, False)]
    assert tiny.step_seconds(4) / 0.3 == pytest.approx(published[0] / published[1])
    # and takes those of tiny samples as they are
    own = written(replace(CDB, tiny=True), tmp_path / "tiny.toml")
    assert look_up(Options("cdb", compute=f"emulate:@{own}", tiny=True)).step_seconds(4) == 0.3


def test_the_batches_that_are_measured_end_with_the_published_one() -> None:
    assert powers(1) == (1,)
    assert powers(64) == (1, 2, 4, 8, 16, 32, 64)
    assert powers(6) == (1, 2, 4, 6)
