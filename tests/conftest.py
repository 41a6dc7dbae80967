"""What holds for all tests: their files are on a disk, as data in memory can never be cold and many tests ask for cold
data; examples are the same each time, and none fails because the machine is busy. How a command is refused, and how the
end of a run tells what was skipped.
"""

import os
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

# The files whose tests take long: `pytest -m quick` leaves them out, and does not even import them.
ROOT = Path(__file__).parent
SLOW_FOLDERS = ("mpi", "perf", "cluster", "peers", "torch", "streams", "s3", "notebooks")
SLOW = (
    "contract/test_ahead", "contract/test_exchange", "contract/test_exchange_training", "contract/test_pipelines",
    "contract/test_tf_readers", "test_packaging", "unit/benchmarks/test_cdb", "unit/benchmarks/test_cosmoflow",
    "unit/benchmarks/test_grayscott", "unit/benchmarks/test_hepcnnb", "unit/benchmarks/test_imagenet",
    "unit/benchmarks/test_layouts", "unit/cluster/test_peers", "unit/cluster/test_process",
    "unit/commands/test_reproduce_command", "unit/datagen/test_dedup", "unit/datagen/test_generate",
    "unit/datagen/test_hdf5_tools", "unit/datagen/test_images", "unit/datagen/test_mutated_files",
    "unit/datagen/test_tensorflow_reads_ours", "unit/ground/test_doctor", "unit/house/test_cli",
    "unit/house/test_mutated_documents", "unit/plan/test_every_order", "unit/readers/test_models_delivery",
    "unit/readers/test_tensor_batches", "unit/readers/test_upstream", "unit/reports/test_report_in_browser",
    "unit/run/test_rank", "unit/simulator/test_prediction", "unit/simulator/test_published_simulations",
    "unit/simulator/test_simulation_grid", "unit/simulator/test_simulator_command",
    "unit/simulator/test_simulator_engines", "unit/storage/test_pfs_life", "unit/storage/test_pfs_mounts",
    "unit/storage/test_storage_command", "unit/training/test_calibrate_compute", "unit/training/test_dropout",
    "unit/training/test_hepgan", "unit/training/test_inference", "unit/training/test_larc",
    "unit/training/test_models", "unit/training/test_models_learn", "unit/training/test_train",
    "unit/training/test_training_devices",
)  # fmt: skip

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
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    return name in SLOW or name.startswith(SLOW_FOLDERS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m quick`, files of slow tests are left alone: TensorFlow alone takes seconds to import."""
    is_file = collection_path.name.startswith("test_")
    return True if config.option.markexpr == "quick" and is_file and _is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test is quick or slow, by its file."""
    for item in items:
        item.add_marker("slow" if _is_slow(item.path) else "quick")


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
