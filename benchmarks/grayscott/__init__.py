"""Gray-Scott: the coupled workflow of a simulation and its digital twin."""
