"""Puts each fault of faults.py into a copy of the project, runs the tests that should see it, and says which survive.

    python tests/power/check.py                       all faults
    python tests/power/check.py exchange peers        those whose file, text or meaning has one of these words
    python tests/power/check.py --tests-of COMMIT     with the tests of another commit
Exit status: 0 when every fault is found, else 1.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.power.faults import FAULTS, Fault  # noqa: E402 - this is no module of the package

ROOMS = ("benchmarks", "datagen", "harness", "reports")
SECONDS = 300  # of a fault's tests: a fault that hangs them counts as found; on a busy machine look again


def copied(place: Path, commit: str | None) -> None:
    """The project's files in `place`, importable there; `commit`: whose tests."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    if commit:
        shutil.rmtree(place / "tests")
        archive = subprocess.run(["git", "archive", commit, "tests"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x"], cwd=place, input=archive, check=True)
    subprocess.run(["scripts/dev-links"], cwd=place, check=True)


def home(place: Path, fault: Fault) -> Path:
    """The file that the fault belongs into, whatever it is called by now."""
    found = [path for path in [place / fault.file] if path.is_file() and fault.old in path.read_text()]
    if not found:
        files = [path for room in ROOMS for path in (place / room).rglob("*.py")]
        found = [path for path in files if fault.old in path.read_text()]
    if len(found) != 1 or found[0].read_text().count(fault.old) != 1:
        sys.exit(f"{fault.file}: {fault.old!r} is not there once. Say in tests/power/faults.py what it is now.")
    return found[0]


def is_found(place: Path, fault: Fault) -> str | None:
    """The test that fails with the fault, or how else its tests ended; None when they pass."""
    path = home(place, fault)
    whole = path.read_text()
    path.write_text(whole.replace(fault.old, fault.new))
    try:
        for test in fault.tests:
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", test]
            env = os.environ | {"PYTHONPATH": str(place / "build" / "dev"), "PYTHONDONTWRITEBYTECODE": "1"}
            try:
                done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                return f"{test} hangs"
            if done.returncode:
                failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return failed[0].split(" - ")[0] if failed else f"{test}: pytest ended with {done.returncode}"
    finally:
        path.write_text(whole)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--tests-of", metavar="COMMIT")
    asked = parser.parse_args()
    chosen = [
        fault for fault in FAULTS if not asked.words or any(word in " ".join(map(str, fault)) for word in asked.words)
    ]
    survived = 0
    with tempfile.TemporaryDirectory(prefix="dlio-bench-power-") as folder:
        place = Path(folder)
        copied(place, asked.tests_of)
        for number, fault in enumerate(chosen, 1):
            began = time.monotonic()
            by = is_found(place, fault)
            survived += by is None
            took = f"{number}/{len(chosen)} {time.monotonic() - began:4.0f} s"
            print(
                f"{took}  {'found   ' if by else 'SURVIVED'}  {fault.file}: {fault.breaks} ({by or fault.new})",
                flush=True,
            )
    print(f"{len(chosen) - survived} of {len(chosen)} faults were found")
    return min(survived, 1)


if __name__ == "__main__":
    raise SystemExit(main())
