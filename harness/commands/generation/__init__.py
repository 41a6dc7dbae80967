"""Datasets made, checked, planned and indexed from the command line."""
