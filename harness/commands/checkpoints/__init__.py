"""Checkpoints of published sizes: what files they have, written and read by ranks, timed and checked."""
