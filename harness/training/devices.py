"""Accelerators: each rank of a machine gets one of its own."""

from typing import Any

from dlio_bench.errors import EnvironmentFailure


def pin_gpu(config: Any, host_rank: int) -> str | None:
    """Let this process see one GPU alone, and take its memory as needed; the name, None where the machine has none.

    `config`: tensorflow.config. `host_rank`: this rank's number on its machine; ranks beyond the number of GPUs share.
    Call it before TensorFlow computes anything. EnvironmentFailure where that is too late.
    """
    gpus = config.list_physical_devices("GPU")
    if not gpus:
        return None
    gpu = gpus[host_rank % len(gpus)]
    try:
        config.set_visible_devices([gpu], "GPU")
        # TensorFlow would take all memory of the device at once, and ranks that share it would find none
        config.experimental.set_memory_growth(gpu, enable=True)
    except (RuntimeError, ValueError) as error:
        raise EnvironmentFailure(
            f"The GPU {gpu.name} cannot be given to rank {host_rank} of this machine: {error}. TensorFlow was at work "
            "before; run dlio-bench in a process of its own."
        ) from error
    return str(gpu.name)
