"""The ranks of a job with producers: which of them train, which publish, and how they agree on what is next.

A node has its trainers first and its producers behind them, as launchers start equally many ranks on each node. Ranks
that make the nodes even and publish nothing end at once.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from dlio_bench.counters import Cost
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.streams.adios import SST
from dlio_bench.harness.streams.dealing import PlanBatch
from dlio_bench.harness.streams.settings import Mode, Streaming

DONE = -(2**62)  # what a trainer tells a producer instead of an epoch, when it asks for nothing more


class CrewLayout(Struct, frozen=True):
    """Where trainers and producers are. models: networks that are trained, each by as many ranks of each node."""

    nodes: int
    trainers_per_node: int
    producers: int
    models: int = 1

    @property
    def extra_per_node(self) -> int:
        """Ranks of a node that do not train."""
        return -(-self.producers // self.nodes)

    @property
    def ranks_per_node(self) -> int:
        """Ranks that are launched on a node."""
        return self.trainers_per_node + self.extra_per_node

    @property
    def ranks(self) -> int:
        """Ranks that are launched."""
        return self.nodes * self.ranks_per_node

    def trainer(self, rank: int) -> int | None:
        """The number of a launched rank among those that train."""
        node, place = divmod(rank, self.ranks_per_node)
        return node * self.trainers_per_node + place if place < self.trainers_per_node else None

    def producer(self, rank: int) -> int | None:
        """The number of a launched rank among those that publish: neighbours are on different nodes."""
        node, place = divmod(rank, self.ranks_per_node)
        number = (place - self.trainers_per_node) * self.nodes + node
        return number if place >= self.trainers_per_node and number < self.producers else None

    def rank_of(self, producer: int) -> int:
        """The launched rank of a producer."""
        place, node = divmod(producer, self.nodes)
        return node * self.ranks_per_node + self.trainers_per_node + place

    def node(self, rank: int) -> int:
        """The node of a launched rank."""
        return rank // self.ranks_per_node


def model_of(trainer: int, per_node: int, models: int) -> tuple[int, int]:
    """The model that a rank trains, and its number among the ranks of that model. per_node: ranks that train."""
    node, place = divmod(trainer, per_node)
    of_model = per_node // models
    return place // of_model, node * of_model + place % of_model


class Opening(Struct, frozen=True):
    """What a trainer tells when a session of its reader begins.

    plan: empty if another trainer tells it. folder: of the dataset, as its node sees it. mode: by which this session
    deals. board: the file of the counters of an emulated file system on its node; "" if there is none.
    """

    number: int
    plan: Sequence[PlanBatch]
    folder: str
    mode: str
    board: str = ""


class Closing(Struct, frozen=True):
    """What a rank tells when a session ends: by epoch, what its reads have cost, and the bytes that the device or the
    emulated file system, and the emulated client's cache, have delivered (None: not known); its processor seconds.
    """

    costs: dict[int, Cost] = field(default_factory=dict)
    delivered: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)
    cpu_seconds: float = 0.0


class Crew(Struct, frozen=True):
    """This rank among all that were launched. folder: where streams have their contact files; interface: of the network
    that they use, "" for any. board: see Opening."""

    world: Comm
    layout: CrewLayout
    streaming: Streaming
    folder: Path
    interface: str = ""
    board: str = ""
    sessions: Iterator[int] = field(default_factory=count)

    @property
    def trainer(self) -> int | None:
        """The number of this rank among those that train."""
        return self.layout.trainer(self.world.rank)

    @property
    def producer(self) -> int | None:
        """The number of this rank among those that publish."""
        return self.layout.producer(self.world.rank)

    @property
    def trainers(self) -> int:
        """How many ranks train."""
        return self.layout.nodes * self.layout.trainers_per_node

    def model(self, trainer: int) -> tuple[int, int]:
        """See `model_of`."""
        return model_of(trainer, self.layout.trainers_per_node, self.layout.models)

    @property
    def models(self) -> list[tuple[int, int]]:
        """See `model_of`: of each rank that trains."""
        return [self.model(trainer) for trainer in range(self.trainers)]

    @property
    def of_model(self) -> int:
        """Ranks of each model."""
        return self.trainers // self.layout.models

    def meet(self, word: Any) -> list[Any]:
        """Everybody's word, by launched rank. Waiting ranks leave the processor to others."""
        self.world.barrier()
        return self.world.allgather(word)

    def openings(self, words: Sequence[Any]) -> list[Opening]:
        """What trainers told, by trainer."""
        return [word for word in words if isinstance(word, Opening)]

    def stream(self, session: int, producer: int, trainer: int | None) -> Path:
        """The name of a stream: that of a producer for one trainer, or for all."""
        of = "all" if trainer is None else str(trainer)
        return self.folder / f"{session}-{producer}-{of}"

    def parameters(self, mode: Mode) -> dict[str, object]:
        """What ADIOS2 is told of a stream."""
        streaming = self.streaming
        if streaming.engine != SST:
            return {}
        given: dict[str, object] = {"NetworkInterface": self.interface} if self.interface else {}
        return given | {
            "DataTransport": streaming.transport,
            "QueueLimit": streaming.steps_held(mode, self.trainers),
            "QueueFullPolicy": streaming.full.capitalize(),
            "StepDistributionMode": mode.distribution,
        }
