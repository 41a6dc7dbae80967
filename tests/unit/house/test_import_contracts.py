"""Imports point one way, heavy libraries load late, and each has its one place."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAY_IMPORT = {
    "harness": {"harness", "benchmarks", "datagen", "reports"},
    "benchmarks": {"benchmarks", "datagen"},
    "datagen": {"datagen"},
    "reports": {"reports"},
}
# The storeys of the harness, lowest first, and their rooms, of which single files are some: each imports only those
# before it.
HOUSE = {
    "machine": ("machine", "cluster", "live", "ground"),
    "plan": ("plan",),
    "storage": ("storage", "streams", "timeline"),
    "readers": ("readers", "library", "training", "simulator"),
    "commands": (
        "generation", "storage_bench", "calibration", "checkpoints",
        "run/asked", "run/measured", "run/predicted", "run/told", "run",
        "bench_readers", "coupling", "capacity", "results", "tracing",
        "listing", "doctor", "pages", "parser", "acceptance", "studies", "job_script",
    ),
    "users": ("notebooks", "cli"),
}  # fmt: skip
STOREYS = tuple(
    f"commands/{room}" if storey == "commands" else room for storey, rooms in HOUSE.items() for room in rooms
)
# What a run needs and a reader of results does not.
MEASURING = {"mpi4py", "horovod", "h5py", "tensorflow"}
# Slow to import: 0.1 to 3 s each.
SLOW = {
    "numpy", "h5py", "pandas", "jinja2", "plotly", "mpi4py", "tensorflow", "horovod", "scipy", "ruptures",
}  # fmt: skip
FILES = sorted(path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.py"))
BASE = ROOT / "harness/root/__init__.py"  # which offers the library, and loads it when it is asked for
OURS = [path for path in FILES if path != BASE]
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@cache
def names(path: Path) -> tuple[tuple[str, bool], ...]:
    """Every module that the file imports, with whether it loads as soon as the file does."""
    return tuple(_names(ast.parse(path.read_text()), early=True))


def _names(node: ast.AST, *, early: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, early) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            # `from dlio_bench import harness` imports dlio_bench.harness
            yield from ((f"{'.' * child.level}{child.module or ''}.{alias.name}", early) for alias in child.names)
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            # only type checkers see these: slow libraries may stand there, files of ours count as anywhere
            yield from ((name, early) for name, _ in _names(child, early=early) if library(name) == "dlio_bench")
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):  # no expression imports
            is_late = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _names(child, early=early and not is_late)


def room_of(path: Path) -> str:
    """The room a file installs into; harness/root is the package itself."""
    parts = path.relative_to(ROOT).parts
    return "" if parts[:2] == ("harness", "root") else parts[0]


def library(name: str) -> str:
    """'mpi4py.MPI' -> 'mpi4py'."""
    return name.partition(".")[0]


def importers(of: str) -> set[str]:
    """The files that import a library, early or late."""
    return {str(path.relative_to(ROOT)) for path in FILES if any(library(name) == of for name, _ in names(path))}


def loaded(code: str) -> set[str]:
    """The libraries that a fresh interpreter holds after the code."""
    script = f"import sys\n{code}\nprint('loaded', *sorted({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.rpartition("loaded ")[2].split())


def test_a_room_imports_only_the_rooms_below_it() -> None:
    imports = [(path, name) for path in FILES for name, _ in names(path)]
    for path, name in imports:
        room, (first, _, rest) = room_of(path), name.partition(".")
        assert first not in MAY_IMPORT, f"{path}: {name}: the folder's import name is dlio_bench.{name}"
        assert first, f"{path}: {name}: imports are absolute"
        target = rest.split(".")[0]
        if first == "dlio_bench" and target in MAY_IMPORT and room:
            assert target in MAY_IMPORT[room], f"{path}: {room} must not import {name}"


def storey_of(path: Path) -> str:
    """The room of the harness that a file or folder lies in."""
    parts = path.relative_to(ROOT / "harness").parts
    deep = (
        1
        if parts[0] != "commands"
        else 3
        if parts[1] == "run" and (ROOT / "harness" / Path(*parts[:3])).is_dir()
        else 2
    )
    return "/".join(parts[:deep]).removesuffix(".py")


def test_the_rooms_of_the_harness_import_only_those_above_them() -> None:
    files = [path for path in FILES if room_of(path) == "harness" and path.name != "__init__.py"]
    files += (ROOT / "harness/commands/run").glob("*/__init__.py")
    assert {storey_of(path) for path in files} == set(STOREYS)
    for path in files:
        allowed = STOREYS[: STOREYS.index(storey_of(path)) + 1]
        for name, _ in names(path):
            parts = name.split(".")
            if parts[:2] == ["dlio_bench", "harness"] and len(parts) > 2:
                place = ROOT.joinpath(*parts[1:])
                target = storey_of(place if place.is_dir() or place.with_suffix(".py").is_file() else place.parent)
                assert target in allowed, f"{path}: {storey_of(path)} must not import {name}"


def test_the_root_package_imports_no_room() -> None:
    # __main__ alone starts the command line
    bases = [path for path in OURS if not room_of(path) and path.name != "__main__.py"]
    assert bases
    rooms = {f"dlio_bench.{room}" for room in MAY_IMPORT}
    assert not [name for path in bases for name, _ in names(path) if ".".join(name.split(".")[:2]) in rooms]


def test_no_files_import_each_other() -> None:
    graph = {path: {file for name, early in names(path) if early and (file := file_of(name))} for path in OURS}
    while done := {path for path, imported in graph.items() if not imported & graph.keys()}:
        graph = {path: imported for path, imported in graph.items() if path not in done}
    assert not graph  # what is left imports, or is in, a circle


def file_of(name: str) -> Path | None:
    """The file that an import of this name loads, if it is one of ours."""
    parts = name.split(".")[1:] if library(name) == "dlio_bench" else []
    places = [base.joinpath(*parts[:end]) for end in (len(parts), len(parts) - 1) for base in (ROOT, BASE.parent)]
    return next((file for place in places if (file := place.with_suffix(".py")).is_file()), None)


def test_tests_import_the_installed_names() -> None:
    assert not [(path, name) for path in TESTS for name, _ in names(path) if library(name) in MAY_IMPORT]


def test_mpi4py_has_one_file() -> None:
    assert importers("mpi4py") == {"harness/cluster/mpi.py"}


def test_obstore_has_one_file() -> None:
    assert importers("obstore") == {"datagen/objects.py"}


def test_adios2_has_one_file() -> None:
    assert [path.name for path in FILES if 'find_spec("adios2")' in path.read_text()] == ["adios.py"]
    assert not importers("adios2")


def test_horovod_has_at_most_one_file() -> None:
    assert len(importers("horovod")) <= 1


def test_mpi_and_tensorflow_load_only_when_asked_for() -> None:
    early = [(path, library(name)) for path in FILES for name, is_early in names(path) if is_early]
    assert not [(path, name) for path, name in early if name in {"mpi4py", "horovod", "tensorflow"}]


def test_the_libraries_of_compare_have_one_file_each_and_load_when_it_runs() -> None:
    assert importers("scipy") == {"reports/comparing/difference.py"}
    assert importers("ruptures") == {"reports/comparing/trend.py"}
    early = {library(name) for path in FILES for name, is_early in names(path) if is_early}
    assert not early & {"scipy", "ruptures"}


def test_fastjet_has_one_file_and_loads_for_jets_alone() -> None:
    assert importers("fastjet") == {"benchmarks/hepcnnb/image_quantities.py"}
    assert "fastjet" not in loaded("import dlio_bench.benchmarks.registry, dlio_bench.harness.training.making")


def test_darshan_loads_in_the_process_that_reads_a_log_alone() -> None:
    assert importers("darshan") == {"harness/commands/tracing/darshan_log.py"}
    assert "darshan" not in loaded(
        "import dlio_bench.harness.commands.tracing.command, dlio_bench.harness.commands.tracing.darshan_log"
    )


def test_results_render_without_what_measuring_needs() -> None:
    reports = [path for path in FILES if room_of(path) == "reports"]
    assert not {library(name) for path in reports for name, _ in names(path)} & MEASURING
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in reports if path.stem != "__init__"]
    modules = [".".join(("dlio_bench", *names)) for names in parts]
    assert not loaded(f"import {', '.join(modules)}") & MEASURING


def test_the_package_itself_loads_nothing_slow() -> None:
    assert not loaded("import dlio_bench, dlio_bench.errors") & SLOW


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"]], ids=" ".join)
def test_help_imports_nothing_slow(words: list[str]) -> None:
    code = f"from dlio_bench.harness.cli import main\ntry:\n    main({words})\nexcept SystemExit:\n    pass"
    assert not loaded(code) & SLOW


def test_a_rank_carries_no_report_and_no_tensorflow() -> None:
    # each would cost every rank memory and start-up time
    unwanted = {"pandas", "jinja2", "plotly", "tensorflow", "horovod"}
    assert not loaded("import dlio_bench.harness.commands.run.measured.rank") & unwanted


def test_the_spine_of_a_run_knows_no_observer() -> None:
    room = ROOT / "harness/commands/run/measured"
    observers = {file for name, _ in names(room / "observers.py") if (file := file_of(name)) and file.parent == room}
    shared = {room / f"{name}.py" for name in ("observer", "site", "observers")}
    for name in ("rank", "trial", "loop"):
        assert not {file_of(imported) for imported, _ in names(room / f"{name}.py")} & (observers - shared)


def test_a_run_loads_no_more_files_of_ours_than_one_can_know() -> None:
    files = {file for path in ("command", "measured/rank") for file in _reached(f"harness/commands/run/{path}.py")}
    assert len(files) <= 235  # without __init__.py; more is a decision


def _reached(start: str) -> set[Path]:
    """The files of ours that load with one."""
    reached, waiting = set[Path](), [ROOT / start]
    while waiting:
        if (path := waiting.pop()) not in reached:
            reached.add(path)
            waiting += [file for name, early in names(path) if early and (file := file_of(name))]
    return reached


def test_the_walk_sees_early_and_late_imports(tmp_path: Path) -> None:
    source = """
import a.b
from dlio_bench import harness
if TYPE_CHECKING:
    import never
    from dlio_bench.plan import shown
try:
    import c
except ImportError:
    pass
class K:
    import d
def f():
    import e
    if True:
        from .g import h
"""
    path = tmp_path / "sample.py"
    path.write_text(source)
    late = [("e", False), (".g.h", False)]
    assert names(path) == (
        ("a.b", True),
        ("dlio_bench.harness", True),
        ("dlio_bench.plan.shown", True),
        ("c", True),
        ("d", True),
        *late,
    )
