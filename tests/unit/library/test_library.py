"""The readers as a library: what a loader delivers, where it goes on, and what it leaves behind."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

import dlio_bench
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.harness.library.course import SampleSchedule, Session
from dlio_bench.harness.plan.orders import Shape, find_order
from dlio_bench.harness.storage.cache import residency
from tests.datasets import bare, layout, made, stored_fields, view_of
from tests.direct_folder import direct_folder
from tests.processes import open_files

BATCH = 4


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return made(tmp_path_factory.mktemp("hep"), "hepcnnb", {"train": 1, "validation": 1})


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No thread, no open file, no shared memory is left that was not there before the test."""
    files = opened()

    def left() -> list[str]:
        threads = [thread.name for thread in threading.enumerate() if thread.name.startswith(("reader", "peers"))]
        return [*threads, *(opened() - files)]

    yield
    if left():
        gc.collect()  # what is garbage goes with it
    assert left() == []


def opened() -> set[str]:
    """Files of data that this process has open; what a thread keeps of the kernel's statistics is none."""
    return {file for file in open_files().values() if not file.startswith("/proc")}


def load(dataset: Dataset, **changed: Any) -> "dlio_bench.Loader":
    return dlio_bench.load(dataset.folder, **{"batch": BATCH, "epochs": 3, "seed": 5, **changed})


def ids_of(loader: "dlio_bench.Loader") -> list[list[int]]:
    return [batch["ids"].tolist() for batch in loader]


def planned(dataset: Dataset, epoch: int) -> list[list[int]]:
    order: list[list[int]] = find_order("global-shuffle")(
        Shape(dataset.training_samples, 1, BATCH), 0, epoch, 5
    ).tolist()
    return order


def test_batches_are_the_plan_and_the_bytes_of_the_files(dataset: Dataset, nothing_left: None) -> None:
    with load(dataset) as loader:
        assert len(loader) == dataset.training_samples // BATCH
        for epoch in range(loader.epochs):
            assert loader.epoch == epoch
            delivered = []
            for batch in loader:
                delivered.append(batch["ids"].tolist())
                assert {name: array.dtype.str for name, array in batch.items() if name != "ids"} == {
                    name: dtype for name, (dtype, _) in loader.fields.items()
                }
                for place, sample in enumerate(delivered[-1]):
                    stored = stored_fields(dataset, loader.fields, sample)
                    assert [batch[name][place].tobytes() for name in loader.fields] == [*map(bytes, stored)]
            assert delivered == planned(dataset, epoch)
        with pytest.raises(UsageError, match="all of its 3 epochs"):
            iter(loader)
        loader.set_epoch(1)
        assert ids_of(loader) == planned(dataset, 1)
    with pytest.raises(UsageError, match="closed"):
        iter(loader)


def test_a_batch_shares_memory_and_a_copy_stays(dataset: Dataset) -> None:
    with load(dataset, reader="shuffled") as loader:
        first, second = (batch["data"] for batch, _ in zip(loader, range(2), strict=False))
        assert np.shares_memory(first, second)  # the reader's one slot
    with load(dataset, reader="shuffled", copy=True) as loader:
        kept = [(batch["ids"], batch["data"]) for batch in loader]
        for ids, data in kept:
            assert data.flags.c_contiguous
            assert data[0].tobytes() == bytes(stored_fields(dataset, ["data"], int(ids[0]))[0])
        addresses = {data.ctypes.data for _, data in kept}
        assert len(addresses) == len(kept)
        del kept, data
        loader.set_epoch(0)
        assert {batch["data"].ctypes.data for batch in loader} < addresses  # memory that nobody has is used again


def test_it_goes_on_with_the_very_next_sample(dataset: Dataset, nothing_left: None) -> None:
    with load(dataset) as loader:
        ids_of(loader)
        for number, _ in enumerate(loader):
            if number == 2:
                break
        state = loader.state_dict()
        rest = ids_of(loader)  # a broken loop goes on, too
        assert rest == planned(dataset, 1)[3:]
    with load(dataset) as loader:
        loader.load_state_dict(state)
        assert (loader.epoch, loader.step) == (1, 3)
        assert ids_of(loader) == rest
        assert ids_of(loader) == planned(dataset, 2)


