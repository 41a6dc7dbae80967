"""The marks of results: what a measurement lacks, or was made easier by."""

from collections.abc import Collection, Iterable

# The caches were cold before each epoch, or before the first one alone.
COLD_BEFORE = COLD_EPOCHS, FIRST_EPOCH_COLD = "cold-epochs", "first-epoch-cold"
TINY = "TINY"
ALTERED = "ALTERED"  # given on loading: a digest does not match
INTERRUPTED = "INTERRUPTED"  # of results that an interrupted run finished: those of other node counts may be missing
TENSORFLOW_TRACE = "TF TRACE"  # TensorFlow was traced meanwhile, which takes processor time
EMULATED_PFS = "EMULATED PFS"
VIRTUAL_NODES = "VIRTUAL NODES"
SHARED_CORES = "SHARED CORES"  # fewer cores than ranks
FEW_TRIALS = "FEW TRIALS"
SERVED = "SERVED FROM CACHE"  # where cold was asked for: more than 1 % of what files were asked for
MARKS = (
    TINY, "SHORT", INTERRUPTED, VIRTUAL_NODES, EMULATED_PFS, "EMULATED COMPUTE", "ESTIMATED STEP TIME",
    "UNTRAINED NETWORK", TENSORFLOW_TRACE, "REDUCED BATCH", "CACHE NOT ATTESTED", SERVED, "CONTENT NOT VERIFIED",
    "FRACTION", "NO FSYNC", "BYTES AWAITED",
)  # fmt: skip
HARMLESS = ("REDUCED BATCH",)  # smaller batches read the same bytes


def gravest_first(marks: Iterable[str]) -> list[str]:
    """Each mark once, in the order in which a reader must know of them; unknown ones come last."""
    known = (ALTERED, *(mark for mark in MARKS if mark not in HARMLESS), *HARMLESS)
    return sorted(dict.fromkeys(marks), key=lambda mark: known.index(mark) if mark in known else len(known))


def capping(marks: Iterable[str], allowed: Collection[str] = ()) -> list[str]:
    """The marks with which a result is EXPLORE at best: all but the harmless and the allowed. TINY is never allowed."""
    return [mark for mark in marks if mark == TINY or mark not in (*HARMLESS, *allowed)]
