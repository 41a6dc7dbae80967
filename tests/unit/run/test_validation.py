"""Validation passes: what a plan of them holds, what HEPCNNB's pipeline reads for them, what a run makes of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlio_bench.batches import Ids, is_validation, validation_after
from dlio_bench.benchmarks.hepcnnb.pipeline import loads
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.benchmarks.tensors import stretches
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import TRAIN, VALIDATION
from dlio_bench.errors import UsageError
from dlio_bench.harness.cli import main
from dlio_bench.harness.commands.run.asked.job import policy, resolved_policy, validation_order
from dlio_bench.harness.plan.orders import Order, Shape, find_order
from dlio_bench.harness.plan.validation import Passes, epochs_of, share
from tests.datasets import made

ORDERS = ("sequential", "buffered-shuffle(1)", "file-shuffle", "global-file-shuffle")
RANKS, EPOCHS = 2, 5
LOCAL, GLOBAL = "file-shuffle", "global-file-shuffle"


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ORDERS), st.integers(1, 5), st.integers(1, 4), st.lists(st.integers(1, 9), min_size=5), st.data()
)
def test_a_pass_takes_each_sample_once_in_batches_of_which_the_last_may_be_small(
    name: str, ranks: int, batch: int, sizes: list[int], data: Any
) -> None:
    bounds, first = np.cumsum([0, *sizes]), data.draw(st.integers(0, 1000))
    shape, order = Shape(int(bounds[-1]), ranks, batch, bounds=bounds, first=first, last="pad"), find_order(name)
    samples = share(order, shape)
    passes = Passes(order, shape, samples, (0, 1))
    for number in (0, 1):
        own = [passes.batches(rank, number, 7) for rank in range(ranks)]
        assert {tuple(len(ids) for ids in batches) for batches in own} == {tuple(map(len, own[0]))}
        assert all(len(ids) == batch for ids in own[0][:-1])
        ids = np.concatenate([ids for batches in own for ids in batches])
        assert len(set(ids.tolist())) == len(ids) == samples * ranks
        assert first <= ids.min() <= ids.max() < first + shape.samples


def test_a_buffer_of_one_shuffles_nothing() -> None:
    bounds = np.array([0, 3, 6, 9, 12])
    order, shape = find_order("buffered-shuffle(1)"), Shape(12, 2, 4, bounds=bounds, first=100)
    batches = Passes(order, shape, 6, (0,)).batches(1, 0, 5)
    assert [ids.tolist() for ids in batches] == [[103, 104, 105, 109], [110, 111]]


def test_passes_come_behind_every_so_manieth_epoch() -> None:
    assert epochs_of(5, 1) == (0, 1, 2, 3, 4)
    assert epochs_of(5, 2) == (1, 3)
    assert epochs_of(2, 3) == ()


def test_more_ranks_than_samples_are_refused() -> None:
    with pytest.raises(UsageError, match="4 ranks cannot share 3 validation samples"):
        share(find_order("sequential"), Shape(3, 4, 8))


# ---- HEPCNNB's read counts


@pytest.fixture(scope="module", params=[1, 2, 3])
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Dataset]:
    """(files of each split a rank, a dataset for RANKS ranks)."""
    files: int = request.param
    counts = {TRAIN: files * RANKS, VALIDATION: files * RANKS}
    return files, made(tmp_path_factory.mktemp("hep") / "data", "hepcnnb", counts)


def plan_of(dataset: Dataset, order: Order, passes: int, *, rank: int = 0) -> list[tuple[int, Ids]]:
    """EPOCHS epochs of training, a pass behind the first ones."""
    bounds = [np.cumsum([0, *(e.samples for e in dataset.manifest.files if e.split == s)]) for s in (TRAIN, VALIDATION)]
    training, held_out = (
        Shape(int(edges[-1]), RANKS, batch, bounds=edges, first=first)
        for edges, batch, first in zip(bounds, (24, 5), (0, dataset.training_samples), strict=True)
    )
    validation = Passes(order, held_out, share(order, held_out), tuple(range(passes)))
    found: list[tuple[int, Ids]] = []
    for epoch in range(EPOCHS):
        found += [(epoch, ids) for ids in order(training, rank, epoch, 3)]
        if epoch < passes:
            found += [(validation_after(epoch), ids) for ids in validation.batches(rank, epoch, 3)]
    return found


@pytest.mark.parametrize(("name", "passes", "factor"), [(LOCAL, 4, 9), (GLOBAL, 5, 10)])
def test_hepcnnb_makes_the_published_number_of_reads(
    study: tuple[int, Dataset], name: str, passes: int, factor: int
) -> None:
    """9 F + 1 reads a rank with local shuffling, 10 F + 1 with global, for F files a rank of each split; 2 for one.

    NERSC/DL-Parallel-IO, slides Project_Progress_20180727: read calls over ranks.
    """
    files, dataset = study
    if files == 1:
        name = LOCAL  # what global shuffling comes to where a rank has one file
    for rank in range(RANKS):
        training, validation = loads(dataset, plan_of(dataset, find_order(name), passes, rank=rank))
        reads = [sum(load.reads for load in one) for one in (training, validation)]
        assert reads == ([EPOCHS * files, passes * files + 1] if files > 1 else [1, 1])
        assert sum(reads) == (factor * files + 1 if files > 1 else 2)


def test_the_file_that_a_pass_ends_with_is_the_one_that_the_next_begins_with(study: tuple[int, Dataset]) -> None:
    files, dataset = study
    if files == 1:
        return
    plan = plan_of(dataset, find_order(GLOBAL), 3)
    validation = loads(dataset, plan)[1]
    ends = [load.epoch for load in validation]
    assert ends == [validation_after(0)] * (files + 1) + [validation_after(1)] * files + [validation_after(2)] * files
    assert len(validation[-1].ids) == 0
    served = np.concatenate([load.ids for load in validation])
    assert served.tolist() == [i for epoch, ids in plan if is_validation(epoch) for i in ids.tolist()]


def test_the_order_of_a_pass_is_the_applications_own_or_none_at_all() -> None:
    shape = Shape(64, 2, 8, bounds=np.arange(0, 65, 8))
    one_file = Shape(16, 2, 8, bounds=np.array([0, 8, 16]))
    hep = WORKLOADS["hepcnnb"]
    assert validation_order(resolved_policy(policy("upstream", hep), hep, shape), hep) == GLOBAL
    assert validation_order(resolved_policy(policy("upstream", hep), hep, one_file), hep) == LOCAL
    assert validation_order(policy("upstream+order=file-shuffle", hep), hep) == LOCAL
    assert validation_order(policy("prefetch", hep), hep) == "sequential"
    assert validation_order(policy("upstream", WORKLOADS["cdb"]), WORKLOADS["cdb"]) == "buffered-shuffle(1)"


def test_training_goes_on_reading_ahead_in_tensorflow_while_it_validates() -> None:
    """One dataset of training over all epochs, and one of each pass, although the last batch of a pass is small."""
    sizes = [(0, 4), (0, 4), (validation_after(0), 4), (validation_after(0), 1), (1, 4), (validation_after(1), 4)]
    found = stretches([(epoch, np.arange(size)) for epoch, size in [*sizes, (2, 4)]])
    numbers = list(dict.fromkeys(map(id, found)))
    assert [numbers.index(id(one)) for one in found] == [0, 0, 1, 1, 0, 2, 0]
    assert [len(one.batches) for one in found] == [4, 4, 2, 2, 4, 1, 4]


def test_a_dataset_that_repeats_last_starts_anew_when_its_samples_come_again() -> None:
    """Two passes over eight samples, the first in two epochs with a validation pass behind each."""
    batches = [(0, 0), (0, 2), (validation_after(0), 0), (1, 4), (1, 6), (validation_after(1), 0), (2, 6), (2, 2)]
    found = stretches([(epoch, np.arange(first, first + 2)) for epoch, first in batches], anew=True)
    numbers = list(dict.fromkeys(map(id, found)))
    assert [numbers.index(id(one)) for one in found] == [0, 0, 1, 0, 0, 2, 3, 3]


# ---- a run


def results(capsys: pytest.CaptureFixture[str], folder: Path, *asked: str, status: int = 0) -> list[dict[str, Any]]:
    code = main(["run", *asked, "--cache-dir", str(folder / "cache"), "--out", str(folder / "out"), "--json"])
    printed = capsys.readouterr()
    assert code == status, printed.err
    found: list[dict[str, Any]] = json.loads(printed.out)
    return found


HEP = ("hepcnnb", "--tiny", "--warmup-trials", "0", "--batch", "24")


def test_published_pipelines_validate_unless_told_not_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def planned(*asked: str) -> dict[str, Any]:
        assert main(["run", *asked, "--cache-dir", str(tmp_path), "--dry-run", "--json"]) == 0
        job: dict[str, Any] = json.loads(capsys.readouterr().out)[0]
        return job

    def every(*asked: str) -> Any:
        return (planned(*asked)["validation"] or {}).get("every")

    asked = ["hepcnnb", "--tiny", "--reader"]
    assert every(*asked, "upstream,prefetch") == 1
    assert every(*asked, "upstream", "--validation", "none") is None
    assert every(*asked, "prefetch") is None
    assert every(*asked, "prefetch", "--validation", "published") == 1
    twice = planned(*asked, "prefetch", "--validation", "2", "--epochs", "4", "--batch", "8")
    assert twice["validation"]["every"] == 2
    # three forward passes cost what a training step does
    assert twice["validation"]["sample_seconds"] * 8 == pytest.approx(twice["step_seconds"])
    cdb = planned("cdb", "--tiny", "--validation", "1")
    assert cdb["validation"]["sample_seconds"] * cdb["batch"] == pytest.approx(cdb["step_seconds"] / 3)


def test_a_dataset_without_the_split_is_refused_when_passes_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    made(tmp_path / "data", "hepcnnb", 2)
    asked = ["hepcnnb", "--tiny", "--data", str(tmp_path / "data"), "--batch", "4"]
    assert "has no validation split" in refused("run", *asked, "--validation", "1", "--dry-run")
    (found,) = results(capsys, tmp_path, *asked, "--reader", "upstream", "--warmup-trials", "0", "--compute", "none")
    assert found["plan"]["validation"] is None
    assert "no validation passes, as the dataset has no validation split" in found["plan"]["notes"]


def test_a_run_tells_its_passes_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*HEP, "--epochs", "3", "--reader", "naive,upstream,staged-replicated", "--validation", "1"]
    naive, upstream, staged = results(capsys, tmp_path, *asked)
    for found in (naive, upstream, staged):
        checks = {check["name"]: check for check in found["checks"]}
        assert all(check["ok"] for check in checks.values()), checks
        plan, trial = found["plan"]["validation"], found["trials"][0]
        assert (plan["every_epochs"], plan["passes"]) == (1, 3)
        assert checks["validation"]["found"] == f"each of {plan['samples']} planned samples once in 3 passes"
        assert trial["validation_samples"] == 3 * plan["samples"]
        metrics = {name: metric["value"] for name, metric in found["metrics"].items()}
        assert sum(value for name, value in metrics.items() if name.startswith("share_")) == pytest.approx(1)
        assert 0 < metrics["share_validation"] < 1
        assert 0 < metrics["validation_stall_share"] < 1
        assert metrics["validation_seconds"] > 0
        held_out = found["dataset"]["validation"]
        fields = trial["bytes_useful"] / (trial["samples"] + trial["validation_samples"])  # alike in both splits
        assert found["dataset"]["view_bytes"] == fields
        for epoch in trial["epochs"]:
            assert epoch["validation"]["bytes_useful"] == plan["samples"] * fields
            assert epoch["bytes_useful"] == epoch["validation"]["bytes_useful"] + found["plan"]["view_bytes_per_epoch"]
        assert held_out["samples"] >= plan["samples"]
    assert naive["plan"]["validation"]["samples"] == upstream["plan"]["validation"]["samples"]
    # of F files, F + 1 in the first pass of the published pipeline and F in each later one
    files = upstream["dataset"]["validation"]["files"]
    requested = [epoch["validation"]["bytes_requested"] for epoch in upstream["trials"][0]["epochs"]]
    useful = upstream["trials"][0]["epochs"][0]["validation"]["bytes_useful"]
    assert requested == [useful * (files + 1) // files, useful, useful]
    # copies of the validation files come with the others
    first, *later = staged["trials"][0]["epochs"]
    assert (
        first["bytes_requested"] == staged["dataset"]["stored_bytes"] + staged["dataset"]["validation"]["stored_bytes"]
    )
    assert all(epoch["bytes_requested"] == 0 for epoch in later)
    assert first["validation"]["bytes_local"] == useful
    with np.load(tmp_path / "out" / "naive-1x1" / "steps.npz") as steps:
        assert steps["validation"].shape == steps["validation_stall"].shape == (1, 1, 3)
        assert steps["validation_epoch"].tolist() == [0, 1, 2]
        loop = steps["loop"][0, 0]
        phases = sum(steps[name][0, 0].sum() for name in ("stall", "check", "compute", "exchange", "validation"))
        assert 0 < phases <= loop
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Validation passes" in page


def test_a_damaged_validation_file_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = made(tmp_path / "data", "hepcnnb", {TRAIN: 2, VALIDATION: 2})
    part = dataset.part(VALIDATION)
    assert part is not None
    path = dataset.path(part.files.start)
    _, offsets, _, _ = dataset.locate(np.array([part.samples.start]), ["data"])
    with path.open("r+b") as file:
        file.seek(int(offsets[0, 0]) + 5)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    asked = [*HEP, "--data", str(dataset.folder), "--reader", "prefetch", "--compute", "none", "--epochs", "4"]
    (found,) = results(capsys, tmp_path, *asked)
    assert found["class"] == "EXPLORE"
    (tmp_path / "out").rename(tmp_path / "before")
    (found,) = results(capsys, tmp_path, *asked, "--validation", "4", status=5)
    (failed,) = [check for check in found["checks"] if not check["ok"]]
    assert failed["name"] == "content"
    assert path.name in failed["found"]
