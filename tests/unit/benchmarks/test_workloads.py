"""The registry and the numbers of each workload, against hand arithmetic and the published figures."""

import pickle
import subprocess
import sys

import pytest

from dlio_bench.benchmarks.hepcnnb.model import forward_macs, step_seconds
from dlio_bench.benchmarks.model import choose
from dlio_bench.benchmarks.profile import DERIVED, ESTIMATE, PUBLISHED
from dlio_bench.benchmarks.registry import WORKLOADS, find
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.errors import UsageError

ALL = [pytest.param(workload, id=name) for name, workload in WORKLOADS.items()]


def test_a_misspelt_workload_is_guessed() -> None:
    with pytest.raises(UsageError, match=r"no workload 'cosmo-flow'\. Did you mean 'cosmoflow'"):
        find("cosmo-flow")


@pytest.mark.parametrize("workload", ALL)
def test_a_workload_is_found_by_its_name_and_fits_together(workload: Workload) -> None:
    assert find(workload.name) is workload
    assert workload.default_variant in workload.variants
    default = workload.variants[workload.default_variant](False, RANDOM)
    assert set(workload.view) <= {field.name for field in default.fields}
    for variant, make in workload.variants.items():
        for tiny in (False, True):
            layout = make(tiny, RANDOM)
            assert (layout.workload, layout.variant, layout.tiny) == (workload.name, variant, tiny)
            assert layout.container in CONTAINERS
            assert pickle.loads(pickle.dumps(layout)).fields == layout.fields  # processes write the files
            assert layout.source
    assert workload.variants[workload.default_variant](True, RANDOM).sample_bytes < default.sample_bytes / 25


@pytest.mark.parametrize("workload", ALL)
def test_every_workload_has_a_v100_and_says_where_numbers_come_from(workload: Workload) -> None:
    assert next(iter(workload.profiles)) == "v100"
    for device, profile in workload.profiles.items():
        assert (profile.workload, profile.device, profile.name) == (workload.name, device, device)
        assert profile.kind in (PUBLISHED, DERIVED, ESTIMATE)
        assert profile.source
        assert set(profile.variants) <= set(workload.variants)
        for variant in profile.variants:
            assert choose(workload.models, variant, profile.model).name == profile.model
    assert workload.batch_source


def test_the_operation_count_of_the_hep_network_by_hand() -> None:
    # 9 * 128 = 1152 multiply-accumulates a pixel and input channel
    by_hand = 1152 * (50_176 * 3 + 12_544 * 128 + 3_136 * 128 + 784 * 128 + 196 * 128) + 256
    assert forward_macs() == by_hand == 2_630_025_472
    assert step_seconds(1, 6 * by_hand) == 1.0  # two operations each, three passes
    v100 = WORKLOADS["hepcnnb"].profiles["v100"]
    assert v100.kind == ESTIMATE
    # half of the 15.7 TFLOP/s of the data sheet
    assert v100.seconds(128) == round(step_seconds(128, 15.7e12 * 0.5), 4) == pytest.approx(0.2573, abs=1e-4)


def test_step_times_are_the_published_ones() -> None:
    found = {
        (workload.name, device): (row.seconds, row.batch, profile.kind)
        for workload in WORKLOADS.values()
        for device, profile in workload.profiles.items()
        for row in profile.rows
    }
    assert len(found) == 16
    assert found["cdb", "a100"] == (0.0723, 2, DERIVED)
    assert found["cdb", "h100"] == (0.0322, 1, DERIVED)
    assert found["cdb", "v100"] == (round(4.188 / 20.93, 4), 1, DERIVED)
    assert found["cdb", "knl"] == (42.9, 1, DERIVED)
    assert found["hepcnnb", "knl"] == (4.82, 128, DERIVED)
    assert found["cosmoflow", "v100"] == (0.00936, 1, PUBLISHED)
    assert found["imagenet", "h100"] == (0.224, 400, PUBLISHED)


def test_naming_workloads_does_not_import_hdf5_or_tensorflow() -> None:
    code = (
        "import sys; from dlio_bench.benchmarks.registry import WORKLOADS; "
        "[make(False, 'random') for w in WORKLOADS.values() for make in w.variants.values()]; "
        "print(sorted({'h5py', 'tensorflow', 'mpi4py', 'concurrent.futures.process'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
