"""What each order is, its shares of unequal files, and orders and shares that cannot be."""

import numpy as np
import pytest
from msgspec.structs import replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.draws import Purpose, draw_words, permutation_of, stage_partition, stage_subset
from dlio_bench.harness.plan.orders import ORDERS, Ids, Shape, find_order, part_of_pass, permutation


def test_sequential_is_each_ranks_own_share_front_to_back_in_every_epoch() -> None:
    shape = Shape(samples=12, ranks=2, batch=3)
    assert ORDERS["sequential"](shape, 1, 0, 9).tolist() == [[6, 7, 8], [9, 10, 11]]
    assert ORDERS["sequential"](shape, 1, 3, 7).tolist() == [[6, 7, 8], [9, 10, 11]]


def test_the_ranks_of_a_node_cut_its_share_step_by_step() -> None:
    shape = Shape(samples=16, ranks=4, batch=2, ranks_per_node=2, shard="node")
    assert ORDERS["sequential"](shape, 2, 0, 9).tolist() == [[8, 9], [12, 13]]
    assert ORDERS["sequential"](shape, 3, 0, 9).tolist() == [[10, 11], [14, 15]]


def test_global_shuffle_slices_one_permutation_batch_by_batch() -> None:
    shape = Shape(samples=12, ranks=2, batch=3)
    order = permutation(12, epoch=1, seed=5).reshape(2, 2, 3)
    for rank in range(2):
        assert ORDERS["global-shuffle"](shape, rank, 1, 5).tolist() == order[:, rank].tolist()


def test_epochs_that_are_parts_of_a_pass_go_on_where_the_last_one_ended() -> None:
    order, shape = ORDERS["global-shuffle"], Shape(samples=16, ranks=2, batch=1)
    epochs = [part_of_pass(order, shape, 1, epoch, 5, steps=3, parts=2).tolist() for epoch in range(3)]
    first, second = (order(shape, 1, number, 5).tolist() for number in range(2))
    assert epochs == [first[:3], first[3:6], second[:3]]  # two of the eight steps make no epoch
    assert part_of_pass(order, shape, 1, 1, 5, steps=3, parts=1).tolist() == second[:3]


def test_the_permutation_is_the_same_on_every_machine() -> None:
    # golden: Philox words, sorted; a change here changes every published seed
    assert permutation(10, epoch=0, seed=1).tolist() == GOLDEN


GOLDEN = [3, 5, 2, 9, 7, 0, 8, 6, 1, 4]


FILES = Shape(400, 4, 1, bounds=np.arange(0, 401, 10), ranks_per_node=2)  # 40 files of ten samples


