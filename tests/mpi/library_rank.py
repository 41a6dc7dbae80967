"""A rank of somebody's program, which uses loaders: `library_rank.py KIND,... DATASET OUT`. It writes OUT/RANK.json."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dlio_bench
from dlio_bench import errors

BATCH, EPOCHS = 4, 3


def opened(dataset: str, **changed: Any) -> "dlio_bench.Loader":
    """As every rank opens it."""
    return dlio_bench.load(dataset, **{"batch": BATCH, "epochs": EPOCHS, "seed": 5, "patience": 60.0, **changed})


def delivered(dataset: str) -> dict[str, Any]:
    """All epochs; then the rest of the second from its second batch on, in another loader; and what is left."""
    with opened(dataset) as loader:
        epochs = []
        for _ in range(EPOCHS):
            epochs.append([])
            for batch in loader:
                epochs[-1].append(batch["ids"].tolist())
                if (loader.epoch, loader.step) == (1, 2):
                    state = loader.state_dict()
    with opened(dataset) as loader:
        loader.load_state_dict(state)
        rest = [batch["ids"].tolist() for batch in loader]
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith(("reader", "peers"))]
    return {"epochs": epochs, "rest": rest, "threads": threads, "ranks": loader.ranks}


def lent(dataset: str) -> dict[str, Any]:
    """Rank 0 alone, though there are others: a communicator of its own."""
    from mpi4py import MPI

    with opened(dataset, comm=MPI.COMM_SELF) as loader:
        return {"ids": [batch["ids"].tolist() for batch in loader]}


def failing(dataset: str, how: str) -> dict[str, Any]:
    """Rank 1 fails in its second epoch; what the error of the others says."""
    try:
        patience = 3.0 if how == "dies" else 60.0
        with opened(dataset, seed=5 if how != "differs" or not _rank() else 6, patience=patience) as loader:
            for _ in range(EPOCHS):
                for _ in loader:
                    if loader.epoch == 1 and loader.rank == 1:
                        if how == "raises":
                            raise errors.DataError("This rank has seen enough.")
                        os.kill(os.getpid(), signal.SIGKILL)
                    time.sleep(0.01)
    except errors.BenchError as error:
        kind = type(error).__name__
        return {"error": kind, "message": str(error)}
    return {}


def _rank() -> int:
    return int(os.environ["OMPI_COMM_WORLD_RANK"])


def main() -> None:
    """What this rank is asked for, one after the other: what is told of each."""
    kinds, dataset, out = sys.argv[1:]
    does = {"delivered": delivered, "lent": lent}
    told = {kind: does[kind](dataset) if kind in does else failing(dataset, kind) for kind in kinds.split(",")}
    part = Path(out, f"{_rank()}.part")
    part.write_text(json.dumps(told))
    part.rename(Path(out, f"{_rank()}.json"))


if __name__ == "__main__":
    main()
