"""Ranks and machines: communication, launchers, what a host is."""
