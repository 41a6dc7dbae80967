"""Placements of samples on real files: tiers that are filled before or during the run and serve other nodes."""
