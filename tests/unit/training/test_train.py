"""The trainer's seam in the timed loop, the real trainer on one rank, and what `--compute train` refuses."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import field
from msgspec.structs import replace

from dlio_bench.batches import Batch, Block
from dlio_bench.benchmarks.hepcnnb.model import HEPCNNB_CNN, fields
from dlio_bench.benchmarks.model import Course, Part, Sample
from dlio_bench.benchmarks.networks import Layers, keras
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.errors import DataError, Diverged, EnvironmentFailure, UsageError
from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.commands.run.asked.jobs import jobs
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.commands.run.asked.sizing import TrialSize, shorten
from dlio_bench.harness.commands.run.measured import loop, training
from dlio_bench.harness.commands.run.measured.times import Pass
from dlio_bench.harness.commands.run.measured.validation import run_pass
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training import libraries
from dlio_bench.harness.training.checkpoint import Found, TrainingState, newest, save
from dlio_bench.harness.training.exchange.exchange import open_exchange
from dlio_bench.harness.training.exchange.options import ExchangeOptions
from dlio_bench.harness.training.network import Checkpoints, NetworkTrainer, widths
from dlio_bench.harness.training.trainer import Emulated, StepOverhead

pytestmark = pytest.mark.slow

SHAPE, BATCH, STEPS = (16, 16, 3), 8, 3
BYTES = 16 * 16 * 3 * 4 + 4
SAMPLE = Sample((Part("data", "float32", SHAPE), Part("label", "int32", ())), SHAPE, fields)


class Counting(Solo):
    """Counts the barriers."""

    barriers = 0

    def barrier(self) -> None:
        self.barriers += 1


class Fake(Emulated, frozen=True):
    """Says what it is told to have spent, and writes down what it is asked."""

    called: list[str] = field(default_factory=list)

    def step(self, batch: Batch) -> StepOverhead:
        super().step(batch)
        self.called.append("step")
        return StepOverhead(convert=1.0, exchange=2.0)

    def save(self) -> None:
        self.called.append("save")

    def forward(self, batch: Batch) -> None:
        self.called.append(f"forward {len(batch.ids)}")

    def score(self) -> dict[str, float]:
        return {"auc": 0.75}


def batches(numbers: np.random.Generator, plan: list[Any]) -> Iterator[Batch]:
    for ids in plan:
        content = numbers.integers(0, 256, (len(ids), 12), dtype=np.uint8)
        yield Batch(ids, (Block.even(content),))


@pytest.mark.parametrize("meets", [False, True])
def test_the_loop_books_what_the_trainer_spent(meets: bool) -> None:
    ids = [np.arange(2) + 2 * step for step in range(3)]
    held_out = Pass(0, [np.arange(2), np.arange(1)], StepLog.empty(2, 2))
    log, comm, trainer = StepLog.empty(3, 2), Counting(), Fake(meets=meets)
    elapsed = loop.run_steps(
        comm, batches(np.random.Generator(np.random.Philox(1)), [*ids, *held_out.batches]), ids, log,
        trainer=trainer, sync="step", ordered=True,
        after_step={2: [lambda _, rest: run_pass(comm, rest, held_out, trainer, ordered=True)]},
    )  # fmt: skip
    assert trainer.called == [*["step", "save"] * 3, "forward 2", "forward 1"]
    assert held_out.scores == {"auc": 0.75}
    phases = log.phases()
    assert phases["convert"] == pytest.approx(np.full(3, 1.0))
    # the wait for others in a barrier is exchange too
    assert np.all(phases["exchange"] >= 2.0 - 1e-9)
    # what was converted and exchanged is not computed
    assert np.all(phases["compute"] + phases["convert"] + phases["exchange"] <= elapsed.loop)
    assert sum(part.sum() for part in phases.values()) == pytest.approx(log.clock[:, -1].sum() - log.clock[:, 0].sum())
    assert 0 <= elapsed.loop < elapsed.enclosing
    # two around the loop, one behind the pass, and one a step where nothing else makes ranks meet
    assert comm.barriers == (3 if meets else 6)


def sample_of(numbers: np.random.Generator) -> Batch:
    """Images whose brightness tells the class."""
    labels = numbers.integers(0, 2, BATCH).astype(np.int32)
    images = (numbers.standard_normal((BATCH, *SHAPE)) + 2 * labels[:, None, None, None]).astype(np.float32)
    content = np.concatenate([images.reshape(BATCH, -1).view(np.uint8), labels[:, None].view(np.uint8)], axis=1)
    return Batch(np.arange(BATCH), (Block.even(content),))


@pytest.fixture(scope="module")
def trainer() -> Iterator[NetworkTrainer]:
    exchange = open_exchange(Solo(), ExchangeOptions())
    made = NetworkTrainer(Solo(), HEPCNNB_CNN, SAMPLE, Course(STEPS, BATCH), exchange, device="cpu", seed=1)
    made.compile([(BATCH, (BYTES,))], [(BATCH, (BYTES,))])
    yield made
    made.close()


def trained(trainer: NetworkTrainer, seed: int, after: Callable[[Batch], None] = lambda _: None) -> list[float]:
    numbers = np.random.Generator(np.random.Philox(5))
    trainer.begin("prefetch", 0, seed)
    for _ in range(STEPS):
        batch = sample_of(numbers)
        spent = trainer.step(batch)
        assert spent.convert > 0
        after(batch)
    return [float(value) for value in trainer.end().losses]


def test_every_trial_begins_anew_and_nothing_reads_a_batch_after_its_step(trainer: NetworkTrainer) -> None:
    def overwrite(batch: Batch) -> None:
        batch.blocks[0].data[:] = 255  # not a number, whatever reads it

    losses = trained(trainer, seed=3)
    assert len(losses) == STEPS
    assert trained(trainer, seed=3, after=overwrite) == losses
    assert trained(trainer, seed=4) != losses  # dropout


def test_compiling_leaves_no_trace_and_steps_compile_nothing(trainer: NetworkTrainer) -> None:
    before = trainer._updates[0].train.experimental_get_tracing_count()  # type: ignore[attr-defined]
    losses = trained(trainer, seed=3)
    trainer.compile([(BATCH, (BYTES,))], [(BATCH, (BYTES,))])
    assert trained(trainer, seed=3) == losses
    assert trainer._updates[0].train.experimental_get_tracing_count() == before == 1  # type: ignore[attr-defined]


def test_statistics_of_batches_begin_anew_and_have_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    def network(shape: tuple[int, ...], _width: float, _dropout: bool, seed: int) -> Any:
        layers = Layers(shape, width=1, dropout=False, seed=seed)
        x = keras().layers.BatchNormalization(momentum=0.5)(layers.conv(layers.inputs, 4, 3))
        return layers.model(layers.dense(keras().layers.GlobalAveragePooling2D()(x), 2), "normalised")

    exchange = open_exchange(Solo(), ExchangeOptions())
    sent: list[list[tuple[int, ...]]] = []
    monkeypatch.setattr(exchange, "reduce", lambda means: sent.append([tuple(mean.shape) for mean in means]) or means)
    model = replace(HEPCNNB_CNN, network=network)
    trainer = NetworkTrainer(Solo(), model, SAMPLE, Course(STEPS, BATCH), exchange, device="cpu", seed=1)
    statistics = trainer._network.non_trainable_variables
    ends = [(trained(trainer, seed=3), [value.numpy().tolist() for value in statistics]) for _ in range(2)]
    assert ends[0] == ends[1]
    assert ends[0][1] != [[0.0] * 4, [1.0] * 4]  # with which they began
    shapes = [(3, 3, 3, 4), (4,), (4,), (4,), (4, 2), (2,)]
    assert sent == [shapes] * 2 * STEPS


def test_a_pass_scores_what_went_forward_since_the_last(trainer: NetworkTrainer) -> None:
    numbers = np.random.Generator(np.random.Philox(6))
    trainer.begin("prefetch", 0, 0)
    one, two = sample_of(numbers), sample_of(numbers)
    trainer.forward(one)
    first = trainer.score()
    trainer.forward(two)
    trainer.forward(two)
    both = trainer.score()
    trainer.forward(one)
    assert trainer.score() == first != both
    assert set(first) == {"auc", "accuracy"}


def test_too_little_memory_is_said_with_what_helps(trainer: NetworkTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> None:
        raise tensorflow().errors.ResourceExhaustedError(None, None, "OOM when allocating tensor\nand more")

    monkeypatch.setattr(trainer._updates[0], "train", exhausted)
    with pytest.raises(EnvironmentFailure, match=r"OOM when allocating tensor\. Use a smaller --batch"):
        trainer.step(sample_of(np.random.Generator(np.random.Philox(8))))


def test_a_loss_that_is_no_number_ends_the_training(trainer: NetworkTrainer) -> None:
    images = np.full((BATCH, *SHAPE), 1e34, np.float32)  # a NaN would not do: a ReLU may make 0 of it
    labels = np.arange(BATCH, dtype=np.int32)[:, None] % 2
    content = np.concatenate([images.reshape(BATCH, -1).view(np.uint8), labels.view(np.uint8)], axis=1)
    batch = Batch(np.arange(BATCH), (Block.even(content),))

    def train() -> None:
        for _ in range(STEPS):  # it spoils the weights first
            trainer.step(batch)

    trainer.begin("prefetch", 0, 3)
    with pytest.raises(Diverged, match=r"loss of hepcnn is (nan|inf) at step"):
        train()


def test_widths_are_those_of_the_blocks() -> None:
    batch = Batch(np.arange(2), (Block.even(np.zeros((2, 6))), Block.even(np.zeros((2, 1), np.int32))))
    assert widths(batch) == (48, 4)


def test_gradients_are_exchanged_as_asked() -> None:
    asked = Options(
        "cdb", tiny=True, compute="train", exchange="mpi", fp16_gradients=True, gradient_lag=1, hierarchical=True,
        ranks_per_node=4, leaders=2, exchange_timeout=9.0,
    )  # fmt: skip
    training = look_up(asked).training
    assert training is not None
    assert training.exchange(4) == ExchangeOptions(
        "mpi", fp16=True, lag=1, hierarchical=True, leaders=2, ranks_per_node=4, timeout=9.0
    )


def test_a_training_validates_as_published_unless_told_otherwise() -> None:
    options = Options("cdb", tiny=True, compute="train:deeplab")
    request = look_up(options)
    assert request.training is not None
    assert (request.training.model, request.validation, request.step_seconds(2)) == ("deeplab", 1, 0.0)
    assert look_up(replace(options, validation="none")).validation == 0
    assert look_up(replace(options, compute="emulate")).validation == 0


@pytest.mark.parametrize(
    ("missing", "version", "exchange", "says"),
    [
        ("tensorflow", "2.18.1", None, "needs TensorFlow, which is not installed"),
        ("horovod", "2.18.1", "horovod", "Horovod is not installed"),
        ("", "2.15.0", None, "TensorFlow 2.16 to 2.18, and 2.15.0"),
        ("", "2.19.0", None, "and 2.19.0 is installed"),
        ("horovod", "2.18.1", None, ""),  # MPI does it then
    ],
)
def test_libraries_that_are_missing_or_others_are_named(
    missing: str, version: str, exchange: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None if name == missing else name)
    monkeypatch.setattr(libraries, "installed_version", lambda _name: version)
    if not says:
        libraries.require_libraries(exchange)
        return
    with pytest.raises(EnvironmentFailure, match=says):
        libraries.require_libraries(exchange)


@pytest.mark.parametrize(
    ("steps", "epochs", "cut"),
    [(4, None, (1, 4)), (8, None, (1, 8)), (20, None, (3, 6)), (20, 2, (2, 8)), (3, 5, (1, 3)), (9, 1, (1, 8))],
)
def test_a_trial_is_cut_to_whole_epochs_of_one_length(steps: int, epochs: int | None, cut: tuple[int, int]) -> None:
    whole = TrialSize(2, 2, ("the batch is smaller", "an epoch has 8 steps, so a trial takes 2 epochs"))
    found = shorten(whole, 8 * 2 * 3, ranks=3, steps=steps, epochs=epochs)
    assert (found.epochs, found.steps) == cut
    assert found.epochs * found.steps <= steps
    assert found.notes[0] == "the batch is smaller"
    assert len(found.notes) == 2
    # what is left out is told: steps of each epoch, or epochs that were asked for
    assert ("of each epoch" in found.notes[1]) == (found.steps < 8)
    assert (f"of the {epochs} epochs" in found.notes[1]) == (epochs is not None and found.epochs < epochs)


def test_a_training_goes_on_where_it_was_saved(trainer: NetworkTrainer, tmp_path: Path) -> None:
    def made(resumed: Found | None) -> NetworkTrainer:
        about = Checkpoints(2, tmp_path, "1x1", {"model": "hepcnn"})
        exchange = open_exchange(Solo(), ExchangeOptions(lag=1))
        return NetworkTrainer(
            Solo(),
            HEPCNNB_CNN,
            SAMPLE,
            Course(2, BATCH),
            exchange,
            device="cpu",
            seed=2,
            checkpoints=about,
            resumed=resumed,
        )

    numbers = np.random.Generator(np.random.Philox(9))
    given = [sample_of(numbers) for _ in range(5)]
    whole, folder = made(None), tmp_path / "prefetch-1x1" / "checkpoints" / "trial-0"
    whole.begin("prefetch", 0, 7)
    for batch in given[:3]:
        whole.step(batch)
        whole.save()
    assert [path.name for path in folder.iterdir()] == ["step-00000002.npz"]
    for batch in given[3:]:
        whole.step(batch)
    done = whole.end()
    assert [checkpoint.step for checkpoint in done.summary.checkpoints] == [2]
    assert done.summary.checkpoints[0].bytes == (folder / "step-00000002.npz").stat().st_size

    found = newest(folder)
    assert found is not None
    assert (found.state.step, found.state.epoch, found.state.seed) == (2, 1, 7)
    on = made(found)
    on.begin("prefetch", 0, 7)
    for batch in given[2:]:
        on.step(batch)
    assert on.end().losses.tolist() == done.losses[2:].tolist()

    other = replace(found, state=replace(found.state, weights=found.state.weights[:-1]))
    with pytest.raises(DataError, match="weights of another model"):
        made(other)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(tmp_path / "saved", TrainingState(12, 3, 77, [], []))
    return tmp_path / "saved"


def test_a_run_that_goes_on_takes_the_seed_of_its_beginning(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = look_up(Options("cdb", tiny=True, compute="train", resume=saved))
    [job] = jobs(request, TrialSize(1, 1, ()), saved, None)
    assert (job.seed, job.trials, job.warmup_trials) == (77, 1, 0)
    assert training.first_epoch(job, 4) == 3
    assert (
        main(["run", "cdb", "--tiny", "--compute", "train", "--resume", str(saved), "--epochs", "2", "--dry-run"]) == 0
    )
    assert "32 steps in 2 further epochs of 16, after the 12 steps of the checkpoint" in " ".join(
        capsys.readouterr().out.split()
    )
    with pytest.raises(UsageError, match="in the middle of an epoch of 5"):
        training.first_epoch(job, 5)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"compute": "emulate"}, "--resume is an option of training"),
        ({"trials": 2}, "continues a training in one trial"),
        ({"warmup_trials": 1}, "continues a training in one trial"),
        ({"seed": 5}, "has seed 77"),
        ({"readers": ("upstream",)}, "starts its order again"),
    ],
)
def test_a_run_that_cannot_go_on_is_refused(asked: dict[str, Any], says: str, saved: Path) -> None:
    with pytest.raises(UsageError, match=says):
        look_up(Options("cdb", **({"tiny": True, "compute": "train", "resume": saved} | asked)))
