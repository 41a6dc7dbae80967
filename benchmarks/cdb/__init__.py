"""CDB, the Climate Data Benchmark: segmentation of extreme weather (NERSC)."""
