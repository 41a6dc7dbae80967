"""Whole-slide inference: batch, what the classifier opens."""

from dlio_bench.benchmarks.workload import Workload
from dlio_bench.benchmarks.wsi.decode import decode
from dlio_bench.benchmarks.wsi.layout import TILES, layout
from dlio_bench.benchmarks.wsi.model import VGG16

WSI = Workload(
    name="wsi",
    title="Whole-slide inference",
    variants={"til": layout},
    default_variant="til",
    view=(TILES,),  # where a tile lies is looked up when its patches are written
    batch=1,
    batch_source="anagainaru/medical_DNN @49b98c0, quip_classification/code: one tile a step; patches are classified "
    "in batches of 96 and more",
    decode=decode,
    models=(VGG16,),
)
