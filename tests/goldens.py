"""Golden texts: what a renderer says, whole, in a file of tests/golden.

To accept a change of wording, run the test with DLIO_BENCH_GOLDEN=write, and read the difference of the file.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from dlio_bench.wrapping import WIDTH

GOLDEN = Path(__file__).parent / "golden"


def require_golden(name: str, texts: Mapping[str, str], *, width: int = WIDTH) -> None:
    """Compare texts, each below the name of its case, with tests/golden/NAME.txt; no line is longer than `width`."""
    assert {line for text in texts.values() for line in text.splitlines() if len(line) > width} == set()
    found, file = "\n".join(f"=== {case}\n{text.rstrip()}\n" for case, text in texts.items()), GOLDEN / f"{name}.txt"
    if os.environ.get("DLIO_BENCH_GOLDEN") == "write":
        file.write_text(found, "utf-8")
    assert found == file.read_text("utf-8")
