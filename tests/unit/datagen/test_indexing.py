"""Files of others: indexed when a plain read can serve them, refused with the reason when not; and verified."""

import gzip
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio_bench.benchmarks.hepcnnb.pipeline import UPSTREAM
from dlio_bench.benchmarks.layouts import layout_of
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.datagen.formats import tfrecord
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import GENERATOR, TEST, TRAIN, VALIDATION
from dlio_bench.datagen.manifest import NAME
from dlio_bench.datagen.verify import Remake, damage, remakable
from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.commands.generation.amount import Amount, counts
from dlio_bench.harness.commands.generation.indexing import index_data
from dlio_bench.harness.commands.generation.options import IndexOptions
from dlio_bench.harness.commands.generation.sorting import sort
from dlio_bench.harness.commands.run.measured.consumer import find_damage
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.options import ReaderOptions
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import SampleView, Tally, largest, plan_batches
from tests.datasets import VARIANTS, bare, verify_files
from tests.datasets import layout as tiny
from tests.processes import open_files

h5py = pytest.importorskip("h5py")


@pytest.mark.parametrize(("workload", "variant"), VARIANTS)
def test_an_index_finds_what_generation_knew(workload: str, variant: str, tmp_path: Path) -> None:
    layout = tiny(workload, variant)
    made = generate(layout, counts(layout, Amount(files=5)), tmp_path / "set", 1)
    names = [field.name for field in layout.fields]
    where = {entry.name: (entry.first, entry.samples, entry.split) for entry in made.manifest.files}
    ids = np.arange(made.samples)
    extents, checksums = np.stack(made.locate(ids, names)[1:]), made.checksums(ids, names)
    assert index_data(IndexOptions(bare(made), workload, variant, True, json=True)) == 0
    found = open_dataset(tmp_path / "set")
    assert found.manifest.generator is None
    assert found.samples == made.samples
    for entry in found.manifest.files:
        first, samples, split = where[entry.name]
        assert (entry.samples, entry.split) == (samples, split)
        here = np.arange(entry.first, entry.first + samples)
        assert np.array_equal(np.stack(found.locate(here, names)[1:]), extents[:, first : first + samples])
        assert np.array_equal(found.checksums(here, names), checksums[first : first + samples])
    assert verify_files(found) == []
    assert not remakable(found, layout)


def test_an_index_may_be_made_again_but_never_over_a_generated_dataset(tmp_path: Path) -> None:
    made = generate(tiny("cdb", "cori"), 3, tmp_path / "set", 1)
    asked = IndexOptions(made.folder, "cdb", None, True, json=True)
    with pytest.raises(UsageError, match="a manifest of its own"):
        index_data(asked)
    bare(made)
    assert index_data(asked) == 0
    first = open_dataset(made.folder).digest
    assert index_data(asked) == 0
    assert open_dataset(made.folder).digest == first