def test_readers_know_what_every_rank_reads_from_there_on(dataset: Dataset) -> None:
    plans: list[Any] = []

    @contextmanager
    def session(plan: Any, tally: Any) -> Iterator[Any]:
        plans.append(plan)
        yield iter(())

    course = SampleSchedule("naive", find_order("global-shuffle"), Shape(dataset.training_samples, 2, BATCH), 3, 5)
    reader: Any = SimpleNamespace(sample_view=view_of(dataset), session=session)
    Session(reader, course, 0, epoch=1, step=2).end()
    [plan] = plans
    assert plan.epochs == [1, 2]
    mine = [np.concatenate([batch.ids for batch in plan if batch.epoch == epoch]) for epoch in plan.epochs]
    assert [plan.of(0, epoch).tolist() for epoch in plan.epochs] == [ids.tolist() for ids in mine]
    assert plan.of(1, 1).tolist() == course.ids(1, 1)[2:].ravel().tolist()
    assert plan.of(1, 2).tolist() == course.ids(1, 2).ravel().tolist()


@pytest.mark.parametrize("changed", [{"seed": 6}, {"reader": "double-buffer"}, {"batch": 2}, {"split": "validation"}])
def test_a_state_of_other_samples_is_refused(dataset: Dataset, changed: dict[str, Any]) -> None:
    with load(dataset) as loader, load(dataset, **changed) as other, pytest.raises(UsageError, match="The state is of"):
        other.load_state_dict(loader.state_dict())


def test_a_state_of_another_dataset_or_rank_count_or_length_is_refused(dataset: Dataset) -> None:
    with load(dataset) as loader:
        state = loader.state_dict()
        for wrong in ({"dataset": "sha256:0"}, {"ranks": 2}, {"epoch": 9}, {"step": len(loader)}, {"step": "1"}):
            with pytest.raises(UsageError, match="The state is of"):
                loader.load_state_dict(state | wrong)


def test_only_the_latest_loop_goes_on(dataset: Dataset) -> None:
    with load(dataset) as loader:
        first = iter(loader)
        next(first)
        assert next(iter(loader))["ids"].tolist() == planned(dataset, 0)[1]
        with pytest.raises(UsageError, match="later loop"):
            next(first)


def test_a_last_batch_may_be_smaller(dataset: Dataset) -> None:
    with load(dataset, batch=7, last="keep") as loader:
        counts = [len(batch["ids"]) for batch in loader]
    assert counts == [7] * (len(counts) - 1) + [dataset.training_samples % 7]


def test_a_split_is_one_of_the_datasets(dataset: Dataset) -> None:
    part = dataset.part("validation")
    assert part is not None
    with load(dataset, split="validation", last="keep") as loader:
        assert sorted(sample for ids in ids_of(loader) for sample in ids) == list(part.samples)
    with pytest.raises(UsageError, match=r"no split 'test'. It has train, validation"):
        load(dataset, split="test")


def test_it_decodes_as_the_application_does(dataset: Dataset) -> None:
    with load(dataset, decode=True) as loader:
        batch = next(iter(loader))
        assert loader.fields["data"][1] == batch["data"].shape[1:] == (16, 16, 3)
        image = np.frombuffer(stored_fields(dataset, ["data"], int(batch["ids"][0]))[0], "<f4").reshape(3, 16, 16)
        assert (batch["data"][0] == image.transpose(1, 2, 0)).all()


