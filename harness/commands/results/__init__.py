"""The commands on results that are there already: they need the files alone, no ranks, no dataset."""
