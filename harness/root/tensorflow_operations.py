"""What TensorFlow's runtime trace calls its operations, and what they do: a literal table.

Sources: the names and kernels of TensorFlow 2.18 (core/ops/{io,image,decode,parsing,dataset}_ops.cc, and
core/kernels/data/iterator_ops.cc), of tf.data's iterators (core/framework/dataset.h: `Iterator::` and the names of all
stages, the innermost last), of Horovod 0.28 (horovod/tensorflow/mpi_ops.cc), and of the executor, which writes
`node name:Operation` (core/common_runtime/executor.cc).
"""

from collections.abc import Mapping
from types import MappingProxyType

from dlio_bench.components import COMPONENTS, Component

GET_NEXT, PYTHON = "tf:IteratorGetNext", "tf:PyFunc"
# What many short operations are added up as.
STAGE, INPUT, NETWORK = "tf:dataset stage", "tf:input op", "tf:network op"
CALL, EAGER, SET_UP = "tf:function call", "tf:eager op", "tf:set-up"
ADDED_UP = frozenset({STAGE, INPUT, NETWORK, CALL, EAGER, SET_UP})
# They go on after the call that starts them.
ASYNCHRONOUS = frozenset({"tf:allreduce", "tf:broadcast", "tf:allgather"})
# TensorFlow says how many bytes these delivered; of all others it says nothing.
REPORT_BYTES = frozenset({GET_NEXT})

OPERATIONS = (
    Component(GET_NEXT, "wait", "takes the next element of a dataset, and waits until it is there"),
    Component("tf:ReadFile", "read", "reads a whole file"),
    Component("tf:TFRecord", "read", "reads the next record of a TFRecord file, of which a buffer is read ahead"),
    Component("tf:FixedLengthRecord", "read", "reads the next record of fixed length"),
    Component("tf:TextLine", "read", "reads the next line of a text file"),
    Component("tf:RestoreV2", "read", "reads variables from a checkpoint"),
    Component("tf:SaveV2", "write", "writes variables to a checkpoint"),
    Component("tf:WriteFile", "write", "writes a whole file"),
    Component("tf:DecodeRaw", "decode", "makes numbers of bytes"),
    Component("tf:DecodeCompressed", "decode", "decompresses bytes"),
    Component("tf:DecodeJpeg", "decode", "decodes a JPEG image, or a part of it"),
    Component("tf:DecodeImage", "decode", "decodes an image of any format"),
    Component("tf:ExtractJpegShape", "decode", "reads the size of a JPEG image from its head"),
    Component("tf:ParseExample", "decode", "takes the features out of an Example"),
    Component(PYTHON, "other", "calls a Python function, which needs the interpreter"),
    Component("tf:ParallelMap", "wait", "waits for the calls of a parallel map, or batch"),
    Component("tf:ParallelInterleave", "wait", "waits for the files of a parallel interleave"),
    Component("tf:Prefetch", "wait", "waits for an element that is fetched ahead"),
    Component("tf:allreduce", "communication", "Horovod averages gradients over ranks, from start to end"),
    Component("tf:broadcast", "communication", "Horovod sends what a rank has to all others, from start to end"),
    Component("tf:allgather", "communication", "Horovod gathers what all ranks have, from start to end"),
    Component(STAGE, "other", "any other stage of a dataset: batch, shuffle, zip, range"),
    Component(INPUT, "decode", "any other operation in a thread of tf.data"),
    Component(NETWORK, "compute", "any other operation, as those of a network"),
    Component(CALL, "wait", "calls a function of many operations, and waits for them"),
    Component(EAGER, "other", "any other operation that Python calls by itself, as one that makes a tensor"),
    Component(SET_UP, "other", "builds a graph, a dataset or its iterator"),
)
BY_NAME = {operation.name: operation for operation in OPERATIONS}
# as recorded, behind the codes of the components
CODE = {operation.name: code for code, operation in enumerate(OPERATIONS, 1 + len(COMPONENTS))}

