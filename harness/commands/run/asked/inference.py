"""`--compute infer`: resolves and checks its options.

An inference predicts every sample of the dataset once. The ranks divide the samples and exchange no gradients
("Inference: dataset is distributed over processes", A. Gainaru, WANT workshop at NeurIPS 2023).
"""

from collections.abc import Sequence

from msgspec import Struct

from dlio_bench.benchmarks.model import choose
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.layout import Layout
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.training import INFER
from dlio_bench.harness.plan.policies import OWN, Policy
from dlio_bench.harness.plan.shape import KEEP, ONE_ORDER
from dlio_bench.harness.training.checkpoint import load_required
from dlio_bench.harness.training.libraries import require_libraries


class Inference(Struct, frozen=True):
    """The network of a run that predicts, and the folder and step of the checkpoint with its weights.

    resume: None: the network has the weights that a training starts with.
    """

    model: str
    resume: str | None = None
    step: int = 0


def resolve(options: Options, workload: Workload, layout: Layout, rows: Sequence[Policy]) -> Inference | None:
    """The inference that --compute infer or infer:MODEL means; None for another --compute.

    UsageError if options or readers (`rows`) do not allow it; EnvironmentFailure without a TensorFlow that fits.
    """
    if options.mode != INFER:
        return None
    model = choose(workload.models, layout.variant, options.compute.partition(":")[2] or None)
    _require_whole(options, rows)
    if options.predict:
        raise UsageError("--predict needs a known step time. Use it with --compute emulate or none.")
    require_libraries(None, f"--compute {INFER}")
    if options.resume is None:
        return Inference(model.name)
    state = load_required(options.resume, {"model": model.name}).state
    return Inference(model.name, str(options.resume.resolve()), state.step)


def _require_whole(options: Options, rows: Sequence[Policy]) -> None:
    """UsageError for options and readers that leave samples out or deliver some twice."""
    refused = {
        f"--last {options.last}": options.last not in (None, KEEP),
        f"--steps {options.steps}": options.steps is not None,
        f"--shard {options.shard}": options.shard in ONE_ORDER,
        f"--validation {options.validation}": options.validation not in (None, "none"),
    }
    for flag, given in refused.items():
        if given:
            raise UsageError(
                f"{flag}: an inference predicts every sample of the dataset once, on one of the ranks. Leave it out. "
                "For less work, give less data with --max-data or --data."
            )
    for row in rows:
        if row.delivery == OWN or not row.exactly_once:
            why = "is the application's published pipeline for training" if row.delivery == OWN else "reads some twice"
            raise UsageError(
                f"An inference predicts every sample of the dataset once, and reader '{row.name}' {why}. Use another "
                "reader, such as prefetch."
            )
