"""Placements of samples, carried out: what a node keeps in its tiers, filled beside the run and served to others."""
