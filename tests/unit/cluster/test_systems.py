"""Descriptions of machines: those that come with the package, and what a calibration writes into one."""

import re
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.system import SHIPPED, Stream, load, load_system, shipped_system
from dlio_bench.harness.commands.calibration import description
from dlio_bench.harness.ground.user_files import to_toml
from dlio_bench.harness.simulator.model import costs
from dlio_bench.harness.simulator.options import SYSTEMS

FOLDER = files("dlio_bench.harness.cluster") / "systems"
FOUND = {
    "pfs": {"1": 200e6, "2": 390e6}, "stream": {"4096": 10e6, "1048576": 180e6}, "stream_all": {"4096": 5e6},
    "streams": {"1048576": 800e6},
    "open": 0.0011, "barrier": 0.0002, "network": 1.25e9, "preprocess": None, "disk": None,
    "ram": {"read": {"1": 6e9, "4": 12e9}, "write": {"1": 2e9, "4": 3e9}},
}  # fmt: skip
DECLARED = """# what we know
[declared]
name = "mine"   # kept to the letter
compute = 100

[declared.tiers.staging]
capacity = "1GB"
threads = 4
[declared.tiers.ram]
capacity = "10GB"
threads = 4
"""


def test_the_names_are_the_files() -> None:
    assert sorted(SHIPPED) == sorted(path.name.removesuffix(".toml") for path in FOLDER.iterdir())
    assert SYSTEMS == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_system_parses_and_gives_costs(name: str) -> None:
    assert load_system(name) == shipped_system(name)
    assert costs(shipped_system(name), 4, sample=0.01).worst_pfs > 0


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in ("deck", "deck-environment", "sc21")])
def test_every_number_has_its_source_or_is_called_an_estimate(name: str) -> None:
    text = (FOLDER / f"{name}.toml").read_text()
    sources = set(re.findall(r"\[([A-Z])\]", "".join(line for line in text.splitlines() if line.startswith("#"))))
    estimates = 0
    for line in text.splitlines():
        if re.match(r"\w+ = .*\d", line) and not line.startswith(("name", "estimated")):
            said = line.partition("#")[2]
            assert "estimate" in said or set(re.findall(r"\[([A-Z])\]", said)) & sources, line
            estimates += "estimate" in said
    assert bool(shipped_system(name).estimated) == bool(estimates)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_an_estimate_is_listed_as_one_and_nothing_else(name: str) -> None:
    estimates: dict[str, list[bool]] = {}
    section = ""
    for line in (FOLDER / f"{name}.toml").read_text().splitlines():
        section = found[1] if (found := re.match(r"\[declared\.?(\w*)", line)) else section
        if re.match(r"\w+ = .*[\d\"]", line) and not line.startswith(("name", "estimated")):
            key = section or line.partition(" ")[0]
            estimates.setdefault(key, []).append("estimate" in line.partition("#")[2])
    listed = shipped_system(name).estimated
    # a key or table by its name where all of it is estimated; in words ("share of memory kept") where a part of it is
    assert {key for key, said in estimates.items() if all(said)} == set(listed) & set(estimates)
    partly = {key for key, said in estimates.items() if any(said) and not all(said)}
    assert bool(partly) == bool(set(listed) - set(estimates))


def test_calibrating_again_leaves_what_is_declared_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "system.toml"
    file.write_text(description.text(DECLARED, description.measured_table(FOUND, {"data": "test files"})))
    assert description.read_declared(file).rstrip() == DECLARED.rstrip()
    once = file.read_text()
    file.write_text(
        description.text(description.read_declared(file), description.measured_table(FOUND, {"data": "test files"}))
    )
    assert file.read_text() == once
    system = load(file)
    assert (system.name, system.network, system.preprocess) == ("mine", 1250, float("inf"))
    assert system.pfs_open == pytest.approx(0.0011)
    assert system.pfs.points == ((1, 200), (2, 390))
    assert system.pfs_stream_all is not None
    assert system.adios_stream == Stream(((1_048_576, 800),))
    file.write_text(description.text(DECLARED, description.measured_table(FOUND | {"streams": {}}, {})))
    assert load(file).adios_stream is None
    assert [tier.read.rate_for(4) for tier in system.tiers] == [12000, 12000]
    assert system.by["data"] == "test files"


@pytest.mark.parametrize("content", ["[declared\n", "\x00"])
def test_a_file_that_is_no_description_is_not_overwritten(tmp_path: Path, content: str) -> None:
    file = tmp_path / "notes.toml"
    file.write_text(content)
    with pytest.raises(UsageError, match="exists and is no system description"):
        description.read_declared(file)
    assert file.read_text() == content


@given(st.dictionaries(st.text(), st.text() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False), max_size=5))
def test_what_is_written_is_read_back(table: dict[str, str | int | float]) -> None:
    assert tomllib.loads(to_toml({"measured": table})).get("measured", {}) == table


def test_one_thread_takes_the_measured_times() -> None:
    stream = Stream(((4096, 4.0), (1_048_576, 100.0)))
    assert stream.seconds(4096) == pytest.approx(4096 / 4e6)
    assert stream.seconds(1_048_576) == pytest.approx(0.01048576)
    assert stream.seconds(2 * 1_048_576) == pytest.approx(2 * 0.01048576)
    assert 1e-9 < stream.seconds(1) < stream.seconds(4096) < stream.seconds(500_000) < stream.seconds(1_048_576)


def test_without_a_network_nothing_is_read_from_other_nodes(tmp_path: Path) -> None:
    file = tmp_path / "system.toml"
    file.write_text(description.text(DECLARED, description.measured_table(FOUND | {"network": None}, {})))
    assert costs(load(file), 2).remote == (float("inf"),)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[declared]", "[declared]\nestimated = 3", "estimated = 3"),
        ("[declared]", '[declared]\nestimated = "tiers"', "write a list"),
        ('barrier = "', 'barrier = "-', "barrier = '-"),
        ('"10GB"', '"1zz"', "tiers.ram.capacity = '1zz'"),
        ("[measured.tiers.ram]", "[measured.tiers.other]", "tiers.ram.read"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_file(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    text = description.text(DECLARED, description.measured_table(FOUND, {}))
    path.write_text(text)
    load(path)
    path.write_text(text.replace(old, new, 1))
    assert path.read_text() != text
    with pytest.raises(UsageError) as told:
        load(path)
    assert "mine.toml" in str(told.value)
    assert says in str(told.value)


def test_a_tier_that_would_not_be_measured_again_is_refused_before(tmp_path: Path) -> None:
    disk = '[declared.tiers.disk]\ncapacity = "10GB"\nthreads = 2\n'
    description.require_measured(DECLARED, tmp_path, local=False)
    description.require_measured(DECLARED + disk, tmp_path, local=True)
    description.require_measured(DECLARED + disk + "read = { 1 = 500 }\n", tmp_path, local=False)
    with pytest.raises(UsageError, match=r"'disk'.*--local"):
        description.require_measured(DECLARED + disk, tmp_path, local=False)
