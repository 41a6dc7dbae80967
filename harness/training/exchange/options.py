"""What a gradient exchange may be asked for."""

from msgspec import Struct

from dlio_bench.errors import UsageError, unknown

KINDS = ("horovod", "mpi", "none")

# A rank may come this much later than another: between two exchanges one of them may have to trace a model (some 10 s,
# and on shared cores a minute) or to write a checkpoint to slow storage. Horovod begins to warn after 60 s.
DEFAULT_TIMEOUT = 120.0  # seconds

# What goes out in one all-reduce of MPI: of the size that Horovod fuses (HOROVOD_FUSION_THRESHOLD, 128 MB by default).
DEFAULT_BUFFER = 64 << 20


class ExchangeOptions(Struct, frozen=True):
    """How gradients are exchanged.

    kind: one of KINDS; None takes Horovod where it works, else MPI. fp16: gradients travel as float16, half the bytes.
    lag: 0, or 1 to use the gradients of the step before while those of this one travel. hierarchical: add up within a
    node, then between `leaders` ranks a node, each for a part of the numbers, then pass on within the node;
    `ranks_per_node` neighbours are a node. timeout:
    seconds after which a rank that does not come is given up. buffer_bytes: most that goes into one all-reduce of MPI
    (Horovod has HOROVOD_FUSION_THRESHOLD).
    """

    kind: str | None = None
    fp16: bool = False
    lag: int = 0
    hierarchical: bool = False
    leaders: int = 1
    ranks_per_node: int = 1
    timeout: float = DEFAULT_TIMEOUT
    buffer_bytes: int = DEFAULT_BUFFER


def require_valid(options: ExchangeOptions) -> None:
    """UsageError for what cannot be."""
    if options.kind is not None and options.kind not in KINDS:
        raise unknown("--exchange", options.kind, KINDS)
    if options.lag not in (0, 1):
        raise UsageError(f"A gradient lag of {options.lag} steps is not offered: use 0, or 1 as in the climate run.")
    if not 0 < options.timeout < float("inf"):
        raise UsageError(f"A gradient exchange cannot be over after {options.timeout:g} s. Allow more than 0, not inf.")
    if options.leaders < 1:
        raise UsageError(f"--leaders {options.leaders}: at least one rank of a node talks to other nodes.")
    if options.leaders > 1 and not options.hierarchical:
        raise UsageError(
            f"--leaders {options.leaders} says how many ranks of a node talk to other nodes, which --hierarchical "
            "alone does. Add --hierarchical, or leave --leaders out."
        )
    if options.leaders > options.ranks_per_node:
        raise UsageError(
            f"--leaders {options.leaders} is more than the {options.ranks_per_node} ranks of a node that exchange "
            "gradients. Use fewer leaders, or more ranks per node."
        )
    if options.buffer_bytes < 4:
        raise UsageError(
            f"Exchange buffers of {options.buffer_bytes} B hold no number. Use at least 4 B, best some MiB "
            f"(default {DEFAULT_BUFFER >> 20} MiB)."
        )


def levels(options: ExchangeOptions, ranks: int) -> bool:
    """Whether the hierarchical way differs from the flat one: several nodes with several ranks each."""
    return options.hierarchical and 1 < options.ranks_per_node < ranks
