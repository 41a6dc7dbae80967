"""Files that anybody may have edited: 2,000 mutations of each kind end in an answer or in one of our errors.

HDF5 files are mutated in this process: 16,000 mutations by other means crashed HDF5 2.0 never, and the seeds are fixed.
"""

import contextlib
import functools
import gzip
import inspect
import io
import json
import math
import pickle
import random
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from dlio_bench.benchmarks import profile_files
from dlio_bench.benchmarks.imagenet import images, jpeg
from dlio_bench.datagen.dataset import missing_or_resized, open_dataset
from dlio_bench.datagen.formats import example, hdf5, tfrecord
from dlio_bench.datagen.index import examine
from dlio_bench.datagen.layout import Field
from dlio_bench.datagen.manifest import NAME, field_bytes
from dlio_bench.documents import DEEPEST, load_json, load_toml, read
from dlio_bench.errors import BenchError, UsageError
from dlio_bench.free_space import SHARED_MEMORY
from dlio_bench.harness.acceptance import contract, outlook, plan, record
from dlio_bench.harness.acceptance.datasets import Memory, sources
from dlio_bench.harness.acceptance.parts import parts
from dlio_bench.harness.cluster import system
from dlio_bench.reports import html, judge, judgement_text, junit, limits, result, storage
from dlio_bench.reports.typed import to_json
from tests.datasets import made, verify_files
from tests.results import complete
from tests.unit.test_storage_report import draft as storage_draft

Make = Callable[..., tuple[dict[str, Any], dict[str, Any]]]

MANY = 2000  # mutations of each kind


def mutations(times: int = MANY) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The test is called so many times, each with the next `chance`: every machine tries the same mutations, once."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def tried(**fixtures: Any) -> None:
            for seed in range(times):
                try:
                    test(**fixtures, chance=random.Random(seed))
                except BaseException as error:
                    error.add_note(f"chance is random.Random({seed})")
                    raise

        fixtures = [one for name, one in inspect.signature(test).parameters.items() if name != "chance"]
        tried.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined] # pytest gives what is named here
        return tried

    return decorate


ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1 << 62, 1 << 63, -(1 << 63), 10**30, 1e308, -0.5, math.nan, math.inf, "", ".", "..",
    "../up", "/etc", "a/../b", "a\nb", "\0", "\ud800", "é" * 300, "9" * 30, "data[", "x[123456789]", "<f4", "|O",
    "<U99999", "float9", [], {}, [[]], [None], [-1], [1 << 40] * 4, {"name": "x"}, ["train"] * 40,
)  # fmt: skip
SYSTEM = tomllib.loads((resources.files("dlio_bench.harness.cluster") / "systems" / "perlmutter.toml").read_text())
PLAN = tomllib.loads((resources.files("dlio_bench.harness.acceptance") / "plans" / "slurm.toml").read_text())
PROFILE = profile_files.to_tables(next(iter(profile_files.shipped("cdb").values())))
PICTURES = [jpeg.make(np.random.SFC64(1), 2000)[0].tobytes()]
for _kind in images.KINDS:
    _content = io.BytesIO()
    Image.new("P" if _kind == "GIF" else "RGB", (20, 30)).save(_content, _kind)
    PICTURES.append(_content.getvalue())
