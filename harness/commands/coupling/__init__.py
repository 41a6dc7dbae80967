"""`dlio-bench couple`: a simulation and its digital twins, coupled through files or streams, beside both alone."""
