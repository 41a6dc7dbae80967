"""What `run --trace` records beside the step times."""

from dlio_bench.errors import UsageError

SPANS, TENSORFLOW, XPLANE = "spans", "tf", "xplane"
TRACES = {
    SPANS: "what every thread of every rank did, read by read, with file and bytes",
    TENSORFLOW: "besides, what TensorFlow's threads did in the first steps of the last trial",
    XPLANE: "besides, TensorFlow's own file of that, for its tools",
}
STEPS = 100  # that TensorFlow is traced, unless --trace-steps says otherwise


def traces(text: str) -> tuple[str, ...]:
    """The names in `--trace`, in the order of the table, with those that they need. UsageError."""
    names = text.split(",")
    for name in names:
        if name not in TRACES:
            raise UsageError(f"--trace '{name}' is not known. Choose from: {', '.join(TRACES)}.")
    wanted = {SPANS, *names} | ({TENSORFLOW} if XPLANE in names else set())
    return tuple(name for name in TRACES if name in wanted)
