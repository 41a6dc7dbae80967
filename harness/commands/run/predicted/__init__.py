"""Predicts a run: replays its plan on the performance model."""
