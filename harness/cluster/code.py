"""A digest of the code that a rank runs, so that ranks on different code are noticed."""

import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_ROOMS = ("benchmarks", "datagen", "harness", "reports")
_BESIDE = ("numpy", "h5py", "mpi4py")


def _folders(package: str) -> list[Path]:
    spec = find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []


def sources() -> Iterator[tuple[str, Path]]:
    """(name, file) of every .py file of the installed package, sorted by name; names start below `dlio_bench`.

    The same names come out of an installed wheel and of an editable install, whose packages lie in folders of their own
    and whose root package lies inside another's (harness/root).
    """
    roots = _folders("dlio_bench")
    files = {file.name: file for folder in roots for file in folder.glob("*.py")}
    for room in _ROOMS:
        for folder in _folders(f"dlio_bench.{room}"):
            for file in folder.rglob("*.py"):
                if not any(file.is_relative_to(root) for root in roots if root != folder.parent):
                    files[f"{room}/{file.relative_to(folder).as_posix()}"] = file
    yield from sorted(files.items())


def digest(files: Iterator[tuple[str, Path]], versions: dict[str, str | None]) -> str:
    """SHA-256 (hexadecimal) over names and bytes, each with its length before it, and over the versions."""
    total = hashlib.sha256()
    for name, file in files:
        body = file.read_bytes()
        total.update(f"{len(name)} {name} {len(body)} ".encode())
        total.update(body)
    total.update(repr(sorted(versions.items())).encode())
    return total.hexdigest()


def installed(package: str) -> str | None:
    """The installed version of a distribution, None where there is none. Imports nothing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def place() -> str:
    """The same for two processes of a host whose code is the same files: interpreter, path, folders of packages."""
    rooms = ("dlio_bench", *(f"dlio_bench.{room}" for room in _ROOMS))
    folders = [folder.stat() for name in rooms for folder in _folders(name)]
    return repr((sys.executable, sys.path, [(folder.st_dev, folder.st_ino) for folder in folders]))


@cache
def code_digest() -> str:
    """One name for this rank's code: all .py files of dlio_bench and the versions of NumPy, h5py and mpi4py."""
    return digest(sources(), {package: installed(package) for package in _BESIDE})
