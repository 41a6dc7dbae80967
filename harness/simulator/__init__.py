"""The simulator: a policy's row executed on the performance model instead of on files."""
