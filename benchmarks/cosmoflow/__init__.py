"""CosmoFlow: cosmological parameters from the distribution of matter (NERSC, MLPerf HPC)."""
