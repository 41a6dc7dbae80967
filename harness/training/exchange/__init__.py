"""Gradient exchange: the average of every rank's gradients on every rank, by Horovod or by MPI, now or a step late."""
