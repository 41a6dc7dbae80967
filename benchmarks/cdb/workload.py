"""CDB as it was run: batch, what its network uses."""

from dlio_bench.benchmarks.cdb.decode import decode
from dlio_bench.benchmarks.cdb.layout import layout
from dlio_bench.benchmarks.cdb.model import DEEPLAB, TIRAMISU
from dlio_bench.benchmarks.cdb.pipeline import UPSTREAM
from dlio_bench.benchmarks.workload import Validation, Workload

CDB = Workload(
    name="cdb",
    title="Climate Data Benchmark",
    variants={"cori": layout},
    default_variant="cori",
    view=("data[0]", "data[1]", "data[2]", "data[10]", "labels"),  # TMQ, U850, V850, PRECT
    labels=("labels",),
    batch=1,
    batch_source="NERSC/DL-Parallel-IO @290ed4a, clim_deep_learn run_cori_knl.sh: 1 in single precision",
    decode=decode,
    upstream=UPSTREAM,
    validation=Validation(
        every=1,
        forwards=1,
        order="buffered-shuffle(1)",  # sharded, not shuffled
        source="NERSC/DL-Parallel-IO @290ed4a, clim_deep_learn/semanticsegm/tiramisu-tf: a pass over the rank's share "
        "of the validation files at the end of each epoch; its read counts are 3 such passes in 3 epochs",
    ),
    models=(TIRAMISU, DEEPLAB),
)
