"""dlio-bench as a part of other tools, which load these files themselves."""
