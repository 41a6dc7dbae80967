"""The consumer's marks: they bind bytes to a sample's id, and a changed or missing sample changes them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.batches import Batch, Block
from dlio_bench.errors import DataError
from dlio_bench.harness.commands.run.measured.consumer import PROBES, Consumer, marks, require_planned, require_same_set
from dlio_bench.harness.timeline import StepLog


def batch(ids: list[int], samples: list[bytes]) -> Batch:
    starts = np.concatenate(([0], np.cumsum([len(sample) for sample in samples]))).astype(np.int64)
    return Batch(np.array(ids, dtype=np.int64), (Block(np.frombuffer(b"".join(samples), dtype=np.uint8), starts),))


@given(
    samples=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5),
    first=st.integers(0, 10**9),
    data=st.data(),
)
def test_a_mark_depends_on_its_own_sample_alone(samples: list[bytes], first: int, data: st.DataObject) -> None:
    ids = list(range(first, first + len(samples)))
    together = marks(batch(ids, samples))
    which = data.draw(st.integers(0, len(samples) - 1))
    assert marks(batch([ids[which]], [samples[which]]))[0] == together[which] != 0


def test_another_sample_in_its_place_is_noticed() -> None:
    random = np.random.Generator(np.random.SFC64(1))
    samples = [random.bytes(10_000) for _ in range(50)]
    right = marks(batch(list(range(50)), samples))
    swapped = marks(batch(list(range(50)), samples[1:] + samples[:1]))
    assert not np.any(right == swapped)
    blank = marks(batch(list(range(50)), [bytes(10_000)] * 50))
    assert not np.any(right == blank)


def test_probes_reach_the_whole_sample() -> None:
    # flip every byte in turn of a sample of 100: with 64 probes most flips change the mark, at both ends too
    plain = bytes(100)
    noticed = [
        marks(batch([7], [plain]))[0] != marks(batch([7], [plain[:i] + b"\1" + plain[i + 1 :]]))[0] for i in range(100)
    ]
    expected = 100 * (1 - (1 - 1 / 100) ** PROBES)
    assert abs(sum(noticed) - expected) < 20
    assert any(noticed[:10])
    assert any(noticed[-10:])


def test_samples_that_were_not_planned_are_refused() -> None:
    with pytest.raises(DataError, match="the plan has"):
        require_planned(batch([1, 2], [b"a", b"b"]), np.array([1, 3]), ordered=True)
    with pytest.raises(DataError, match="the plan has"):
        require_planned(batch([1], [b"a"]), np.array([1, 3]), ordered=False)
    with pytest.raises(DataError, match="other samples"):
        require_same_set(np.array([[1, 2], [2, 3]]), np.array([[1, 2], [3, 4]]))
    require_same_set(np.array([[4, 2], [1, 3]]), np.array([[1, 2], [3, 4]]))


def test_a_mark_covers_every_block_of_a_sample() -> None:
    whole = batch([3], [b"x" * 50])
    two = Batch(whole.ids, (*whole.blocks, Block(np.zeros(4, dtype=np.uint8), np.array([0, 4]))))
    other = Batch(whole.ids, (*whole.blocks, Block(np.ones(4, dtype=np.uint8), np.array([0, 4]))))
    assert marks(two)[0] != marks(other)[0]
    assert two.sample(0).tobytes() == b"x" * 50 + bytes(4)


def test_what_is_prepared_for_the_plan_marks_the_bytes_that_come() -> None:
    random = np.random.Generator(np.random.SFC64(1))
    plan = [batch([3, 1], [random.bytes(500), random.bytes(200)]), batch([2], [random.bytes(900)])]
    blank = [Batch(one.ids, (Block(np.zeros_like(one.blocks[0].data), one.blocks[0].starts),)) for one in plan]
    copies = [Batch(one.ids.copy(), (Block(one.blocks[0].data, one.blocks[0].starts.copy()),)) for one in plan]
    split = [Batch(one.ids, (*one.blocks, Block.even(np.ones((len(one.ids), 4), np.uint8)))) for one in plan]
    for delivered in (plan, blank, copies, split):
        log = StepLog.empty(2, 2)
        consumer = Consumer([one.ids for one in plan], [one.blocks[0].starts for one in plan], log, ordered=True)
        for step, one in enumerate(delivered):
            content = Batch(one.ids, tuple(Block(block.data.copy(), block.starts) for block in one.blocks))
            consumer.take(step, content)
            for block in content.blocks:
                block.data[:] = 0  # the reader's again
        consumer.finish()
        assert log.ids.tolist() == [[3, 1], [2, -1]]
        assert log.samples.tolist() == [[*marks(delivered[0]).tolist()], [*marks(delivered[1]).tolist(), 0]]
    with pytest.raises(DataError, match="the plan has"):
        consumer.take(0, plan[1])


def test_samples_of_zeros_leave_the_marks_of_their_ids() -> None:
    zeros = Batch(np.arange(50), (Block.even(np.zeros((50, 100), np.uint8)),))
    assert len(set(marks(zeros).tolist())) == 50
