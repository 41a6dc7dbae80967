"""Averages by Horovod, which is imported here alone. Its own hierarchical switch needs NCCL; process sets do not."""

import os
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.training.exchange.options import ExchangeOptions, levels

HOW_TO_BUILD = "`scripts/install-horovod FOLDER` builds it for the TensorFlow of a virtual environment"


def load() -> Any:
    """The module horovod.tensorflow. EnvironmentFailure where it is missing, or was built for another TensorFlow.

    Call it after MPI was loaded: Horovod finds the MPI library that way.
    """
    tf = tensorflow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import horovod.tensorflow as hvd  # type: ignore[import-untyped, unused-ignore]
    except (ImportError, OSError, tf.errors.NotFoundError) as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EnvironmentFailure(
            f"Horovod does not load with TensorFlow {tf.__version__}: {said}. {HOW_TO_BUILD}; or use --exchange mpi."
        ) from error
    if not hvd.mpi_built():
        raise EnvironmentFailure(
            f"The Horovod that is installed was built without MPI, by which ranks are started here. {HOW_TO_BUILD}; "
            "or use --exchange mpi."
        )
    return hvd


class OverHorovod:
    """Averages over all ranks. All ranks make it together; one at a time in a process."""

    def __init__(self, comm: Comm, options: ExchangeOptions) -> None:
        hvd = load()
        # Horovod gives up by itself where it still can, and then says which ranks have not come.
        os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, round(options.timeout / 2))))
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(2, round(options.timeout))))
        self._hvd = hvd
        self._size = comm.size
        by_node = levels(options, comm.size)
        sets = _process_sets(hvd, comm.size, options.ranks_per_node) if by_node else []
        hvd.init(process_sets=sets)
        if hvd.size() != comm.size:
            raise EnvironmentFailure(
                f"Horovod sees {hvd.size()} ranks where MPI has {comm.size}: it was built for another MPI library. "
                f"{HOW_TO_BUILD}; or use --exchange mpi."
            )
        tf = tensorflow()
        wire = tf.float16 if options.fp16 else tf.float32
        compression = hvd.Compression.fp16 if options.fp16 else hvd.Compression.none

        def flat(*gradients: Any) -> list[Any]:
            return list(hvd.grouped_allreduce(list(gradients), op=hvd.Average, compression=compression))

        node = comm.rank // options.ranks_per_node
        summed = _by_node(hvd, sets, node, comm.rank % options.ranks_per_node == 0) if by_node else None

        def hierarchical(*gradients: Any) -> list[Any]:
            assert summed is not None
            whole = tf.concat([tf.reshape(tf.cast(one, wire), [-1]) for one in gradients], axis=0)
            mean = tf.cast(summed(whole, node * options.ranks_per_node), tf.float32) / comm.size
            parts = tf.split(mean, [one.shape.num_elements() for one in gradients])
            return [tf.reshape(part, one.shape) for part, one in zip(parts, gradients, strict=True)]

        self._itemsize = wire.size
        # One graph: all gradients are handed over at once, fused by Horovod, and no Python runs while they travel.
        self._reduce = tf.function(hierarchical if by_node else flat, autograph=False)

    def reduce(self, gradients: Sequence[Any]) -> tuple[list[Any], int]:
        """The means, as tensors, and the bytes that were added up. EnvironmentFailure; it may hang."""
        tf = tensorflow()
        tensors = [tf.cast(one, tf.float32) for one in gradients]
        if not tensors:
            return [], 0
        try:
            means = list(self._reduce(*tensors))
        except tf.errors.OpError as error:
            said = str(error.message).strip().splitlines()[0]
            raise EnvironmentFailure(f"Horovod gave the exchange up: {said}") from error
        return means, self._itemsize * sum(int(tf.size(one)) for one in tensors)

    def close(self) -> None:
        """End Horovod's thread, which takes a part of a core as long as it lives."""
        self._hvd.shutdown()


def _process_sets(hvd: Any, ranks: int, per_node: int) -> list[Any]:
    """The ranks of each node, then the first of each node."""
    starts = [*range(0, ranks, per_node), ranks]
    nodes = [hvd.ProcessSet(list(range(begin, end))) for begin, end in pairwise(starts)]
    return [*nodes, hvd.ProcessSet(starts[:-1])]


def _by_node(hvd: Any, sets: list[Any], node: int, leads: bool) -> Callable[[Any, int], Any]:
    """(values, the first rank of this node) -> their sums over all ranks."""

    def summed(values: Any, first: int) -> Any:
        # Horovod has no reduction to one rank: the others of a node get a sum too, and do not use it
        sums = hvd.allreduce(values, op=hvd.Sum, process_set=sets[node], name="within_node")
        if leads:
            sums = hvd.allreduce(sums, op=hvd.Sum, process_set=sets[-1], name="between_nodes")
        return hvd.broadcast(sums, root_rank=first, process_set=sets[node], name="to_node")

    return summed
