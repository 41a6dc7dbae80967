"""`--models`: several networks, or trainers that emulate one, which a run trains side by side on one dataset."""

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.training import INFER, TRAIN
from dlio_bench.harness.plan.policies import REDRAWN, Policy
from dlio_bench.harness.plan.shape import ONE_ORDER
from dlio_bench.harness.streams.settings import ON_DEMAND, ROUND_ROBIN

MOST = 64
RATE = "lr="
HOW = "Give a number, such as --models 3, or networks: --models NAME[:lr=X][,NAME...]"


class TrainedModel(Struct, frozen=True):
    """One of several models. network: its name, None for the workload's; rate: its constant learning rate, None for the
    published schedule."""

    network: str | None = None
    rate: float | None = None


def listed(text: str | None) -> tuple[TrainedModel, ...]:
    """The models that --models names; one where nobody gives it. UsageError for text that names none."""
    if text is None:
        return (TrainedModel(),)
    if text.strip().isdecimal():
        count = int(text)
        if not 1 <= count <= MOST:
            raise UsageError(f"--models {text}: a run trains 1 to {MOST} models. {HOW}.")
        return (TrainedModel(),) * count
    return tuple(_model(text, name.strip()) for name in text.split(","))


def _model(text: str, name: str) -> TrainedModel:
    network, colon, rate = name.partition(":")
    if not network or (colon and not rate.startswith(RATE)):
        raise UsageError(f"--models {text}: '{name}' names no model. {HOW}.")
    if not colon:
        return TrainedModel(network)
    try:
        value = float(rate.removeprefix(RATE))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(f"--models {text}: '{name}' has no learning rate above 0. {HOW}, such as lr=0.2.")
    return TrainedModel(network, value)


def resolve(options: Options, rows: Sequence[Policy]) -> tuple[TrainedModel, ...]:
    """The models of a run. UsageError for options and readers (`rows`) that do not go with several."""
    models = listed(options.models)
    if any(model.network for model in models) and (options.mode != TRAIN or ":" in options.compute):
        why = "names one too" if options.mode == TRAIN else "trains none"
        raise UsageError(
            f"--models {options.models} names networks, and --compute {options.compute} {why}. Use --compute train, or "
            f"--models {len(models)}."
        )
    if len(models) == 1:
        return models
    flag = f"--models {options.models}"
    refused: dict[str, str | Literal[False]] = {
        f"--shard {options.shard}": options.shard in ONE_ORDER and "makes all ranks parts of one model",
        "--compute infer": options.mode == INFER and "predicts with one network",
        "--resume": options.resume is not None and "goes on from the checkpoint of one model",
        f"--stream {ON_DEMAND}": options.stream == ON_DEMAND and "gives each batch to one trainer alone",
        f"--stream {ROUND_ROBIN}": options.stream == ROUND_ROBIN
        and max(options.nodes) * options.ranks_per_node > 1
        and "deals the batches of a step to trainers in turn, and several models of several ranks take them in another "
        "order",
        "--inline": options.inline and "gives each trainer a producer of its own, so that no two share a stream",
    }
    for other, reason in refused.items():
        if reason:
            raise UsageError(f"{flag}: {other} {reason}. Leave out one of the two.")
    for row in rows:
        if row.order == REDRAWN:
            raise UsageError(
                f"{flag}: reader '{row.name}' draws the order of a node from what that node keeps, and all models of a "
                "node share that. Use another reader, such as stream or prefetch."
            )
    return models
