"""The ceiling of a path: what any reader could get from the storage under a folder."""
