"""Published large models whose checkpoints are imitated: sizes and how they are sharded, no data and no training."""