def test_files_of_any_kind_are_samples(tmp_path: Path, nothing_left: None) -> None:
    contents = {f"{number}.bin": os.urandom(100 + number) for number in range(9)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    with dlio_bench.load(tmp_path, batch=2, reader="naive", last="keep") as loader:
        assert loader.fields == {"content": ("|u1", (-1,))}
        assert [part.tobytes() for batch in loader for part in batch["content"]] == list(contents.values())

    def first_byte(sample: int, stored: Any, out: Any) -> None:
        out["first"][...] = stored[0][0]
        out["id"][:] = sample

    decoder = dlio_bench.Decoder(("content",), {"first": ("|u1", ()), "id": ("<i8", (2,))}, first_byte)
    with dlio_bench.load(tmp_path, batch=2, decode=decoder, last="keep") as loader:
        batches = [(batch["first"].copy(), batch["id"].copy(), batch["ids"]) for batch in loader]
    for first, made_ids, ids in batches:
        assert first.tolist() == [contents[f"{number}.bin"][0] for number in ids]
        assert made_ids.tolist() == [[number, number] for number in ids]
    assert not (tmp_path / "manifest.json").exists()


def contents_of(folder: Path, **how: Any) -> list[bytes]:
    """The samples of a folder of files, in the order of their names."""
    with dlio_bench.load(folder, batch=1, reader="naive", **how) as loader:
        return [batch["content"][0].tobytes() for batch in loader]


def written(folder: Path, *names: str) -> Path:
    """A folder of files that hold their own names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_a_pattern_chooses_files_and_strays_are_no_samples(tmp_path: Path) -> None:
    photos = written(tmp_path / "photos", "a/1.jpg", "b/2.JPEG", "b/3.png", "README.txt", "LICENSE", ".hidden.jpg")
    assert contents_of(photos) == [b"a/1.jpg", b"b/2.JPEG", b"b/3.png"]
    assert contents_of(photos, files="*.jpg") == [b"a/1.jpg"]
    assert contents_of(photos, files=["b/*", "*.txt"]) == [b"README.txt", b"b/2.JPEG", b"b/3.png"]
    assert len(contents_of(written(tmp_path / "steps", "out.0001", "out.0002", "x-00000-of-00002"))) == 3
    with pytest.raises(UsageError, match=r"no file that fits files=\['\*.tif'\]"):
        contents_of(photos, files="*.tif")
    written(photos, "labels.csv")
    with pytest.raises(UsageError, match=r'1 .csv.*files="\*\.'):
        contents_of(photos)
    with pytest.raises(UsageError, match=r"README.*no file|holds no file"):
        contents_of(written(tmp_path / "empty", "README.md"))


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.TGZ", "a.parquet", "a/zarr.json", "a/.zarray"])
def test_a_file_of_many_samples_is_not_taken_for_one(name: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "set", name, "a/0.0")
    for place, how in ((folder, {}), (folder, {"files": ["a*", "a/*"]}), *([(folder / name, {})] * (name[-1] != "y"))):
        with pytest.raises(UsageError, match=f"{Path(name).name} is (a|of a) (tar|Parquet|Zarr)"):
            contents_of(place, **how)


def first_byte(sample: int, stored: Any, out: Any) -> None:
    if stored[0][0] == ord("b"):
        raise ValueError("b is bad")
    out["first"][...] = stored[0][0]


DECODER = dlio_bench.Decoder(("content",), {"first": ("|u1", ())}, first_byte)


@pytest.mark.parametrize("reader", ["naive", "prefetch"])
def test_a_decoder_that_raises_names_file_and_sample_or_the_sample_is_left_out(
    reader: str, tmp_path: Path, nothing_left: None
) -> None:
    folder = written(tmp_path, "a1", "b2", "b3", "c4")
    how: dict[str, Any] = {"batch": 1, "reader": reader, "decode": DECODER, "epochs": 2}
    with (
        pytest.raises(DataError, match=r"/b\d, sample [12]: the Decoder raised ValueError: b is bad.*on_error") as told,
        dlio_bench.load(folder, **how) as loader,
    ):
        ids_of(loader)
    assert "verify" not in str(told.value)
    with dlio_bench.load(folder, **how, on_error="skip") as loader:
        for _ in range(2):
            batches = {tuple(batch["ids"]): batch["first"].tolist() for batch in loader}
            assert batches == {(): [], (0,): [ord("a")], (3,): [ord("c")]}
        assert loader.skipped.keys() == {1, 2}
        assert loader.skipped[2] == f"{folder}/b3, sample 2: the Decoder raised ValueError: b is bad."
    with dlio_bench.load(folder, batch=4, reader=reader, decode=DECODER, on_error="skip", copy=True) as loader:
        [batch] = loader
    assert dict(zip(batch["ids"].tolist(), batch["first"].tolist(), strict=True)) == {0: ord("a"), 3: ord("c")}


def test_an_empty_file_is_named_or_left_out(tmp_path: Path) -> None:
    folder = written(tmp_path, "a1", "b2", "c3")
    (folder / "b2").write_bytes(b"")
    for decode in (False, DECODER):
        with pytest.raises(DataError, match=r"/b2, sample 1: it is empty .* as 1 of 3 .*on_error"):
            dlio_bench.load(folder, batch=3, decode=decode)
        with dlio_bench.load(folder, batch=3, decode=decode, on_error="skip", reader="naive") as loader:
            [batch] = loader
            assert batch["ids"].tolist() == [0, 2]
            assert [len(value) for value in batch.values()] == [2, 2]
            assert loader.skipped == {1: f"{folder}/b2, sample 1: it is empty (0 bytes)"}


def test_what_the_application_cannot_decode_is_left_out(tmp_path: Path) -> None:
    images = made(tmp_path, "imagenet", 4, "raw")
    images.path(2).write_bytes(b"x" * images.path(2).stat().st_size)
    with load(images, batch=4, decode=True, on_error="skip", epochs=1) as loader:
        [batch] = loader
        assert sorted(batch["ids"]) == [0, 1, 3]
        assert images.name(2) in loader.skipped[2]


def test_direct_reads_pass_the_page_cache(tmp_path: Path) -> None:
    with direct_folder(tmp_path) as place:
        folder = place / "samples"
        folder.mkdir()
        contents = [os.urandom(20_000) for _ in range(4)]
        for number, content in enumerate(contents):
            (folder / f"{number}.bin").write_bytes(content)
            with (folder / f"{number}.bin").open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with dlio_bench.load(folder, batch=2, reader="naive", io="direct") as loader:
            assert [part.tobytes() for batch in loader for part in batch["content"]] == contents
        # what finds out about direct reads reads one block
        assert residency([folder / f"{number}.bin" for number in range(1, 4)]).resident_bytes == 0


@pytest.mark.parametrize("how", [{}, {"chunks": (2, 3), "compression": "gzip"}], ids=["plain", "compressed"])
def test_named_datasets_of_hdf5_files_are_samples(tmp_path: Path, how: dict[str, Any]) -> None:
    rows = np.arange(7 * 3, dtype=np.float32).reshape(7, 3)
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=rows + 100 * number, **how)
            file["group/y"] = np.arange(7) + 100 * number
    with pytest.raises(UsageError, match="fields="):
        dlio_bench.load(tmp_path, batch=2)
    with pytest.raises(UsageError, match=r"no dataset 'z'. Its datasets: group/y, x"):
        dlio_bench.load(tmp_path, batch=2, fields=["z"])
    with dlio_bench.load(tmp_path, batch=2, fields=["y", "x"], copy=True) as loader:
        batches = list(loader)
    y = np.concatenate([batch["y"] for batch in batches])
    assert sorted(y) == [*range(7), *range(100, 107)]
    assert (np.concatenate([batch["x"] for batch in batches]) == rows[y % 100] + (y // 100 * 100)[:, None]).all()


@pytest.mark.parametrize("how", [{}, {"chunks": (2,), "compression": "gzip"}], ids=["plain", "compressed"])
def test_hdf5_datasets_are_addressed_by_path_and_a_bare_name_has_to_be_unique(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, path in enumerate(("train/x", "valid/x", "valid/deep/y", "y", "valid/z")):
            file.create_dataset(path, data=np.arange(4) + 10 * number, **how)
        file.create_dataset("valid/flag", data=np.arange(4) % 2 == 0, **how)
    for fields, names in ((["x"], "train/x, valid/x"), (["x", "valid/x"], "train/x, valid/x")):
        with pytest.raises(UsageError, match=f"several datasets 'x': {names}.*the path of each"):
            dlio_bench.load(tmp_path, batch=4, fields=fields)
    with pytest.raises(UsageError, match="no dataset 'test/x'"):
        dlio_bench.load(tmp_path, batch=4, fields=["test/x"])
    fields = ["train/x", "/valid/x", "y", "z", "flag"]
    with dlio_bench.load(tmp_path, batch=4, reader="naive", fields=fields) as loader:
        assert loader.fields["flag"] == ("|b1", ())
        [batch] = loader
    assert [batch[name][0] for name in fields] == [0, 10, 30, 40, True]
    assert batch["flag"].tolist() == [True, False, True, False]


def test_samples_of_varying_length_are_a_list(tmp_path: Path) -> None:
    images = made(tmp_path, "imagenet", 4)
    with dlio_bench.load(tmp_path, batch=3, last="keep") as loader:
        for batch in loader:
            for sample, record in zip(batch["ids"].tolist(), batch["record"], strict=True):
                assert record.tobytes() == bytes(stored_fields(images, ["record"], sample)[0])


def test_an_abandoned_loader_leaves_nothing(dataset: Dataset, nothing_left: None) -> None:
    loader = load(dataset)
    next(iter(loader))
    del loader


def test_an_exception_in_the_loop_closes_it(dataset: Dataset, nothing_left: None) -> None:
    with pytest.raises(ZeroDivisionError), load(dataset) as loader:  # noqa: PT012 - the loop is what is tested
        for _ in loader:
            raise ZeroDivisionError
    with pytest.raises(UsageError, match="closed"):
        loader.set_epoch(0)


def test_a_copy_of_its_process_cannot_use_it(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(dataset) as loader:
        next(iter(loader))
        with monkeypatch.context() as copy:
            copy.setattr(os, "getpid", lambda: -1)
            with pytest.raises(UsageError, match="another process"):
                iter(loader)
            loader.close()  # takes nothing away from the process that has it
        assert ids_of(loader) == planned(dataset, 0)[1:]


def test_a_program_that_ends_in_mid_epoch_ends_quietly(tmp_path: Path) -> None:
    generate(layout("hepcnnb"), 1, tmp_path, seed=5, workers=1)
    script = f"import dlio_bench\nloader = dlio_bench.load({str(tmp_path)!r}, batch=2, epochs=9)\nnext(iter(loader))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_changes_nothing_of_the_process(dataset: Dataset, capfd: pytest.CaptureFixture[str]) -> None:
    def state() -> list[object]:
        handlers = [signal.getsignal(number) for number in signal.valid_signals()]
        return [handlers, sys.getswitchinterval(), sys.unraisablehook, sys.excepthook, dict(os.environ), Path.cwd()]

    before = state()
    with load(dataset) as loader:
        ids_of(loader)
        assert state() == before
    assert state() == before
    assert capfd.readouterr() == ("", "")


def test_a_damaged_file_is_an_error_of_the_loop(tmp_path: Path, nothing_left: None) -> None:
    damaged = made(tmp_path, "hepcnnb", 1)
    path = damaged.path(0)
    os.truncate(path, path.stat().st_size // 2)
    with load(damaged) as loader:
        for _ in range(2):  # whoever asks again is told the same
            with pytest.raises(DataError, match=path.name):
                ids_of(loader)
    assert dlio_bench.errors.DataError is DataError


def test_checksums_are_compared_on_request(tmp_path: Path) -> None:
    altered = made(tmp_path, "hepcnnb", 1)
    content = bytearray(altered.path(0).read_bytes())
    content[len(content) // 2] ^= 1
    altered.path(0).write_bytes(content)
    with load(altered) as loader:
        ids_of(loader)
    with pytest.raises(DataError, match="CRC32C"), load(altered, check_crc=True) as loader:
        ids_of(loader)
    with pytest.raises(UsageError, match="no checksums"):
        dlio_bench.load(bare(altered), batch=2, fields=["data"], check_crc=True)


def test_a_tier_that_is_missing_is_named(dataset: Dataset, tmp_path: Path, nothing_left: None) -> None:
    with pytest.raises(UsageError, match=r"local_tier='.*gone' is not a folder"):
        load(dataset, reader="staged", local_tier=tmp_path / "gone")
    tier = tmp_path / "tier"
    tier.mkdir()
    with load(dataset, reader="staged", local_tier=tier) as loader:
        tier.rmdir()
        with pytest.raises(EnvironmentFailure, match=r"The local tier .*tier"):
            ids_of(loader)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"reader": "prefecth"}, "Did you mean 'prefetch'"),
        ({"reader": "strem"}, "no reader 'strem'. Use prefetch, .* staged, staged-replicated or staged-subset"),
        ({"reader": "upstream"}, "does not promise which sample comes next"),
        ({"reader": "torch"}, "is another loader"),
        ({"batch": 0}, "--batch 0 is too small"),
        ({"batch": 2.0}, "batch=2.0 is no whole number"),
        ({"seed": -1}, "seed=-1"),
        ({"decode": len}, "nor a dlio_bench.Decoder"),
        ({"decode": True, "fields": ["label"]}, "fields= has no effect"),
        ({"fields": "data"}, r"fields=\['data'\]"),
        ({"patience": 0}, "patience=0"),
        ({"tiers": "ram=1GB"}, "no dict of sizes"),
        ({"tiers": {"ram": None}}, r"tiers\['ram'\] is None"),
        ({"batch": 10_000}, "fill no step"),
        ({"fields": ["nothing"]}, "no field 'nothing'"),
        ({"tiers": {"tape": "1GB"}}, "tiers names 'tape'"),
        ({"tiers": {"ram": "1 gigabyte"}}, "tiers"),
        ({"tiers": {"ram": "900TB"}}, "A tier 'ram' of 900 TB does not fit on"),
        ({"tiers": {"ram": 1}, "reader": "naive"}, "keeps none"),
        ({"comm": "world"}, "no communicator"),
        ({"files": "*.h5"}, "the manifest in"),
        ({"on_error": "ignore"}, "on_error='ignore' is not known"),
        ({"files": 5}, "files=5 is no pattern"),
        ({"last": "throw"}, "--last"),
        ({"io": "cached"}, "io='cached' is not known"),
    ],
)
def test_what_cannot_be_is_refused_by_name(dataset: Dataset, changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        load(dataset, **changed)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file or folder"):
        dlio_bench.load(tmp_path / "gone", batch=1)
