"""HEPCNNB: classification of calorimeter images (NERSC)."""
