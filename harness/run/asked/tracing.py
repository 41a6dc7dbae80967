"""What `run --trace` records beside the step times."""

from dlio_bench.errors import UsageError

SPANS = "spans"
TRACES = {SPANS: "what every thread of every rank did, read by read, with file and bytes"}


def traces(text: str) -> tuple[str, ...]:
    """The names in `--trace`, in the order of the table. UsageError."""
    names = text.split(",")
    for name in names:
        if name not in TRACES:
            raise UsageError(f"--trace '{name}' is not known. Choose from: {', '.join(TRACES)}.")
    return tuple(name for name in TRACES if name in names)
