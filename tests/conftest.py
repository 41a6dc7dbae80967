"""What holds for all tests: their files are on a disk, as data in memory can never be cold and many tests ask for cold
data; examples are the same each time, and none fails because the machine is busy. How a command is refused, and how the
end of a run tells what was skipped.
"""

import os
import re
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dlio_bench.harness import cli
from dlio_bench.harness.machine.mounts import memory_backed

if memory_backed(Path(tempfile.gettempdir())):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/var/tmp")  # pytest's own variable for the root of tmp_path

# Tests that take long: all in these folders, and in files whose `pytestmark` says so. `-m quick` leaves them out.
ROOT = Path(__file__).parent
SLOW_FOLDERS = ("mpi", "perf", "cluster", "peers", "torch", "streams", "s3", "notebooks")
SLOW = re.compile(r"^pytestmark = .*pytest\.mark\.slow", re.M)

settings.register_profile("busy", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_configure(config: pytest.Config) -> None:
    """Ranks that run one suite together must not tidy up each other's folders: each has one of its own.

    Shells start background jobs with SIGINT ignored, and what a test then starts and interrupts would ignore it too.
    Where Python may not keep what it compiles, each command and each rank would compile the whole package again. The
    threads of NumPy's OpenBLAS spin when they start, in each process for as long as the rest of its import takes.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # for the processes that tests start
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    shared = os.environ.get("DLIO_TEST_TEMP")
    if shared and config.option.basetemp is None:
        config.option.basetemp = Path(shared) / str(os.getpid())


def _is_slow(path: Path) -> bool:
    return path.relative_to(ROOT).parts[0] in SLOW_FOLDERS or SLOW.search(path.read_text()) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m quick`, files of slow tests are not even imported: TensorFlow alone takes seconds."""
    is_file = collection_path.name.startswith("test_")
    return True if config.option.markexpr == "quick" and is_file and _is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test is quick or slow, by its file."""
    slow = {path: _is_slow(path) for path in {item.path for item in items}}
    for item in items:
        item.add_marker("slow" if slow[item.path] else "quick")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """The last lines count the skipped tests by reason: `tests/needs.py` says what would run them."""
    yield
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[-1].removeprefix("Skipped: ") for report in reports)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} test{'s' if count > 1 else ''} skipped: {reason}")


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """refused("run", "cdb", ..., status=2) -> the one paragraph that ends a command before anything is started.

    The command runs in this process, in tmp_path; its dataset cache would be made there.
    """

    def ask(*arguments: str, status: int = 2) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("DLIO_BENCH_CACHE", str(tmp_path / "cache"))
        assert cli.main(arguments) == status
        out, told = capsys.readouterr()
        assert out == ""
        assert "Traceback" not in told
        [paragraph] = [line for line in told.splitlines() if line.startswith("dlio-bench: ")]
        return paragraph

    return ask