# operation of the trace -> component, where the name is another
ALIASES: Mapping[str, str] = MappingProxyType({
    "DecodePaddedRaw": "tf:DecodeRaw",
    "DecodeAndCropJpeg": "tf:DecodeJpeg",
    "DecodePng": "tf:DecodeImage", "DecodeBmp": "tf:DecodeImage", "DecodeGif": "tf:DecodeImage",
    "ParseExampleV2": "tf:ParseExample", "ParseSingleExample": "tf:ParseExample",
    "EagerPyFunc": PYTHON, "PyFuncStateless": PYTHON,
    "RestoreSlice": "tf:RestoreV2", "Restore": "tf:RestoreV2", "Save": "tf:SaveV2", "SaveSlices": "tf:SaveV2",
    "HorovodAllreduce": "tf:allreduce", "HorovodGroupedAllreduce": "tf:allreduce",
    "HorovodReducescatter": "tf:allreduce", "HorovodGroupedReducescatter": "tf:allreduce",
    "HorovodBroadcast": "tf:broadcast", "HorovodBroadcastInplace": "tf:broadcast",
    "HorovodAllgather": "tf:allgather", "HorovodGroupedAllgather": "tf:allgather",
})  # fmt: skip

# stage of a dataset -> component; all others are STAGE
STAGES: Mapping[str, str] = MappingProxyType({
    "TFRecord": "tf:TFRecord", "TFRecordV2": "tf:TFRecord",
    "FixedLengthRecord": "tf:FixedLengthRecord", "FixedLengthRecordV2": "tf:FixedLengthRecord",
    "TextLine": "tf:TextLine",
    "ParallelMap": "tf:ParallelMap", "ParallelMapV2": "tf:ParallelMap", "MapAndBatch": "tf:ParallelMap",
    "ParallelBatch": "tf:ParallelMap",
    **{f"ParallelInterleaveV{version}": "tf:ParallelInterleave" for version in (2, 3, 4)},
    "LegacyParallelInterleaveV2": "tf:ParallelInterleave",
    "Prefetch": "tf:Prefetch", "Root": "tf:Prefetch",
})  # fmt: skip

_SET_UP = ("MakeIterator", "tf.function-graph_building")
_DATASETS = ("Dataset", "DatasetV2", "DatasetV3", "DatasetV4", "MakeIterator", "IteratorV2", "IteratorV3")
_EAGER = "EagerLocalExecute: "
_NEXT = "IteratorGetNextOp::DoCompute"


def component(event: str, *, of_input: bool) -> str | None:
    """The component of an event of the trace; None for one that says nothing of its own, as the executor's bookkeeping.

    of_input: whether the event is in a thread of tf.data.
    """
    if event == _NEXT:
        return GET_NEXT
    if event.startswith("Iterator::"):
        stage = event.rpartition("::")[2].partition("[")[0]
        return STAGES.get(stage, STAGE)
    if event.startswith(_SET_UP):
        return SET_UP
    if event.startswith(_EAGER):
        return _eager_component(event.removeprefix(_EAGER))
    node, colon, operation = event.rpartition(":")
    if not colon or not node or node.endswith(":") or not operation.isidentifier():
        return None
    return operation_component(operation) or (INPUT if of_input else NETWORK)


def _eager_component(operation: str) -> str | None:
    """Operations that Python calls one by one, with the iterators that it makes."""
    if operation.startswith("IteratorGetNext"):
        return None  # its kernel says more
    if operation.startswith("__"):
        return CALL
    return operation_component(operation) or (SET_UP if operation.endswith(_DATASETS) else EAGER)


def operation_component(operation: str) -> str | None:
    """The component of an operation by its type, where the table has it."""
    name = ALIASES.get(operation, f"tf:{operation}")
    return name if name in BY_NAME else None
