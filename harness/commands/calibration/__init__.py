"""Calibration: the numbers of a machine that the performance model needs, measured on it."""
