"""What the model predicts of a run: its plan replayed on the performance model."""
