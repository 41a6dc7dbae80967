"""What a result means: schema, statistics, bound, judge, comparison, and the text, HTML and CSV made from them.

Results render on a machine without MPI, HDF5 or TensorFlow: this room imports none of the others.
"""
