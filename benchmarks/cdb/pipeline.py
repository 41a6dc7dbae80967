"""CDB's published input: tf.data over file names, four processes that read whole files, results sent over pipes.

Source: NERSC/DL-Parallel-IO @290ed4a, clim_deep_learn/semanticsegm/tiramisu-tf/tiramisu_helpers.py:

    from_tensor_slices -> shard -> shuffle(100) -> map(py_func, num_parallel_calls=4) -> prefetch(16) -> batch -> repeat

Shard and shuffle concern file names alone, and a name is a sample. The plan has done both (buffered-shuffle(100)), and
map keeps the order of its input: so the same files are read in an order of the same kind, and it is known beforehand.
`repeat` comes last: nothing of the next pass over a rank's files is read before it is asked for, and whoever validates
between two passes finds nothing read ahead behind it. Within a pass reading ahead goes on while the rank validates.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from dlio_bench import recorder
from dlio_bench.atomic_files import naming
from dlio_bench.batches import Batch, Block, Ids
from dlio_bench.benchmarks import tensors
from dlio_bench.benchmarks.cdb.decode import CODES, DEFECT, Normal, normal, plane_of
from dlio_bench.benchmarks.cdb.decode import decode as decode_of
from dlio_bench.benchmarks.pipeline import CostOf, Decode, Plan, Upstream, failure_of_files, read_failure
from dlio_bench.components import CODE
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import BenchError, EnvironmentFailure
from dlio_bench.free_space import SHARED_MEMORY

PROCESSES, PARALLEL_CALLS, PREFETCH = 4, 4, 16
INTER_OP, INTRA_OP = 6, 1
_MEMORY = "The kernel ends processes when memory runs out (see dmesg); fewer ranks need less."
_WORKER = "dlio_bench.benchmarks.cdb.worker"
PARALLEL_READ = CODE["Parallel Read Images with 4 Threads"]


class Processes:
    """The pipeline: a pool of processes, and tf.data threads that wait for them."""

    def __init__(self, processes: int = PROCESSES, parallel: int = PARALLEL_CALLS, prefetch: int = PREFETCH) -> None:
        """Start the processes, from a server that has loaded h5py and was forked off before MPI was there."""
        # late: naming a workload must not cost them
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool

        from dlio_bench.processes import fork_server

        context = fork_server(_WORKER)
        before = set(multiprocessing.active_children())
        from dlio_bench.benchmarks.cdb import worker

        self._worker = worker
        # Not multiprocessing.Pool, which waits for ever when one of its processes is killed; the way of a result,
        # pickled, over one pipe, through one thread, is the same.
        with naming(SHARED_MEMORY):
            asked = context.Semaphore(0)
            self._pool: ProcessPoolExecutor | None = ProcessPoolExecutor(
                processes, mp_context=context, initializer=worker.prepare, initargs=(asked, recorder.folder())
            )
        try:
            try:
                # a call starts a process where none is idle: none takes a call before all are asked for
                calls = [self._pool.submit(os.getpid) for _ in range(processes)]
            finally:  # whatever interrupts it: a process that waits would not end
                for _ in range(processes):
                    asked.release()
            for call in calls:
                call.result()
            tensors.tensorflow()  # before anything is timed
        except BrokenProcessPool as error:
            self.close()
            raise EnvironmentFailure(
                f"The {processes} reading processes of the pipeline do not start. {_MEMORY}"
            ) from error
        except BenchError:
            self.close()
            raise
        self._children = [child for child in multiprocessing.active_children() if child not in before]
        self.options = {"threads": parallel, "processes": processes, "prefetch": prefetch}

    @property
    def processes(self) -> tuple[int, ...]:
        """See Pipeline.processes."""
        return tuple(child.pid for child in self._children if child.pid is not None) if self._pool else ()

    def decode(self, dataset: Dataset) -> Decode:
        """See Pipeline.decode."""
        return decode_of(dataset)

    def requested_bytes(self, dataset: Dataset, plan: Plan) -> dict[int, int]:
        """See Pipeline.requested_bytes: whole files, or the datasets that are used."""
        sizes: dict[int, int] = {}
        code = CODES[dataset.manifest.variant]
        for epoch, ids in plan:
            files = dataset.locate(ids, ())[0].tolist()
            asked = (
                sum(dataset.manifest.files[file].bytes for file in files)
                if code.whole
                else int(dataset.locate(ids, code.fields)[2].sum())
            )
            sizes[epoch] = sizes.get(epoch, 0) + asked
        return sizes

    @contextmanager
    def batches(self, dataset: Dataset, plan: Plan, cost: CostOf) -> Iterator[Iterator[Batch]]:
        """See Pipeline.batches."""
        tf = tensors.tensorflow()
        scale = normal(dataset)
        shape, channels = plane_of(dataset), len(scale.code.channels)
        lock = threading.Lock()
        failures: list[tuple[int, BenchError]] = []

        def build(stretch: tensors.Stretch) -> Any:
            files = dataset.locate(stretch.ids, ())[0].tolist()
            batches = zip(stretch.batches, stretch.steps, strict=True)
            places = [(epoch, step) for (epoch, ids), step in batches for _ in ids]

            def read(position: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], ...]:
                track, number, started = recorder.current_track(), int(position), time.perf_counter()
                file, (epoch, step) = files[number], places[number]
                path = dataset.path(file)
                try:
                    place = self._worker.SamplePlace(file, epoch, step)
                    image, labels, weights, size, reading, decoding = self._apply(str(path), scale, place)
                except (OSError, KeyError, RuntimeError, BenchError) as error:
                    with lock:
                        failures.append((number, read_failure(path, error)))
                    raise
                if track is not None:
                    track.epoch, track.step = epoch, step
                    track.add(PARALLEL_READ, started, time.perf_counter(), file=file)
                with lock:  # several threads of TensorFlow come here
                    epoch_cost = cost(epoch)
                    epoch_cost.bytes_requested += size
                    epoch_cost.read_seconds += reading
                    epoch_cost.decode_seconds += decoding
                return image, labels, weights

            def load(position: Any) -> tuple[Any, ...]:
                image, labels, weights = tf.numpy_function(read, [position], (tf.float32, tf.int32, tf.float32))
                image.set_shape((channels, *shape))
                labels.set_shape(shape)
                weights.set_shape(shape)
                return image, labels, weights

            return (
                tf.data.Dataset.range(len(files))
                .map(tensors.plain(load), num_parallel_calls=self.options["threads"])
                .prefetch(self.options["prefetch"])
                .batch(stretch.size)
                .with_options(tensors.thread_options(INTER_OP, INTRA_OP))
            )

        def take(epoch: int, ids: Ids, element: Any) -> tuple[Batch, int]:
            del epoch
            return Batch(ids, tuple(Block.even(tensors.array(tensor)) for tensor in element)), 0

        def explain(stretch: tensors.Stretch, message: str) -> BenchError:
            if failures:
                return min(failures, key=lambda failure: failure[0])[1]
            return failure_of_files(dataset, dataset.locate(stretch.ids, ())[0].tolist(), message)

        with tensors.plan_batches(plan, build, take, explain, anew=True) as batches:
            yield batches

    def close(self) -> None:
        """See Pipeline.close."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _apply(self, path: str, scale: Normal, place: Any) -> Any:
        """Read one file in one of the processes."""
        from concurrent.futures.process import BrokenProcessPool

        assert self._pool is not None
        try:
            return self._pool.submit(self._worker.read, path, scale, place).result()
        except BrokenProcessPool as error:
            raise EnvironmentFailure(f"A reading process of the pipeline is gone. {_MEMORY}") from error


