"""How states come from the solver to the twins: memory, files, or streams of ADIOS2. Each is an Outlet and an Inlet."""
