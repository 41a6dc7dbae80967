"""The files of a checkpoint follow from the model, the ranks and the layout, as published."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.benchmarks.published_models.models import LLAMA3_8B, LLAMA3_405B, SUBSET, find, models_by_name
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.checkpoints.options import FILE_PER_RANK, LAYOUTS, SHARDED, SINGLE_FILE
from dlio_bench.harness.commands.checkpoints.parts import default_shards, parts, sizes, total

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "ranks", "parameters", "gib", "files"),
    [
        ("llama3-8b", 8, 8_030_261_248, 104.7, 16),
        ("llama3-70b", 64, 69_882_617_856, 911.2, 128),
        ("llama3-405b", 512, 405_853_388_800, 5292, 1544),
    ],
)
def test_sizes_and_files_are_the_published_ones(
    name: str, ranks: int, parameters: int, gib: float, files: int
) -> None:  # mlcommons/storage Rules.md @0366ccf, Table 2, which says 105 GB, 912 GB and 5.29 TB
    model = find(name)
    chosen = parts(model, ranks, ranks, SHARDED)
    assert model.parameters == parameters
    assert total(chosen) / GIB == pytest.approx(gib, rel=1e-4)
    assert len(sizes(chosen)) == files


def test_stages_hold_the_layers_that_upstream_gives_them() -> None:
    chosen = parts(LLAMA3_405B, 512, 512, SHARDED)
    weights = {rank: [part for part in chosen if part.rank == rank and "layer_" in part.file] for rank in (0, 8, 255)}
    held = {rank: sum(part.bytes for part in mine) / GIB for rank, mine in weights.items()}
    assert held == pytest.approx({0: 3.458, 8: 2.969, 255: 2.716}, abs=1e-3)  # first, inner and last stage
    assert [part.file for part in weights[255]][-1] == "layer_128-model_255_model_states.pt"
    assert not [part for part in chosen if part.rank >= 256 and "layer_" in part.file]  # of the second copy


@given(
    model=st.sampled_from(sorted(models_by_name())),
    ranks=st.sampled_from([1, 2, 3, 4, 8]),
    layout=st.sampled_from(LAYOUTS),
    fraction=st.floats(1e-9, 1),
)
def test_every_layout_holds_the_same_bytes_and_no_two_parts_overlap(
    model: str, ranks: int, layout: str, fraction: float
) -> None:
    shards = ranks if ranks > 1 and model != "llama3-405b" else default_shards(models_by_name()[model], ranks) * ranks
    sharded, chosen = (parts(models_by_name()[model], ranks, shards, kind, fraction) for kind in (SHARDED, layout))
    assert total(chosen) == total(sharded)
    assert {part.rank for part in chosen} == set(range(ranks))
    assert sum(sizes(chosen).values()) == total(chosen)
    ends: dict[str, int] = {}
    for part in chosen:  # each begins where the one before it in its file ends
        assert part.offset == ends.get(part.file, 0)
        ends[part.file] = part.offset + part.bytes
    assert len(ends) == {SHARDED: len(sharded), FILE_PER_RANK: ranks, SINGLE_FILE: 1}[layout]


def test_a_fraction_cuts_bytes_and_keeps_files_and_writers() -> None:
    whole, hundredth = (parts(LLAMA3_8B, 4, 4, SHARDED, fraction) for fraction in (1, 0.01))
    assert [(part.file, part.rank) for part in whole] == [(part.file, part.rank) for part in hundredth]
    assert total(hundredth) == pytest.approx(0.01 * total(whole), rel=1e-6)
    assert {part.bytes for part in parts(LLAMA3_8B, 4, 4, SHARDED, 1e-15)} == {1}


def test_few_ranks_write_the_files_of_many() -> None:
    shared = parts(LLAMA3_405B, 4, 512, SHARDED, 1e-4)
    assert len(sizes(shared)) == 1544
    assert [sum(1 for part in shared if part.rank == rank) for rank in range(4)] == [128 + 520, 128 + 512, 128, 128]


def test_weights_and_state_are_shared_out_whole() -> None:
    model = models_by_name()["hepcnn"]  # Adam in single precision: three arrays, weights among them
    assert total(parts(model, 3, 3, SHARDED)) == 3 * 4 * 594_178


def test_the_subset_is_of_the_smallest_model_alone() -> None:
    assert find(SUBSET) is LLAMA3_8B
    with pytest.raises(UsageError, match="withdrawn") as refused:
        find("llama3-70b-subset")
    assert SUBSET in str(refused.value)
    with pytest.raises(UsageError, match="Did you mean 'llama3-8b'"):
        find("llama3-8B ")


@pytest.mark.parametrize(("ranks", "shards", "needed"), [(4, 6, "such as 4"), (4, 500, "such as 512"), (4, 2, "4")])
def test_shards_that_cannot_be_are_refused_with_what_can(ranks: int, shards: int, needed: str) -> None:
    with pytest.raises(UsageError, match="--shards") as refused:
        parts(LLAMA3_405B, ranks, shards, SHARDED)
    assert needed in str(refused.value)