def rewritten(path: Path, **how: Any) -> None:
    """The HDF5 file with its first dataset stored in another way."""
    with h5py.File(path, "r+") as file:
        values = file["climate/data"][()]
        del file["climate/data"]
        file["climate"].create_dataset("data", **({"data": values} | how))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"dtype": "<f8"}, "holds <f8 instead of <f4"),
        ({"data": np.zeros((15, 48, 72), dtype="<f4")}, "and a sample of"),
    ],
)
def test_files_that_extents_cannot_serve_are_refused_by_name(
    how: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = generate(tiny("cdb", "cori"), 3, tmp_path / "set", 1)
    victim = made.path(1)
    rewritten(victim, **how)
    bare(made)
    assert index_data(IndexOptions(made.folder, "cdb", None, True, json=False)) == 5
    told = capsys.readouterr().out
    assert victim.name in told
    assert says in told
    assert not (made.folder / NAME).exists()


@pytest.mark.parametrize("how", [{"compression": "gzip", "shuffle": True}, {"chunks": (1, 48, 72)}])
def test_compressed_and_chunked_files_are_served_through_hdf5(
    how: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = generate(tiny("cdb", "cori"), 6, tmp_path / "set", 1)
    view = WORKLOADS["cdb"].view
    right = made.checksums(np.arange(6), view)
    rewritten(made.path(1), **how)
    bare(made)
    assert index_data(IndexOptions(made.folder, "cdb", None, True, json=False)) == 0
    assert "read through HDF5" in capsys.readouterr().out
    found = open_dataset(made.folder)
    assert np.array_equal(np.sort(found.checksums(np.arange(6), view), axis=0), np.sort(right, axis=0))
    assert verify_files(found) == []
    for policy in ("naive", "double-buffer", "tfdata"):
        form = SampleView(found, view)
        plan = plan_batches(form, [(epoch, [np.array([4, 1]), np.array([0, 5])]) for epoch in range(2)])
        tally, resources = Tally(), Resources(2, 64_000_000, largest(plan), options=ReaderOptions(check_crc=True))
        reader = open_reader(find(policy), form, resources)
        with reader.session(plan, tally) as batches:
            assert [find_damage(batch, form) for batch in batches] == [[]] * 4
        assert {epoch: tally.of(epoch).bytes_requested for epoch in range(2)} == reader.requested_bytes(plan)
        assert not any(str(made.folder) in link for link in open_files().values() if link.endswith(".h5"))
    content = bytearray(found.path(1).read_bytes())
    content[len(content) // 2] ^= 255
    found.path(1).write_bytes(content)
    [line] = verify_files(found)
    assert found.path(1).name in line


def test_samples_along_the_first_axis_are_served_through_hdf5(tmp_path: Path) -> None:
    made = generate(tiny("hepcnnb", "224"), 2, tmp_path / "set", 1)
    with h5py.File(made.path(0), "r+") as file:
        values = file["data"][()]
        del file["data"]
        file.create_dataset("data", data=values, chunks=(16, *values.shape[1:]), compression="gzip")
    bare(made)
    assert index_data(IndexOptions(made.folder, "hepcnnb", None, True, json=True)) == 0
    form = SampleView(open_dataset(made.folder), WORKLOADS["hepcnnb"].view)
    plan = plan_batches(form, [(0, [np.array([7, 63, 0])])])
    with open_reader(find("naive"), form, Resources(1, 0, largest(plan))).session(plan, Tally()) as batches:
        [batch] = batches
        assert find_damage(batch, form) == []
        assert batch.sample(0)[: values[7].nbytes].tobytes() == values[7].tobytes()


def as_others_store(path: Path, *, without: Sequence[str], compressed: bool) -> None:
    """The HEPCNNB file as other pre-processing writes it: 64-bit labels, fewer scalars, perhaps compressed."""
    with h5py.File(path) as file:
        values = {name: file[name][()] for name in file if name not in without}
    values |= {"label": values["label"].astype("<i8"), "psr": values["psr"].astype("u1")}
    with h5py.File(path, "w") as file:
        for name, array in values.items():
            how = {"chunks": (8, *array.shape[1:]), "compression": "gzip"} if compressed else {}
            file.create_dataset(name, data=array, **how)


@pytest.mark.parametrize("compressed", [True, False])
def test_collision_events_need_only_what_their_reader_opens(
    compressed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = generate(tiny("hepcnnb", "224"), {TRAIN: 2, VALIDATION: 1}, tmp_path / "set", 1)
    decode = WORKLOADS["hepcnnb"].decode
    assert decode is not None
    published = SampleView(made, WORKLOADS["hepcnnb"].view, decode(made))
    ids = [np.array([7, 63, 64])]

    def delivered(form: SampleView) -> list[bytes]:
        plan = plan_batches(form, [(0, ids)])
        with open_reader(find("naive"), form, Resources(1, 0, largest(plan))).session(plan, Tally()) as batches:
            return [batch.sample(row).tobytes() for batch in batches for row in range(3)]

    expected = delivered(published)
    for number, entry in enumerate(made.manifest.files):
        without = ("mg", "mn", "jz", "eid") if number else ("mn",)  # what one file lacks, none has for a reader
        as_others_store(made.folder / entry.name, without=without, compressed=compressed)
    bare(made)
    assert index_data(IndexOptions(made.folder, "hepcnnb", None, True, json=False)) == 0
    told = capsys.readouterr().out
    assert "differs: without mg, mn, jz, eid, which no reader needs" in told
    assert "differs: 'label' holds <i8 instead of <i4" in told
    found = open_dataset(made.folder)
    layout_of(found)
    assert verify_files(found) == []
    assert delivered(SampleView(found, WORKLOADS["hepcnnb"].view, decode(found))) == expected
    pipeline = UPSTREAM.start()
    costs: dict[int, Cost] = defaultdict(Cost)
    plan = [(0, np.arange(64))]
    with pipeline.batches(found, plan, lambda epoch: costs[epoch]) as batches:
        [batch] = batches
        assert batch.sample(7).tobytes() == expected[0]
    assert costs[0].bytes_requested == pipeline.requested_bytes(found, plan)[0]


def test_what_is_wrong_with_a_compressed_file_is_said_and_not_that_it_is_compressed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = generate(tiny("hepcnnb", "224"), 1, tmp_path / "set", 1)
    as_others_store(made.path(0), without=["weight"], compressed=True)
    bare(made)
    assert index_data(IndexOptions(made.folder, "hepcnnb", None, True, json=False)) == 5
    told = capsys.readouterr().out
    assert "no dataset 'weight'" in told
    assert "compressed" not in told


def twice(path: Path) -> None:
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content + content))


def no_dataset(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["climate/labels"]


@pytest.mark.parametrize(
    ("workload", "variant", "harm", "says"),
    [
        ("cdb", "cori", no_dataset, "no dataset 'labels'"),
        ("cdb", "cori", lambda path: path.write_bytes(b"no HDF5"), "cannot be read as HDF5"),
        ("cosmoflow", "sc18", lambda path: path.write_bytes(path.read_bytes()[:-5]), "ends inside the record"),
        ("cosmoflow", "mlperf-v1", lambda path: path.write_bytes(b"\x1f\x8b no"), "cannot be unpacked"),
        ("cosmoflow", "mlperf-v1", twice, "2 records"),
    ],
)
def test_broken_files_are_refused_by_name(
    workload: str,
    variant: str,
    harm: Callable[[Path], None],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = generate(tiny(workload, variant), 3, tmp_path / "set", 1)
    victim = made.path(1)
    harm(victim)
    bare(made)
    assert index_data(IndexOptions(made.folder, workload, variant, True, json=False)) == 5
    told = capsys.readouterr().out
    assert victim.name in told
    assert says in told


def test_records_of_other_lengths_are_served_and_said_to_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    tfrecord.write(folder / "0.tfrecord", [[b"short"], [b"of another length"]])
    (folder / "\x1b]0;README\a").write_text("not a sample")
    assert index_data(IndexOptions(folder, "cosmoflow", "sc18", True, json=False)) == 0
    told = capsys.readouterr().out
    assert "files of 2 samples instead of 64" in told
    assert "samples of 5, 17 bytes" in told
    assert "�]0;README�" in told
    assert not {"\x1b", "\a"} & {*told}
    found = open_dataset(folder)
    assert found.manifest.fields[0].shape == (-1,)
    assert verify_files(found) == []


@pytest.mark.parametrize(
    ("stored", "asked", "says"),
    [
        (("cosmoflow", "mlperf-v0.7"), None, "plain TFRecords.*--variant mlperf-v0.7 takes such"),
        (("cosmoflow", "sc18"), None, "plain TFRecords.*--variant sc18 takes such"),
        (("cosmoflow", "mlperf-v1"), "sc18", "compressed by GZIP.*gunzip.*--variant mlperf-v1 takes such"),
        (("imagenet", "raw"), None, "holds files of --variant raw"),
        (("imagenet", "tfrecord"), "raw", "holds files of --variant tfrecord"),
    ],
)
def test_files_of_another_variant_are_told_by_its_name(
    stored: tuple[str, str], asked: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = generate(tiny(*stored), 2, tmp_path / "set", 1)
    told = ""
    try:
        assert index_data(IndexOptions(bare(made), stored[0], asked, True, json=False)) == 5
    except UsageError as error:
        told = str(error)
    told += capsys.readouterr().out
    assert re.search(says, told, re.DOTALL)
    assert "Restore" not in told


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_compressed_records_of_images_are_to_be_unpacked(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = generate(tiny("imagenet", "tfrecord"), 1, tmp_path / "set", 1)
    packed = gzip.compress(made.path(0).read_bytes())
    made.path(0).unlink()
    Path(f"{made.path(0)}{ending}").write_bytes(packed)
    asked = IndexOptions(bare(made), "imagenet", None, True, json=False)
    if ending:
        with pytest.raises(UsageError, match="gz is compressed by GZIP: gunzip"):
            index_data(asked)
        return
    assert index_data(asked) == 5
    assert "gunzip" in (told := capsys.readouterr().out)
    assert "Restore" not in told


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a.tar", "tar archive.*Unpack"),
        ("a.parquet", "Parquet.*HDF5.*dlio_bench.load"),
        ("a.zarr/x/0.0", "Zarr.*HDF5.*dlio_bench.load"),
        ("a.npz", r"such files \(.h5, .hdf5\).*dlio_bench.load"),
    ],
)
def test_containers_that_are_not_known_are_told_the_way_that_there_is(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError, match=says):
        index_data(IndexOptions(tmp_path, "cdb", None, True, json=False))


def test_a_folder_of_something_else_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        index_data(IndexOptions(tmp_path / "absent", "cdb", None, True, json=False))
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="by its name"):
        index_data(IndexOptions(tmp_path, "cdb", None, True, json=False))
    with pytest.raises(UsageError, match="There is no cdb variant '"):
        index_data(IndexOptions(tmp_path, "cdb", "xl", True, json=False))


@pytest.mark.parametrize(
    ("workload", "variant", "names"),
    [
        (
            "hepcnnb",
            "224",
            {"hep_train_chunk0.h5": TRAIN, "hep_validation_chunk0.h5": VALIDATION, "val/1.h5": VALIDATION},
        ),
        ("hepcnnb", "224", {"hep_train_chunk0.h5": TRAIN, "hep_test_chunk0.h5": None, "a/test/2.h5": None}),
        (
            "imagenet",
            "raw",
            {
                "train/n01440764/n01440764_10.JPEG": TRAIN,
                "val/n01440764/ILSVRC2012_val_00000293.JPEG": VALIDATION,
                "validation/n01440764/x.JPEG": VALIDATION,
                "train/test_tube/1.JPEG": TRAIN,
                "ILSVRC2012_val_00000001.JPEG": VALIDATION,
                "n01440764/valley.JPEG": TRAIN,
            },
        ),
        ("cosmoflow", "sc18", {"train/0.tfrecord": TRAIN, "val/0.tfrecord": VALIDATION, "test/1.tfrecord": TEST}),
        ("cdb", "cori", {"train/data-1.h5": TRAIN, "test/data-2.h5": TEST, "validation/data-3.h5": VALIDATION}),
    ],
)
def test_folders_and_names_tell_the_split(workload: str, variant: str, names: dict[str, str | None]) -> None:
    found = sort(tiny(workload, variant), list(names))
    assert dict(zip(found.names, found.splits, strict=True)) == {name: own for name, own in names.items() if own}
    assert found.left_out == tuple(name for name, own in names.items() if own is None)
    assert any("left out" in note for note in found.notes) == bool(found.left_out)


def test_what_nothing_tells_is_asked_or_guessed_and_said() -> None:
    layout = tiny("imagenet", "raw")
    names = ["n01/1.JPEG", "n02/2.JPEG", "val/n01/3.JPEG"]
    guessed = sort(layout, names)
    assert guessed.splits == (TRAIN, TRAIN, VALIDATION)
    assert guessed.notes[0].startswith("guessed: 2 files")
    asked = sort(layout, names, VALIDATION)
    assert (asked.splits, asked.notes) == ((VALIDATION,) * 3, ())
    with pytest.raises(UsageError, match="--split 'test'"):
        sort(layout, names, TEST)
    crossed = sort(layout, ["train/ILSVRC2012_val_1.JPEG"])
    assert crossed.splits == (TRAIN,)
    assert "the folder decides" in crossed.notes[0]


def test_the_published_draw_is_for_files_that_say_nothing() -> None:
    layout = tiny("cdb", "cori")
    names = [f"data-{n:02d}.h5" for n in range(20)]
    assert sort(layout, names).splits.count(TRAIN) == 16
    assert "published draw" in sort(layout, names).notes[0]
    assert set(sort(layout, names, TRAIN).splits) == {TRAIN}
    assert sort(layout, [*names, "val/data-99.h5"]).splits == (TRAIN,) * 20 + (VALIDATION,)


def test_validation_images_and_test_chunks_are_no_training_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = generate(tiny("imagenet", "raw"), {TRAIN: 4, VALIDATION: 3}, tmp_path / "images", 1)
    folder = bare(images)
    (folder / "validation").rename(folder / "val")
    assert index_data(IndexOptions(folder, "imagenet", "raw", True, json=False)) == 0
    assert "guessed: 4 files" in capsys.readouterr().out
    found = open_dataset(folder)
    assert found.training_samples == 4
    assert found.part(VALIDATION) is not None
    chunks = bare(generate(tiny("hepcnnb", "224"), 2, tmp_path / "chunks", 1))
    (chunks / "hep_train_chunk1.h5").rename(chunks / "hep_test_chunk1.h5")
    assert index_data(IndexOptions(chunks, "hepcnnb", None, True, json=False)) == 0
    assert "hep_test_chunk1.h5" in capsys.readouterr().out
    assert [entry.name for entry in open_dataset(chunks).manifest.files] == ["hep_train_chunk0.h5"]


def test_records_that_contradict_their_own_checksums_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = generate(tiny("cosmoflow", "sc18"), 2, tmp_path / "set", 1)
    asked = IndexOptions(bare(made), "cosmoflow", "sc18", True, json=False)
    path = made.path(1)
    whole = path.read_bytes()
    assert index_data(asked) == 0
    for place in (100, tfrecord.index(path)[0].sum()):  # of the first payload, of its checksum
        harmed = bytearray(whole)
        harmed[place] ^= 1
        path.write_bytes(harmed)
        capsys.readouterr()
        [line] = verify_files(open_dataset(asked.folder))
        assert path.name in line
        assert index_data(asked) == 5
        assert "1 of its 64 records contradict their own CRC32C" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["external", "virtual"])
def test_values_in_other_files_are_refused(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = generate(tiny("cdb", "cori"), 3, tmp_path / "set", 1)
    path = made.path(1)
    with h5py.File(path, "r+") as file:
        values = file["climate/labels"][()]
        del file["climate/labels"]
        if kind == "external":
            where = str(tmp_path / "apart.bin")
            (tmp_path / "apart.bin").write_bytes(values.tobytes())
            file["climate"].create_dataset("labels", values.shape, values.dtype, external=[(where, 0, values.nbytes)])
        else:
            with h5py.File(tmp_path / "apart", "w") as apart:
                source = h5py.VirtualSource(apart.create_dataset("labels", data=values))
            layout = h5py.VirtualLayout(values.shape, values.dtype)
            layout[:] = source
            file["climate"].create_virtual_dataset("labels", layout)
    assert index_data(IndexOptions(bare(made), "cdb", None, True, json=False)) == 5
    told = capsys.readouterr().out
    assert path.name in told
    assert "its bytes lie in other files" in told


@pytest.mark.parametrize(("workload", "variant"), VARIANTS)
def test_files_made_anew_have_the_checksums_they_had(workload: str, variant: str, tmp_path: Path) -> None:
    layout = tiny(workload, variant)
    made = generate(layout, counts(layout, Amount(files=5)), tmp_path / "set", 1)
    assert remakable(made, layout)
    assert all(damage(made, n, Remake(layout, tmp_path)) is None for n in range(len(made.manifest.files)))


def test_a_dataset_of_another_seed_than_it_says_is_found_by_making_it_anew(tmp_path: Path) -> None:
    layout = tiny("hepcnnb", "224")
    made = generate(layout, 2, tmp_path / "set", 1)
    path = made.folder / NAME
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 2'))
    told = open_dataset(made.folder)
    assert damage(told, 0) is None
    problem = damage(told, 0, Remake(layout, tmp_path))
    assert problem is not None
    assert "seed 2" in problem


def test_metadata_that_lead_elsewhere_are_found(tmp_path: Path) -> None:
    made = generate(tiny("cdb", "cori"), 2, tmp_path / "set", 1)
    path = made.path(1)
    with h5py.File(path, "r+", libver=("v108", "v108")) as file:
        file.move("climate/labels", "climate/stamps")
    problem = damage(made, 1)
    assert problem is not None
    assert str(path) in problem


def test_a_manifest_with_a_generator_that_is_no_number_is_damaged(tmp_path: Path) -> None:
    made = generate(tiny("cdb", "cori"), 1, tmp_path / "set", 1)
    path = made.folder / NAME
    path.write_text(path.read_text().replace(f'"generator": {GENERATOR}', '"generator": "me"'))
    with pytest.raises(DataError):
        open_dataset(made.folder)
