"""Placement: which samples a node keeps in which tier, and in which order it fetches them. Pure functions of the plan."""