STORAGE = to_json(storage.complete(storage_draft()))
PIECES = (
    b"[", b"{", b'"', b"-", b"0", b"9" * 40, b"9" * 5000, b"1e999", b"NaN", b"\0", b"\xff", b"=", b"\n[", b"#",
    b"\\ud800",
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything inside; of long lists the first few."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:5]) if isinstance(value, list) else ()
    for key, one in list(inner):
        yield value, key
        yield from places(one)


def copied(document: Any) -> Any:
    """As copy.deepcopy, in a tenth of the time."""
    return pickle.loads(pickle.dumps(document))


def edited(document: Any, chance: random.Random) -> Any:
    """The document with one to three other values."""
    document = copied(document)
    for _ in range(chance.choice((1, 1, 2, 3))):
        known = list(places(document))
        if not known:
            break
        inside, key = chance.choice(known)
        act = chance.randrange(8)
        if act == 0:
            del inside[key]
        elif act == 1 and isinstance(inside[key], int | float):
            inside[key] = inside[key] * chance.choice((-1, 0, 1000, 0.5, 1 << 40))
        elif act == 2:
            outer, name = chance.choice(known)
            inside[key] = copied(outer[name])
        elif act == 3 and isinstance(inside, dict):
            inside["another"] = chance.choice(ODD)
        else:
            inside[key] = copied(chance.choice(ODD))
    return document


def cut(content: bytes, chance: random.Random) -> bytes:
    """The content with one to four other bytes, or fewer, or more."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        act = chance.randrange(8)
        if act < 3:
            changed[at : at + 1] = bytes([chance.randrange(256)])
        elif act < 5:
            changed[at:at] = chance.choice(PIECES)
        elif act < 7:
            del changed[at : at + chance.randrange(40)]
        else:
            del changed[at:]
    return bytes(changed)


def changed(document: Any, chance: random.Random, write: Callable[[Any], str]) -> bytes:
    """The document with other values, or its text with other bytes."""
    if chance.random() < 0.6:
        return write(edited(document, chance)).encode(errors="surrogatepass")
    return cut(write(document).encode(), chance)


def in_toml(value: Any) -> str:
    """A document as TOML, its tables in one line each; text in quotes where TOML has no such value."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {in_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf"
    return json.dumps(value) if isinstance(value, bool | int | float) else json.dumps(str(value))


def as_toml(document: Any) -> str:
    lines = document.items() if isinstance(document, dict) else ()
    return "".join(f"{json.dumps(str(key))} = {in_toml(value)}\n" for key, value in lines)


def ends_well(use: Callable[[], object]) -> bool:
    """Whether there was an answer; any failure that is not one of ours goes on."""
    try:
        use()
    except BenchError:
        return False
    return True


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory: a disk takes longer for a file that is written anew than any parser does."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def tmp_path(memory: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=memory))


@pytest.fixture(scope="module", params=["cdb", "imagenet"])
def folder(request: pytest.FixtureRequest, memory: Path) -> Path:
    """A dataset with a row a field, and one with a row a sample."""
    return made(memory / request.param, request.param, 1).folder


@mutations(MANY // 2)  # on each of the two datasets
def test_manifests(folder: Path, chance: random.Random) -> None:
    path = folder / NAME
    whole = path.read_bytes()

    def use() -> None:
        dataset = open_dataset(folder)
        names = [field.name for field in dataset.manifest.fields]
        ids = np.arange(dataset.samples)
        dataset.locate(ids, names)
        dataset.checksums(ids, names)
        assert 0 < dataset.training_samples <= dataset.samples
        assert all(".." not in dataset.path(number).parts for number in range(len(dataset.manifest.files)))
        if not missing_or_resized(dataset) and chance.random() < 0.1:
            verify_files(dataset)

    try:
        path.write_bytes(changed(json.loads(whole), chance, json.dumps))
        ends_well(use)
    finally:
        path.write_bytes(whole)


@pytest.fixture
def saved(draft_and_steps: Make, tmp_path: Path) -> tuple[Path, bytes]:
    """A result's file, and what it held at first."""
    draft, steps = draft_and_steps()
    result.save(complete(draft, steps), steps, tmp_path)
    path = tmp_path / result.RESULT_NAME
    return path, path.read_bytes()


@mutations()
def test_results(saved: tuple[Path, bytes], chance: random.Random) -> None:
    path, whole = saved
    if chance.random() < 0.6:  # the digest finds every edit: whoever makes it anew gets beyond it
        document = edited(json.loads(whole), chance)
        if isinstance(document, dict):
            with contextlib.suppress(ValueError):
                document["digest"] = result.digest(document)
        path.write_text(json.dumps(document))
    else:
        path.write_bytes(cut(whole, chance))
    mark_altered = chance.random() < 0.5

    def use() -> None:
        pair = result.load(path, mark_altered=mark_altered)
        if chance.random() < 0.2:
            judgement_text.render(judge.judge([pair], ANY))
        if chance.random() < 0.1:
            html.page([pair])

    ends_well(use)


@mutations(300)
def test_steps_of_altered_results(saved: tuple[Path, bytes], chance: random.Random) -> None:
    steps_path = saved[0].with_name(result.STEPS_NAME)
    content = steps_path.read_bytes()
    if chance.random() < 0.5:  # sizes and types of other arrays, in a file that is whole
        arrays = dict(np.load(io.BytesIO(content)))
        arrays[chance.choice([*arrays, "more"])] = np.array(chance.choice((["a"], 1j, [], [True], 10**30, b"")))
        np.savez(steps_path, **arrays)
    else:
        steps_path.write_bytes(cut(content, chance))
    try:
        ends_well(lambda: result.load(saved[0], mark_altered=True))
    finally:
        steps_path.write_bytes(content)


@mutations()
def test_storage_documents(tmp_path: Path, chance: random.Random) -> None:
    path = tmp_path / "storage.json"
    path.write_bytes(changed(STORAGE, chance, json.dumps))

    def use() -> None:
        document = storage.load(path)
        storage.render(document)
        storage.ceiling_for(document, 1e6)

    ends_well(use)


@mutations()
def test_system_descriptions(tmp_path: Path, chance: random.Random) -> None:
    path = tmp_path / "system.toml"
    path.write_bytes(changed(SYSTEM, chance, as_toml))
    ends_well(lambda: system.describe(system.load(path)))


ANY = limits.parse(b'dataset_to_memory = 5\n[cdb."*"."*"]\nspread = { at_most = "5 %" }', Path("limits.toml"))
LIMITS = {
    "version": "2026-1", "trials": 5, "min_seconds": 30, "min_steps": 64, "cache": "cold", "dataset_to_memory": 5,
    "node_bandwidth": "25 GB/s", "allow_marks": ["VIRTUAL NODES"],
    "cdb": {
        "prefetch": {"4x1": {"delivered_bandwidth": {"at_least": "10.8 GB/s", "statistic": "ci_low"}}},
        "*": {"*": {"spread": {"at_most": "5 %"}, "samples_per_second": {"at_least": 208}}},
    },
}  # fmt: skip


@mutations()
def test_limits(tmp_path: Path, chance: random.Random) -> None:
    path = tmp_path / "limits.toml"
    path.write_bytes(changed(LIMITS, chance, as_toml))

    def use() -> None:
        asked = limits.load(path, ["cdb"], ["prefetch"] if chance.random() < 0.5 else [])
        judgement = judge.judge([], asked)
        judgement_text.render(judgement)
        junit.render(judgement)

    ends_well(use)


@mutations()
def test_plans_of_acceptances(tmp_path: Path, chance: random.Random) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(changed(PLAN, chance, as_toml))

    def use() -> None:
        asked, _ = plan.load(path)
        contract.limits_of(asked, path)
        memory = Memory(1 << 30, declared=False, real_nodes=True)
        [*map(outlook.request_of, parts(asked, tmp_path, sources(asked, tmp_path, tmp_path, memory))[-1:])]
        record.digest(asked)

    ends_well(use)


@mutations()
def test_compute_profiles(tmp_path: Path, chance: random.Random) -> None:
    path = tmp_path / "profile.toml"
    path.write_bytes(changed(PROFILE, chance, as_toml))
    ends_well(lambda: profile_files.load(path))


HDF5_FIELDS = (Field("data", "<f4", (2, 4)), Field("labels", "<i4", ()))
RECORD = (Field("record", "|u1", (-1,)),)


@pytest.fixture(scope="module")
def hdf5_files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Contiguous, compressed, and in chunks."""
    contents = []
    stored: tuple[dict[str, Any], ...] = ({}, {"compression": "gzip"}, {"chunks": (2, 2, 4)})
    for how in stored:
        path = tmp_path_factory.mktemp("hdf5") / "whole.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("data", data=np.arange(40, dtype="<f4").reshape(5, 2, 4), **how)
            file.create_dataset("labels", data=np.arange(5, dtype="<i4"))
        contents.append(path.read_bytes())
    return contents


@mutations()
def test_hdf5_files(hdf5_files: list[bytes], tmp_path: Path, chance: random.Random) -> None:
    content = bytearray(chance.choice(hdf5_files))
    for _ in range(chance.choice((1, 2, 4, 8))):
        at = chance.randrange(len(content))
        if chance.random() < 0.5:
            content[at] = chance.randrange(256)
        else:
            number = chance.choice((0, 1, 1 << 31, 1 << 63, (1 << 64) - 1, len(content)))
            content[at : at + 8] = number.to_bytes(8, "little")
    path = tmp_path / "mutated.h5"
    path.write_bytes(content)
    ends_well(lambda: hdf5.locate(path, HDF5_FIELDS))

    def through_library() -> None:
        places = hdf5.locate_rows(path, HDF5_FIELDS)
        opened = hdf5.Filtered(path)
        try:
            opened.fetch("data", int(places[-1, 0, 0]), memoryview(bytearray(field_bytes(HDF5_FIELDS[0]))))
        finally:
            opened.close()

    ends_well(through_library)


@mutations()
def test_tfrecord_files(tmp_path: Path, chance: random.Random) -> None:
    compressed, path = chance.random() < 0.5, tmp_path / "mutated"
    message = example.encode({"image/encoded": PICTURES[0], "image/class/label": np.array([7])})
    if compressed:
        tfrecord.write_gzip(path, message)
    else:
        tfrecord.write(path, [message, [b"short"]])
    content = path.read_bytes()
    if compressed and chance.random() < 0.5:
        content = gzip.compress(cut(gzip.decompress(content), chance), 1)
    elif chance.random() < 0.5:  # a length that its own checksum confirms
        length = chance.choice((0, 1, len(content), 1 << 31, 1 << 62, (1 << 64) - 1))
        content = tfrecord.head(length) + content[tfrecord.HEAD :]
        content = gzip.compress(content, 1) if compressed else content
    else:
        content = cut(content, chance)
    path.write_bytes(content)
    container = "tfrecord-gzip" if compressed else "tfrecord"
    found = examine(tmp_path, container, RECORD, "mutated", images.record_fault if chance.random() < 0.5 else None)
    assert found.refusal or found.written is not None


@mutations()
def test_images(chance: random.Random) -> None:
    content = bytearray(PICTURES[chance.randrange(len(PICTURES))])
    changed = bytearray(cut(bytes(content), chance))
    for _ in range(chance.choice((0, 1, 4))):  # most of all in the header
        if changed:
            changed[chance.randrange(min(64, len(changed)))] = chance.randrange(256)
    reason = images.fault(bytes(changed))
    assert reason is None or reason
    if chance.random() < 0.5:
        ends_well(lambda: images.rgb(bytes(changed)))


@pytest.mark.parametrize("load", [load_json, load_toml])
def test_what_has_no_bounds_is_refused_in_words(load: Callable[[bytes], Any]) -> None:
    start, end = ("", "") if load is load_json else ("x = ", "\n")
    for depth, says in ((DEEPEST + 1, "deep in each other"), (100_000, "deep in each other")):
        with pytest.raises(ValueError, match=says):
            load(f"{start}{'[' * depth}{']' * depth}{end}".encode())
    load(f"{start}[[{(1 << 63) - 1}]]{end}".encode())
    for number in (1 << 64, -(10**30), 10**4000):
        with pytest.raises(ValueError, match="more than 64 bits"):
            load(f"{start}[{number}]{end}".encode())


def test_only_so_much_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read(tmp_path / "file", most=5) == b"12345"
    with pytest.raises(UsageError, match=r"at most 4 are read\. Name another\."):
        read(tmp_path / "file", "Name another.", most=4)