def files_of(stream: Ids) -> list[int]:
    """The files of ten samples that a stream goes through, each once and whole."""
    files = (stream.ravel() // 10).tolist()
    runs = [file for at, file in enumerate(files) if at == 0 or files[at - 1] != file]
    assert len(set(runs)) == len(runs) == len(files) // 10
    return runs


@pytest.mark.parametrize(("shard", "own"), [("rank", range(10, 20)), ("node", range(20))])
def test_file_shuffle_goes_through_its_own_files_in_a_new_order_each_epoch(shard: str, own: range) -> None:
    shape = replace(FILES, shard=shard)
    shared = (0, 1) if shard == "node" else (1,)
    orders = []
    for epoch in range(3):
        stream = np.stack([ORDERS["file-shuffle"](shape, rank, epoch, 5) for rank in shared], axis=1)
        orders.append(files_of(stream))
        inside = stream.ravel()[:10] % 10
        assert sorted(inside) == list(range(10)) != inside.tolist()  # a file's samples are permuted
    assert orders[0] == list(own)  # shuffled at the end of an epoch
    assert sorted(orders[1]) == sorted(orders[2]) == list(own)
    assert orders[0] != orders[1] != orders[2]


def test_global_file_shuffle_permutes_all_files_on_top_of_the_order_before() -> None:
    orders = []
    for epoch in range(4):
        parts = [ORDERS["global-file-shuffle"](FILES, rank, epoch, 5) for rank in range(4)]
        orders.append([file for part in parts for file in files_of(part)])
        assert [len(files_of(part)) for part in parts] == [10] * 4
    assert orders[0] == list(range(40))  # shuffled at the end of an epoch
    for epoch in range(1, 4):
        step = permutation_of(draw_words(Purpose.FILES_OF_ALL, 0, epoch, 5, 40))
        assert orders[epoch] == [orders[epoch - 1][place] for place in step]
        assert set(orders[epoch][:10]) != set(orders[epoch - 1][:10])  # a rank gets other files


def test_file_orders_of_one_sample_a_file_need_no_bounds() -> None:
    with_bounds = Shape(40, 4, 2, bounds=np.arange(41), ranks_per_node=2)
    for name in [*ORDERS, "buffered-shuffle(3)", "subset-shuffle(2)"]:
        for rank in range(4):
            plain = find_order(name)(replace(with_bounds, bounds=None), rank, 1, 5)
            assert plain.tolist() == find_order(name)(with_bounds, rank, 1, 5).tolist()


def test_node_shuffle_mixes_the_files_that_stage_partition_gives_the_node() -> None:
    shape = replace(FILES, batch=5)
    for node in range(2):
        parts = [ORDERS["node-shuffle"](shape, rank, 1, 5) for rank in (2 * node, 2 * node + 1)]
        files, counts = np.unique(np.concatenate(parts) // 10, return_counts=True)
        assert files.tolist() == stage_partition(40, 2, node).tolist()
        assert set(counts) == {10}
        # not file after file: a rank's first ten samples come from many
        assert all(len(set((part.ravel()[:10] // 10).tolist())) > 5 for part in parts)


def test_subset_shuffle_mixes_the_files_that_the_rank_drew_and_draws_them_once() -> None:
    for epoch in range(2):
        for rank in range(4):
            part = find_order("subset-shuffle(7)")(FILES, rank, epoch, 5)
            assert sorted(set((part.ravel() // 10).tolist())) == stage_subset(40, 4, rank, 7, 5).tolist()
            assert part.size == 70


@pytest.mark.parametrize("shard", ["rank", "node"])
def test_the_set_of_a_buffered_shuffle_is_known_whatever_its_buffer(shard: str) -> None:
    sizes = [3, 7, 5, 5, 2, 9, 6, 4, 4]
    shape = Shape(45, 4, 4, bounds=np.cumsum([0, *sizes]), ranks_per_node=2, shard=shard)
    for rank in range(4):
        kept = {
            tuple(sorted(find_order(f"buffered-shuffle({k})")(shape, rank, epoch, 5).ravel()))
            for k in (1, 4, 9, 99)
            for epoch in range(2)
        }
        assert len(kept) == 1
    # a rank's every ranks-th file; in a node's share every local_size-th
    firsts = [find_order("buffered-shuffle(1)")(shape, rank, 0, 5)[0, 0] for rank in range(4)]
    assert firsts == ([0, 3, 10, 15] if shard == "rank" else [0, 10, 3, 15])


def test_orders_deal_shares_of_files_of_unequal_size_by_the_least() -> None:
    sizes = [4, 6, 2, 8, 5, 5, 1]  # seven files over two ranks: three each, the last one left over
    shape = Shape(31, 2, 2, bounds=np.cumsum([0, *sizes]))
    assert ORDERS["file-shuffle"].fit(shape).steps == 6  # 12 and 18 samples
    assert ORDERS["buffered-shuffle"].fit(shape).steps == 5  # 11 and 19
    assert ORDERS["node-shuffle"].fit(shape).steps == 5  # the same files
    assert ORDERS["global-file-shuffle"].fit(shape).steps == 3  # at worst 1 + 2 + 4
    assert find_order("subset-shuffle(2)").fit(shape).steps == 1  # at worst 1 + 2
    padded = replace(shape, last="pad")
    assert ORDERS["file-shuffle"].fit(padded).steps == 10  # 20 and 5 + 5 + 1 + 4
    assert ORDERS["global-file-shuffle"].fit(padded).steps == 12  # at worst 8 + 6 + 5 + 5


def test_subsets_count_deliveries_as_their_draws_may_share_files() -> None:
    few, many = (find_order(f"subset-shuffle({count})").fit(Shape(100, 4, 1)) for count in (10, 40))
    assert (few.delivered, few.dropped, few.padded) == (40, 60, 0)
    assert (many.delivered, many.dropped, many.padded) == (160, 0, 60)


def test_a_number_that_python_would_not_read_is_refused() -> None:
    with pytest.raises(UsageError, match="whole number"):
        find_order("buffered-shuffle(" + "9" * 5000 + ")")


def test_orders_are_found_with_their_number_and_tell_it() -> None:
    assert find_order("buffered-shuffle(100)").name == "buffered-shuffle(100)"
    assert find_order("buffered-shuffle(100)").number == 100
    assert find_order("buffered-shuffle").name == "buffered-shuffle(10000)"
    assert find_order("subset-shuffle").number is None
    assert find_order("subset-shuffle(250)").name == "subset-shuffle(250)"
    assert all(find_order(name) is ORDERS[name] for name in ORDERS)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("file-shuffle", Shape(3, 4, 1), "4 ranks cannot share 3 files"),
        ("file-shuffle", Shape(3, 4, 1, ranks_per_node=1, last="pad"), "4 ranks cannot share 3 files"),
        ("global-file-shuffle", Shape(90, 4, 1, bounds=np.arange(0, 91, 30)), "4 ranks cannot share 3 files"),
        ("buffered-shuffle", Shape(3, 4, 1), "at most 3 ranks"),
        ("node-shuffle", Shape(3, 8, 1, ranks_per_node=2), "4 nodes cannot share 3 files"),
        ("file-shuffle", Shape(3, 8, 1, ranks_per_node=2, shard="node"), "4 nodes cannot share 3 files"),
        ("subset-shuffle", Shape(3, 4, 1), r"cannot draw 0 different files of 3"),
        ("subset-shuffle(9)", Shape(8, 4, 1), r"cannot draw 9 different files of 8"),
        ("file-shuffle", Shape(12, 4, 4), "hold only 3 samples, but a step takes 4"),
        ("node-shuffle", Shape(14, 8, 1, ranks_per_node=4), None),
        ("node-shuffle", Shape(14, 8, 2, ranks_per_node=4), "a node's 4 ranks hold only 7 samples, but a step takes 8"),
    ],
)
def test_shares_that_cannot_be_are_refused_with_numbers(name: str, shape: Shape, says: str | None) -> None:
    order = find_order(name)
    if says is None:
        assert order.fit(shape).steps == 1
        return
    for attempt in (lambda: order.fit(shape), lambda: order(shape, 0, 0, 0)):
        with pytest.raises(UsageError, match=says):
            attempt()
