"""Executors of a policy on real files."""
