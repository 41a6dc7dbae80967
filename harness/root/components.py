"""The one table of what a thread can be doing: the components of a span, from the recorder to the page.

Names are those that the NERSC study printed, where it has one (NERSC/DL-Parallel-IO @290ed4a: its TimeLogger's action
descriptions for HEPCNNB and CDB), so that a table of ours can be laid beside the paper's. The others are ours.
"""

from typing import Literal, get_args

from msgspec import Struct

Kind = Literal[
    "step", "wait", "read", "write", "metadata", "decode", "remote", "compute", "communication", "other"
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)


class Component(Struct, frozen=True):
    """kind: which sort of work it is; 'step' encloses others. published: whether the study has this name."""

    name: str
    kind: Kind
    meaning: str
    published: bool = False


COMPONENTS = (
    # the trainer's thread
    Component("Training Loop", "step", "the timed loop of a rank", published=True),
    Component("Training Iteration", "step", "one step of a rank", published=True),
    Component("Call to Next Batch", "wait", "the trainer asks for a batch, and waits for it", published=True),
    Component("check", "other", "the trainer compares ids with the plan and takes 64 bytes of each sample"),
    Component("convert", "other", "the trainer makes tensors of a batch"),
    Component("compute", "compute", "the network, or emulated compute"),
    Component("exchange", "communication", "gradients, or the barrier that ends a step"),
    Component("Checkpoint Listener", "write", "the trainer saves a checkpoint", published=True),
    Component("checkpoint write", "write", "a checkpoint goes into its file"),
    Component("checkpoint sync", "write", "the file of a checkpoint is made durable and gets its name"),
    Component("validation", "step", "a pass over the validation split"),
    # reads of the dataset's files
    Component("open", "metadata", "open a file of the dataset"),
    Component("advise", "metadata", "tell the kernel how a file will be read"),
    Component("close", "metadata", "close a file of the dataset"),
    Component("pread", "read", "read a stretch of a file of the dataset"),
    Component("copy read", "read", "read a stretch of a file's copy on the node"),
    Component("library read", "read", "a container's library reads a field of a sample"),
    Component("decode", "decode", "decompress, parse or convert a sample"),
    # tiers and other ranks
    Component("tier read", "read", "read a sample from a tier of the node"),
    Component("tier write", "write", "write samples into a tier of the node"),
    Component("remote read", "remote", "get samples from another rank"),
    Component("sample server", "remote", "answer another rank that asks for samples"),
    Component("hand-over", "remote", "ranks pass copies of files on to each other"),
    Component("stage read", "read", "read a stretch of a file to copy it to the node"),
    Component("stage write", "write", "write a stretch of a copy on the node"),
    # published pipelines
    Component("HDF5 File Read", "read", "HEPCNNB reads whole datasets of a file", published=True),
    Component("Load File", "decode", "HEPCNNB reads, transposes and permutes a file", published=True),
    Component(
        "Parallel Read Images with 4 Threads", "wait", "a thread of tf.data has a process read an image", published=True
    ),
    Component("Time to Read Single Image", "step", "CDB's reading process reads and decodes an image", published=True),
    Component("image file read", "read", "CDB's reading process reads a whole file, and takes channels out of it"),
    Component("records", "wait", "TensorFlow delivers a batch of records, which it reads and decodes by itself"),
    # gradients
    Component("all-reduce", "communication", "a thread of its own averages gradients over the ranks"),
)
BY_NAME = {component.name: component for component in COMPONENTS}
CODE = {component.name: code for code, component in enumerate(COMPONENTS, 1)}  # as recorded; 0: nothing
