"""Averages by Horovod, which is imported here alone. Its own hierarchical switch needs NCCL; process sets do not."""

import os
import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.errors import EnvironmentFailure, Stalled
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.training.exchange.options import ExchangeOptions, Nodes, by_node, parts

Shapes = tuple[tuple[int, ...], ...]
HOW_TO_BUILD = "in a clone, `scripts/install-horovod FOLDER` builds it for the TensorFlow of a virtual environment"


def load() -> Any:
    """The module horovod.tensorflow. EnvironmentFailure where it is missing, or was built for another TensorFlow.

    Call it after MPI was loaded: Horovod finds the MPI library that way.
    """
    tf = tensorflow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import horovod.tensorflow as hvd  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except (ImportError, OSError, tf.errors.NotFoundError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EnvironmentFailure(
            f"Horovod does not load with TensorFlow {tf.__version__}: {reason}. {HOW_TO_BUILD}; or use --exchange mpi."
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
        nodes = by_node(options, comm.size)
        within, between = ([], []) if nodes is None else _process_sets(hvd, nodes)
        # other ranks of the job may not train, or not with these
        hvd.init(comm=list(comm.launched), process_sets=[*within, *between])
        if hvd.size() != comm.size:
            raise EnvironmentFailure(
                f"Horovod sees {hvd.size()} ranks where MPI has {comm.size}: it was built for another MPI library. "
                f"{HOW_TO_BUILD}; or use --exchange mpi."
            )
        self._hvd, self._rank, self._options = hvd, comm.rank, options
        self._nodes, self._within, self._between = nodes, within, between
        self._wire = tensorflow().float16 if options.fp16 else tensorflow().float32
        self._graphs: dict[Shapes, Callable[..., list[Any]]] = {}

    def reduce(self, gradients: Sequence[Any]) -> tuple[list[Any], int]:
        """The means, as tensors, and the bytes that were added up. EnvironmentFailure; it may hang."""
        tf = tensorflow()
        tensors = [tf.cast(gradient, tf.float32) for gradient in gradients]
        if not tensors:
            return [], 0
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        if shapes not in self._graphs:
            # Horovod knows tensors by name, and may stumble over one that changes its shape
            name = f"gradients_{len(self._graphs)}"
            graph = self._flat(name) if self._nodes is None else self._by_node(shapes, name, self._nodes)
            self._graphs[shapes] = tf.function(graph, autograph=False)
        try:
            means = list(self._graphs[shapes](*tensors))
        except tf.errors.OpError as error:
            raise Stalled(f"Horovod gave the exchange up: {_reason(str(error.message))}") from error
        return means, int(self._wire.size * sum(map(prod, shapes)))

    def _flat(self, name: str) -> Callable[..., list[Any]]:
        """All gradients are handed over at once, and Horovod fuses them; no Python runs while they travel."""
        hvd = self._hvd
        compression = hvd.Compression.fp16 if self._options.fp16 else hvd.Compression.none

        def mean(*gradients: Any) -> list[Any]:
            return list(hvd.grouped_allreduce(list(gradients), op=hvd.Average, compression=compression, name=name))

        return mean

    def _by_node(self, shapes: Shapes, name: str, nodes: Nodes) -> Callable[..., list[Any]]:
        """As one tensor: its sum within the node, parts of it between leaders of the nodes, and back to the node."""
        tf, hvd = tensorflow(), self._hvd
        number = nodes.node_of(self._rank)
        node, leads = self._within[number], nodes.part_led_by(self._rank)
        cut = parts(sum(map(prod, shapes)), nodes.leaders)

        def mean(*gradients: Any) -> list[Any]:
            whole = tf.concat([tf.reshape(tf.cast(gradient, self._wire), [-1]) for gradient in gradients], axis=0)
            # Horovod has no reduction to one rank: the others of a node get a sum too, and do not use it
            sums = hvd.allreduce(whole, op=hvd.Sum, process_set=node, name=f"{name}_within")
            pieces = []
            for led, part in enumerate(cut):
                piece = sums[part]
                if part.start < part.stop:
                    if led == leads:
                        piece = hvd.allreduce(
                            piece, op=hvd.Sum, process_set=self._between[led], name=f"{name}_between_{led}"
                        )
                    leader = nodes.leader_of_part(number, led)
                    piece = hvd.broadcast(piece, root_rank=leader, process_set=node, name=f"{name}_back_{led}")
                pieces.append(piece)
            means = tf.cast(tf.concat(pieces, axis=0), tf.float32) / hvd.size()
            split = tf.split(means, [prod(shape) for shape in shapes])
            return [tf.reshape(part, shape) for part, shape in zip(split, shapes, strict=True)]

        return mean

    def close(self) -> None:
        """End Horovod's thread, which uses a part of a core as long as it runs, on all ranks."""
        self._hvd.shutdown()


def _reason(message: str) -> str:
    """What Horovod said, without where in a graph TensorFlow heard it."""
    noise = ("Graph execution error", "Detected at node", "File ", "<stack", "[[", "(")
    lines = [line.strip() for line in message.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(noise)) or message


def _process_sets(hvd: Any, nodes: Nodes) -> tuple[list[Any], list[Any]]:
    """The ranks of each node; the leaders of each part."""
    within = [hvd.ProcessSet(list(nodes.ranks(node))) for node in range(len(nodes.bounds) - 1)]
    return within, [hvd.ProcessSet(nodes.among_leaders(number)) for number in range(nodes.leaders)]
