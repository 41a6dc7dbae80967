"""The programs of the documentation, as written there, under mpirun."""

import re
import subprocess
import sys
from pathlib import Path

from tests.datasets import made
from tests.ranks import mpirun

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "use-as-a-library.md"
MOST_LINES = 15


def program(heading: str) -> str:
    """The first block of Python below a heading of the page."""
    section = re.split(rf"(?m)^## {heading}$", PAGE.read_text("utf-8"))[1].partition("\n## ")[0]
    [text] = re.findall(r"(?ms)^```python\n(.*?)^```$", section)[:1]
    assert len([line for line in text.splitlines() if line.strip()]) <= MOST_LINES
    return str(text)


def run(heading: str, folder: Path, ranks: int = 2) -> str:
    """The output of the program on HEPCNNB files in `folder`/hep."""
    made(folder / "hep", "hepcnnb", 2, fill="physical")
    (folder / "train.py").write_text(program(heading))
    argv, env = mpirun(ranks, (sys.executable, "train.py"), {"TF_CPP_MIN_LOG_LEVEL": "3"})
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "ran out of data" not in done.stderr  # Keras, of a dataset whose length it does not know
    return done.stdout
