"""`dlio-bench trace --darshan`: how the files of a Darshan log were accessed."""

import json
from collections.abc import Sequence
from pathlib import Path


def run(logs: Sequence[Path], *, as_json: bool) -> int:
    """Print the pattern of each log. UsageError, EnvironmentFailure, DataError."""
    from dlio_bench.harness.tracing import darshan_log
    from dlio_bench.reports import access_pattern, access_pattern_text, darshan
    from dlio_bench.wrapping import printable

    patterns = [darshan.pattern(darshan_log.load(log)) for log in logs]
    if as_json:
        rows = [{"log": str(log)} | access_pattern.document(of) for log, of in zip(logs, patterns, strict=True)]
        print(json.dumps(rows))
    else:
        texts = [
            f"{printable(str(log))}\n{access_pattern_text.render(of)}" for log, of in zip(logs, patterns, strict=True)
        ]
        print("\n".join(texts), end="")
    return 0