UPSTREAM = Upstream(
    order="buffered-shuffle(100)",
    orders=("buffered-shuffle(100)", "buffered-shuffle", "global-shuffle", "sequential"),
    exactly_once=True,
    order_known=True,
    source="NERSC/DL-Parallel-IO @290ed4a, clim_deep_learn/semanticsegm/tiramisu-tf/tiramisu_helpers.py",
    defects=(
        "The whole file is read for four of its sixteen channels: 3.4 times the bytes that are used.",
        "Results come back pickled over a pipe, through one thread that holds the interpreter.",
        DEFECT,
    ),
    departures=(
        "A trial ends with its last step. The published pipeline has up to 20 files more under way then, 16 of its "
        "prefetch and 4 of its map: in 3 epochs of 3 steps the study read 29 training files a rank for 9 steps.",
        "Of epochs that are parts of a pass (--steps-per-epoch) the last steps of a pass are left out where they make "
        "no epoch; the published iterator goes on into the next pass.",
        "A dataset that `run` makes has files for training and validation alone; `generate` and `index` cut at "
        "int(0.8 n) and int(0.9 n), as published.",
        "Names are shuffled by the run's seed, through a buffer of the same size.",
        "A reading process that is killed ends the run; the published multiprocessing.Pool waits for ever.",
    ),
    start=Processes,
    tensorflow=True,
)

UPSTREAM_SUMMIT = replace(
    UPSTREAM,
    source="azrael417/ClimDeepLearn @2b8ea11 (branch gb_update_stable), semanticsegm: CDB's pipeline, for 16 channels",
    defects=(),
    departures=(
        *UPSTREAM.departures,
        "Results come back pickled over a pipe; the published processes shared four buffers of 128 MiB.",
        "Channels are delivered in single precision and cast in the network; the published pipeline cast them to half.",
        "A file has one plane of labels; of two, the published code drew one at random for each read.",
        "`--reader staged-subset --order 'subset-shuffle(250)'` with 6 ranks a node reads each file once, by rank i "
        "mod N, and passes copies on around a ring, as published. Its ranks draw their files for themselves, so that a "
        "node keeps fewer than 1,500 different ones, and all validation files are dealt; a published node drew 1,500 "
        "and 150, those that it read among them.",
        "Files are staged as they are. The published staging rewrote them (parallel_stagein.py --cvt climate:), in "
        "single precision as before, labels as int32, without stats: 256 bytes of 60 MB less. No script asked for its "
        "half precision.",
    ),
)

# train_loader of mlcommons/hpc @2c627d4, deepcam/src/deepCam/data/__init__.py: DistributedSampler(shuffle, drop_last)
# and a DataLoader of PyTorch, whose workers, min(4, the local batch), have two batches each under way.
DEEPCAM_WORKERS, DEEPCAM_BATCH = 2, 2
UPSTREAM_DEEPCAM = replace(
    UPSTREAM,
    order="global-shuffle",
    orders=("global-shuffle", "sequential", "buffered-shuffle"),
    source="mlcommons/hpc @2c627d4, deepcam/src/deepCam/data: DistributedSampler, DataLoader, CamDataset",
    defects=("A file is opened for each sample, and its statistics are applied sample by sample.",),
    departures=(
        "Two processes stand for the two workers that PyTorch's DataLoader has with a batch of 2. A worker makes whole "
        "batches; here both read for one batch, 8 samples ahead (2 batches for each worker).",
        "Results come back pickled over a pipe; PyTorch's come in shared memory.",
        "Labels are delivered as int32, and a weight for each pixel beside them; the published labels are int64, and "
        "the loss looks weights up.",
        "Samples are shuffled by the run's seed.",
    ),
    start=partial(Processes, DEEPCAM_WORKERS, DEEPCAM_WORKERS, 2 * DEEPCAM_WORKERS * DEEPCAM_BATCH),
)
