"""`dlio-bench run`: sizes, launches, times and checks a run, and writes its results."""
