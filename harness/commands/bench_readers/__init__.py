"""`dlio-bench bench-readers`: our readers beside plain loops, HDF5 and tf.data, on the same files in the same run."""
