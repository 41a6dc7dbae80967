"""A manifest that somebody changed: its fields, shapes, names and splits are held against layout and digest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.benchmarks.layouts import layout_of
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.dataset import Dataset, open_dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import RANDOM, TRAIN, VALIDATION
from dlio_bench.datagen.manifest import CHECKSUMS, EXTENTS, NAME
from dlio_bench.errors import DataError
from dlio_bench.harness.generation.indexing import Options, index_data
from tests.variants import VARIANTS

Raw = dict[str, Any]
COUNTS = {TRAIN: 2, VALIDATION: 2}


def made(workload: str, folder: Path, *, indexed: bool) -> Dataset:
    own = WORKLOADS[workload]
    dataset = generate(own.variants[own.default_variant](True, RANDOM), COUNTS, folder, 1, workers=1)
    if indexed:
        for name in (NAME, EXTENTS, CHECKSUMS, ".lock"):
            (folder / name).unlink()
        assert index_data(Options(folder, workload, None, True, True)) == 0
    return dataset


def whole_again(folder: Path) -> None:
    layout_of(open_dataset(folder))


def full_size(raw: Raw) -> None:
    raw["tiny"] = False


def validation_first(raw: Raw) -> None:
    files = raw["files"]
    raw["files"] = files[2:] + files[:2]
    first = 0
    for entry in raw["files"]:
        entry["first"], first = first, first + entry["samples"]


def validation_as_training(raw: Raw) -> None:
    raw["files"][2]["split"] = "train"


def outside(raw: Raw) -> None:
    raw["files"][0]["name"] = "../" + raw["files"][0]["name"]


def absolute(raw: Raw) -> None:
    raw["files"][0]["name"] = "/etc/hostname"


def one_twice(raw: Raw) -> None:
    raw["files"][1]["name"] = raw["files"][0]["name"]


def overlapping(raw: Raw) -> None:
    raw["files"][1]["first"] -= 1


def other_names(raw: Raw) -> None:
    raw["files"][0]["name"], raw["files"][1]["name"] = raw["files"][1]["name"], raw["files"][0]["name"]


def smaller(raw: Raw) -> None:
    raw["fields"][0]["shape"] = [3, 8, 8]


def container(raw: Raw) -> None:
    raw["container"] = "zip"


CHANGES = (full_size, validation_first, validation_as_training, outside, absolute, one_twice, overlapping, container)


@pytest.mark.parametrize(("workload", "indexed"), [("imagenet", True), ("hepcnnb", False)])
def test_every_change_of_a_manifest_is_found(workload: str, indexed: bool, tmp_path: Path) -> None:
    dataset = made(workload, tmp_path / "set", indexed=indexed)
    path = dataset.folder / NAME
    whole = path.read_bytes()
    whole_again(dataset.folder)
    changes: tuple[Callable[[Raw], None], ...] = CHANGES if indexed else (*CHANGES, other_names, smaller)
    for change in changes:
        raw = json.loads(whole)
        change(raw)
        path.write_text(json.dumps(raw))
        with pytest.raises(DataError, match=r"manifest\.json") as told:
            whole_again(dataset.folder)
        assert "elete" not in str(told.value)


@pytest.mark.parametrize(("workload", "variant"), [case[:2] for case in VARIANTS])
def test_what_is_made_is_of_its_layout(workload: str, variant: str, tmp_path: Path) -> None:
    layout = WORKLOADS[workload].variants[variant](True, RANDOM)
    layout_of(generate(layout, {split.name: 2 for split in layout.splits}, tmp_path / "set", 1, workers=1))
