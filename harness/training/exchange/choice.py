"""Which exchange a job uses: what was asked for, else Horovod where every rank can load it, else MPI."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm, together
from dlio_bench.harness.training.exchange import horovod
from dlio_bench.harness.training.exchange.options import ExchangeOptions


class Choice(Struct, frozen=True):
    """A kind of exchange, and why it was taken, for the output."""

    kind: str
    why: str


def choose(comm: Comm, options: ExchangeOptions, load: Callable[[], Any] = horovod.load) -> Choice:
    """The same on every rank, which call it together. EnvironmentFailure where Horovod was asked for and is not there.

    `load` loads Horovod or raises EnvironmentFailure.
    """
    if comm.size == 1:
        return Choice("none", "one rank has nobody to exchange gradients with")
    if options.kind in ("mpi", "none"):
        return Choice(options.kind, "as asked")
    refusal = None
    for rank, reason in enumerate(together(comm, lambda: _refusal(load))):
        if reason is not None and refusal is None:
            refusal = f"rank {rank}: {reason}"
    if options.kind == "horovod":
        if refusal is not None:
            raise EnvironmentFailure(f"Gradients cannot be exchanged by Horovod as asked; {refusal}")
        return Choice("horovod", "as asked")
    if refusal is not None:
        return Choice("mpi", f"Horovod is not used; {refusal}")
    return Choice("horovod", "it is installed and matches TensorFlow")


def _refusal(load: Callable[[], Any]) -> str | None:
    try:
        load()
    except EnvironmentFailure as error:
        return str(error)
    return None
