"""The digest of the code: every file counts, any installation of the same code gives the same one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dlio_bench.harness.cluster import environment

ROOT = Path(__file__).parents[3]
ROOMS = ("benchmarks", "datagen", "harness", "reports")


def test_every_source_file_counts_once() -> None:
    expected = {file.relative_to(ROOT).as_posix() for room in ROOMS for file in (ROOT / room).rglob("*.py")}
    expected = {name.removeprefix("harness/root/") for name in expected}
    names = [name for name, _ in environment.sources()]
    assert names == sorted(set(names))
    assert set(names) == expected
    assert {"errors.py", "harness/cluster/environment.py", "reports/__init__.py"} <= set(names)


def test_an_installed_copy_has_the_same_digest_until_a_byte_changes(tmp_path: Path) -> None:
    package = tmp_path / "dlio_bench"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "harness/root", package, ignore=skip)
    for room in ROOMS:
        shutil.copytree(ROOT / room, package / room, ignore=shutil.ignore_patterns("__pycache__", "root"))
    script = "from dlio_bench.harness.cluster import environment as e; print(e.__file__, e.code_digest())"

    def copied() -> str:
        env = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-P", "-c", script], env=env, capture_output=True, text=True, check=True)
        file, digest = done.stdout.split()
        assert Path(file).is_relative_to(tmp_path)
        return digest

    assert copied() == environment.code_digest()
    with (package / "reports/__init__.py").open("a") as file:
        file.write("\n")
    assert copied() != environment.code_digest()


@pytest.fixture
def two(tmp_path: Path) -> list[tuple[str, Path]]:
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "b").write_bytes(b"3")
    return [("a", tmp_path / "a"), ("b", tmp_path / "b")]


def test_names_bytes_and_versions_all_count(two: list[tuple[str, Path]]) -> None:
    (_, a), (_, b) = two
    base = environment.digest_of(iter(two), {"numpy": "2"})
    assert len(base) == 64
    assert environment.digest_of(iter(two), {"numpy": "2"}) == base
    assert environment.digest_of(iter(two), {"numpy": "3"}) != base
    assert environment.digest_of(iter(two), {"numpy": None}) != base
    assert environment.digest_of(iter([("a", a), ("c", b)]), {"numpy": "2"}) != base
    a.write_bytes(b"1")
    b.write_bytes(b"23")  # the same bytes in a row, cut elsewhere
    assert environment.digest_of(iter(two), {"numpy": "2"}) != base
