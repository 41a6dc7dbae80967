"""Every folder of the rooms with an __init__.py is a package, and docs/ goes along; all else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
ROOMS = ("benchmarks", "datagen", "harness", "reports")
FOLDERS = sorted(path.parent.relative_to(HERE) for room in ROOMS for path in (HERE / room).rglob("__init__.py"))
PARTS = [() if folder.parts == ("harness", "root") else folder.parts for folder in FOLDERS]

setup(packages=[".".join(("dlio_bench", *parts)) for parts in [*PARTS, ("docs",)]])
