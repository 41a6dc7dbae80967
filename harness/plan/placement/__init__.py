"""Placement: which samples a node keeps in which tier, and in which order: pure functions of the plan."""
