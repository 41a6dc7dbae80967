"""The documents that results are: their types, how they are loaded, checked and written."""
