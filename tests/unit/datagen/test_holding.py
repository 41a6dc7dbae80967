"""A manifest that somebody changed: its fields, shapes, names and splits are held against layout and digest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.benchmarks.layouts import layout_of
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.datagen.layout import TRAIN, VALIDATION
from dlio_bench.datagen.manifest import NAME
from dlio_bench.errors import DataError
from dlio_bench.harness.commands.generation.indexing import index_data
from dlio_bench.harness.commands.generation.options import IndexOptions
from tests.datasets import VARIANTS, bare, layout, made

Raw = dict[str, Any]
COUNTS = {TRAIN: 2, VALIDATION: 2}


def validation_first(raw: Raw) -> None:
    raw["files"] = raw["files"][2:] + raw["files"][:2]
    first = 0
    for entry in raw["files"]:
        entry["first"], first = first, first + entry["samples"]


def other_names(raw: Raw) -> None:
    one, other = raw["files"][:2]
    one["name"], other["name"] = other["name"], one["name"]


CHANGES: tuple[Callable[[Raw], None], ...] = (
    lambda raw: raw.update(tiny=False),
    lambda raw: raw.update(container="zip"),
    validation_first,
    lambda raw: raw["files"][2].update(split="train"),
    lambda raw: raw["files"][0].update(name="../" + raw["files"][0]["name"]),
    lambda raw: raw["files"][0].update(name="/etc/hostname"),
    lambda raw: raw["files"][1].update(name=raw["files"][0]["name"]),
    lambda raw: raw["files"][1].update(first=raw["files"][1]["first"] - 1),
)
OF_MADE: tuple[Callable[[Raw], None], ...] = (other_names, lambda raw: raw["fields"][0].update(shape=[3, 8, 8]))


@pytest.mark.parametrize(("workload", "indexed"), [("imagenet", True), ("hepcnnb", False)])
def test_every_change_of_a_manifest_is_found(workload: str, indexed: bool, tmp_path: Path) -> None:
    dataset = made(tmp_path / "set", workload, COUNTS)
    if indexed:
        assert index_data(IndexOptions(bare(dataset), workload, None, True, json=True)) == 0
    path = dataset.folder / NAME
    whole = path.read_bytes()
    layout_of(open_dataset(dataset.folder))
    for change in CHANGES if indexed else (*CHANGES, *OF_MADE):
        raw = json.loads(whole)
        change(raw)
        path.write_text(json.dumps(raw))
        with pytest.raises(DataError, match=r"manifest\.json") as told:
            layout_of(open_dataset(dataset.folder))
        assert "elete" not in str(told.value)


@pytest.mark.parametrize(("workload", "variant"), VARIANTS)
def test_what_is_made_is_of_its_layout(workload: str, variant: str, tmp_path: Path) -> None:
    files = {split.name: 2 for split in layout(workload, variant).splits}
    layout_of(made(tmp_path / "set", workload, files, variant))
