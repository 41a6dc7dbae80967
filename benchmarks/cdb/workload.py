"""CDB as it was run: batch, what its network uses, step times."""

from dlio_bench.benchmarks.cdb.decode import decode
from dlio_bench.benchmarks.cdb.layout import layout
from dlio_bench.benchmarks.cdb.model import DEEPLAB, TIRAMISU
from dlio_bench.benchmarks.cdb.pipeline import UPSTREAM
from dlio_bench.benchmarks.workload import DERIVED, StepTime, Validation, Workload

CDB = Workload(
    name="cdb",
    title="Climate Data Benchmark",
    variants={"cori": layout},
    default_variant="cori",
    view=("data[0]", "data[1]", "data[2]", "data[10]", "labels"),  # TMQ, U850, V850, PRECT
    batch=1,
    batch_source="NERSC/DL-Parallel-IO @290ed4a, clim_deep_learn run_cori_knl.sh: 1 in single precision",
    step_times=(
        StepTime(
            device="v100",
            seconds=round(4.188 / 20.93, 4),
            batch=1,
            kind=DERIVED,
            source="4.188 TF a sample over 20.93 TF/s a GPU, Tiramisu (Kurth et al., arXiv 1810.01993, as quoted in "
            "G. Lockwood's notes)",
        ),
        StepTime(
            device="knl",
            seconds=42.9,
            batch=1,
            kind=DERIVED,
            source="seconds per training or validation step on 64 Cori KNL nodes, computed from the totals of slides "
            "Project_Progress_20180727 s12-s13 (NERSC/DL-Parallel-IO @290ed4a)",
        ),
    ),
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
