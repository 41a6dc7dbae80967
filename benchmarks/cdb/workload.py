"""CDB as it was run: batch, what its network uses."""

from functools import partial

from dlio_bench.benchmarks.cdb.decode import DEEPCAM, SUMMIT, decode
from dlio_bench.benchmarks.cdb.layout import deepcam, layout
from dlio_bench.benchmarks.cdb.model import DEEPCAM as DEEPCAM_MODEL
from dlio_bench.benchmarks.cdb.model import DEEPLAB, DEEPLAB_SUMMIT, TIRAMISU, TIRAMISU_SUMMIT
from dlio_bench.benchmarks.cdb.pipeline import UPSTREAM, UPSTREAM_DEEPCAM, UPSTREAM_SUMMIT
from dlio_bench.benchmarks.workload import Validation, Workload

CDB = Workload(
    name="cdb",
    title="Climate Data Benchmark",
    variants={"cori": layout, "summit": partial(layout, variant="summit"), "deepcam": deepcam},
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
    models=(TIRAMISU, DEEPLAB, TIRAMISU_SUMMIT, DEEPLAB_SUMMIT, DEEPCAM_MODEL),
    variations={
        "summit": {
            "view": SUMMIT.fields,
            "batch": 2,
            "batch_source": "azrael417/ClimDeepLearn @2b8ea11, run_scripts/summit: 2 a GPU in half precision",
            "upstream": UPSTREAM_SUMMIT,
        },
        "deepcam": {
            "view": DEEPCAM.fields,
            "labels": (DEEPCAM.labels,),
            "batch": 2,
            "batch_source": "mlcommons/hpc @2c627d4, deepcam/src/deepCam/run_scripts/run_training.sh",
            "upstream": UPSTREAM_DEEPCAM,
            "validation": Validation(
                every=1,
                forwards=1,
                order="buffered-shuffle(1)",  # sharded, not shuffled
                source="mlcommons/hpc @2c627d4, deepcam/src/deepCam/train.py: a pass behind each epoch",
            ),
        },
    },
)
