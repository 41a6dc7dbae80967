"""What is installed is what is on disk, and the README's commands are the ones that exist."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from dlio_bench.harness.cli import parser

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ROOMS = ("benchmarks", "datagen", "harness", "reports")
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMMANDS = ("./scripts/quickstart", "./scripts/test")


def installed_name(folder: Path) -> str:
    """benchmarks/cdb -> dlio_bench.benchmarks.cdb; harness/root -> dlio_bench."""
    parts = folder.relative_to(ROOT).parts
    return "dlio_bench" if parts == ("harness", "root") else ".".join(("dlio_bench", *parts))


def packages_on_disk() -> list[str]:
    """Import names of all folders with an __init__.py."""
    return sorted(installed_name(path.parent) for room in ROOMS for path in (ROOT / room).rglob("__init__.py"))


def test_every_folder_with_code_is_a_package() -> None:
    folders = {installed_name(path.parent) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert folders <= set(packages_on_disk())


def test_no_module_has_a_second_name() -> None:
    assert not set(ROOMS) & {name.split(".")[0] for name in sys.modules}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The file names in a wheel built from a copy: a dirty build/lib would put removed modules into it."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    unwanted = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, copy, ignore=unwanted)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return ZipFile(path).namelist()


def test_the_wheel_holds_every_file_of_the_rooms(wheel: list[str]) -> None:
    wanted = []
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            if path.suffix == ".py" or path.name == "py.typed":
                wanted.append(f"{installed_name(path.parent).replace('.', '/')}/{path.name}")
            elif path.is_file() and path.parent.name in ("templates", "systems", "profiles", "plans", "studies"):
                package = installed_name(path.parents[1]).replace(".", "/")
                wanted.append(f"{package}/{path.parent.name}/{path.name}")
    docs = [path for path in (ROOT / "docs").rglob("*") if path.suffix == ".md" or path.parent.name == "examples"]
    wanted += [f"dlio_bench/{path.relative_to(ROOT)}" for path in docs if path.is_file()]
    assert sorted(wanted) == sorted(name for name in wheel if ".dist-info/" not in name)
    assert any("reports/templates/" in name for name in wheel)


def test_one_answer_on_versions_of_python() -> None:
    texts = [" ".join((ROOT / page).read_text().split()) for page in ("README.md", "docs/installing.md")]
    assert CONFIG["project"]["requires-python"] == ">=3.11,<3.14"
    assert all("Python 3.11, 3.12 or 3.13 with venv" in text for text in texts)
    for script, last in (("quickstart", 13), ("test", 12)):
        text = (ROOT / "scripts" / script).read_text()
        lasts = re.findall(r"(?m)^last_minor=(\d+)", (ROOT / "scripts" / "lib.bash").read_text() + text)
        assert int(lasts[-1]) == last
        assert f"PYTHON, a Python 3.11{', 3.12' * (last == 13)} or 3.{last} to make" in text


def test_the_wheel_holds_the_licence(wheel: list[str]) -> None:
    assert [name for name in wheel if name.endswith("licenses/LICENSE")]


def test_the_readme_starts_with_the_two_commands() -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:40]
    told = [line.strip() for line in first_screen if line.startswith("./scripts/")]
    assert [line.split()[0] for line in told] == list(COMMANDS)
    for command in COMMANDS:
        assert os.access(ROOT / command, os.X_OK)
    assert re.search(rf"^suite junit {re.escape(COMMANDS[1])}$", (ROOT / ".ci/run").read_text(), re.MULTILINE)


def test_the_quickstart_runs_the_main_job() -> None:
    command = re.search(r"(?s)\ndlio-bench (run .*?)\n```", (ROOT / "README.md").read_text())
    assert command is not None
    asked = command[1].replace("\\\n", "").split()
    assert asked[:6] == ["run", "hepcnnb", "--nodes", "8", "--reader", "naive,prefetch"]
    script = (ROOT / "scripts/quickstart").read_text()
    job = re.search(r"(?s)main_job=\((.*?)\)", script)
    assert job is not None
    assert job[1].split() == asked
    assert parser().parse_known_args(asked)[1] == []


@pytest.mark.parametrize(("script", "last"), [("quickstart", 13), ("test", 12)])
def test_other_pythons_are_refused_with_those_that_work(script: str, last: int, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho 3.{last + 1}.0\n")
    python.chmod(0o755)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")  # beside which there is no environment
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    command, env = [tmp_path / "scripts" / script, "--version"], os.environ | {"PYTHON": str(python)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 4, done.stderr
    assert f"Python 3.11 to 3.{last} with venv is needed, and PYTHON={python} is not one" in done.stderr
    if script == "quickstart":
        assert CONFIG["project"]["requires-python"] == f">=3.11,<3.{last + 1}"


def test_every_dependency_is_pinned_and_told() -> None:
    project = CONFIG["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    pins = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    table = (ROOT / "docs" / "dependencies.md").read_text()
    for requirement in asked:
        name = re.split(r"[\[<>=!~; ]", requirement)[0]
        assert name in pins, f"{name} has no line in constraints.txt"
        assert f"`{name}`" in table, f"{name} has no line in docs/dependencies.md"
